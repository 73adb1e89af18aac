// A call that computes from logits: its inputs and its outputs.
#pragma once

#include <cstdint>

#include "columns.h"

namespace policy_loss {

constexpr int32_t kIgnoredTarget = -100;

// Views of the inputs and outputs of a call. Arrays per row have `rows` elements. Row r of the logits begins
// at r·row_stride.
struct LogitsCall {
  int64_t rows = 0, vocabulary = 0, row_stride = 0;
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  const int32_t* targets = nullptr;  // token ids, or kIgnoredTarget
  double temperature = 1;
  const double* temperatures = nullptr;  // per row; replaces `temperature` if it is not null
  double softcap = 0;                    // 0 for none
  // The support of row r: token_ids[offsets[r]] to token_ids[offsets[r + 1] − 1]. Null if all tokens take
  // part.
  const int32_t* token_ids = nullptr;
  const int32_t* offsets = nullptr;

  // Of a call that computes log-probabilities: the outputs, of which entropy may be null. Of a call that
  // computes the gradient: what an earlier call computed, where a null array is computed again.
  float* logprob = nullptr;
  double* logsumexp = nullptr;
  float* entropy = nullptr;

  // The gradient, or null. Its rows begin at r·out_stride. It may be the logits themselves.
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  int64_t out_stride = 0;
  const double* grad_logprob = nullptr;
  const double* grad_entropy = nullptr;  // may be null

  // Returns whether the sums over the rows must be computed. A call that computes the gradient may have all
  // of them from an earlier call.
  bool needs_sums() const { return !out || !logsumexp || (grad_entropy && !entropy); }
};

}  // namespace policy_loss
