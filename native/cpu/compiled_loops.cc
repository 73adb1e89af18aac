#include "cpu/compiled_loops.h"

#include "program/interpret.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
#if PL_SPECIAL_LOOPS
namespace {

// The columns, as one pointer per column that a loop may read.
struct Columns {
  const float* of[kColumns];

  explicit Columns(const TileColumns& in) {
    for (int c = 0; c < kColumns; ++c) of[c] = in.get<const float*>(c);
  }
};

// Calls visit(k) for each number k in a set of reductions.
template <unsigned set, class Visit>
PL_FN void for_each_in(const Visit& visit) {
  if constexpr (set != 0) {
    visit(__builtin_ctz(set));
    for_each_in<set&(set - 1)>(visit);
  }
}

// Copies of a loop's sums, which the compiler keeps in registers because no pointer can point to them. The
// sets tell which reductions are sums in float64 and which are sums in float32.
template <int metrics, unsigned sums, unsigned singles>
struct LocalSums {
  static constexpr int reductions = 32 - __builtin_clz((sums | singles) << 1 | 1);
  float loss[kSumLanes] = {};
  float metric[metrics + 1][kSumLanes];
  double sum[reductions][kSumLanes];
  float single[reductions][kSumLanes];

  PL_FN void load(const CompiledSegment& segment) {
    if (segment.outputs) segment.outputs->loss.store(loss);
    for (int k = 0; k < metrics; ++k) segment.outputs->metric[k].store(metric[k]);
    for_each_in<sums>([&](int k) { segment.sums[k]->precise.store(sum[k]); });
    for_each_in<singles>([&](int k) { segment.sums[k]->single.store(single[k]); });
  }
  PL_FN void store(const CompiledSegment& segment) const {
    if (segment.outputs) segment.outputs->loss.load(loss);
    for (int k = 0; k < metrics; ++k) segment.outputs->metric[k].load(metric[k]);
    for_each_in<sums>([&](int k) { segment.sums[k]->precise.load(sum[k]); });
    for_each_in<singles>([&](int k) { segment.sums[k]->single.load(single[k]); });
  }
};

// Precedes the loop over the tokens of one step. Each token needs a long chain of operations that wait for
// each other, so Clang computes two vectors side by side with AVX2 and AVX-512. The code would be too large
// for more. This was not measured with NEON.
#if !defined(__clang__) || defined(__AVX512F__)
#define PL_FOR_TOKENS PL_FOR_LANES
#elif defined(__AVX__)
#define PL_FOR_TOKENS PL_LOOP(8, 2)
#else
#define PL_FOR_TOKENS PL_FOR_LANES_COMPACTLY
#endif

// A processor looks only so far ahead. Where a step begins with exponentials, all that follows waits for
// them, and the next step is out of its sight. With AVX-512, loops therefore compute some values one step
// ahead; the list tells which. AVX2 has too few registers to carry them to the next step, and GCC 12 would
// not vectorise some of these loops.
#if defined(__clang__) && defined(__AVX512F__)
#define PL_CARRIES 1
#else
#define PL_CARRIES 0
#endif

// The values of one token that are computed a step ahead.
template <int count>
struct CarriedValues {
  float of[count + 1];

  PL_FN void store(float (*carried)[kSumLanes], int l) const {
    for_each_in<(1u << count) - 1>([&](int k) { carried[k][l] = of[k]; });
  }
};

// Prefetches for a loop. A long one takes longer to compute than memory takes.
template <int writes, bool is_long>
PL_FN void fetch_for(const float* tokens) {
  if constexpr (is_long)
    fetch_in_time<writes>(tokens);
  else
    fetch_ahead<writes>(tokens);
}

template <Op op>
PL_FN float compute(float a, float b = 0, float c = 0, float d = 0) {
  return apply<op, float>(a, b, c, d);
}

#define R(index) r##index
#define C(index) c##index
#define S(index) s##index
#define U(index) uniform[index]
// Reads a column before the gradients are written, as the compiler would otherwise read it again.
#define LOAD(index) [[maybe_unused]] const float c##index = columns.of[index][i];
#define LOAD_SCANNED(index) [[maybe_unused]] const float s##index = segment.scanned[index][i];
#define REGISTERS(...) [[maybe_unused]] float __VA_ARGS__;
#define ARITHMETIC(name, out, ...) r##out = compute<Op::k_##name>(__VA_ARGS__);
#define OF_POSITION(name, out, number, a) r##out = segment.of_positions[number][i];

#if PL_CARRIES
// Each listed segment becomes a function that returns the carried values of a token. It leaves out nothing,
// but the compiler removes what these values do not depend on.
#define SEGMENT(index, uniform_count, metric_count, sums, singles, is_long, carried_count)      \
  [[maybe_unused]] PL_FN CarriedValues<carried_count> carried_values_##index(                   \
      [[maybe_unused]] const CompiledSegment& segment, [[maybe_unused]] const Columns& columns, \
      [[maybe_unused]] const float* uniform, [[maybe_unused]] int i) {                          \
    CarriedValues<carried_count> carried{};
#define READ_AHEAD(...)
#define READ_AHEAD_OF_GRAD
#define BEGIN_LOOP
#define CARRIED(number, name, out, ...) carried.of[number] = r##out = compute<Op::k_##name>(__VA_ARGS__);
#define SUM(...)
#define SUM_SINGLE(...)
#define EXTREME(...)
#define SCAN(...)
#define LOSS(...)
#define METRIC(...)
#define LOSS_COPIED(...)
#define METRIC_COPIED(...)
#define GRAD(...)
#define END_LOOP
#define COPY(...)
#define END_SEGMENT \
  return carried;   \
  }
#include "program/compiled_segments.inc"

// Returns the carried values of the first step. It is not inlined, because the constants of the exponentials
// would then be kept for the loop, in registers that the loop needs.
template <int count, CarriedValues<count> values(const CompiledSegment&, const Columns&, const float*, int)>
__attribute__((noinline)) void first_values(const CompiledSegment& segment, const Columns& columns,
                                            const float* uniform, float (*first)[kSumLanes]) {
  PL_FOR_LANES_COMPACTLY
  for (int l = 0; l < kSumLanes; ++l) values(segment, columns, uniform, l).store(first, l);
}

// Computes the carried values of the first step. They are copied, so that no pointer can point to `carried`
// and the compiler keeps it in registers.
#define BEGIN_CARRYING(index, carried_count)                                       \
  constexpr auto carried_values = carried_values_##index;                          \
  [[maybe_unused]] float carried[carried_count + 1][kSumLanes];                    \
  if constexpr (carried_count > 0) {                                               \
    alignas(64) float first[carried_count + 1][kSumLanes];                         \
    first_values<carried_count, carried_values>(segment, columns, uniform, first); \
    memcpy(carried, first, sizeof carried);                                        \
  }
// Computes the carried values of the next step. After the last step, they are not used.
#define CARRY_AHEAD const auto next = carried_values(segment, columns, uniform, i_of_next + l);
#define CARRIED(number, name, out, ...) r##out = carried[number][l];
#define PASS_ON next.store(carried, l);
#else
#define BEGIN_CARRYING(...)
#define CARRY_AHEAD
#define CARRIED(number, ...) ARITHMETIC(__VA_ARGS__)
#define PASS_ON
#endif

// Each listed segment becomes a function that computes n tokens of a tile.
#define SEGMENT(index, uniform_count, metric_count, sums, singles, is_long, carried_count) \
  void loop_##index(const CompiledSegment& segment, const TileColumns& in, int n) {        \
    [[maybe_unused]] constexpr bool kIsLong = is_long != 0;                                \
    [[maybe_unused]] float uniform[uniform_count + 1];                                     \
    for (int k = 0; k < uniform_count; ++k) uniform[k] = segment.uniforms[k];              \
    const Columns columns(in);                                                             \
    const Lane* const lanes = in.lanes;                                                    \
    [[maybe_unused]] float* const grad = segment.grad;                                     \
    LocalSums<metric_count, sums, singles> local;                                          \
    local.load(segment);                                                                   \
    BEGIN_CARRYING(index, carried_count)                                                   \
    for (int at = 0; at < n; at += kSumLanes) {
// Prefetches a column that the loop reads, or the gradients.
#define READ_AHEAD(index) fetch_for<0, kIsLong>(columns.of[index] + at);
#define READ_AHEAD_OF_GRAD fetch_for<1, kIsLong>(grad + at);
#define BEGIN_LOOP                                                                 \
  [[maybe_unused]] const int i_of_next = at + kSumLanes < n ? at + kSumLanes : at; \
  PL_FOR_TOKENS                                                                    \
  for (int l = 0; l < kSumLanes; ++l) {                                            \
    const int i = at + l;                                                          \
    CARRY_AHEAD                                                                    \
    [[maybe_unused]] const int32_t lane = lanes[i];
#define SUM(out, a) local.sum[out][l] += kept(a, lane);
#define SUM_SINGLE(out, a) local.single[out][l] += kept(a, lane);
#define EXTREME(name, out, a) segment.extremes[out][i] = a;
#define SCAN(name, out, a, ...) segment.scanned[out][i] = kept(a, lane);
#define LOSS(a) local.loss[l] += kept(a, lane);
#define METRIC(out, a) local.metric[out][l] += kept(a, lane);
#define LOSS_COPIED(...)
#define METRIC_COPIED(...)
#define GRAD(a, b) grad[i] = kept((a) * (b), lane);
#define END_LOOP \
  PASS_ON        \
  }              \
  }              \
  local.store(segment);
// Copies the partial sums of the loss or of a metric to another that adds up the same numbers.
#define COPY(to, from) segment.outputs->to = segment.outputs->from;
#define END_SEGMENT }

#include "program/compiled_segments.inc"

#undef LOAD
#undef LOAD_SCANNED
#undef REGISTERS
#undef ARITHMETIC
#undef OF_POSITION

constexpr CompiledLoop kLoops[] = {
#define SEGMENT(index, uniform_count, metric_count, sums, singles, is_long, carried_count) \
  {loop_##index, PL_CARRIES && carried_count > 0},
#define READ_AHEAD(...)
#define READ_AHEAD_OF_GRAD
#define BEGIN_LOOP
#define LOAD(...)
#define LOAD_SCANNED(...)
#define REGISTERS(...)
#define ARITHMETIC(...)
#define CARRIED(...)
#define SUM(...)
#define SUM_SINGLE(...)
#define EXTREME(...)
#define OF_POSITION(...)
#define SCAN(...)
#define LOSS(...)
#define METRIC(...)
#define LOSS_COPIED(...)
#define METRIC_COPIED(...)
#define GRAD(...)
#define END_LOOP
#define COPY(...)
#define END_SEGMENT
#include "program/compiled_segments.inc"
};

}  // namespace

CompiledLoop compiled_loop(int index) {
  return kLoops[index];
}

#else

CompiledLoop compiled_loop(int) {
  return {};
}

#endif
}  // namespace policy_loss::inline POLICY_LOSS_TARGET
