// Compares the exponentials of native/math/scalar.h with std::exp() in float64, for every float32 number. The
// test is built once for each instruction set, with the compiler options of the engine's loops, so that the
// compiler vectorises it like these loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <thread>
#include <vector>

#include "math/precise.h"
#include "math/scalar.h"
#include "ulp.h"

namespace {

using policy_loss::bits_float;
using policy_loss::test::ulp_at;
using policy_loss::test::Worst;

constexpr int kBlock = 4096;
constexpr double kMostUlp = 2.0;
constexpr double kMostUlpOfResidual = 3.0;
#if defined(__FMA__) || defined(__aarch64__)
constexpr double kMostUlpOfPower = 3.0;
#else
constexpr double kMostUlpOfPower = 46.0;
#endif
constexpr float kFactor = 1.44269504f;  // log2 e
// exp_flushed() may return 0 if e^x is below this number.
constexpr double kFlushed = 1.7e-38;

struct Results {
  Worst exp{"exp"}, flushed{"exp_flushed"}, bounded{"exp_bounded, |x| <= 87"},
      residual{"exp_residual, |x| <= 87"}, power{"exp2_of_product, |x| <= 86.9"};

  void add(const Results& other) {
    exp.add(other.exp);
    flushed.add(other.flushed);
    bounded.add(other.bounded);
    residual.add(other.residual);
    power.add(other.power);
  }
};

// Compares an exponential with its true value. If the true value exceeds float32's range, Infinity is
// correct.
void compare(Worst& worst, float found, double truth, float x) {
  if (truth > std::numeric_limits<float>::max())
    worst.check(std::isinf(found) || ulp_at(truth) * kMostUlp > truth - found, x);
  else
    worst.error(std::fabs(found - truth) / ulp_at(truth), x);
}

void look(const float* x, const float* exp, const float* flushed, const float* bounded, const float* residual,
          const float* power, Results& results) {
  for (int i = 0; i < kBlock; ++i) {
    if (std::isnan(x[i])) {
      for (Worst* worst : {&results.exp, &results.flushed, &results.residual})
        worst->check(std::isnan(exp[i]) && std::isnan(flushed[i]) && std::isnan(residual[i]), x[i]);
      continue;
    }
    // Far from 0, e^x must be exactly Infinity or 0. Very near 0, it must be exactly 1.
    if (x[i] > 100 || x[i] < -120) {
      const float end = x[i] > 0 ? std::numeric_limits<float>::infinity() : 0.0f;
      results.exp.check(exp[i] == end, x[i]);
      results.flushed.check(flushed[i] == end, x[i]);
      continue;
    }
    if (std::fabs(x[i]) < 1e-9f) {
      results.exp.check(exp[i] == 1.0f, x[i]);
      results.flushed.check(flushed[i] == 1.0f, x[i]);
      results.bounded.check(bounded[i] == 1.0f, x[i]);
      results.power.check(power[i] == 1.0f, x[i]);
      results.residual.check(residual[i] >= 0.0f && residual[i] <= 5e-19f, x[i]);
      continue;
    }
    const double truth = std::exp(static_cast<double>(x[i]));
    compare(results.exp, exp[i], truth, x[i]);
    if (truth >= kFlushed)
      compare(results.flushed, flushed[i], truth, x[i]);
    else
      results.flushed.check(flushed[i] >= 0 && flushed[i] <= 1.01 * kFlushed, x[i]);
    if (std::fabs(x[i]) > 87) continue;
    compare(results.bounded, bounded[i], truth, x[i]);
    if (std::fabs(x[i]) <= 86.9f)
      results.power.error(std::fabs(power[i] - std::exp2(double{x[i]} * kFactor)) / ulp_at(truth), x[i]);
    // The true residual e^x − 1 − x is computed as a series near 0, because float64 terms would cancel there.
    // For |x| > ln 2 / 2, the engine computes the residual as a difference too, and its error is relative to
    // the largest term of this difference.
    const double y = x[i];
    const double rest =
        std::fabs(y) < 1e-3 ? y * y * (0.5 + y * (1.0 / 6 + y * (1.0 / 24 + y / 120))) : truth - 1 - y;
    const double part = std::fabs(y) < 0.3465 ? rest : std::max({truth, 1.0, std::fabs(y)});
    results.residual.error(std::fabs(residual[i] - rest) / ulp_at(part), x[i]);
  }
}

void run(uint64_t first, uint64_t last, Results& results) {
  alignas(64) static thread_local float x[kBlock], exp[kBlock], flushed[kBlock], bounded[kBlock],
      residual[kBlock], power[kBlock];
  for (uint64_t at = first; at < last; at += kBlock) {
    for (int i = 0; i < kBlock; ++i) x[i] = bits_float(static_cast<int32_t>(at + i));
#pragma omp simd
    for (int i = 0; i < kBlock; ++i) {
      exp[i] = policy_loss::exp(x[i]);
      flushed[i] = policy_loss::exp_flushed(x[i]);
      bounded[i] = policy_loss::exp_bounded(x[i]);
      residual[i] = policy_loss::exp_residual(x[i]);
      power[i] = policy_loss::exp2_of_product(x[i], kFactor, 1.0f);
    }
    look(x, exp, flushed, bounded, residual, power, results);
  }
}

// Compares precise_exp() with the C library's function for long doubles. Returns whether all errors are small
// enough.
bool check_precise() {
  constexpr double kMostUlpOfPrecise = 2;
  double worst = 0, worst_at = 0;
  bool special = std::isnan(policy_loss::precise_exp(NAN)) && policy_loss::precise_exp(0.0) == 1;
  const auto check = [&](double x) {
    const long double truth = std::exp(static_cast<long double>(x));
    const double rounded = static_cast<double>(truth), found = policy_loss::precise_exp(x);
    if (std::isinf(rounded) || rounded == 0) {
      special = special && found == rounded;
      return;
    }
    const double ulp = std::nextafter(rounded, INFINITY) - rounded;
    const double error = static_cast<double>(std::fabs(found - truth)) / ulp;
    if (!(error <= worst)) worst = error, worst_at = x;
  };
  for (const double x : {-HUGE_VAL, -1e300, -747.0, -745.0, -720.0, 709.7, 710.0, 1e300, HUGE_VAL}) check(x);
  constexpr int kSamples = 1 << 20;
  for (const double limit : {1.0, 30.0, 708.0})
    for (int i = -kSamples; i <= kSamples; ++i) check(limit * i / kSamples + 1e-9 * i);
  std::printf("precise_exp: %.3f ulp at %.17g\n", worst, worst_at);
  if (!special) std::printf("precise_exp: a wrong special value\n");
  return special && worst < kMostUlpOfPrecise;
}

}  // namespace

int main() {
  const int threads = std::max(1u, std::thread::hardware_concurrency());
  constexpr uint64_t kAll = 1ull << 32;
  // The range is cut into many pieces, and each thread gets pieces from all over it. Some parts of the range
  // take longer than others, so this divides the work evenly.
  constexpr uint64_t kPieces = 256;
  std::vector<Results> found(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&found, t, threads] {
      for (uint64_t piece = t; piece < kPieces; piece += threads)
        run(piece * (kAll / kPieces), (piece + 1) * (kAll / kPieces), found[t]);
    });
  for (std::thread& worker : workers) worker.join();
  Results all;
  for (const Results& part : found) all.add(part);

  int failed = 0;
  for (const Worst* worst : {&all.exp, &all.flushed, &all.bounded, &all.residual, &all.power}) {
    std::printf("%s: %.3f ulp at %.9g", worst->name, worst->ulp, worst->at);
    if (worst->wrong > 0)
      std::printf(", and %lld wrong, one at %.9g", (long long)worst->wrong, worst->wrong_at);
    std::printf("\n");
    const double most = worst == &all.residual ? kMostUlpOfResidual
                        : worst == &all.power  ? kMostUlpOfPower
                                               : kMostUlp;
    if (worst->wrong > 0 || worst->ulp >= most) ++failed;
  }
  if (!check_precise()) ++failed;
  std::printf("  %d passing\n", 6 - failed);
  if (failed > 0) std::printf("  %d failing\n", failed);
  return failed == 0 ? 0 : 1;
}
