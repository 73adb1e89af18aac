// Functions that visit the rows of a span, and that add up the parts of rows that lie in several spans.
// pass.h explains spans.
#pragma once

#include "cuda/feed.cuh"

namespace policy_loss::cuda {

// Sums a count over the lanes of a warp. Counts within a span fit into 32 bits.
__device__ __forceinline__ int64_t warp_count(unsigned n) {
  return __reduce_add_sync(kAllLanes, n);
}
__device__ __forceinline__ RowPart warp_sum(const RowPart& part) {
  return {warp_sum(part.sum), warp_count(static_cast<unsigned>(part.tokens)),
          warp_count(static_cast<unsigned>(part.negatives))};
}
__device__ __forceinline__ DistillPart warp_sum(const DistillPart& part) {
  return {warp_sum(part.divergence), warp_sum(part.advantage)};
}
// Sums the parts of a whole row over the lanes of a warp. The counts of a whole row may need 64 bits, unlike
// those within a span.
__device__ __forceinline__ RowPart warp_sum_of_whole(const RowPart& part) {
  return {warp_sum(part.sum), warp_sum(part.tokens), warp_sum(part.negatives)};
}
__device__ __forceinline__ DistillPart warp_sum_of_whole(const DistillPart& part) {
  return warp_sum(part);
}

// Returns where a span stores the sums over its part of a row.
template <class Part>
__device__ __forceinline__ Part* place_of(const SpannedBatch& pass, const Parts<Part>& parts, int64_t span,
                                          int64_t row) {
  const int64_t begin = pass.batch.layout.begin(row);
  const int64_t end = begin + pass.batch.layout.length(row);
  const int64_t first = span * pass.span;
  if (begin < first) return parts.heads + span;
  return end > min(first + pass.span, pass.tokens) ? parts.tails + span : parts.rows + row;
}

// Visits the rows of a span, one stretch of tokens after the other.
class SpanRows {
 public:
  __device__ __forceinline__ SpanRows(const SpannedBatch& pass, int64_t span)
      : layout_(pass.batch.layout),
        first_(span * pass.span),
        length_(static_cast<int>(min(pass.span, pass.tokens - first_))),
        row_(row_of(layout_, first_)) {}

  __device__ __forceinline__ int64_t first() const { return first_; }
  __device__ __forceinline__ int length() const { return length_; }
  __device__ __forceinline__ int64_t row() const { return row_; }

  // Visits the rows in the stretch [from, last). Positions count from the span's first token. Calls
  // visit(row, begins, from, to) for the tokens [from, to) of each row; `begins` is true at the first visit
  // to the row. Calls end(row) after the row's last token in the span.
  template <class Visit, class End>
  __device__ __forceinline__ void stretch(int from, int last, Visit visit, End end) {
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
  int end_ = 0;  // the end of the row or of the span, whichever comes first
};

// Sums over the part of each row that lies in a span, and stores the sums. Returns the span's first row.
//
// visit(row, i, which, unmasked, quads, part) gets four tokens, beginning with token i. It must add those
// whose bits are set in `which` to *part. One lane calls leave(row, part) with the sums of each part.
template <unsigned always, class Part, class Visit, class Leave>
__device__ __forceinline__ int64_t sum_rows(const Feed<always>& feed, const SpannedBatch& pass,
                                            const Parts<Part>& parts, int64_t span, Visit visit,
                                            Leave leave) {
  using Here = typename Feed<always>::Here;
  const int lane = threadIdx.x % kWarp;
  SpanRows rows(pass, span);
  const int64_t first_row = rows.row();
  RowColumns of_row;
  Part mine{};
  const auto add_stretch = [&](int at, const Here& here) {
    const int i = at + lane * kQuad;
    const unsigned unmasked = here.unmasked();
    rows.stretch(
        at, min(at + kStretch, rows.length()),
        [&](int64_t row, bool begins, int from, int to) {
          if (begins) of_row = feed.of_row(row);
          visit(row, rows.first() + i, bits_within(i, from, to), unmasked, Quads<Here>{here, of_row}, &mine);
        },
        [&](int64_t row) {
          const Part part = warp_sum(mine);
          mine = {};
          if (lane != 0) return;
          *place_of(pass, parts, span, row) = part;
          leave(row, part);
        });
  };
  feed.for_stretches(rows.first(), rows.first() + rows.length(), ~0u, add_stretch, 0u,
                     [](int, const auto&) { return false; });
  return first_row;
}

// Adds up the parts of a row. If by_warp is set, all lanes of a warp share the work, and lane 0 gets the
// result. Otherwise one thread does it all. Each way gives the same bits on every run, but the two ways may
// differ in the last digits.
template <bool by_warp, class Part>
__device__ __forceinline__ Part whole_row(const SpannedBatch& pass, const Parts<Part>& parts, int64_t row) {
  const int64_t begin = pass.batch.layout.begin(row);
  const int64_t end = begin + pass.batch.layout.length(row);
  if (begin == end) return {};
  const int64_t first = begin / pass.span;
  const int64_t last = (end - 1) / pass.span;
  if (first == last) return parts.rows[row];
  const int lane = by_warp ? threadIdx.x % kWarp : 0;
  Part whole{};
  if (lane == 0) whole = parts.tails[first];
#pragma unroll 4
  for (int64_t span = first + 1 + lane; span <= last; span += by_warp ? kWarp : 1)
    whole.add(parts.heads[span]);
  return by_warp ? warp_sum_of_whole(whole) : whole;
}

// Calls visit(row, part) once for each row, with the sums over the whole row. If rows are few and long, a
// warp adds up the parts of a row, otherwise one thread does.
template <class Part, class Visit>
__device__ __forceinline__ void for_whole_rows(const SpannedBatch& pass, const Parts<Part>& parts,
                                               Visit visit) {
  const int64_t rows = pass.batch.layout.rows;
  if (is_row_for_warp(pass)) {
    for (int64_t row = first_warp(); row < rows; row += all_warps()) {
      const Part part = whole_row<true>(pass, parts, row);
      if (threadIdx.x % kWarp == 0) visit(row, part);
    }
  } else {
    for (int64_t row = first_thread(); row < rows; row += all_threads())
      visit(row, whole_row<false>(pass, parts, row));
  }
}

}  // namespace policy_loss::cuda
