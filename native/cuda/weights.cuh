// The weights pass: puts the parts of rows together, and makes of the batch's counts and a row's facts what
// the token pass must know of the row, once a row instead of once a token.
#pragma once

#include "cuda/spans.cuh"

namespace policy_loss::cuda {

// The batch's own.
__device__ __forceinline__ BatchCounts read_counts(const Pass& pass) {
  BatchCounts counts;
  for (int kind = 0; kind < 2; ++kind) {
    counts.tokens[kind] = static_cast<double>(__ldcg(&pass.totals->tokens[kind]));
    counts.rows[kind] = static_cast<double>(__ldcg(&pass.totals->rows[kind]));
  }
  counts.columns = static_cast<double>(pass.batch.layout.columns);
  return counts;
}

// Everything of a row's state but the policy loss's own weight and facts.
template <class Row>
__device__ __forceinline__ RowState<Row> shared_state(const Pass& pass, const BatchCounts& counts, int kind,
                                                      unsigned copies, double tokens) {
  RowState<Row> state{};
  state.kind = kind;
  state.copies = copies;
  if (pass.kl >= 0) {
    state.kl_weight = copies * row_weight(pass.kl_aggregation, counts.all(), tokens);
    state.kl_grad_weight = static_cast<float>(state.kl_weight * pass.coefficients.kl);
  }
  if (pass.entropy && !(pass.entropy_of_usual_rows_only && kind == 1)) {
    state.entropy_weight =
        copies * row_weight(pass.entropy_aggregation,
                            pass.entropy_of_usual_rows_only ? counts.of_kind(0) : counts.all(), tokens);
    state.entropy_grad_weight = static_cast<float>(state.entropy_weight * pass.coefficients.entropy);
  }
  return state;
}

// The loss over pairs of rows, a mean over `pairs` of them. Such a mean is the sum of what each pair gives by
// itself; a loss that sees the whole batch as one pair gets the batch's two sums. Fills the states'
// grad_weight from the rows' sums in `sums`, by one block.
template <class L>
__device__ __forceinline__ void pair_weights(const Pass& pass, const L& loss, double pairs, double* sums,
                                             RowState<typename L::Row>* states) {
  const int64_t rows = pass.batch.layout.rows;
  double total[4] = {};
  __shared__ double of_batch[2];
  if (loss.pairwise) {
    for (int64_t pair = threadIdx.x; pair < rows / 2; pair += kThreads) {
      double metric[3] = {};
      double* const both = sums + 2 * pair;
      total[0] += loss.pair_loss(2, pairs, both, metric);
      for (int k = 0; k < 3; ++k) total[1 + k] += metric[k];
      for (int k = 0; k < 2; ++k) states[2 * pair + k].grad_weight = static_cast<float>(both[k]);
    }
  } else {
    double side[2] = {};
    for (int64_t row = threadIdx.x; row < rows; row += kThreads) {
      side[0] += row % 2 == 0 ? sums[row] : 0.0;
      side[1] += row % 2 == 1 ? sums[row] : 0.0;
    }
    const double sum = block_sum(side);
    if (threadIdx.x < 2) of_batch[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) total[0] = loss.pair_loss(2, pairs, of_batch, total + 1);
    __syncthreads();
    for (int64_t row = threadIdx.x; row < rows; row += kThreads)
      states[row].grad_weight = static_cast<float>(of_batch[row % 2]);
  }
  const double sum = block_sum(total);
  if (threadIdx.x == 0) pass.result->pair_loss = sum;
  if (threadIdx.x >= 1 && threadIdx.x < 4) pass.result->pair_metric[threadIdx.x - 1] = sum;
}

// Of a loss over pairs, one block; of others as many as there are rows for.
template <class L>
__global__ void __launch_bounds__(kThreads) weights_kernel(const Pass pass, const L loss) {
  using Row = typename L::Row;
  RowState<Row>* const states = static_cast<RowState<Row>*>(pass.states);
  const BatchCounts own = read_counts(pass);
  const BatchCounts counts = pass.normalizer.given ? pass.normalizer.counts : own;
  const KindScales scales = kind_scales_of(loss, counts, pass.coefficients.mu);
  double row_sums[kMaxRowMetrics] = {};
  for_whole_rows(pass, pass.parts, [&](int64_t row, const RowPart& part) {
    const int kind = pass.batch.kind(row);
    const unsigned copies = pass.batch.copies_of(row);
    const double tokens = static_cast<double>(part.tokens);
    RowState<Row> state = shared_state<Row>(pass, counts, kind, copies, tokens);
    if constexpr (has_row_facts<L>) {
      state.row = loss.row(part.sum, tokens);
      double metric[kMaxRowMetrics] = {};
      loss.row_metric(state.row, tokens, static_cast<double>(part.negatives), metric);
      for (int k = 0; k < row_metric_count<L>; ++k) row_sums[k] += copies > 0 ? copies * metric[k] : 0.0;
    }
    if constexpr (is_by_pairs<L>) {
      pass.pair_sums[row] = part.sum;
    } else if (pass.has_loss) {
      state.loss_weight = copies * row_weight(pass.loss_aggregation[kind],
                                              has_kinds<L> ? counts.of_kind(kind) : counts.all(), tokens);
      state.grad_weight = static_cast<float>(state.loss_weight * scales.loss[kind]);
    }
    states[row] = copies > 0 ? state : RowState<Row>{};
  });
  if constexpr (is_by_pairs<L>) {
    __syncthreads();
    pair_weights(pass, loss, floor(counts.all().rows / 2), pass.pair_sums, states);
  }

  double total;
  if (!grid_sum(row_sums, pass.row_partials, &pass.totals->row_ticket, &total)) return;
  if (threadIdx.x < kMaxRowMetrics) pass.result->sums.row_metric[threadIdx.x] = total;
  if (threadIdx.x == 0) {
    pass.result->counts = own;
    for (int kind = 0; kind < 2; ++kind) pass.totals->tokens[kind] = pass.totals->rows[kind] = 0;
  }
}

// What has row facts but is no policy loss: the mean of m·kl in each row.
struct RowMean {
  struct Row {
    double mean;
  };
  static constexpr int row_metrics = 1;

  PL_FN Row row(double sum, double count) const { return {sum / (count + 1e-8)}; }
  PL_FN void row_metric(const Row& row, double, double, double* out) const { out[0] = row.mean; }
};

}  // namespace policy_loss::cuda
