// The token pass: policy loss, KL estimator and entropy loss of every unmasked token, their sums, their
// metrics and their gradient, in one kernel that reads each column once and writes the gradient once.
//
// It is bound by memory: a lane takes four tokens at a time, loads 16 bytes of each float32 column past the
// caches' reuse, and does all arithmetic on them before it goes on. Only the policy loss is a template
// parameter; the rest (dtypes, KL estimator, which terms there are) is uniform over the grid, so a branch on
// it costs next to nothing, and there is one kernel a loss instead of hundreds.
#pragma once

#include "cuda/kernels.h"
#include "cuda/warp.cuh"

namespace policy_loss::cuda {

template <class L>
__device__ __forceinline__ TokenTerm token_of(const L& loss, int kind, const typename L::Row& row,
                                              const Token& token) {
  if constexpr (has_kinds<L>)
    return kind == 0 ? loss.usual.token(row, token) : loss.expert.token(row, token);
  else
    return loss.token(row, token);
}

// A lane's sums over tokens of one row, in float32.
struct LaneSums {
  float loss, metric0, metric1, metric2, metric3, kl, entropy;
};

template <class K>
__device__ __forceinline__ void add_kl(const QuadColumns& quad, unsigned live, float weight, float* sum,
                                       float (&grad)[kQuad]) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const KlTerm term =
        K::token(quad.column[kLogprob][j], quad.column[kRefLogprob][j], quad.column[kOldLogprob][j]);
    const bool unmasked = (live >> j & 1) != 0;
    *sum += unmasked ? term.value : 0.0f;
    grad[j] += unmasked ? term.derivative * weight : 0.0f;
  }
}

template <class... K>
__device__ __forceinline__ void add_kl_of(int estimator, const QuadColumns& quad, unsigned live, float weight,
                                          float* sum, float (&grad)[kQuad], TypeList<K...>) {
  int index = 0;
  ((index++ == estimator ? add_kl<K>(quad, live, weight, sum, grad) : void()), ...);
}

template <class L>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    token_kernel(const Pass pass, const L loss) {
  using Row = typename L::Row;
  constexpr int metrics = L::token_metrics;
  const RowState<Row>* const states = static_cast<const RowState<Row>*>(pass.states);
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  // Each thread's own sums, in the order of the result: the loss by kind, its metrics, KL, entropy. In shared
  // memory, since they are touched once a row and registers are what limits the loads in flight.
  __shared__ double totals[kTokenSums][kThreads];
  for (int k = 0; k < kTokenSums; ++k) totals[k][threadIdx.x] = 0;
  const auto add = [&](int k, double x) { totals[k][threadIdx.x] += x; };

  for (int64_t span = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; span < pass.spans;
       span += warps) {
    // Within a span 32 bits are enough to count.
    const int64_t base = span * pass.span;
    const int length = static_cast<int>(min(pass.span, pass.tokens - base));
    LaneSums sums{};
    int64_t row = 0;
    int end = 0;  // of the row, or of the span where that comes first
    const RowState<Row>* state = nullptr;
    const auto flush = [&] {
      if (!state) return;
      add(has_kinds<L> ? state->kind : 0, sums.loss * state->loss_weight);
      const double copies = state->copies;
      if constexpr (metrics > 0) add(2, copies * sums.metric0);
      if constexpr (metrics > 1) add(3, copies * sums.metric1);
      if constexpr (metrics > 2) add(4, copies * sums.metric2);
      if constexpr (metrics > 3) add(5, copies * sums.metric3);
      if (pass.kl >= 0) add(2 + kMaxTokenMetrics, sums.kl * state->kl_weight);
      if (pass.entropy) add(3 + kMaxTokenMetrics, sums.entropy * state->entropy_weight);
      sums = {};
    };

    for (int i = lane * kQuad; i < length; i += kSpanStep) {
      QuadColumns quad;
      quad.load_tokens<Reuse::kNever>(pass, base + i);
      const unsigned unmasked = load_mask<Reuse::kNever>(pass.batch.mask, base + i);
      quad.widen_tokens(pass);

      // Once for each row that the four tokens lie in, which but at a row's end is one.
      for (int from = i; from < min(i + kQuad, length);) {
        if (from >= end) {
          flush();
          row = row_of(layout, base + from, row);
          const int64_t to = layout.begin(row) + layout.length(row) - base;
          end = static_cast<int>(min(to, static_cast<int64_t>(length)));
          state = states + row;
        }
        const unsigned which = bits_within(i, from, end);
        const unsigned live = state->copies > 0 ? unmasked & which : 0;
        float grad[kQuad] = {};
        quad.load_row(pass, row);
        const Row facts = state->row;
        const int kind = state->kind;
        const float weight = state->grad_weight;
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          const TokenTerm term = token_of(loss, kind, facts, quad.token(j));
          const bool counts = (live >> j & 1) != 0;
          sums.loss += counts ? term.value : 0.0f;
          grad[j] = counts ? term.derivative * weight : 0.0f;
          if constexpr (metrics > 0) sums.metric0 += counts ? term.metric0 : 0.0f;
          if constexpr (metrics > 1) sums.metric1 += counts ? term.metric1 : 0.0f;
          if constexpr (metrics > 2) sums.metric2 += counts ? term.metric2 : 0.0f;
          if constexpr (metrics > 3) sums.metric3 += counts ? term.metric3 : 0.0f;
        }
        if (pass.kl >= 0)
          add_kl_of(pass.kl, quad, live, state->kl_grad_weight, &sums.kl, grad, KlEstimators{});
        if (pass.grad) store_quad(pass.grad, base + i, which, grad);
        if (pass.entropy || pass.grad_entropy) {
          const bool counted = pass.entropy && !(pass.entropy_of_usual_rows_only && kind == 1);
          const float entropy_weight = state->entropy_grad_weight;
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const bool counts = counted && (live >> j & 1) != 0;
            sums.entropy += counts ? quad.column[kEntropy][j] : 0.0f;
            grad[j] = counts ? entropy_weight : 0.0f;
          }
          if (pass.grad_entropy) store_quad(pass.grad_entropy, base + i, which, grad);
        }
        from = end;
      }
    }
    flush();
  }

  double total[kTokenSums];
  for (int k = 0; k < kTokenSums; ++k) total[k] = totals[k][threadIdx.x];
  double sum;
  if (!grid_sum(total, pass.token_partials, &pass.totals->token_ticket, &sum)) return;
  Sums* const out = &pass.result->sums;
  const int k = threadIdx.x;
  if (k < 2) out->loss[k] = sum;
  if (k >= 2 && k < 2 + kMaxTokenMetrics) out->metric[k - 2] = sum;
  if (k == 2 + kMaxTokenMetrics) out->kl = sum;
  if (k == 3 + kMaxTokenMetrics) out->entropy = sum;
}

// The losses whose index, counted round, is the group's; that of no loss is among the first.
template <int group, class L>
void launch_if(int index, int loss, const void* object, const Pass& pass, const Grid& grid) {
  if constexpr (group >= 0) {
    if (index == loss) launch(token_kernel<L>, grid, pass, *static_cast<const L*>(object));
  }
}

template <int group, class... L, int... index>
void launch_among(int loss, const void* object, const Pass& pass, const Grid& grid, TypeList<L...>,
                  std::integer_sequence<int, index...>) {
  (launch_if < index % kTokenGroups == group ? group : -1, L > (index, loss, object, pass, grid), ...);
}

template <int group>
void launch_tokens_of_group(int loss, const void* object, const Pass& pass, const Grid& grid) {
  if constexpr (group == 0) {
    if (loss < 0) launch(token_kernel<NoLoss>, grid, pass, NoLoss{});
  }
  launch_among<group>(loss, object, pass, grid, Losses{}, std::make_integer_sequence<int, Losses::size>{});
}

}  // namespace policy_loss::cuda
