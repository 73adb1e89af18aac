// REC: group-relative REINFORCE with a choice of clipping, importance weight and regularizer
// (arXiv 2509.24203).
#pragma once

#include <cmath>
#include <limits>

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Rec {
  static constexpr const char* name = "rec";
  struct Options {
    double epsilon_low, epsilon_high, epsilon_low_prime, epsilon_high_prime;
    double clip_mode, weight, regularizer, regularizer_coef, temp;
  };
  enum ClipMode { kNoClip, kOneSide, kGspoOneSide, kTwoSide, kRing };
  enum Weight { kNoWeight, kImportanceSampling, kGspoImportanceSampling, kAdvantageWeight };
  enum Regularizer { kNoRegularizer, kK2Regularizer, kForwardKl };
  static constexpr const char* clip_modes[] = {"none",     "one-side", "gspo-one-side",
                                               "two-side", "ring",     nullptr};
  static constexpr const char* weights[] = {"none", "importance_sampling", "gspo_importance_sampling",
                                            "advantage", nullptr};
  static constexpr const char* regularizers[] = {"none", "k2", "forward-kl", nullptr};
  static constexpr Field<Options> fields[] = {
      {"epsilon_low", &Options::epsilon_low},
      {"epsilon_high", &Options::epsilon_high},
      {"epsilon_low_prime", &Options::epsilon_low_prime},
      {"epsilon_high_prime", &Options::epsilon_high_prime},
      {"clip_mode", &Options::clip_mode, clip_modes},
      {"weight", &Options::weight, weights},
      {"regularizer", &Options::regularizer, regularizers},
      {"regularizer_coef", &Options::regularizer_coef},
      {"temp", &Options::temp},
  };
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages),
                                     .token_metrics = 1,
                                     .row_sums = RowSums::kByOptions,
                                     .has_simpler_form = true};
  static constexpr Metric metrics[] = {{"pg_clipfrac", Metric::kTokenMean, 0}, {"pg_loss", Metric::kLoss}};
  struct Row {
    float log_ratio;
  };

  // A token contributes if its log ratio is within the range for the sign of its advantage, or beyond the
  // outer bound of the ring (clip mode `ring`). These six bounds express every clip mode. They bound the log
  // ratio instead of the ratio, which saves an exponential.
  float positive_low, positive_high, positive_ring, negative_low, negative_high, negative_ring;
  float by_row;  // 1 if the mode is gspo-one-side, which clips by the row's mean log ratio; else 0
  // The importance weight is e^(token_factor·d + row_factor·mean d + advantage_factor·A). Here d is the
  // token's log ratio, mean d is the mean log ratio of its row, and A is its advantage.
  float token_factor, row_factor, advantage_factor;
  bool is_simpler;  // all three factors are 0
  float k2_coef, forward_kl_coef;

  explicit Rec(const Options& o) {
    const float inf = std::numeric_limits<float>::infinity();
    const int mode = static_cast<int>(o.clip_mode);
    const bool clips = mode != kNoClip;
    const bool both_sides = mode == kTwoSide || mode == kRing;
    const float low = log_bound(1.0 - o.epsilon_low);
    const float high = log_bound(1.0 + o.epsilon_high);
    positive_low = both_sides ? low : -inf;
    positive_high = clips ? high : inf;
    negative_low = clips ? low : -inf;
    negative_high = both_sides ? high : inf;
    positive_ring = mode == kRing ? log_bound(1.0 - o.epsilon_low_prime) : -inf;
    negative_ring = mode == kRing ? log_bound(1.0 + o.epsilon_high_prime) : inf;
    by_row = mode == kGspoOneSide ? 1.0f : 0.0f;

    const int weight = static_cast<int>(o.weight);
    token_factor = weight == kImportanceSampling ? 1.0f : 0.0f;
    row_factor = weight == kGspoImportanceSampling ? 1.0f : 0.0f;
    advantage_factor = weight == kAdvantageWeight ? static_cast<float>(1.0 / o.temp) : 0.0f;
    is_simpler = weight == kNoWeight;

    const int regularizer = static_cast<int>(o.regularizer);
    const float coef = static_cast<float>(o.regularizer_coef);
    k2_coef = regularizer == kK2Regularizer ? coef : 0.0f;
    forward_kl_coef = regularizer == kForwardKl ? coef : 0.0f;
  }

  // Returns the logarithm of a bound on the ratio, or −Infinity if the bound is not positive.
  static float log_bound(double bound) {
    return bound > 0 ? static_cast<float>(std::log(bound)) : -std::numeric_limits<float>::infinity();
  }

  PL_FN double row_term(const Token& t) const { return static_cast<double>(t.logprob) - t.old_logprob; }

  PL_FN Row row(double sum, double count) const { return {static_cast<float>(sum / (count + 1e-8))}; }

  bool needs_row_sums() const { return by_row != 0.0f || row_factor != 0.0f; }

  PL_FN float weight(const Row& row, const Token& t) const {
    const float d = t.logprob - t.old_logprob;
    return exp_flushed((token_factor != 0.0f ? d : 0.0f) + row_factor * row.log_ratio +
                       advantage_factor * t.advantage);
  }

  PL_FN TokenTerm token(const Row& row, const Token& t) const { return term(row, t, weight(row, t)); }

  // The version of the loss without an importance weight. It is much faster, because computing the weight's
  // exponential would be most of the work.
  struct Simpler;

  PL_FN TokenTerm term(const Row& row, const Token& t, float weight) const {
    const float d = t.logprob - t.old_logprob;
    const float log_ratio = by_row != 0.0f ? row.log_ratio : d;
    const bool positive_in = (log_ratio >= positive_low) & (log_ratio <= positive_high);
    const bool negative_in = (log_ratio >= negative_low) & (log_ratio <= negative_high);
    const bool kept = ((t.advantage >= 0.0f) & (positive_in | (log_ratio <= positive_ring))) |
                      ((t.advantage <= 0.0f) & (negative_in | (log_ratio >= negative_ring)));
    const float policy = kept ? mul_no_nan(-t.advantage, weight) : 0.0f;
    const float derivative = policy - forward_kl_coef;
    return {derivative * t.logprob + (k2_coef != 0.0f ? k2_coef * d * d : 0.0f),
            derivative + (k2_coef != 0.0f ? 2.0f * k2_coef * d : 0.0f), indicator(!kept)};
  }
};

struct Rec::Simpler : Rec {
  explicit Simpler(const Rec& rec) : Rec(rec) {}
  PL_FN TokenTerm token(const Row& row, const Token& t) const { return term(row, t, 1.0f); }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
