// The row pass. It counts the unmasked tokens of each row and, if the loss has row sums, sums row_term() over
// the row in float64. It reads the mask, and the columns from which the row sums are computed.
//
// A warp goes through the rows of a chunk (pass.h) one by one. All lanes compute a row together, and their
// sums are added up over the warp. If a row lies in several chunks, the sums over its tokens in this one are
// stored as the chunk's head or tail (see Partials in pass.h). The weights pass adds up the partials of a
// row.
#pragma once

#include "cuda/chunks.cuh"
#include "cuda/live_tiles.cuh"

namespace policy_loss::cuda {

// The numbers of unmasked tokens in usual rows and in rows that an expert wrote. The tokens of a row count as
// often as the row does. The numbers are two members instead of an array, because the compiler would put an
// array with a run-time index into local memory.
struct TokensOfKind {
  unsigned long long usual = 0, expert = 0;

  __device__ __forceinline__ void add(int kind, int64_t n) {
    usual += kind == 0 ? n : 0;
    expert += kind == 1 ? n : 0;
  }
};

// Adds the tokens that this thread has counted to the batch's totals. If count_rows is set, also counts the
// rows of the batch, each as often as its repeats tell.
__device__ __forceinline__ void add_totals(const Pass& pass, const TokensOfKind& tokens, bool count_rows) {
  unsigned long long usual_rows = 0, expert_rows = 0;
  if (count_rows) {
    for (int64_t row = first_thread(); row < pass.batch.layout.rows; row += all_threads()) {
      const unsigned repeats = pass.batch.repeats_of(row);
      const bool expert = pass.batch.kind(row) == 1;
      usual_rows += expert ? 0 : repeats;
      expert_rows += expert ? repeats : 0;
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

// Which tiles of a chunk contain an unmasked token, and which contain a masked one. The token pass does not
// read tiles without unmasked tokens, and computes those without masked tokens in a shorter way.
class LiveTiles {
 public:
  // Records a lane's n tokens, which are in one tile. `at` is the index of the first of them in the chunk.
  // `live` has one bit for each of them that is unmasked.
  template <int n>
  __device__ __forceinline__ void add(int at, unsigned live) {
    const unsigned tile = 1u << at / kFeedTile;
    if (live != 0) live_ |= tile;
    if (live != (1u << n) - 1u) masked_ |= tile;
  }
  // Return the tiles with an unmasked token, and those whose tokens are all unmasked: bit k is set for tile
  // k.
  __device__ __forceinline__ unsigned live() const { return __reduce_or_sync(kAllLanes, live_); }
  __device__ __forceinline__ unsigned whole() const { return live() & ~__reduce_or_sync(kAllLanes, masked_); }

 private:
  unsigned live_ = 0, masked_ = 0;
};

// Stores what the token pass needs to know about a chunk.
__device__ __forceinline__ void leave_chunk(const Pass& pass, int64_t chunk, int64_t first_row,
                                            const LiveTiles& tiles) {
  const ChunkState state{first_row, 0, tiles.live(), tiles.whole()};
  if (threadIdx.x % kWarp == 0) pass.chunk_states[chunk] = state;
}

// Counts the unmasked tokens of each row in a chunk. It reads the mask without regard to where rows begin
// and end, so that each lane has four loads in flight at once. For each row, one lane stores the count and
// calls leave(row, partial).
template <class Leave>
__device__ __forceinline__ void count_rows(const Pass& pass, int64_t chunk, Leave leave) {
  constexpr int of_warp = kWarp * kGranule;
  constexpr int loads = 4;
  const int lane = threadIdx.x % kWarp;
  ChunkRows rows(pass, chunk);
  const int64_t first_row = rows.row();
  LiveTiles tiles;
  unsigned mine = 0;
  for (int first = 0; first < rows.length(); first += loads * of_warp) {
    const int mine_at = first + lane * kGranule;
    uint4 bytes[loads];
#pragma unroll
    for (int k = 0; k < loads; ++k) {
      const int at = mine_at + k * of_warp;
      bytes[k] = {0, 0, 0, 0};
      if (at < rows.length())
        bytes[k] = load<Reuse::kLater>(reinterpret_cast<const uint4*>(pass.batch.mask + rows.first() + at));
    }
    unsigned unmasked[loads];
#pragma unroll
    for (int k = 0; k < loads; ++k) {
      const int at = mine_at + k * of_warp;
      unmasked[k] = mask_bits(bytes[k].x) | mask_bits(bytes[k].y) << 4 | mask_bits(bytes[k].z) << 8 |
                    mask_bits(bytes[k].w) << 12;
      tiles.add<kGranule>(at, unmasked[k] & bits_within<kGranule>(at, 0, rows.length()));
    }
    rows.visit(
        first, min(first + loads * of_warp, rows.length()),
        [&](int64_t, bool, int from, int to) {
#pragma unroll
          for (int k = 0; k < loads; ++k)
            mine += __popc(unmasked[k] & bits_within<kGranule>(mine_at + k * of_warp, from, to));
        },
        [&](int64_t row) {
          RowTotals partial;
          partial.tokens = warp_count(mine);
          mine = 0;
          if (lane != 0) return;
          *place_of(pass, pass.partials, chunk, row) = partial;
          leave(row, partial);
        });
  }
  leave_chunk(pass, chunk, first_row, tiles);
}

// Runs the row pass over the chunks [first_chunk, last_chunk). A batch that is sent from host memory arrives
// in slices, and each slice gets its own launch.
template <class L>
__global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    row_kernel(const Pass pass, const L loss, int64_t first_chunk, int64_t last_chunk) {
  TokensOfKind tokens;
  const auto count = [&](int64_t row, const RowTotals& partial) {
    tokens.add(pass.batch.kind(row), partial.tokens * pass.batch.repeats_of(row));
  };
  if constexpr (has_row_sums<L>) {
    const Feed<row_sum_columns<L>> feed(pass, row_sum_columns<L>);
    for (int64_t chunk = first_chunk + first_warp(); chunk < last_chunk; chunk += all_warps()) {
      const int64_t base = chunk * pass.chunk_tokens;
      LiveTiles tiles;
      const int64_t first_row = sum_rows(
          feed, pass, pass.partials, chunk,
          [&](int64_t, int64_t i, unsigned which, unsigned unmasked, const auto& quads, RowTotals* partial) {
            const unsigned live = unmasked & which;
            tiles.add<kQuad>(static_cast<int>(i - base), live);
            partial->tokens += __popc(live);
            const Quad logprob = quads.template column<kLogprob>();
            const Quad old_logprob = quads.template column<kOldLogprob>();
            const Quad ref_logprob = quads.template column<kRefLogprob>();
            const Quad advantages = quads.template column<kAdvantages>();
#pragma unroll
            for (int j = 0; j < kQuad; ++j) {
              const double term = loss.row_term({logprob[j], old_logprob[j], ref_logprob[j], 0.0f});
              partial->sum += live >> j & 1 ? term : 0.0;
              if constexpr (L::traits.counts_negatives)
                partial->negatives += (which >> j & 1) != 0 && advantages[j] < 0.0f ? 1 : 0;
            }
          },
          count);
      leave_chunk(pass, chunk, first_row, tiles);
    }
  } else {
    for (int64_t chunk = first_chunk + first_warp(); chunk < last_chunk; chunk += all_warps())
      count_rows(pass, chunk, count);
  }
  add_totals(pass, tokens, first_chunk == 0);
  if (last_chunk == pass.chunks && is_last_block(&pass.totals->chunk_ticket))
    number_live_tiles(pass.chunk_states, pass.chunks);
}

template <class K>
__device__ __forceinline__ void kl_quad(const Quad& logprob, const Quad& ref_logprob, const Quad& old_logprob,
                                        float (&value)[kQuad]) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) value[j] = K::token(logprob[j], ref_logprob[j], old_logprob[j]).value;
}

// Computes the KL values of four tokens with the estimator at index `estimator` of the list.
template <class... K>
__device__ __forceinline__ void kl_quad_of(int estimator, const Quad& logprob, const Quad& ref_logprob,
                                           const Quad& old_logprob, float (&value)[kQuad], TypeList<K...>) {
  int index = 0;
  ((index++ == estimator ? kl_quad<K>(logprob, ref_logprob, old_logprob, value) : void()), ...);
}

constexpr unsigned kColumnsOfEveryKl = reads(kLogprob) | reads(kRefLogprob);

// Writes one KL value per token or, with a base, base − scale·kl for unmasked tokens and base for masked
// tokens. Also sums the KL values of each row's unmasked tokens, from which the row's mean is computed.
template <class Estimators>
__global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    kl_kernel(const Pass pass, const KlOutput output) {
  const Feed<kColumnsOfEveryKl> feed(pass, pass.columns);
  for (int64_t chunk = first_warp(); chunk < pass.chunks; chunk += all_warps())
    sum_rows(
        feed, pass, pass.partials, chunk,
        [&](int64_t, int64_t i, unsigned which, unsigned unmasked, const auto& quads, RowTotals* partial) {
          const unsigned live = unmasked & which;
          float value[kQuad] = {};
          kl_quad_of(pass.terms.kl, quads.template column<kLogprob>(), quads.template column<kRefLogprob>(),
                     quads.template column<kOldLogprob>(), value, Estimators{});
          const Quad base = quads.template column<kAdvantages>();
          partial->tokens += __popc(live);
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const bool counts = (live >> j & 1) != 0;
            partial->sum += counts ? value[j] : 0.0f;
            if (output.has_base) value[j] = counts ? base[j] - mul_no_nan(output.scale, value[j]) : base[j];
          }
          store_quad(output.out, i, which, value);
        },
        [](int64_t, const RowTotals&) {});
}

}  // namespace policy_loss::cuda
