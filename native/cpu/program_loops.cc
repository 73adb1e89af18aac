#include "cpu/program_loops.h"

#include <utility>

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

template <Op op, unsigned uniform>
void arithmetic(const TokenOperand* operands, int n, float* out) {
  const float* const a = operands[0].data;
  const float* const b = operands[1].data;
  const float* const c = operands[2].data;
  const float* const d = operands[3].data;
  const float va = operands[0].value, vb = operands[1].value, vc = operands[2].value, vd = operands[3].value;
  constexpr int count = program::kOpOperands[static_cast<int>(op)];
  // Equals n. The division tells the compiler that there is no remainder.
  const int whole = n / kGranule * kGranule;
#pragma omp simd
  for (int i = 0; i < whole; ++i)
    out[i] = apply<op, float>(uniform & 1 ? va : a[i], count < 2 || uniform & 2 ? vb : b[i],
                              count < 3 || uniform & 4 ? vc : c[i], count < 4 || uniform & 8 ? vd : d[i]);
}

// The loops of one operation by `uniform`. Sets that contain every operand have none.
struct Loops {
  ArithmeticLoop of[1 << program::kMaxOperands] = {};
};

template <Op op, unsigned uniform>
constexpr void add_loop(Loops* loops) {
  loops->of[uniform] = arithmetic<op, uniform>;
}

template <Op op, unsigned... uniform>
constexpr Loops loops_for(std::integer_sequence<unsigned, uniform...>) {
  Loops loops;
  (add_loop<op, uniform>(&loops), ...);
  return loops;
}

template <Op op>
constexpr Loops loops_of() {
  if constexpr (program::is_arithmetic(op)) {
    constexpr unsigned all = (1u << program::kOpOperands[static_cast<int>(op)]) - 1;
    return loops_for<op>(std::make_integer_sequence<unsigned, all>{});
  } else {
    return {};
  }
}

constexpr Loops kLoops[] = {
#define X(name, operands) loops_of<Op::k_##name>(),
    POLICY_LOSS_PROGRAM_OPS(X)
#undef X
};

// Calls loop.operator()<uniform>() for an operand.
template <class Loop>
PL_FN void with_form(const TokenOperand& x, const Loop& loop) {
  if (x.is_uniform())
    loop.template operator()<true>();
  else
    loop.template operator()<false>();
}

template <class Number>
PL_FN void add_to_sum(const TokenOperand& x, const Lane* lanes, int n, LaneSum<Number>* sum) {
  Number partial[kSumLanes];
  sum->store(partial);
  with_form(x, [&]<bool uniform>() {
    const float* const data = x.data;
    const float value = x.value;
    for (int at = 0; at < n; at += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l)
        partial[l] += if_unmasked(uniform ? value : data[at + l], lanes[at + l]);
    }
  });
  sum->load(partial);
}

PL_FN bool is_before(bool largest, float x, float than) {
  return largest ? x > than : x < than;
}

}  // namespace

ArithmeticLoop arithmetic_loop(Op op, unsigned uniform) {
  return kLoops[static_cast<int>(op)].of[uniform];
}

void add_to_row_sum(const TokenOperand& x, const Lane* lanes, int n, LaneSum<double>* sum) {
  add_to_sum(x, lanes, n, sum);
}

void add_to_token_sum(const TokenOperand& x, const Lane* lanes, int n, LaneSum<float>* sum) {
  add_to_sum(x, lanes, n, sum);
}

void write_unmasked(const TokenOperand& x, float factor, const Lane* lanes, int n, float* out) {
  with_form(x, [&]<bool uniform>() {
    const float* const data = x.data;
    const float value = x.value;
#pragma omp simd
    for (int i = 0; i < n; ++i) out[i] = if_unmasked((uniform ? value : data[i]) * factor, lanes[i]);
  });
}

void add_unmasked(const TokenOperand& x, float factor, const Lane* lanes, int n, float* out) {
  with_form(x, [&]<bool uniform>() {
    const float* const data = x.data;
    const float value = x.value;
#pragma omp simd
    for (int i = 0; i < n; ++i) out[i] += if_unmasked((uniform ? value : data[i]) * factor, lanes[i]);
  });
}

void write_is_at(double at, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = 0.0f;
  if (!(at >= 0 && at < n)) return;
  const int index = static_cast<int>(at);
  if (index == at) out[index] = 1.0f;
}

void write_is_up_to(double last, int n, float* out) {
  const int end = last >= 0 ? (last < n ? static_cast<int>(last) + 1 : n) : 0;
  for (int i = 0; i < n; ++i) out[i] = i < end ? 1.0f : 0.0f;
}

void write_draws(const RowDraws& draws, int64_t position, int n, float* out) {
#pragma omp simd
  for (int i = 0; i < n; ++i) out[i] = draws.at(static_cast<uint32_t>(position) + static_cast<uint32_t>(i));
}

int64_t gather(const TokenOperand& x, const Lane* lanes, int n, float* out) {
  int64_t count = 0;
  for (int at = 0; at < n; at += kGranule) {
    int32_t all = -1;
#pragma omp simd reduction(& : all)
    for (int i = at; i < at + kGranule; ++i) all &= lanes[i];
    if (all != 0 && !x.is_uniform()) {
      memcpy(out + count, x.data + at, kGranule * sizeof(float));
      count += kGranule;
      continue;
    }
    // Each value is written, and the next one overwrites it if it is masked, because a branch per token would
    // often be predicted wrongly. `out` need not have room for a masked value.
    float unmasked[kGranule];
    int added = 0;
    for (int i = at; i < at + kGranule; ++i) {
      unmasked[added] = x.is_uniform() ? x.value : x.data[i];
      added += lanes[i] & 1;
    }
    memcpy(out + count, unmasked, static_cast<size_t>(added) * sizeof(float));
    count += added;
  }
  return count;
}

namespace {

// Returns the smallest or largest unmasked value of a tile, or NaN if one of the values is NaN. If all tokens
// are masked, returns the infinity that is not better than any value.
template <bool largest, bool uniform>
PL_FN float extreme_of_tile(const TokenOperand& x, const Lane* lanes, int n) {
  const float* const data = x.data;
  const float value = x.value;
  constexpr float worst = largest ? -kInfinity : kInfinity;
  const int32_t worst_bits = float_bits(worst);
  float best[kSumLanes];
  int32_t nans[kSumLanes] = {};
  for (float& b : best) b = worst;
  for (int at = 0; at < n; at += kSumLanes) {
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) {
      const int32_t lane = lanes[at + l];
      const float y = bits_float((float_bits(uniform ? value : data[at + l]) & lane) | (worst_bits & ~lane));
      best[l] = (largest ? y > best[l] : y < best[l]) ? y : best[l];
      nans[l] |= y != y ? 1 : 0;
    }
  }
  float result = worst;
  int32_t nan = 0;
  for (int l = 0; l < kSumLanes; ++l) {
    result = is_before(largest, best[l], result) ? best[l] : result;
    nan |= nans[l];
  }
  return nan != 0 ? bits_float(0x7fc00000) : result;
}

// Returns the index of the first unmasked value that equals `to`, where NaN equals NaN, or n if there is
// none. A value that is the same for all tokens must equal it.
int first_equal(const TokenOperand& x, const Lane* lanes, int n, float to) {
  const int32_t both_nan = to != to ? -1 : 0;
  const auto is_equal = [&](int i) {
    const float y = x.data[i];
    return lanes[i] & ((y == to ? -1 : 0) | ((y != y ? -1 : 0) & both_nan));
  };
  int at = 0;
  for (int32_t any = 0; !x.is_uniform() && at < n; at += kSumLanes) {
    int32_t equal[kSumLanes];
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) equal[l] = is_equal(at + l);
    for (const int32_t e : equal) any |= e;
    if (any != 0) break;
  }
  while (at < n && (x.is_uniform() ? lanes[at] : is_equal(at)) == 0) ++at;
  return at;
}

}  // namespace

template <bool largest>
void Extreme::add(const TokenOperand& x, const Lane* lanes, int n, int64_t first, bool wants_position) {
  if (exists && value != value) return;
  float of_tile = 0;
  with_form(x, [&]<bool uniform>() { of_tile = extreme_of_tile<largest, uniform>(x, lanes, n); });
  // Most tiles do not change the result.
  if (exists && of_tile == of_tile && !is_before(largest, of_tile, value)) return;
  // The token is found only if that matters: an infinity may stand for a tile without unmasked tokens, and
  // the first of several zeros or NaNs is taken.
  const float size = absolute(of_tile);
  if (!wants_position && size > 0 && size < kInfinity) {
    exists = true;
    value = of_tile;
    return;
  }
  const int at = first_equal(x, lanes, n, of_tile);
  if (at == n) return;
  exists = true;
  value = x.is_uniform() ? x.value : x.data[at];
  position = first + at;
}

template void Extreme::add<false>(const TokenOperand&, const Lane*, int, int64_t, bool);
template void Extreme::add<true>(const TokenOperand&, const Lane*, int, int64_t, bool);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
