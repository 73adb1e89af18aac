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

  // Further tokens, list_length per row, whose log-probabilities are wanted too. An id below 0 stands for
  // none. A call that computes log-probabilities writes theirs to list_logprob, with 0 for none. A call that
  // computes the gradient reads list_logprob, and in list_grad the gradients with respect to them, instead of
  // grad_logprob.
  int64_t list_length = 0;
  const int32_t* list_ids = nullptr;
  float* list_logprob = nullptr;
  const float* list_grad = nullptr;
  // Of a call that computes the gradient of a list: the probability of all other tokens of a row, and the
  // gradient with respect to it. Both are null if there is none.
  const double* others = nullptr;
  const double* grad_others = nullptr;

  // An output of a call without a gradient: the tokens with the largest logits, top_length per row, in the
  // order of their logits and, of equal ones, of their ids; −1 after the last token, and in ignored rows.
  // May be null. On a device, the logits must then be in its memory.
  int64_t top_length = 0;
  int32_t* top_ids = nullptr;

  // Returns the index in the list's arrays of the first place of a row.
  PL_FN int64_t list_begin(int64_t row) const { return row * list_length; }
  // Returns whether there is a token at an index. lib/ has checked the ids, but the caller may change them
  // during the call.
  PL_FN bool is_listed(int64_t index) const { return static_cast<uint32_t>(list_ids[index]) < vocabulary; }
  // Returns the gradient with respect to the log-probability of the target, or the sum of those with respect
  // to the log-probabilities of the list and of all other tokens together.
  PL_FN double grad_of(int64_t row) const {
    if (!list_grad) return grad_logprob[row];
    double sum = 0;
    for (int64_t i = list_begin(row); i < list_begin(row + 1); ++i) sum += is_listed(i) ? list_grad[i] : 0.0;
    return others ? sum + grad_others[row] * others[row] : sum;
  }
  PL_FN double grad_of_others(int64_t row) const { return others ? grad_others[row] : 0; }

  // Returns whether the sums over the rows must be computed. A call that computes the gradient may have all
  // of them from an earlier call.
  bool needs_sums() const { return !out || !logsumexp || (grad_entropy && !entropy); }
  // Returns whether nothing but the largest logits is wanted.
  bool wants_only_top() const { return top_ids && !logprob && !logsumexp && !entropy && !list_logprob; }
};

}  // namespace policy_loss
