// The token pass. For every unmasked token it computes the policy loss, the KL loss and the entropy loss. It
// sums the losses and their metrics, and writes the gradients. One kernel does everything, so that each
// column is read once and each gradient is written once.
//
// The bandwidth of the memory limits the speed of the pass. Columns arrive in shared memory while lanes
// compute earlier tokens (feed.cuh). Tiles in which the row pass found no unmasked token are not read, and
// all warps compute equally many of the other tiles (live_tiles.cuh). The values that all tokens of a row
// share are loaded once per row.
//
// Only the policy loss is a template parameter. Everything else (dtypes, KL estimator, the call's terms) is
// the same for the whole grid. Branches on it cost almost nothing, so one kernel per loss is enough.
#pragma once

#include "cuda/feed.cuh"
#include "cuda/kernels.h"
#include "cuda/live_tiles.cuh"

namespace policy_loss::cuda {

template <class L>
__device__ __forceinline__ TokenTerm token_of(const L& loss, int kind, const typename L::Row& row,
                                              const Token& token) {
  if constexpr (L::traits.two_kinds)
    return kind == 0 ? loss.usual.token(row, token) : loss.expert.token(row, token);
  else
    return loss.token(row, token);
}

// One lane's sums over its tokens of one row.
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
    grad[j] += unmasked && weight != 0.0f ? term.derivative * weight : 0.0f;
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

// Computes one lane's tokens.
template <class L>
class TokenWalk {
  using Row = typename L::Row;
  static constexpr int metrics = L::traits.token_metrics;

 public:
  // totals[k][threadIdx.x] is sum number k of this thread. The comment of kTokenSums gives the order of the
  // sums.
  __device__ __forceinline__ TokenWalk(const Pass& pass, const L& loss, const Feed<columns_of<L>>& feed,
                                       double (*totals)[kThreads])
      : pass_(pass), loss_(loss), feed_(feed), totals_(totals) {
    const Terms& terms = pass.terms;
    const bool others = terms.has_kl() || terms.entropy || pass.grad_entropy || terms.weighted;
    if constexpr (columns_of<L> != 0) plain_dtype_ = others ? kNoDType : feed.shared_dtype();
  }

  // Computes the tiles of a chunk whose bits are set in `tiles`, which is not 0.
  __device__ __forceinline__ void take_tiles(int64_t chunk, unsigned tiles) {
    const int first = __ffs(tiles) - 1;
    const int last = kWarp - __clz(tiles);
    base_ = chunk * pass_.chunk_tokens + first * kFeedTile;
    length_ = static_cast<int>(min(static_cast<int64_t>((last - first) * kFeedTile), pass_.tokens - base_));
    const ChunkState& state = pass_.chunk_states[chunk];
    sums_ = {};
    row_ = state.first_row;
    end_ = 0;
    feed_.for_tiles(
        base_, base_ + length_, tiles >> first, [&](int at, const auto& here) { add_half(at, here); },
        plain_dtype_ == kNoDType ? 0u : state.whole_tiles >> first,
        [&](int at, const auto& tile) { return add_whole_tile(at, tile); });
    end_row();
  }

 private:
  __device__ __forceinline__ void add(int k, double x) { totals_[k][threadIdx.x] += x; }

  __device__ __forceinline__ const RowState<Row>& state_of(int64_t row) const {
    return static_cast<const RowState<Row>*>(pass_.states)[row];
  }

  __device__ __forceinline__ void begin_row(int from) {
    end_row();
    const Layout& layout = pass_.batch.layout;
    row_ = row_of(layout, base_ + from, row_);
    end_ = row_end(layout, row_, base_, length_);
    const RowState<Row>& state = state_of(row_);
    statistics_ = state.row;
    live_of_row_ = state.repeats > 0 ? 0xf : 0;
    kind_ = state.kind;
    weight_ = state.grad_weight;
    kl_weight_ = state.kl_grad_weight;
    entropy_weight_ = state.entropy_grad_weight;
    of_row_ = feed_.of_row(row_);
  }

  // Multiplies the sums over a row's tokens by the row's weights, and adds them to the totals.
  __device__ __forceinline__ void end_row() {
    if (end_ == 0) return;
    const RowState<Row>& state = state_of(row_);
    add(L::traits.two_kinds ? kind_ : 0, sums_.loss * state.loss_weight);
    const double repeats = state.repeats;
    if constexpr (metrics > 0) add(2, repeats * sums_.metric0);
    if constexpr (metrics > 1) add(3, repeats * sums_.metric1);
    if constexpr (metrics > 2) add(4, repeats * sums_.metric2);
    if constexpr (metrics > 3) add(5, repeats * sums_.metric3);
    if (pass_.terms.has_kl()) add(2 + kMaxTokenMetrics, sums_.kl * state.kl_weight);
    if (pass_.terms.entropy) add(3 + kMaxTokenMetrics, sums_.entropy * state.entropy_weight);
    sums_ = {};
  }

  template <class Here>
  __device__ __forceinline__ void add_half(int at, const Here& here) {
    const int i = at + (threadIdx.x % kWarp) * kQuad;
    const unsigned unmasked = here.unmasked();
    // Each iteration handles one of the rows to which the four tokens belong. Usually they belong to a single
    // row.
    for (int from = i; from < min(i + kQuad, length_);) {
      if (from >= end_) begin_row(from);
      const unsigned which = bits_within(i, from, end_);
      add_quad(i, which, unmasked & which & live_of_row_, here);
      from = end_;
    }
  }

  // Computes a tile without masked tokens, if its tokens belong to one row; otherwise does nothing and
  // returns false. A call that needs more than the policy loss has no such tiles.
  template <class Tile>
  __device__ __forceinline__ bool add_whole_tile(int at, const Tile& tile) {
    if constexpr (columns_of<L> != 0) {
      if (at >= end_) begin_row(at);
      if (end_ < at + kFeedTile || live_of_row_ == 0) return false;
      if (plain_dtype_ == static_cast<int>(DType::kFloat32))
        add_whole_quads<DType::kFloat32>(at, tile);
      else if (plain_dtype_ == static_cast<int>(DType::kBFloat16))
        add_whole_quads<DType::kBFloat16>(at, tile);
      else
        add_whole_quads<DType::kFloat16>(at, tile);
      return true;
    }
    return false;
  }

  template <DType dtype, class Tile>
  __device__ __forceinline__ void add_whole_quads(int at, const Tile& tile) {
    const int64_t first = base_ + at + (threadIdx.x % kWarp) * kQuad;
#pragma unroll
    for (int half = 0; half < kFeedTile / kTile; ++half) {
      const Quad logprob = tile.template column<kLogprob, dtype>(half, of_row_);
      const Quad old_logprob = tile.template column<kOldLogprob, dtype>(half, of_row_);
      const Quad ref_logprob = tile.template column<kRefLogprob, dtype>(half, of_row_);
      const Quad advantages = tile.template column<kAdvantages, dtype>(half, of_row_);
      float grad[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        const TokenTerm term =
            token_of(loss_, kind_, statistics_, {logprob[j], old_logprob[j], ref_logprob[j], advantages[j]});
        sums_.loss += term.value;
        grad[j] = term.derivative * weight_;
        add_metrics(term, true);
      }
      if (pass_.grad) store_quad(pass_.grad, first + half * kTile, 0xf, grad);
    }
  }

  __device__ __forceinline__ void add_metrics(const TokenTerm& term, bool counts) {
    if constexpr (metrics > 0) sums_.metric0 += counts ? term.metric0 : 0.0f;
    if constexpr (metrics > 1) sums_.metric1 += counts ? term.metric1 : 0.0f;
    if constexpr (metrics > 2) sums_.metric2 += counts ? term.metric2 : 0.0f;
    if constexpr (metrics > 3) sums_.metric3 += counts ? term.metric3 : 0.0f;
  }

  // Computes the four tokens that begin at position i of the chunk. Adds those whose bits are set in `live`
  // to the sums. Stores the gradient of those whose bits are set in `which`.
  template <class Here>
  __device__ __forceinline__ void add_quad(int i, unsigned which, unsigned live, const Here& here) {
    float grad[kQuad] = {};
    const Quad logprob = here.template column<kLogprob>(of_row_);
    const Quad old_logprob = here.template column_of_always<kOldLogprob>(of_row_);
    const Quad ref_logprob = here.template column_of_always<kRefLogprob>(of_row_);
    const Quad advantages = here.template column_of_always<kAdvantages>(of_row_);
    const Quad weights = weights_of(base_ + i);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const TokenTerm term =
          token_of(loss_, kind_, statistics_, {logprob[j], old_logprob[j], ref_logprob[j], advantages[j]});
      const bool counts = (live >> j & 1) != 0;
      sums_.loss += counts ? mul_no_nan(term.value, weights[j]) : 0.0f;
      grad[j] = counts ? mul_no_nan(term.derivative * weight_, weights[j]) : 0.0f;
      add_metrics(term, counts);
    }
    if (pass_.terms.has_kl()) {
      // −0 + x has the bits of x, even if x is −0. So the gradient of the KL loss alone has the CPU's bits.
      if constexpr (std::is_same_v<L, NoLoss>)
        for (float& x : grad) x = -0.0f;
      add_kl_of(pass_.terms.kl, logprob, here.template column<kRefLogprob>(of_row_),
                here.template column<kOldLogprob>(of_row_), live, kl_weight_, &sums_.kl, grad,
                KlEstimators{});
    }
    if (pass_.grad) store_quad(pass_.grad, base_ + i, which, grad);
    if (pass_.terms.entropy || pass_.grad_entropy) add_entropy(i, which, live, here);
  }

  // Returns the column kTokenWeights of the four tokens that begin with token `first`, or ones.
  __device__ __forceinline__ Quad weights_of(int64_t first) const {
    const ColumnView& column = pass_.batch.column[kTokenWeights];
    Quad weights;
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      weights.set(j, pass_.terms.weighted ? load_one(column, column.per_row ? row_ : first + j) : 1.0f);
    return weights;
  }

  template <class Here>
  __device__ __forceinline__ void add_entropy(int i, unsigned which, unsigned live, const Here& here) {
    const bool counted = pass_.terms.has_entropy(kind_);
    const Quad entropy = here.template column<kEntropy>(of_row_);
    float grad[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const bool counts = counted && (live >> j & 1) != 0;
      sums_.entropy += counts ? entropy[j] : 0.0f;
      grad[j] = counts ? entropy_weight_ : 0.0f;
    }
    if (pass_.grad_entropy) store_quad(pass_.grad_entropy, base_ + i, which, grad);
  }

  const Pass& pass_;
  const L& loss_;
  const Feed<columns_of<L>>& feed_;
  double (*const totals_)[kThreads];

  // The first token and the length of the range of a chunk that is being computed. Positions in it fit into
  // 32 bits.
  int64_t base_ = 0;
  int length_ = 0;
  // The row of the tokens that are being computed, and the values that its tokens share.
  int64_t row_ = 0;
  int end_ = 0;  // the end of the row or of the range, whichever comes first; 0 before the range's first row
  Row statistics_{};
  RowColumns of_row_;
  // The dtype of the columns if the call needs nothing but the policy loss of columns of one dtype; else
  // kNoDType.
  int plain_dtype_ = kNoDType;
  unsigned live_of_row_ = 0;  // all bits of a quad if the row counts, else 0
  int kind_ = 0;
  float weight_ = 0, kl_weight_ = 0, entropy_weight_ = 0;
  LaneSums sums_{};
};

// Stores gradients of 0 for the tokens of the dead tiles.
__device__ __forceinline__ void clear_dead_tiles(const Pass& pass) {
  if (!pass.grad && !pass.grad_entropy) return;
  for_tiles_of_warp<TileKind::kDead>(pass, pass.chunk_states, [&](int64_t chunk, unsigned tiles) {
    const float zeros[kQuad] = {};
    for (; tiles != 0; tiles &= tiles - 1) {
      int64_t i = chunk * pass.chunk_tokens + (__ffs(tiles) - 1) * kFeedTile + threadIdx.x % kWarp * kQuad;
#pragma unroll
      for (int half = 0; half < kFeedTile / kTile; ++half, i += kTile) {
        const unsigned which = bits_within<kQuad, int64_t>(i, 0, pass.tokens);
        if (pass.grad) store_quad(pass.grad, i, which, zeros);
        if (pass.grad_entropy) store_quad(pass.grad_entropy, i, which, zeros);
      }
    }
  });
}

// Losses with row sums have more numbers at a time than the registers of a block of the full grid hold.
template <class L>
__global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor - (has_row_sums<L> ? 1 : 0))
    token_kernel(const Pass pass, const L loss) {
  clear_dead_tiles(pass);
  const Feed<columns_of<L>> feed(pass, pass.columns);
  // The sums of each thread. They are in shared memory to save registers, because they change only once per
  // row.
  __shared__ double totals[kTokenSums][kThreads];
  for (int k = 0; k < kTokenSums; ++k) totals[k][threadIdx.x] = 0;
  TokenWalk<L> walk(pass, loss, feed, totals);
  for_tiles_of_warp<TileKind::kLive>(pass, pass.chunk_states,
                                     [&](int64_t chunk, unsigned tiles) { walk.take_tiles(chunk, tiles); });

  double total[kTokenSums];
  for (int k = 0; k < kTokenSums; ++k) total[k] = totals[k][threadIdx.x];
  double sum;
  if (!grid_sum(total, pass.token_partials, &pass.totals->token_ticket, &sum)) return;
  Sums* const out = &pass.result->sums;
  const int k = threadIdx.x;
  if (k < 2) out->loss[k] = sum;
  if (k >= 2 && k < 2 + kMaxTokenMetrics) out->metric[k - 2] = sum;
  if (k < kMaxMetrics - kMaxTokenMetrics) out->metric[kMaxTokenMetrics + k] = 0;
  if (k == 2 + kMaxTokenMetrics) out->kl = sum;
  if (k == 3 + kMaxTokenMetrics) out->entropy = sum;
  publish_result(pass);
}

template <class L>
void launch_token_kernel(const L& loss, const Pass& pass, Grid grid) {
  grid.memory = Feed<columns_of<L>>::memory(pass.columns).bytes(pass.feed_stages);
  launch("token_kernel", token_kernel<L>, grid, pass, loss);
}

// Launches the kernel of loss L if L is the wanted loss, that is, if index == loss. If `file` is −1, L is
// not in the file, and its kernel is not compiled here.
template <int file, class L>
void launch_if(int index, int loss, const void* object, const Pass& pass, const Grid& grid) {
  if constexpr (file >= 0) {
    if (index != loss) return;
    in_simplest_form(*static_cast<const L*>(object),
                     [&](const auto& form) { launch_token_kernel(form, pass, grid); });
  }
}

template <int file, class... L, int... index>
void launch_among(int loss, const void* object, const Pass& pass, const Grid& grid, TypeList<L...>,
                  std::integer_sequence<int, index...>) {
  (launch_if < index % kTokenFiles == file ? file : -1, L > (index, loss, object, pass, grid), ...);
}

// File f contains every fourth loss of Losses, beginning with index f. File 0 also contains the kernel for
// calls without a policy loss.
template <int file>
void launch_tokens_of_file(int loss, const void* object, const Pass& pass, const Grid& grid) {
  if constexpr (file == 0) {
    if (loss < 0) launch_token_kernel(NoLoss{}, pass, grid);
  }
  launch_among<file>(loss, object, pass, grid, Losses{}, std::make_integer_sequence<int, Losses::size>{});
}

}  // namespace policy_loss::cuda
