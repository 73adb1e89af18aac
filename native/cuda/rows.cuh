// The row pass: n_b of each row from the mask, and of losses with row facts the sum of row_term() in float64.
// Reads the mask, and the loss's columns only where it has facts.
//
// A warp takes a span and goes through the rows in it one by one; all lanes sweep a row's share together,
// then add up by shuffles. What is not a whole row becomes the span's head or tail, which the weights pass
// puts together in the order of the spans.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

// Unmasked tokens by kind of row. Two members and no array: an index known only at run time would put it in
// local memory.
struct TokensOfKind {
  unsigned long long usual = 0, expert = 0;

  __device__ __forceinline__ void add(int kind, int64_t n) {
    usual += kind == 0 ? n : 0;
    expert += kind == 1 ? n : 0;
  }
};

// The sums over one row's share of a span. visit(row, i, which, part) adds the tokens `which` of the quad at
// i.
template <class Visit>
__device__ __forceinline__ void sum_rows(const Pass& pass, int64_t span, TokensOfKind* tokens, Visit visit) {
  const int lane = threadIdx.x % kWarp;
  const Layout& layout = pass.batch.layout;
  const int64_t first = span * pass.span;
  const int64_t last = min(first + pass.span, pass.tokens);
  int64_t row = 0;
  for (int64_t from = first; from < last;) {
    row = row_of(layout, from, row);
    const int64_t begin = layout.begin(row);
    const int64_t end = begin + layout.length(row);
    const int64_t to = min(end, last);
    RowPart part;
    for (int64_t i = from / kQuad * kQuad + lane * kQuad; i < to; i += kSpanStep) {
      visit(row, i, bits_within(i, from, to), &part);
    }
    part.sum = warp_sum(part.sum);
    part.tokens = warp_sum(part.tokens);
    part.negatives = warp_sum(part.negatives);
    if (lane == 0) {
      RowPart* const place = begin < first ? pass.heads + span
                             : end > last  ? pass.tails + span
                                           : pass.rows + row;
      *place = part;
      tokens->add(pass.batch.kind(row), part.tokens);
    }
    from = to;
  }
}

// Adds what a thread has counted to the batch's totals, and the rows where count_rows is set.
__device__ __forceinline__ void add_totals(const Pass& pass, const TokensOfKind& tokens, bool count_rows) {
  unsigned long long usual_rows = 0, expert_rows = 0;
  if (count_rows) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         row < pass.batch.layout.rows; row += threads) {
      const int kind = pass.batch.kind(row);
      usual_rows += 1 - kind;
      expert_rows += kind;
    }
  }
  const unsigned long long usual_tokens = warp_sum(tokens.usual);
  const unsigned long long expert_tokens = warp_sum(tokens.expert);
  usual_rows = warp_sum(usual_rows);
  expert_rows = warp_sum(expert_rows);
  if (threadIdx.x % kWarp != 0) return;
  if (usual_tokens != 0) atomicAdd(&pass.totals->tokens[0], usual_tokens);
  if (expert_tokens != 0) atomicAdd(&pass.totals->tokens[1], expert_tokens);
  if (usual_rows != 0) atomicAdd(&pass.totals->rows[0], usual_rows);
  if (expert_rows != 0) atomicAdd(&pass.totals->rows[1], expert_rows);
}

// Over the spans [first_span, last_span): a batch that arrives in chunks is summed as it comes.
template <class L>
__global__ void __launch_bounds__(kThreads)
    row_kernel(const Pass pass, const L loss, int64_t first_span, int64_t last_span) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  TokensOfKind tokens;
  for (int64_t span = first_span + static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
       span < last_span; span += warps)
    sum_rows(pass, span, &tokens, [&](int64_t row, int64_t i, unsigned which, RowPart* part) {
      const unsigned live = load_mask<Reuse::kLater>(pass.batch.mask, i) & which;
      part->tokens += __popc(live);
      if constexpr (has_row_facts<L>) {
        QuadColumns quad;
        quad.load_tokens<Reuse::kLater>(pass, i);
        quad.widen_tokens(pass);
        quad.load_row(pass, row);
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          const double term = loss.row_term(quad.token(j));
          part->sum += live >> j & 1 ? term : 0.0;
          if constexpr (counts_negatives<L>)
            part->negatives += (which >> j & 1) != 0 && quad.column[kAdvantages][j] < 0.0f ? 1 : 0;
        }
      }
    });
  add_totals(pass, tokens, first_span == 0);
}

// The KL estimator's value per token, or base − scale·m·kl, and each row's sum of m·kl for its mean.
template <class K>
__device__ __forceinline__ void kl_quad(const QuadColumns& quad, float (&value)[kQuad]) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j)
    value[j] =
        K::token(quad.column[kLogprob][j], quad.column[kRefLogprob][j], quad.column[kOldLogprob][j]).value;
}

template <class... K>
__device__ __forceinline__ void kl_quad_of(int estimator, const QuadColumns& quad, float (&value)[kQuad],
                                           TypeList<K...>) {
  int index = 0;
  ((index++ == estimator ? kl_quad<K>(quad, value) : void()), ...);
}

template <class Estimators>
__global__ void __launch_bounds__(kThreads) kl_kernel(const Pass pass, const KlOutput output) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  TokensOfKind tokens;
  for (int64_t span = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; span < pass.spans;
       span += warps)
    sum_rows(pass, span, &tokens, [&](int64_t row, int64_t i, unsigned which, RowPart* part) {
      QuadColumns quad;
      quad.load_tokens<Reuse::kNever>(pass, i);
      Quad base{};
      unsigned live = 0;
      if (output.base) {
        base = load_quad<Reuse::kNever>(ColumnView{output.base}, i);
        live = load_mask<Reuse::kNever>(pass.batch.mask, i) & which;
      }
      quad.widen_tokens(pass);
      quad.load_row(pass, row);
      float value[kQuad] = {};
      kl_quad_of(pass.kl, quad, value, Estimators{});
      part->tokens += __popc(live);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        const bool unmasked = (live >> j & 1) != 0;
        part->sum += unmasked ? value[j] : 0.0f;
        if (output.base) value[j] = unmasked ? base[j] - output.scale * value[j] : base[j];
      }
      store_quad(output.out, i, which, value);
    });
  if (output.base) add_totals(pass, tokens, true);
}

}  // namespace policy_loss::cuda
