// Rows over spans: how a warp goes through the rows that lie in its span, and how what several spans have
// found of one row becomes a whole again. Of any pass that has a batch, cut into spans as pass.h says.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

__device__ __forceinline__ RowPart warp_sum(const RowPart& part) {
  return {warp_sum(part.sum), warp_sum(part.tokens), warp_sum(part.negatives)};
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

// The sums over each row's share of a span. visit(row, i, which, part) adds the tokens `which` of the quad at
// i; leave(row, part) is told of the share's sums, by one lane.
template <class Pass, class Part, class Visit, class Leave>
__device__ __forceinline__ void sum_rows(const Pass& pass, const Parts<Part>& parts, int64_t span,
                                         Visit visit, Leave leave) {
  const Layout& layout = pass.batch.layout;
  for_rows(pass, span, [&](int64_t row, int64_t from, int64_t to) {
    Part mine{};
    for_quads(from, to, [&](int64_t i, unsigned which) { visit(row, i, which, &mine); });
    const Part part = warp_sum(mine);
    if (threadIdx.x % kWarp != 0) return;
    const int64_t begin = layout.begin(row);
    const int64_t first = span * pass.span;
    Part* const place = begin < first ? parts.heads + span
                        : begin + layout.length(row) > min(first + pass.span, pass.tokens)
                            ? parts.tails + span
                            : parts.rows + row;
    *place = part;
    leave(row, part);
  });
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
