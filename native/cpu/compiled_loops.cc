#include "cpu/compiled_loops.h"

#include <utility>

#include "program/segments.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
#if PL_SPECIAL_LOOPS
namespace {

// Calls visit(k) for each number k in a set.
template <unsigned set, class Visit>
PL_FN void for_each_in(const Visit& visit) {
  if constexpr (set != 0) {
    visit(__builtin_ctz(set));
    for_each_in<set&(set - 1)>(visit);
  }
}

// Prefetches a set of columns. It does not use for_each_in(), because GCC 12 removes calls of a lambda
// that only prefetches.
template <unsigned set>
PL_FN void fetch_columns(const float* const* columns, int at) {
  if constexpr (set != 0) {
    fetch_ahead(columns[__builtin_ctz(set)] + at);
    fetch_columns<set&(set - 1)>(columns, at);
  }
}

// Copies of a loop's sums, which the compiler keeps in registers because no pointer can point to them.
template <int index>
struct LocalSums {
  static constexpr program::SegmentShape kShape = program::kShape<index>;
  static constexpr int kReductions = 32 - __builtin_clz((kShape.sums | kShape.singles) << 1 | 1);
  float loss[kSumLanes] = {};
  float metric[kShape.metrics + 1][kSumLanes];
  double sum[kReductions][kSumLanes];
  float single[kReductions][kSumLanes];

  PL_FN void load(const CompiledSegment& segment) {
    if (kShape.has_loss) segment.outputs->loss.store(loss);
    for (int k = 0; k < kShape.metrics; ++k) segment.outputs->metric[k].store(metric[k]);
    for_each_in<kShape.sums>([&](int k) { segment.sums[k]->precise.store(sum[k]); });
    for_each_in<kShape.singles>([&](int k) { segment.sums[k]->single.store(single[k]); });
  }
  PL_FN void store(const CompiledSegment& segment) const {
    if (kShape.has_loss)
      segment.outputs->loss.load(kShape.loss_metric < 0 ? loss : metric[kShape.loss_metric]);
    for (int k = 0; k < kShape.metrics; ++k) segment.outputs->metric[k].load(metric[k]);
    for_each_in<kShape.sums>([&](int k) { segment.sums[k]->precise.load(sum[k]); });
    for_each_in<kShape.singles>([&](int k) { segment.sums[k]->single.load(single[k]); });
  }
};

// The numbers of one token and the results for it, as the function of a segment reads and writes them.
template <int index>
struct TokenIo {
  const CompiledSegment& segment;
  const float* const* columns;
  const float* uniforms;
  LocalSums<index>& sums;
  int i;                                  // the token
  int l;                                  // its partial sum
  int32_t lane;                           // its mask
  float count = if_unmasked(1.0f, lane);  // what it adds to a count of tokens

  PL_FN float column(int c) const { return columns[c][i]; }
  PL_FN float scanned(int k) const { return segment.scanned[k][i]; }
  PL_FN float uniform(int k) const { return uniforms[k]; }
  PL_FN bool is_at(int number, int) const { return segment.of_positions[number][i] != 0.0f; }
  PL_FN bool is_up_to(int number, int) const { return segment.of_positions[number][i] != 0.0f; }
  PL_FN float draw(int number, int) const { return segment.of_positions[number][i]; }
  PL_FN void loss(float x) { sums.loss[l] += if_unmasked(x, lane); }
  PL_FN void metric(int k, float x) { sums.metric[k][l] += if_unmasked(x, lane); }
  PL_FN void metric(int k, bool counts) { sums.metric[k][l] += counts ? count : 0.0f; }
  PL_FN void loss_and_metric(int k, float x) { metric(k, x); }
  PL_FN void grad(float x, float factor) { segment.grad[i] = if_unmasked(x * factor, lane); }
  PL_FN void row_sum(int number, float x) { sums.sum[number][l] += if_unmasked(x, lane); }
  PL_FN void row_sum_single(int number, float x) { sums.single[number][l] += if_unmasked(x, lane); }
  PL_FN void row_sum_single(int number, bool counts) { sums.single[number][l] += counts ? count : 0.0f; }
  PL_FN void row_operand(Op, int number, float x) { segment.extremes[number][i] = x; }
  PL_FN void scan(Op, int k, float x) { segment.scanned[k][i] = if_unmasked(x, lane); }
};

// Precedes the loop over the tokens of one iteration. Each token needs a long chain of operations that wait
// for each other, so Clang computes two vectors side by side with AVX2 and AVX-512. The code would be too
// large for more. This was not measured with NEON.
#if !defined(__clang__) || defined(__AVX512F__)
#define PL_FOR_TOKENS PL_FOR_LANES
#elif defined(__AVX__)
#define PL_FOR_TOKENS PL_LOOP(8, 2)
#else
#define PL_FOR_TOKENS PL_FOR_LANES_COMPACTLY
#endif

// Computes n tokens of a tile.
template <int index>
void loop(const CompiledSegment& shared, const TileColumns& in, int n) {
  constexpr program::SegmentShape shape = program::kShape<index>;
  const CompiledSegment segment = shared;
  const float* columns[kColumns];
  for (int c = 0; c < kColumns; ++c) columns[c] = in.get<const float*>(c);
  float uniforms[shape.uniforms + 1];
  for (int k = 0; k < shape.uniforms; ++k) uniforms[k] = segment.uniforms[k];
  const Lane* const lanes = in.lanes;
  LocalSums<index> sums;
  sums.load(segment);
  for (int at = 0; at < n; at += kSumLanes) {
    fetch_columns<shape.columns>(columns, at);
    if constexpr (shape.has_grad) fetch_ahead<1>(segment.grad + at);
    PL_FOR_TOKENS
    for (int l = 0; l < kSumLanes; ++l) {
      TokenIo<index> io{segment, columns, uniforms, sums, at + l, l, lanes[at + l]};
      compute_segment(program::Index<index>(), io);
    }
  }
  sums.store(segment);
}

template <int... index>
CompiledLoop loop_of(int wanted, std::integer_sequence<int, index...>) {
  static constexpr CompiledLoop loops[] = {loop<index>...};
  return loops[wanted];
}

}  // namespace

CompiledLoop compiled_loop(int index) {
  return loop_of(index, std::make_integer_sequence<int, kSegments>());
}

#else

CompiledLoop compiled_loop(int) {
  return nullptr;
}

#endif
}  // namespace policy_loss::inline POLICY_LOSS_TARGET
