// The row pass: n_b of each row from the mask, and of losses with row facts the sum of row_term() in float64.
// Reads the mask, and the columns that facts are made of where the loss has any.
//
// A warp takes a span and goes through the rows in it one by one; all lanes sweep a row's share together, and
// what they have found is added up over the warp. What is not a whole row becomes the span's head or tail,
// which the weights pass puts together in the order of the spans.
#pragma once

#include "cuda/spans.cuh"

namespace policy_loss::cuda {

// Unmasked tokens by kind of row, a row's as often as it counts. Two members and no array: an index known
// only at run time would put it in local memory.
struct TokensOfKind {
  unsigned long long usual = 0, expert = 0;

  __device__ __forceinline__ void add(int kind, int64_t n) {
    usual += kind == 0 ? n : 0;
    expert += kind == 1 ? n : 0;
  }
};

// Adds what a thread has counted to the batch's totals, and the rows, each as often as it counts, where
// count_rows is set.
__device__ __forceinline__ void add_totals(const Pass& pass, const TokensOfKind& tokens, bool count_rows) {
  unsigned long long usual_rows = 0, expert_rows = 0;
  if (count_rows) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         row < pass.batch.layout.rows; row += threads) {
      const unsigned copies = pass.batch.copies_of(row);
      const bool expert = pass.batch.kind(row) == 1;
      usual_rows += expert ? 0 : copies;
      expert_rows += expert ? copies : 0;
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

// Which steps of a span have an unmasked token: what the token pass need not read of the others, it does not.
struct LiveSteps {
  int64_t first;  // of the span
  uint64_t mine = 0;

  __device__ __forceinline__ void add(int64_t i, unsigned live) {
    if (live != 0) mine |= uint64_t{1} << static_cast<int>(i - first) / kSpanStep;
  }
};

// How many of a row's tokens [from, to) a lane finds unmasked, of every 32nd granule.
__device__ __forceinline__ unsigned count_unmasked(const uint8_t* mask, int64_t from, int64_t to,
                                                   LiveSteps* steps) {
  const int lane = threadIdx.x % kWarp;
  unsigned count = 0;
#pragma unroll 4
  for (int64_t i = from / kGranule * kGranule + lane * kGranule; i < to; i += kWarp * kGranule) {
    const uint4 bytes = load<Reuse::kLater>(reinterpret_cast<const uint4*>(mask + i));
    const unsigned unmasked =
        mask_bits(bytes.x) | mask_bits(bytes.y) << 4 | mask_bits(bytes.z) << 8 | mask_bits(bytes.w) << 12;
    const unsigned live = unmasked & bits_within<kGranule>(i, from, to);
    count += __popc(live);
    steps->add(i, live);
  }
  return count;
}

// Over the spans [first_span, last_span): a batch that arrives in chunks is summed as it comes.
template <class L>
__global__ void __launch_bounds__(kThreads)
    row_kernel(const Pass pass, const L loss, int64_t first_span, int64_t last_span) {
  TokensOfKind tokens;
  const auto count = [&](int64_t row, const RowPart& part) {
    tokens.add(pass.batch.kind(row), part.tokens * pass.batch.copies_of(row));
  };
  const auto leave_steps = [&](int64_t span, const LiveSteps& steps) {
    const uint64_t all = warp_or(steps.mine);
    if (threadIdx.x % kWarp == 0) pass.live_steps[span] = all;
  };
  if constexpr (has_row_facts<L>) {
    __shared__ FeedRoom rooms[kWarps];
    const Feed<fact_columns<L>> feed(pass.batch, fact_columns<L>, rooms);
    for (int64_t span = first_span + first_warp(); span < last_span; span += all_warps()) {
      LiveSteps steps{span * pass.span};
      sum_rows(
          feed, pass, pass.parts, span,
          [&](int64_t, int64_t i, unsigned which, const QuadColumns& quad, unsigned unmasked, RowPart* part) {
            const unsigned live = unmasked & which;
            steps.add(i, live);
            part->tokens += __popc(live);
#pragma unroll
            for (int j = 0; j < kQuad; ++j) {
              const double term = loss.row_term(quad.token(j));
              part->sum += live >> j & 1 ? term : 0.0;
              if constexpr (counts_negatives<L>)
                part->negatives += (which >> j & 1) != 0 && quad.column[kAdvantages][j] < 0.0f ? 1 : 0;
            }
          },
          count);
      leave_steps(span, steps);
    }
  } else {
    for (int64_t span = first_span + first_warp(); span < last_span; span += all_warps()) {
      LiveSteps steps{span * pass.span};
      for_rows(pass, span, [&](int64_t row, int64_t from, int64_t to) {
        RowPart part;
        part.tokens = warp_count(count_unmasked(pass.batch.mask, from, to, &steps));
        if (threadIdx.x % kWarp != 0) return;
        *place_of(pass, pass.parts, span, row) = part;
        count(row, part);
      });
      leave_steps(span, steps);
    }
  }
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
  __shared__ FeedRoom rooms[kWarps];
  constexpr unsigned always = 1u << kLogprob;
  const Feed<always> feed(pass.batch, pass.columns, rooms);
  for (int64_t span = first_warp(); span < pass.spans; span += all_warps())
    sum_rows(
        feed, pass, pass.parts, span,
        [&](int64_t, int64_t i, unsigned which, const QuadColumns& quad, unsigned unmasked, RowPart* part) {
          const unsigned live = unmasked & which;
          float value[kQuad] = {};
          kl_quad_of(pass.kl, quad, value, Estimators{});
          part->tokens += __popc(live);
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const bool counts = (live >> j & 1) != 0;
            part->sum += counts ? value[j] : 0.0f;
            if (output.has_base) {
              const float base = quad.column[kAdvantages][j];
              value[j] = counts ? base - output.scale * value[j] : base;
            }
          }
          store_quad(output.out, i, which, value);
        },
        [](int64_t, const RowPart&) {});
}

}  // namespace policy_loss::cuda
