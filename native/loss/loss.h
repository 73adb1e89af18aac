// The contract that every loss in this folder fulfils.
//
// A loss is a small, trivially copyable struct that is constructed from its Options. It computes one token at
// a time and returns the token's contribution. The engines handle masks, row weights, aggregation and
// threads.
//
//   struct Example {
//     static constexpr const char* name = "example";  // Trinity-RFT's registry name
//     struct Options { double … };                    // the options' values
//     static constexpr Field<Options> fields[];       // an option's name for each member of Options
//     static constexpr LossTraits traits{.columns = reads(kAdvantages)};
//     static constexpr Metric metrics[];              // how each metric is computed from the sums
//     using Row = NoRow;
//     explicit Example(const Options&);
//     TokenTerm token(const Row&, const Token&) const;
//   };
//
// A loss whose token() needs to know the whole row sets `.row_sums` in its traits and also has these members:
//
//     struct Row { … };                             // the row statistics that token() receives
//     double row_term(const Token&) const;          // summed over the row's unmasked tokens in float64;
//                                                   // it must not read the advantage
//     Row row(double sum, double count) const;      // count: the row's unmasked tokens
//     void row_metric(const Row&, double count, double negatives, double* out) const;
#pragma once

#include "columns.h"
#include "math/scalar.h"

namespace policy_loss {

constexpr int kMaxTokenMetrics = 4;
constexpr int kMaxRowMetrics = 2;
// The maximum number of metrics over tokens of any loss. User-defined losses may have more of them than the
// losses in this folder.
constexpr int kMaxMetrics = 16;

// Tells whether a loss needs the sum of row_term() over a row before the row's tokens are computed.
enum class RowSums {
  kNever,
  kAlways,
  kByOptions,  // when its needs_row_sums() returns true
};

// The properties of a loss on which the passes depend. A loss only names the properties that differ from the
// defaults:
//   static constexpr LossTraits traits{.columns = reads(kAdvantages), .token_metrics = 2};
struct LossTraits {
  unsigned columns = 0;   // the columns that it reads in addition to logprob
  int token_metrics = 0;  // the number of metric terms that token() returns
  int row_metrics = 0;    // the number of values that row_metric() writes
  RowSums row_sums = RowSums::kNever;
  bool by_pairs = false;          // pair_loss() computes loss and row weights from the row sums
  bool two_kinds = false;         // has one loss for the usual rows and another for an expert's
  bool has_simpler_form = false;  // type Simpler gives the same result faster if is_simpler is true
  bool counts_negatives = false;  // row_metric() gets the number of negative advantages, masked or not

  PL_FN constexpr unsigned all_columns() const { return columns | reads(kLogprob); }
  // Returns the columns that token() reads. The tokens of a loss over pairs only get their row's weight.
  PL_FN constexpr unsigned token_columns() const { return by_pairs ? 0u : all_columns(); }
  PL_FN constexpr LossTraits without(unsigned excluded) const {
    LossTraits traits = *this;
    traits.columns &= ~excluded;
    return traits;
  }
};

// The name of a metric, and how the metric is computed from the sums over the batch. N is the number of
// unmasked tokens, and B is the number of rows.
struct Metric {
  enum Source {
    kTokenMean,    // a sum over tokens / (N + 1e-8)
    kRowMean,      // a sum over rows / B
    kMeanOfRows,   // the same, for a sum among those over tokens
    kBatch,        // computed from the whole batch, and absent if the call computes a part
    kRowPerToken,  // a sum over rows / (N + 1e-10)
    kLoss,         // the aggregated loss
    kPair,         // a value that pair_loss() computed
    kTotal,        // the loss of both kinds of rows together
    kMu,           // mu, the caller's weight of the expert's rows
  };
  const char* name;
  Source source;
  int index = 0;
  int kind = 0;  // the kind of rows that it covers: 0 for usual rows, 1 for an expert's
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The values of one token. A column that the loss does not read holds 0.
struct Token {
  float logprob, old_logprob, ref_logprob, advantage;
};

// The Row type of a loss that needs no row statistics.
struct NoRow {};

// The contribution of one token: its loss, the derivative of its loss with respect to logprob, and its terms
// in the sums of the metrics. The metric terms are four members instead of an array, because compilers would
// keep an array in memory and not vectorise the loop.
struct TokenTerm {
  float value, derivative;
  float metric0 = 0, metric1 = 0, metric2 = 0, metric3 = 0;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
