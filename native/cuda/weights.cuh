// The weights pass. For each row, it adds up the partials of the row (pass.h). From these
// sums and the batch's counts it computes the row's weights and statistics, so that the token pass need not
// compute them for every token.
#pragma once

#include "cuda/chunks.cuh"
#include "engine/row_weights.h"
#include "program/groups.h"

namespace policy_loss::cuda {

// Returns the batch's counts, which the call's row pass or the batch's mask pass has computed.
__device__ __forceinline__ BatchCounts read_counts(const Pass& pass) {
  const Totals* const totals = pass.known ? pass.known : pass.totals;
  BatchCounts counts;
  for (int kind = 0; kind < 2; ++kind) {
    counts.tokens[kind] = static_cast<double>(__ldcg(&totals->tokens[kind]));
    counts.rows[kind] = static_cast<double>(__ldcg(&totals->rows[kind]));
  }
  counts.row_length = static_cast<double>(pass.batch.layout.row_length);
  return counts;
}

// Returns the state of a row with these weights. The caller fills in the row statistics of the policy loss.
template <class Row>
__device__ __forceinline__ RowState<Row> state_of(const RowWeights& weights, int kind, unsigned repeats,
                                                  double tokens) {
  RowState<Row> state{};
  state.loss_weight = weights.loss;
  state.kl_weight = weights.kl;
  state.entropy_weight = weights.entropy;
  state.grad_weight = static_cast<float>(weights.loss_grad);
  state.kl_grad_weight = static_cast<float>(weights.kl_grad);
  state.entropy_grad_weight = static_cast<float>(weights.entropy_grad);
  state.kind = kind;
  state.repeats = repeats;
  state.tokens = tokens;
  return state;
}

// Computes a loss over pairs of rows in one block, and sets the gradient weights of the rows. `sums` holds
// the row sums. If the loss is pairwise, it is a mean over `pairs` pairs, and each thread computes some of
// the pairs. Otherwise the whole batch is one pair: the sum over its even rows and the sum over its odd rows.
template <class L>
__device__ __forceinline__ void pair_weights(const Pass& pass, const L& loss, double pairs, double* sums,
                                             RowState<typename L::Row>* states) {
  const int64_t rows = pass.batch.layout.rows;
  double total[4] = {};
  __shared__ double of_batch[2];
  if (loss.pairwise) {
    const RowGroups groups{pass.batch.row_column[kNextInPair], rows};
    for (int64_t row = threadIdx.x; row < rows; row += kThreads) {
      const int64_t other = groups.next_of(row);
      if (other <= row) continue;
      double metric[3] = {};
      double both[2] = {sums[row], sums[other]};
      total[0] += loss.pair_loss(pairs, both, metric);
      for (int k = 0; k < 3; ++k) total[1 + k] += metric[k];
      states[row].grad_weight = static_cast<float>(both[0]);
      states[other].grad_weight = static_cast<float>(both[1]);
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
    if (threadIdx.x == 0) total[0] = loss.pair_loss(pairs, of_batch, total + 1);
    __syncthreads();
    for (int64_t row = threadIdx.x; row < rows; row += kThreads)
      states[row].grad_weight = static_cast<float>(of_batch[row % 2]);
  }
  const double sum = block_sum(total);
  if (threadIdx.x == 0) pass.result->pair_loss = sum;
  if (threadIdx.x >= 1 && threadIdx.x < 4) pass.result->pair_metric[threadIdx.x - 1] = sum;
}

// The kernel of the weights pass. For a loss over pairs of rows it must be launched with one block.
template <class L>
__global__ void __launch_bounds__(kThreads) weights_kernel(const Pass pass, const L loss) {
  using Row = typename L::Row;
  RowState<Row>* const states = static_cast<RowState<Row>*>(pass.states);
  const BatchCounts own = read_counts(pass);
  const BatchCounts counts = pass.normalizer.given ? pass.normalizer.counts : own;
  const KindScales scales = kind_scales_of(loss, counts, pass.coefficients.mu);
  double row_sums[kMaxRowMetrics] = {};
  for_whole_rows(pass, pass.partials, [&](int64_t row, const RowTotals& totals) {
    const int kind = pass.batch.kind(row);
    const unsigned repeats = pass.batch.repeats_of(row);
    const double tokens = static_cast<double>(totals.tokens);
    const WeightedRow weighted{kind, static_cast<double>(repeats), tokens};
    RowWeights weights;
    weigh_kl_and_entropy(pass.terms, counts, pass.coefficients, weighted, &weights);
    if constexpr (!L::traits.by_pairs)
      if (pass.terms.has_loss())
        weigh_loss(pass.terms, L::traits.two_kinds, counts, scales, weighted, &weights);
    RowState<Row> state = state_of<Row>(weights, kind, repeats, tokens);
    if constexpr (has_row_sums<L>) {
      state.row = loss.row(totals.sum, tokens);
      if constexpr (L::traits.row_metrics > 0) {
        double metric[kMaxRowMetrics] = {};
        loss.row_metric(state.row, tokens, static_cast<double>(totals.negatives), metric);
        for (int k = 0; k < L::traits.row_metrics; ++k)
          row_sums[k] += repeats > 0 ? repeats * metric[k] : 0.0;
      }
    }
    if constexpr (L::traits.by_pairs) pass.pair_sums[row] = totals.sum;
    states[row] = repeats > 0 ? state : RowState<Row>{};
  });
  if constexpr (L::traits.by_pairs) {
    __syncthreads();
    pair_weights(pass, loss, floor(counts.all().rows / 2), pass.pair_sums, states);
  }

  double total;
  if (!grid_sum(row_sums, pass.row_partials, &pass.totals->row_ticket, &total)) return;
  if (threadIdx.x < kMaxRowMetrics) pass.result->sums.row_metric[threadIdx.x] = total;
  if (threadIdx.x == 0) {
    pass.result->counts = own;
    pass.result->has_batch_metrics = false;
    for (int kind = 0; kind < 2; ++kind) pass.totals->tokens[kind] = pass.totals->rows[kind] = 0;
  }
  publish_result(pass);
}

// Stands in for the policy loss when weights_kernel() computes the means of KL values. Its row metric is the
// mean KL value of a row's unmasked tokens.
struct RowMean {
  struct Row {
    double mean;
  };
  static constexpr LossTraits traits{.row_metrics = 1, .row_sums = RowSums::kAlways};

  PL_FN Row row(double sum, double count) const { return {sum / (count + 1e-8)}; }
  PL_FN void row_metric(const Row& row, double, double, double* out) const { out[0] = row.mean; }
};

}  // namespace policy_loss::cuda
