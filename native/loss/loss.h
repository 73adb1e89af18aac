// What a loss is, in the words that every header of this folder uses.
//
// A loss is a small trivially copyable struct: it is constructed from its Options, reads one token at a time
// and says what that token contributes. It knows nothing of masks, rows' weights, aggregation or threads.
//
//   struct Example {
//     static constexpr const char* name;            // Trinity-RFT's registry name
//     struct Options { double … };                  // as the caller gave them
//     static constexpr Field<Options> fields[];     // their names
//     static constexpr unsigned columns;            // which columns it reads beside the mask
//     static constexpr int token_metrics;           // how many values token() adds up for the metrics
//     static constexpr Metric metrics[];            // what is made of the sums
//     explicit Example(const Options&);
//     TokenTerm token(const Row&, const Token&) const;
//   };
//
// A loss that must know something of the whole row first also has
//     static constexpr int row_metrics;
//     double row_term(const Token&) const;          // summed over the row's unmasked tokens, in float64; it
//                                                   // does not read the advantage
//     Row row(double sum, double count) const;      // what token() then gets
//     void row_metric(const Row&, double count, double negatives, double* out) const;
//
// One with a cheaper form for some of its options derives struct Simpler from itself, and sets is_simpler
// where that form gives the same.
#pragma once

#include <cstddef>

#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Columns of a batch, each float32 (or float16, bfloat16) per token.
enum Column : unsigned { kLogprob, kOldLogprob, kRefLogprob, kAdvantages, kEntropy };
constexpr int kColumns = 5;
constexpr unsigned reads(Column column) {
  return 1u << column;
}

// One token's values; a column that the loss does not read holds 0.
struct Token {
  float logprob, old_logprob, ref_logprob, advantage;
};

// Row facts of a loss that needs none.
struct NoRow {};

constexpr int kMaxTokenMetrics = 4;
constexpr int kMaxRowMetrics = 2;

// What one token contributes: its loss, the derivative of that with respect to logprob, and the terms of the
// loss's metrics. Four members and no array: compilers keep an array in memory, and then vectorise nothing.
struct TokenTerm {
  float value, derivative;
  float metric0 = 0, metric1 = 0, metric2 = 0, metric3 = 0;
};

// A named option: a member of Options, and the words it may be if it is a choice (the value is their index).
template <class Options>
struct Field {
  const char* name;
  double Options::*member;
  const char* const* choices = nullptr;
};

// How a metric comes from the sums.
struct Metric {
  enum Source {
    kTokenMean,    // a token sum / (N + 1e-8)
    kRowMean,      // a row sum / B
    kRowPerToken,  // a row sum / (N + 1e-10)
    kLoss,         // the aggregated loss itself
    kPair,         // a value that the weights pass computed
    kTotal,        // the loss of all kinds of rows together
    kMu,           // the share of the experts' rows, as the caller gave it
  };
  const char* name;
  Source source;
  int index = 0;
  int kind = 0;  // of which kind of rows (1: the experts' rows of mix)
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
