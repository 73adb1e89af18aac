// Rows over spans: how a warp goes through the rows that lie in its span, and how what several spans have
// found of one row becomes a whole again. Of any pass that has a batch, cut into spans as pass.h says.
#pragma once

#include "cuda/feed.cuh"

namespace policy_loss::cuda {

// Of counts within a span, which are small.
__device__ __forceinline__ int64_t warp_count(int64_t n) {
  return __reduce_add_sync(kAllLanes, static_cast<unsigned>(n));
}
__device__ __forceinline__ RowPart warp_sum(const RowPart& part) {
  return {warp_sum(part.sum), warp_count(part.tokens), warp_count(part.negatives)};
}
__device__ __forceinline__ DistillPart warp_sum(const DistillPart& part) {
  return {warp_sum(part.divergence), warp_sum(part.advantage)};
}

// Visits the rows that lie in a span: visit(row, from, to) gets the row's tokens there, as flat indices.
template <class Pass, class Visit>
__device__ __forceinline__ void for_rows(const Pass& pass, int64_t span, Visit visit) {
  const Layout& layout = pass.batch.layout;
  const int64_t first = span * pass.span;
  const int64_t last = min(first + pass.span, pass.tokens);
  int64_t row = 0;
  for (int64_t from = first; from < last;) {
    row = row_of(layout, from, row);
    const int64_t to = min(layout.begin(row) + layout.length(row), last);
    visit(row, from, to);
    from = to;
  }
}

// A lane's share of a row's tokens: visit(i, which) gets the tokens `which` of the quad at i.
template <class Visit>
__device__ __forceinline__ void for_quads(int64_t from, int64_t to, Visit visit) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t i = from / kQuad * kQuad + lane * kQuad; i < to; i += kSpanStep)
    visit(i, bits_within(i, from, to));
}

// Where what was found of a row's share of a span is left.
template <class Pass, class Part>
__device__ __forceinline__ Part* place_of(const Pass& pass, const Parts<Part>& parts, int64_t span,
                                          int64_t row) {
  const int64_t begin = pass.batch.layout.begin(row);
  const int64_t end = begin + pass.batch.layout.length(row);
  const int64_t first = span * pass.span;
  if (begin < first) return parts.heads + span;
  return end > min(first + pass.span, pass.tokens) ? parts.tails + span : parts.rows + row;
}

// The sums over each row's share of a span. visit(row, i, which, quad, unmasked, part) adds the tokens
// `which` of the quad at i; leave(row, part) is told of the share's sums, by one lane.
template <unsigned always, class Pass, class Part, class Visit, class Leave>
__device__ __forceinline__ void sum_rows(const Feed<always>& feed, const Pass& pass, const Parts<Part>& parts,
                                         int64_t span, Visit visit, Leave leave) {
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  const int64_t first = span * pass.span;
  const int64_t last = min(first + pass.span, pass.tokens);
  int64_t row = 0;
  int64_t end = first;  // of the row, or of the span where that comes first
  RowColumns of_row;
  Part mine{};
  const auto add_step = [&](int64_t step, QuadColumns& quad, unsigned unmasked) {
    const int64_t step_end = min(step + kSpanStep, last);
    for (int64_t from = step; from < step_end;) {
      if (from == end) {
        row = row_of(layout, from, row);
        end = min(layout.begin(row) + layout.length(row), last);
        of_row = feed.of_row(row);
      }
      const int64_t to = min(end, step_end);
      feed.add_row(of_row, &quad);
      const unsigned which =
          bits_within(lane * kQuad, static_cast<int>(from - step), static_cast<int>(to - step));
      visit(row, step + lane * kQuad, which, quad, unmasked, &mine);
      if (to == end) {
        const Part part = warp_sum(mine);
        mine = {};
        if (lane == 0) {
          *place_of(pass, parts, span, row) = part;
          leave(row, part);
        }
      }
      from = to;
    }
  };
  feed.for_steps(first, last, ~uint64_t{0}, add_step, [](int64_t) {});
}

// A row's sums over all spans that it lies in.
template <class Pass, class Part>
__device__ __forceinline__ Part whole_row(const Pass& pass, const Parts<Part>& parts, int64_t row) {
  const int64_t begin = pass.batch.layout.begin(row);
  const int64_t end = begin + pass.batch.layout.length(row);
  if (begin == end) return {};
  const int64_t first = begin / pass.span;
  const int64_t last = (end - 1) / pass.span;
  if (first == last) return parts.rows[row];
  Part whole = parts.tails[first];
#pragma unroll 4
  for (int64_t span = first + 1; span <= last; ++span) whole.add(parts.heads[span]);
  return whole;
}

}  // namespace policy_loss::cuda
