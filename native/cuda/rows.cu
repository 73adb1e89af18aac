// Compiles the kernels of the row pass, the weights pass and the KL pass. A table holds the functions that
// launch them for each loss. All losses without row sums share one kernel of the row pass. Most of these
// losses also share one kernel of the weights pass.
#include "cuda/rows.cuh"

#include "cuda/kernels.h"
#include "cuda/weights.cuh"

namespace policy_loss::cuda {
namespace {

template <class L>
constexpr bool has_own_weights_kernel = has_row_sums<L> || L::traits.two_kinds;

template <class L>
bool sums_rows(const void* object) {
  if constexpr (has_row_sums<L>) return needs_row_sums(*static_cast<const L*>(object));
  return false;
}

template <class L>
void rows(const void* object, const Pass& pass, int64_t first_chunk, int64_t last_chunk, const Grid& grid) {
  if constexpr (has_row_sums<L>) {
    if (sums_rows<L>(object)) {
      const L& loss = *static_cast<const L*>(object);
      Grid fed = grid;
      fed.memory = Feed<row_sum_columns<L>>::memory(row_sum_columns<L>).bytes(pass.feed_stages);
      return launch("row_kernel", row_kernel<L>, fed, pass, loss, first_chunk, last_chunk);
    }
  }
  launch("row_kernel", row_kernel<NoLoss>, grid, pass, NoLoss{}, first_chunk, last_chunk);
}

template <class L>
void weights(const void* object, const Pass& pass, const Grid& grid) {
  if constexpr (has_own_weights_kernel<L>)
    launch("weights_kernel", weights_kernel<L>, grid, pass, *static_cast<const L*>(object));
  else
    launch("weights_kernel", weights_kernel<NoLoss>, grid, pass, NoLoss{});
}

struct LossLaunches {
  void (*rows)(const void*, const Pass&, int64_t, int64_t, const Grid&);
  void (*weights)(const void*, const Pass&, const Grid&);
  FeedMemory (*token_memory)(unsigned columns);
  bool (*sums_rows)(const void* object);
  bool pairs;
  bool looks_under_mask;
};

template <class List>
struct Table;
template <class... L>
struct Table<TypeList<L...>> {
  static constexpr LossLaunches launches[] = {{rows<L>, weights<L>, Feed<columns_of<L>>::memory, sums_rows<L>,
                                               L::traits.by_pairs, L::traits.counts_negatives}...};
  static constexpr int64_t state_bytes() {
    int64_t most = sizeof(RowState<RowMean::Row>);
    for (const int64_t bytes : {static_cast<int64_t>(sizeof(RowState<typename L::Row>))...})
      most = bytes > most ? bytes : most;
    return most;
  }
};

constexpr LossLaunches kNoLossLaunches = {
    rows<NoLoss>, weights<NoLoss>, Feed<columns_of<NoLoss>>::memory, sums_rows<NoLoss>, false, false};

const LossLaunches& launches_of(int loss) {
  return loss < 0 ? kNoLossLaunches : Table<Losses>::launches[loss];
}

__global__ void narrow_kernel(const float* from, int64_t n, DType dtype, uint16_t* to) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    to[i] = dtype == DType::kFloat16 ? half_of_float(from[i]) : bfloat16_of_any(from[i]);
}

}  // namespace

bool is_over_pairs(int loss) {
  return launches_of(loss).pairs;
}

bool looks_under_mask(int loss) {
  return launches_of(loss).looks_under_mask;
}

FeedMemory token_memory(int loss, unsigned columns) {
  return launches_of(loss).token_memory(columns);
}

bool sums_over_rows(int loss, const void* object) {
  return launches_of(loss).sums_rows(object);
}

FeedMemory kl_memory(unsigned columns) {
  return Feed<kColumnsOfEveryKl>::memory(columns);
}

int64_t row_state_bytes() {
  return Table<Losses>::state_bytes();
}

void launch_rows(int loss, const void* object, const Pass& pass, int64_t first_chunk, int64_t last_chunk,
                 const Grid& grid) {
  launches_of(loss).rows(object, pass, first_chunk, last_chunk, grid);
}

void launch_weights(int loss, const void* object, const Pass& pass, const Grid& grid) {
  launches_of(loss).weights(object, pass, grid);
}

void launch_tokens(int loss, const void* object, const Pass& pass, const Grid& grid) {
  launch_tokens_of_file<0>(loss, object, pass, grid);
  launch_tokens_of_file<1>(loss, object, pass, grid);
  launch_tokens_of_file<2>(loss, object, pass, grid);
  launch_tokens_of_file<3>(loss, object, pass, grid);
}

void launch_narrow(const float* from, int64_t n, DType dtype, uint16_t* to, const Grid& grid) {
  launch("narrow_kernel", narrow_kernel, grid, from, n, dtype, to);
}

void launch_kl(const Pass& pass, const KlOutput& output, const Grid& grid) {
  Grid fed = grid;
  fed.memory = kl_memory(pass.columns).bytes(pass.feed_stages);
  launch("kl_kernel", kl_kernel<KlEstimators>, fed, pass, output);
}

void launch_row_means(const Pass& pass, const Grid& grid) {
  launch("weights_kernel", weights_kernel<RowMean>, grid, pass, RowMean{});
}

}  // namespace policy_loss::cuda
