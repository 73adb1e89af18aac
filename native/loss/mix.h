// MIX and MIX-CHORD: PPO on the rows that the policy sampled (usual rows), and supervised fine-tuning on the
// rows that an expert wrote (arXiv 2505.17826, 2508.11408). Each kind of row is aggregated separately. Its
// loss is then multiplied by 1 − mu (usual) or mu (expert), and by kind_scale(), which depends on the number
// of rows of this kind.
#pragma once

#include <cmath>

#include "loss/ppo.h"
#include "loss/sft.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct MixOptions : PpoOptions {
  double use_dynamic_bsz, ppo_mini_batch_size, ppo_micro_batch_size_per_gpu, ngpus_trainer;
  double train_batch_size_usual, train_batch_size_expert;
  double cutoff_prob;
};

template <class ExpertLoss>
struct Mix {
  using Usual = Ppo;
  using Expert = ExpertLoss;
  using Row = NoRow;
  using Options = MixOptions;
  static constexpr Field<Options> fields[] = {
      {"clip_range_low", &Options::clip_range_low},
      {"clip_range_high", &Options::clip_range_high},
      {"clip_ratio_c", &Options::clip_ratio_c},
      {"use_dynamic_bsz", &Options::use_dynamic_bsz},
      {"ppo_mini_batch_size", &Options::ppo_mini_batch_size},
      {"ppo_micro_batch_size_per_gpu", &Options::ppo_micro_batch_size_per_gpu},
      {"ngpus_trainer", &Options::ngpus_trainer},
      {"train_batch_size_usual", &Options::train_batch_size_usual},
      {"train_batch_size_expert", &Options::train_batch_size_expert},
      {"cutoff_prob", &Options::cutoff_prob},
  };
  static constexpr LossTraits traits{.columns = Usual::traits.columns | Expert::traits.columns,
                                     .token_metrics = Usual::traits.token_metrics,
                                     .two_kinds = true};

  Usual usual;
  Expert expert;
  bool dynamic;
  double weight[2];  // one row's weight, by kind; divided by B if the batch size is dynamic

  explicit Mix(const Options& o) : usual(o), expert(expert_options(o)), dynamic(o.use_dynamic_bsz != 0) {
    const double per_gpu = std::floor(o.ppo_mini_batch_size / o.ngpus_trainer);
    const double accumulation = std::floor(o.ppo_mini_batch_size / o.ppo_micro_batch_size_per_gpu);
    const double rows = dynamic ? per_gpu : accumulation;
    weight[0] = rows / std::floor(o.train_batch_size_usual / o.ngpus_trainer);
    weight[1] = rows / std::floor(o.train_batch_size_expert / o.ngpus_trainer);
  }

  // Returns the factor by which the metrics and the loss of one kind of row are multiplied. (The loss is also
  // multiplied by 1 − mu or mu.) It relates the number of rows of this kind in the batch to their number in a
  // training batch.
  PL_FN double kind_scale(int kind, double rows_of_kind, double rows) const {
    if (rows_of_kind == 0) return 0.0;
    return rows_of_kind * weight[kind] / (dynamic ? rows : 1.0);
  }

 private:
  static typename Expert::Options expert_options(const Options& o) {
    if constexpr (requires { Expert::Options::cutoff_prob; })
      return {o.cutoff_prob};
    else
      return {};
  }
};

struct MixSft : Mix<Sft> {
  static constexpr const char* name = "mix";
  static constexpr Metric metrics[] = {
      {"usual/pg_clipfrac", Metric::kTokenMean, 0, 0}, {"usual/pg_clipfrac_lower", Metric::kTokenMean, 1, 0},
      {"usual/ppo_kl", Metric::kTokenMean, 2, 0},      {"usual/pg_loss", Metric::kLoss, 0, 0},
      {"expert/sft_loss", Metric::kLoss, 0, 1},        {"loss", Metric::kTotal}};
  using Mix::Mix;
};

struct MixChordSft : Mix<Sft> {
  static constexpr const char* name = "mix_chord_sft";
  static constexpr Metric metrics[] = {{"usual/pg_clipfrac", Metric::kTokenMean, 0, 0},
                                       {"usual/pg_clipfrac_lower", Metric::kTokenMean, 1, 0},
                                       {"usual/ppo_kl", Metric::kTokenMean, 2, 0},
                                       {"usual/pg_loss", Metric::kLoss, 0, 0},
                                       {"expert/sft_loss", Metric::kLoss, 0, 1},
                                       {"loss", Metric::kTotal},
                                       {"mu", Metric::kMu}};
  using Mix::Mix;
};

struct MixChordPhi : Mix<SftPhi> {
  static constexpr const char* name = "mix_chord";
  static constexpr Metric metrics[] = {{"usual/pg_clipfrac", Metric::kTokenMean, 0, 0},
                                       {"usual/pg_clipfrac_lower", Metric::kTokenMean, 1, 0},
                                       {"usual/ppo_kl", Metric::kTokenMean, 2, 0},
                                       {"usual/pg_loss", Metric::kLoss, 0, 0},
                                       {"expert/sft_phi_loss", Metric::kLoss, 0, 1},
                                       {"loss", Metric::kTotal},
                                       {"mu", Metric::kMu}};
  using Mix::Mix;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
