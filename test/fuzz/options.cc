#include "test/fuzz/options.h"

#include <cmath>
#include <initializer_list>
#include <string>

namespace fuzz {
namespace {

double ordinary_option(Bytes& in, const std::string& name) {
  const auto is = [&](std::initializer_list<const char*> names) {
    for (const char* one : names)
      if (name == one) return true;
    return false;
  };
  if (is({"enable_mask_clip", "differentiate_gate", "use_dynamic_bsz", "pairwise", "duplicate_experiences",
          "enable_step_norm", "std_normalize"}))
    return in.flag();
  if (is({"gamma", "lam", "lambda_coef", "label_smoothing", "rank_penalty"})) {
    const double ends[] = {0, 1, in.between(0, 1)};
    return ends[in.below(3)];
  }
  if (is({"std_threshold"})) return in.flag() ? NAN : in.between(0, 2);
  if (is({"ngpus_trainer"})) return 1 + in.below(2);
  if (is({"ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "train_batch_size_usual",
          "train_batch_size_expert"}))
    return 2 + in.below(64);
  if (is({"temp"})) return in.between(kMostAdvantage / 40, kMostAdvantage);  // keeps e^(A/temp) finite
  if (is({"baseline_shift", "advantage_threshold", "regularizer_coef", "kl_coef", "delta_sequence_masking"}))
    return in.between(-2, 2);
  if (is({"clip_ratio_c"})) return in.between(1.01, 20);
  return std::exp2(in.between(-6, 2));
}

}  // namespace

std::vector<double> read_options(Bytes& in, Values values, const std::vector<OptionInfo>& options) {
  std::vector<double> result;
  for (const OptionInfo& option : options) {
    int choices = 0;
    while (option.choices && option.choices[choices]) ++choices;
    if (choices > 0) {
      result.push_back(in.below(choices));
    } else if (values == kAny && in.below(4) == 0) {
      const double odd[] = {0, -1, 1e300, -1e300, INFINITY, -INFINITY, NAN, 1e-300};
      result.push_back(odd[in.below(8)]);
    } else {
      result.push_back(ordinary_option(in, option.name));
    }
  }
  return result;
}

}  // namespace fuzz
