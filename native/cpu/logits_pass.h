// The passes over the logits of a row (see target.h).
#pragma once

#include "cpu/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

void sum_logits(const cpu::LogitsRow& row, bool with_entropy, int64_t first, int64_t last,
                const cpu::LogitsTerms& saved, SoftmaxSums* sums, double* target);
void logits_gradient(const cpu::LogitsRow& row, const SoftmaxGradient& gradient, bool with_entropy,
                     int64_t first, int64_t last, const cpu::LogitsTerms& saved, void* out, DType out_dtype);
void largest_of_groups(const cpu::LogitsRow& row, float* largest);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
