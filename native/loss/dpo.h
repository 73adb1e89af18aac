// DPO: the logistic loss of the margin between a chosen and a rejected response (arXiv 2305.18290), with
// label smoothing. Even rows hold chosen responses, and odd rows hold rejected ones.
//
// The loss depends on a row only through the row's sum of logprob − ref_logprob. It is therefore computed
// from row sums. All unmasked tokens of a row have the same gradient, which is called the row's gradient
// weight.
#pragma once

#include <cmath>
#include <cstdint>

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Dpo {
  static constexpr const char* name = "dpo";
  struct Options {
    double beta, label_smoothing, pairwise;
  };
  static constexpr Field<Options> fields[] = {
      {"beta", &Options::beta},
      {"label_smoothing", &Options::label_smoothing},
      {"pairwise", &Options::pairwise},
  };
  static constexpr LossTraits traits{
      .columns = reads(kRefLogprob), .row_sums = RowSums::kAlways, .by_pairs = true};
  static constexpr Metric metrics[] = {{"chosen_reward", Metric::kPair, 0},
                                       {"rejected_reward", Metric::kPair, 1},
                                       {"accuracy_mean", Metric::kPair, 2},
                                       {"dpo_loss", Metric::kLoss}};
  using Row = NoRow;

  double beta, label_smoothing;
  bool pairwise;

  explicit Dpo(const Options& o)
      : beta(o.beta), label_smoothing(o.label_smoothing), pairwise(o.pairwise != 0) {}

  PL_FN double row_term(const Token& t) const { return static_cast<double>(t.logprob) - t.ref_logprob; }
  PL_FN NoRow row(double, double) const { return {}; }

  PL_FN TokenTerm token(const NoRow&, const Token&) const { return {0.0f, 1.0f}; }

  // The loss of one pair, and its derivative with respect to the margin h: the row sum of the chosen response
  // minus the row sum of the rejected one.
  struct Margin {
    double value, derivative;
  };
  PL_FN Margin margin(double h) const {
    const double x = beta * h;
    const double tail = ::log1p(::exp(-fabs(x)));
    const double loss_right = tail + (x < 0 ? -x : 0.0);  // -ln σ(x)
    const double loss_wrong = tail + (x > 0 ? x : 0.0);   // -ln σ(-x)
    const double e = ::exp(-fabs(x));
    const double right = (x >= 0 ? 1.0 : e) / (1.0 + e);  // σ(x)
    const double wrong = (x >= 0 ? e : 1.0) / (1.0 + e);  // σ(-x), without 1 - σ(x)'s cancellation
    return {loss_right * (1.0 - label_smoothing) + loss_wrong * label_smoothing,
            beta * (label_smoothing * right - (1.0 - label_smoothing) * wrong)};
  }

  // Computes one pair of responses from the chosen and the rejected response's row sum. Replaces the sums
  // with the gradient weights of their rows, writes the three metrics and returns the loss. If the loss is
  // pairwise, everything is divided by `pairs`, the number of pairs in the batch, so that it adds up to means
  // over pairs. Otherwise the batch is one pair, whose chosen response consists of all even rows.
  PL_FN double pair_loss(double pairs, double* sums, double* metric) const {
    const double scale = pairwise && pairs > 1 ? 1.0 / pairs : 1.0;
    const Margin m = margin(sums[0] - sums[1]);
    metric[0] = scale * beta * sums[0];
    metric[1] = scale * beta * sums[1];
    metric[2] = sums[0] > sums[1] ? scale : 0.0;
    sums[0] = scale * m.derivative;
    sums[1] = -scale * m.derivative;
    return scale * m.value;
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
