// Functions that visit the rows of a chunk, and that add up the partials (pass.h) of rows that lie in several
// chunks. pass.h explains chunks.
#pragma once

#include "cuda/feed.cuh"

namespace policy_loss::cuda {

// Sums a count over the lanes of a warp. Counts within a chunk fit into 32 bits.
__device__ __forceinline__ int64_t warp_count(unsigned n) {
  return __reduce_add_sync(kAllLanes, n);
}
__device__ __forceinline__ RowTotals warp_sum(const RowTotals& partial) {
  return {warp_sum(partial.sum), warp_count(static_cast<unsigned>(partial.tokens)),
          warp_count(static_cast<unsigned>(partial.negatives))};
}
__device__ __forceinline__ DistillTotals warp_sum(const DistillTotals& partial) {
  return {warp_sum(partial.divergence), warp_sum(partial.advantage)};
}
// Sums the partials of a whole row over the lanes of a warp. The counts of a whole row may need 64 bits,
// unlike those within a chunk.
__device__ __forceinline__ RowTotals warp_sum_of_whole(const RowTotals& partial) {
  return {warp_sum(partial.sum), warp_sum(partial.tokens), warp_sum(partial.negatives)};
}
__device__ __forceinline__ DistillTotals warp_sum_of_whole(const DistillTotals& partial) {
  return warp_sum(partial);
}

// Returns where a chunk stores its partial of a row.
template <class Total>
__device__ __forceinline__ Total* place_of(const ChunkedBatch& pass, const Partials<Total>& partials,
                                           int64_t chunk, int64_t row) {
  const int64_t begin = pass.batch.layout.begin(row);
  const int64_t end = begin + pass.batch.layout.length(row);
  const int64_t first = chunk * pass.chunk_tokens;
  if (begin < first) return partials.heads + chunk;
  return end > min(first + pass.chunk_tokens, pass.tokens) ? partials.tails + chunk : partials.rows + row;
}

// Visits the rows of a chunk, one range of tokens after the other.
class ChunkRows {
 public:
  __device__ __forceinline__ ChunkRows(const ChunkedBatch& pass, int64_t chunk)
      : layout_(pass.batch.layout),
        first_(chunk * pass.chunk_tokens),
        length_(static_cast<int>(min(pass.chunk_tokens, pass.tokens - first_))),
        row_(row_of(layout_, first_)) {}

  __device__ __forceinline__ int64_t first() const { return first_; }
  __device__ __forceinline__ int length() const { return length_; }
  __device__ __forceinline__ int64_t row() const { return row_; }

  // Visits the rows of the tokens [from, last). Positions count from the chunk's first token. Calls
  // visit(row, begins, from, to) for the tokens [from, to) of each row; `begins` is true at the first visit
  // to the row. Calls end(row) after the row's last token in the chunk.
  template <class Visit, class End>
  __device__ __forceinline__ void visit(int from, int last, Visit visit, End end) {
    while (from < last) {
      const bool begins = from == end_;
      if (begins) {
        row_ = row_of(layout_, first_ + from, row_);
        end_ = row_end(layout_, row_, first_, length_);
      }
      const int to = min(end_, last);
      visit(row_, begins, from, to);
      if (to == end_) end(row_);
      from = to;
    }
  }

 private:
  const Layout& layout_;
  const int64_t first_;
  const int length_;
  int64_t row_;
  int end_ = 0;  // the end of the row or of the chunk, whichever comes first
};

// Sums over the tokens of each row in a chunk, and stores the partials. Returns the chunk's first row.
//
// visit(row, i, which, unmasked, quads, partial) gets four tokens, beginning with token i. It must add those
// whose bits are set in `which` to *partial. One lane calls leave(row, partial) for each row.
template <unsigned always, class Total, class Visit, class Leave>
__device__ __forceinline__ int64_t sum_rows(const Feed<always>& feed, const ChunkedBatch& pass,
                                            const Partials<Total>& partials, int64_t chunk, Visit visit,
                                            Leave leave) {
  using Here = typename Feed<always>::Here;
  const int lane = threadIdx.x % kWarp;
  ChunkRows rows(pass, chunk);
  const int64_t first_row = rows.row();
  RowColumns of_row;
  Total mine{};
  const auto add_half = [&](int at, const Here& here) {
    const int i = at + lane * kQuad;
    const unsigned unmasked = here.unmasked();
    rows.visit(
        at, min(at + kTile, rows.length()),
        [&](int64_t row, bool begins, int from, int to) {
          if (begins) of_row = feed.of_row(row);
          visit(row, rows.first() + i, bits_within(i, from, to), unmasked, Quads<Here>{here, of_row}, &mine);
        },
        [&](int64_t row) {
          const Total partial = warp_sum(mine);
          mine = {};
          if (lane != 0) return;
          *place_of(pass, partials, chunk, row) = partial;
          leave(row, partial);
        });
  };
  feed.for_tiles(rows.first(), rows.first() + rows.length(), ~0u, add_half, 0u,
                 [](int, const auto&) { return false; });
  return first_row;
}

// Adds up the partials of a row. If by_warp is set, all lanes of a warp share the work, and lane 0 gets the
// result. Otherwise one thread does it all. Each way gives the same bits on every run, but the two ways may
// differ in the last digits.
template <bool by_warp, class Total>
__device__ __forceinline__ Total whole_row(const ChunkedBatch& pass, const Partials<Total>& partials,
                                           int64_t row) {
  const int64_t begin = pass.batch.layout.begin(row);
  const int64_t end = begin + pass.batch.layout.length(row);
  if (begin == end) return {};
  const int64_t first = begin / pass.chunk_tokens;
  const int64_t last = (end - 1) / pass.chunk_tokens;
  if (first == last) return partials.rows[row];
  const int lane = by_warp ? threadIdx.x % kWarp : 0;
  Total whole{};
  if (lane == 0) whole = partials.tails[first];
#pragma unroll 4
  for (int64_t chunk = first + 1 + lane; chunk <= last; chunk += by_warp ? kWarp : 1)
    whole.add(partials.heads[chunk]);
  return by_warp ? warp_sum_of_whole(whole) : whole;
}

// Calls visit(row, totals) once for each row, with the sums over the whole row. If rows are few and long, a
// warp adds up the partials of a row, otherwise one thread does.
template <class Total, class Visit>
__device__ __forceinline__ void for_whole_rows(const ChunkedBatch& pass, const Partials<Total>& partials,
                                               Visit visit) {
  const int64_t rows = pass.batch.layout.rows;
  if (is_row_for_warp(pass)) {
    for (int64_t row = first_warp(); row < rows; row += all_warps()) {
      const Total totals = whole_row<true>(pass, partials, row);
      if (threadIdx.x % kWarp == 0) visit(row, totals);
    }
  } else {
    for (int64_t row = first_thread(); row < rows; row += all_threads())
      visit(row, whole_row<false>(pass, partials, row));
  }
}

}  // namespace policy_loss::cuda
