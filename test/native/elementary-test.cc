// Compares the functions of native/math/elementary.h with the C++ library's functions in float64, for a dense
// sample of the float32 numbers. The test is built once for each instruction set, with the compiler options
// of the engine's loops, so that the compiler vectorises it like these loops.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "math/elementary.h"
#include "ulp.h"

namespace {

using policy_loss::test::ulp_at;
using policy_loss::test::Worst;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFuses = true;
#else
constexpr bool kFuses = false;
#endif
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
constexpr float kMax = std::numeric_limits<float>::max();

// The numbers at which functions of one argument are tested in addition to the sample.
constexpr float kSpecial[] = {0.0f,  -0.0f,  1.0f,   -1.0f,   kTiny, -kTiny, 1.17549435e-38f, kMax,
                              -kMax, kInf,   -kInf,  kNaN,    0.5f,  2.0f,   0.999999940f,    1.00000012f,
                              3.0f,  -80.0f, -100.f, 88.722f, 89.0f, -87.5f, -0.999999940f,   1e-8f};

// Compares one result with the true one. Both must be NaN, or 0 with the same sign, or the same infinity, or
// else their distance counts. `allowed` is the error that counts as 1.
void compare(Worst& worst, float found, double truth, float x, double allowed = 1) {
  const float rounded = static_cast<float>(truth);
  if (std::isnan(truth) || truth == 0)
    worst.check(
        std::isnan(truth) ? std::isnan(found) : found == 0 && std::signbit(found) == std::signbit(truth), x);
  else if (std::isinf(rounded))
    worst.check(found == rounded || std::fabs(found) >= 0.9999996 * kMax, x);
  else
    worst.error(std::fabs(found - truth) / ulp_at(truth) / allowed, x);
}

struct Unary {
  const char* name;
  void (*run)(const float* x, float* out, int n);
  double (*truth)(double x);
  double most;  // ulp
};

#define RUN(name)                       \
#name, [](const float* x, float* out, \
            int n) { _Pragma("omp simd") for (int i = 0; i < n; ++i) out[i] = policy_loss::name(x[i]); }

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double logsigmoid(double x) {
  return x < -700 ? x : 0 - std::log1p(std::exp(-x));
}
double sign(double x) {
  return x > 0 ? 1 : x < 0 ? -1 : x;
}

const Unary kUnary[] = {
    {RUN(expm1), [](double x) { return std::expm1(x); }, 3},
    {RUN(log), [](double x) { return std::log(x); }, 3},
    {RUN(log1p), [](double x) { return std::log1p(x); }, 3},
    {RUN(tanh), [](double x) { return std::tanh(x); }, 3},
    {RUN(sigmoid), sigmoid, 4},
    {RUN(logsigmoid), logsigmoid, 4},
    {RUN(sign), sign, 0},
};

// Returns every stride-th float32 number by its bits, and the special numbers.
std::vector<float> sample(uint32_t stride) {
  std::vector<float> x(std::begin(kSpecial), std::end(kSpecial));
  for (uint64_t bits = 0; bits < 1ull << 32; bits += stride)
    x.push_back(policy_loss::bits_float(static_cast<int32_t>(bits)));
  return x;
}

bool report(const Worst& worst, double most) {
  std::printf("%s: %.3f ulp at %.9g", worst.name, worst.ulp, worst.at);
  if (worst.wrong > 0) std::printf(", and %lld wrong, one at %.9g", (long long)worst.wrong, worst.wrong_at);
  std::printf("\n");
  return worst.wrong == 0 && worst.ulp <= most;
}

bool test_unary(const Unary& f, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  f.run(x.data(), out.data(), static_cast<int>(x.size()));
  Worst worst{f.name};
  for (size_t i = 0; i < x.size(); ++i) compare(worst, out[i], f.truth(x[i]), x[i]);
  return report(worst, f.most);
}

// Returns what JavaScript's Math.pow() returns.
double js_pow(double x, double y) {
  if (std::isnan(y) || (std::fabs(x) == 1 && std::isinf(y))) return std::nan("");
  return std::pow(x, y);
}

bool test_pow() {
  std::vector<float> x, y;
  for (float a : kSpecial)
    for (float b : sample(40000003)) {
      x.insert(x.end(), {a, b});
      y.insert(y.end(), {b, a});
    }
  for (float a : sample(130003))
    for (float b : {0.5f, 2.0f, 3.0f, -1.0f, -7.0f, 0.3333f, 1e-3f, 12.5f, 100.0f,
                    static_cast<float>(40 / std::log(std::fabs(a)))}) {
      x.push_back(a);
      y.push_back(b);
    }
  std::vector<float> out(x.size());
#pragma omp simd
  for (size_t i = 0; i < x.size(); ++i) out[i] = policy_loss::pow(x[i], y[i]);
  Worst worst{"pow"};
  for (size_t i = 0; i < x.size(); ++i) {
    // Without fused multiply-adds, the product y·ln x has a rounding error, which the exponential magnifies.
    const double product = y[i] == 0 ? 0 : y[i] * std::log(std::fabs(x[i]));
    compare(worst, out[i], js_pow(x[i], y[i]), x[i], kFuses ? 1 : 1 + std::fabs(product));
  }
  return report(worst, 4);
}

// Returns whether a and b are the same number or both NaN.
bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool test_choices() {
  Worst worst{"minimum, maximum, select"};
  for (float a : kSpecial) {
    worst.check(policy_loss::select(a, 1.0f, 2.0f) == (std::isnan(a) || a == 0 ? 2.0f : 1.0f), a);
    for (float b : kSpecial) {
      const bool any_nan = std::isnan(a) || std::isnan(b);
      const float least = policy_loss::minimum(a, b), most = policy_loss::maximum(a, b);
      worst.check(same(least, any_nan ? kNaN : std::fmin(a, b)), a);
      worst.check(same(most, any_nan ? kNaN : std::fmax(a, b)), a);
      // Of 0 and −0, the first one is returned.
      if (a == b)
        worst.check(std::signbit(least) == std::signbit(a) && std::signbit(most) == std::signbit(a), a);
    }
  }
  return report(worst, 0);
}

}  // namespace

int main() {
  const std::vector<float> x = sample(997);
  int failed = !test_pow() + !test_choices();
  for (const Unary& f : kUnary) failed += !test_unary(f, x);
  std::printf("  %d passing\n", static_cast<int>(std::size(kUnary)) + 2 - failed);
  if (failed > 0) std::printf("  %d failing\n", failed);
  return failed == 0 ? 0 : 1;
}
