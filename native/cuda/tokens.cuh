// The token pass: policy loss, KL estimator and entropy loss of every unmasked token, their sums, their
// metrics and their gradient, in one kernel that reads each column once and writes the gradient once.
//
// It is bound by memory: columns are on their way while a lane does all arithmetic on its four tokens of each
// (feed.cuh), nothing is read where the row pass has found no unmasked token, and what a row has for all of
// its tokens is loaded where the row begins. Only the policy loss is a template parameter; the rest (dtypes,
// KL estimator, which terms there are) is uniform over the grid, so a branch on it costs next to nothing, and
// there is one kernel a loss instead of hundreds.
#pragma once

#include "cuda/feed.cuh"
#include "cuda/kernels.h"

namespace policy_loss::cuda {

template <class L>
__device__ __forceinline__ TokenTerm token_of(const L& loss, int kind, const typename L::Row& row,
                                              const Token& token) {
  if constexpr (L::traits.two_kinds)
    return kind == 0 ? loss.usual.token(row, token) : loss.expert.token(row, token);
  else
    return loss.token(row, token);
}

// A lane's sums over tokens of one row, in float32.
struct LaneSums {
  float loss, metric0, metric1, metric2, metric3, kl, entropy;
};

template <class K>
__device__ __forceinline__ void add_kl(const Quad& logprob, const Quad& ref_logprob, const Quad& old_logprob,
                                       unsigned live, float weight, float* sum, float (&grad)[kQuad]) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const KlTerm term = K::token(logprob[j], ref_logprob[j], old_logprob[j]);
    const bool unmasked = (live >> j & 1) != 0;
    *sum += unmasked ? term.value : 0.0f;
    grad[j] += unmasked ? term.derivative * weight : 0.0f;
  }
}

template <class... K>
__device__ __forceinline__ void add_kl_of(int estimator, const Quad& logprob, const Quad& ref_logprob,
                                          const Quad& old_logprob, unsigned live, float weight, float* sum,
                                          float (&grad)[kQuad], TypeList<K...>) {
  int index = 0;
  ((index++ == estimator ? add_kl<K>(logprob, ref_logprob, old_logprob, live, weight, sum, grad) : void()),
   ...);
}

template <class L>
__global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    token_kernel(const Pass pass, const L loss) {
  using Row = typename L::Row;
  constexpr int metrics = L::traits.token_metrics;
  const RowState<Row>* const states = static_cast<const RowState<Row>*>(pass.states);
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  const Feed<columns_of<L>> feed(pass.batch, pass.columns);
  // Each thread's own sums, in the order of the result: the loss by kind, its metrics, KL, entropy. In shared
  // memory, since they are touched once a row.
  __shared__ double totals[kTokenSums][kThreads];
  for (int k = 0; k < kTokenSums; ++k) totals[k][threadIdx.x] = 0;
  const auto add = [&](int k, double x) { totals[k][threadIdx.x] += x; };

  for (int64_t span = first_warp(); span < pass.spans; span += all_warps()) {
    // Within a span 32 bits are enough to count.
    const int64_t base = span * pass.span;
    const int length = static_cast<int>(min(pass.span, pass.tokens - base));
    LaneSums sums{};
    const SpanState span_state = pass.span_states[span];
    int64_t row = span_state.first_row;
    int end = 0;  // of the row, or of the span where that comes first
    // What the row's tokens have in common.
    Row facts{};
    RowColumns of_row;
    unsigned live_of_row = 0;
    int kind = 0;
    float weight = 0, kl_weight = 0, entropy_weight = 0;
    const auto flush = [&] {
      if (end == 0) return;
      const RowState<Row>& state = states[row];
      add(L::traits.two_kinds ? kind : 0, sums.loss * state.loss_weight);
      const double repeats = state.repeats;
      if constexpr (metrics > 0) add(2, repeats * sums.metric0);
      if constexpr (metrics > 1) add(3, repeats * sums.metric1);
      if constexpr (metrics > 2) add(4, repeats * sums.metric2);
      if constexpr (metrics > 3) add(5, repeats * sums.metric3);
      if (pass.terms.has_kl()) add(2 + kMaxTokenMetrics, sums.kl * state.kl_weight);
      if (pass.terms.entropy) add(3 + kMaxTokenMetrics, sums.entropy * state.entropy_weight);
      sums = {};
    };
    const auto begin_row = [&](int from) {
      flush();
      row = row_of(layout, base + from, row);
      end = row_end(layout, row, base, length);
      const RowState<Row>& state = states[row];
      facts = state.row;
      live_of_row = state.repeats > 0 ? 0xf : 0;
      kind = state.kind;
      weight = state.grad_weight;
      kl_weight = state.kl_grad_weight;
      entropy_weight = state.entropy_grad_weight;
      of_row = feed.of_row(row);
    };

    const auto add_stretch = [&](int at, const auto& here) {
      const int i = at + lane * kQuad;
      const unsigned unmasked = here.unmasked();
      // Once for each row that the four tokens lie in, which but at a row's end is one.
      for (int from = i; from < min(i + kQuad, length);) {
        if (from >= end) begin_row(from);
        const unsigned which = bits_within(i, from, end);
        const unsigned live = unmasked & which & live_of_row;
        float grad[kQuad] = {};
        const Quad logprob = here.template column<kLogprob>(of_row);
        const Quad old_logprob = here.template column_of_always<kOldLogprob>(of_row);
        const Quad ref_logprob = here.template column_of_always<kRefLogprob>(of_row);
        const Quad advantages = here.template column_of_always<kAdvantages>(of_row);
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          const TokenTerm term =
              token_of(loss, kind, facts, {logprob[j], old_logprob[j], ref_logprob[j], advantages[j]});
          const bool counts = (live >> j & 1) != 0;
          sums.loss += counts ? term.value : 0.0f;
          grad[j] = counts ? term.derivative * weight : 0.0f;
          if constexpr (metrics > 0) sums.metric0 += counts ? term.metric0 : 0.0f;
          if constexpr (metrics > 1) sums.metric1 += counts ? term.metric1 : 0.0f;
          if constexpr (metrics > 2) sums.metric2 += counts ? term.metric2 : 0.0f;
          if constexpr (metrics > 3) sums.metric3 += counts ? term.metric3 : 0.0f;
        }
        if (pass.terms.has_kl())
          add_kl_of(pass.terms.kl, logprob, here.template column<kRefLogprob>(of_row),
                    here.template column<kOldLogprob>(of_row), live, kl_weight, &sums.kl, grad,
                    KlEstimators{});
        if (pass.grad) store_quad(pass.grad, base + i, which, grad);
        if (pass.terms.entropy || pass.grad_entropy) {
          const bool counted = pass.terms.has_entropy(kind);
          const Quad entropy = here.template column<kEntropy>(of_row);
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const bool counts = counted && (live >> j & 1) != 0;
            sums.entropy += counts ? entropy[j] : 0.0f;
            grad[j] = counts ? entropy_weight : 0.0f;
          }
          if (pass.grad_entropy) store_quad(pass.grad_entropy, base + i, which, grad);
        }
        from = end;
      }
    };
    const auto skip_stretch = [&](int at) {
      const int i = at + lane * kQuad;
      const unsigned which = bits_within(i, 0, length);
      const float zeros[kQuad] = {};
      if (pass.grad) store_quad(pass.grad, base + i, which, zeros);
      if (pass.grad_entropy) store_quad(pass.grad_entropy, base + i, which, zeros);
    };
    feed.for_stretches(base, base + length, span_state.live_steps, add_stretch, skip_stretch);
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

template <class L>
void launch_token_kernel(const L& loss, const Pass& pass, Grid grid) {
  grid.memory = Feed<columns_of<L>>::bytes(pass.columns);
  launch(token_kernel<L>, grid, pass, loss);
}

// The losses whose index, counted round, is the group's; that of no loss is among the first.
template <int group, class L>
void launch_if(int index, int loss, const void* object, const Pass& pass, const Grid& grid) {
  if constexpr (group >= 0) {
    if (index != loss) return;
    in_simplest_form(*static_cast<const L*>(object),
                     [&](const auto& form) { launch_token_kernel(form, pass, grid); });
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
    if (loss < 0) launch_token_kernel(NoLoss{}, pass, grid);
  }
  launch_among<group>(loss, object, pass, grid, Losses{}, std::make_integer_sequence<int, Losses::size>{});
}

}  // namespace policy_loss::cuda
