// Compares the CUDA kernels of losses with the CPU engine: all losses, aggregations, KL estimators and
// dtypes, on batches of all shapes. Also tests that results have the same bits in any order of blocks and
// threads.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "cpu/engine.h"
#include "test/native/emulation/traffic.h"
#include "test/native/kernels/evaluations.h"
#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

const Coefficients kCoefficients{0.3, 0.05, -0.02};

int loss_count() {
  return static_cast<int>(losses().size());
}
int estimator_count() {
  return static_cast<int>(kl_estimators().size());
}
std::string loss_name(int loss) {
  return loss == kNone ? "no loss" : losses()[loss].name;
}

// Evaluates all losses on a batch in device memory, with blocks and threads in normal order, and compares the
// results with the CPU engine. Then evaluates them on the batch in host memory, in shuffled order, and
// expects the same bits.
void test_functions(const Shape& shape, DType dtype, int turn) {
  const auto batch = draw_batch(shape, dtype, dtype == DType::kFloat16, 7);
  cuda::Resident* const resident = upload(batch->view);
  for (int loss = kNone; loss < loss_count(); ++loss)
    for (int aggregation = 0; aggregation < 4; ++aggregation) {
      // A function without a policy loss is tested with every KL estimator and with none. A function with a
      // policy loss is tested twice, each time with the next estimator.
      const int variants = loss == kNone ? estimator_count() + 1 : 2;
      for (int variant = 0; variant < variants; ++variant) {
        ++turn;
        const int kl = loss == kNone ? variant - 1 : turn % (estimator_count() + 1) - 1;
        const Function function =
            make_function(loss, variant + aggregation * 2, static_cast<Aggregation>(aggregation), kl,
                          turn % 3 != 0 || (loss == kNone && kl == kNone));
        const std::string what = std::string(shape.name) + ", " + name_of(dtype) + ", " + loss_name(loss) +
                                 ", aggregation " + std::to_string(aggregation) + ", kl " +
                                 std::to_string(kl);
        const Outcome found = on_device(function, *batch, kCoefficients, resident, what);
        compare(on_cpu(function, *batch, kCoefficients), found, *batch, what);
        const Outcome again =
            shuffled(turn, [&] { return on_device(function, *batch, kCoefficients, nullptr, what); });
        expect(found.same_bits(again), what + ": the same bits from the host, in another order");
      }
    }
  cuda::release(resident);
}

// Tests rows that count several times or not at all, batches with a normalizer (parts of a larger batch), and
// functions that have no term.
void test_repeats_and_normalizers(const Shape& shape, int turn) {
  for (int loss = kNone; loss < loss_count(); ++loss)
    for (int aggregation = 0; aggregation < 4; ++aggregation) {
      ++turn;
      const auto batch = draw_batch(shape, DType::kFloat32, false, static_cast<unsigned>(turn));
      const bool pairs = loss != kNone && losses()[loss].traits.by_pairs;
      // Two of three batches have rows that repeat or do not count, and in a few of these no row counts. Two
      // of three batches have a normalizer.
      if (turn % 3 != 0) draw_repeats(batch.get(), turn % 7 == 0 ? 0 : 3, pairs, static_cast<unsigned>(turn));
      Normalizer normalizer;
      normalizer.given = turn % 3 != 1;
      normalizer.counts = {{11.0 * turn, 7000}, {20, 9}, 40};
      const bool terms = loss != kNone || aggregation != 0;
      const int kl = terms ? turn % (estimator_count() + 1) - 1 : kNone;
      const Function function =
          make_function(loss, turn, static_cast<Aggregation>(aggregation), kl, terms && turn % 2 == 0);
      const std::string what = std::string("repeats or normalizer, ") + shape.name + ", " + loss_name(loss) +
                               ", aggregation " + std::to_string(aggregation) + ", kl " + std::to_string(kl);
      const Outcome found = on_device(function, *batch, kCoefficients, nullptr, what, normalizer);
      compare(on_cpu(function, *batch, kCoefficients, normalizer), found, *batch, what);
      cuda::Resident* const resident = upload(batch->view);
      const Outcome again = shuffled(
          turn, [&] { return on_device(function, *batch, kCoefficients, resident, what, normalizer); });
      expect(found.same_bits(again), what + ": the same bits from a resident batch");
      cuda::release(resident);
    }
}

void test_a_million_tokens(int first_loss, int last_loss) {
  const auto batch = draw_batch({"a million tokens", 250, 4001, {}}, DType::kFloat32, false, 5);
  for (int loss = first_loss; loss < last_loss; ++loss) {
    const Function function =
        make_function(loss, loss, static_cast<Aggregation>(loss % 4), loss % estimator_count(), true);
    const std::string what = "a million tokens, " + loss_name(loss);
    compare(on_cpu(function, *batch, kCoefficients),
            on_device(function, *batch, kCoefficients, nullptr, what), *batch, what);
  }
}

// Tests that kernels do not read the columns where the rest of a row is masked. Skips losses that need sums
// over each row, because their first pass reads the columns together with the mask.
void test_masked_tails() {
  const auto batch = draw_batch({"masked tails", 8, 4096, {}}, DType::kFloat32, false, 8);
  for (int loss = 0; loss < loss_count(); ++loss) {
    if (losses()[loss].traits.row_sums != RowSums::kNever) continue;
    const Function function = make_function(loss, 0, Aggregation::kTokenMean, kNone, false);
    int64_t bytes[2];
    for (const bool tails : {false, true}) {
      const int64_t until = tails ? 1024 : 4096;
      for (int64_t i = 0; i < batch->tokens; ++i) batch->mask[i] = batch->live[i] = i % 4096 < until ? 1 : 0;
      for (std::vector<float>& column : batch->column)
        for (float& x : column)
          if (!std::isfinite(x)) x = -1.0f;
      const std::string what = "masked tails, " + loss_name(loss);
      cuda::Resident* const resident = upload(batch->view);
      const int64_t before = emulation::bytes_copied();
      compare(on_cpu(function, *batch, {}), on_device(function, *batch, {}, resident, what), *batch, what);
      bytes[tails] = emulation::bytes_copied() - before;
      cuda::release(resident);
    }
    expect(bytes[0] > 0 && bytes[1] * 4 == bytes[0], loss_name(loss) + " does not read masked tails");
  }
}

// Tests that all blocks of the token kernel read equally many steps, if most of the masked tokens are in one
// half of the batch.
void test_masked_half() {
  constexpr int64_t of_row = 1024, rows = 128, step = 256;
  const auto batch = draw_batch({"a masked half", rows, of_row, {}}, DType::kFloat32, false, 9);
  int64_t live = 0;
  for (int64_t i = 0; i < batch->tokens; i += step) {
    const bool is_live = i < batch->tokens / 2 || i / step % 10 == 0;
    live += is_live ? 1 : 0;
    for (int64_t at = i; at < i + step; ++at) {
      batch->mask[at] = batch->live[at] = is_live ? 1 : 0;
      for (std::vector<float>& column : batch->column)
        if (is_live && !std::isfinite(column[at])) column[at] = -1.0f;
    }
  }
  constexpr int64_t bytes_of_step = step * (3 * sizeof(float) + 1);
  const Function ppo = make_function(0, 0, Aggregation::kTokenMean, kNone, false);
  for (const int seed : {0, 1}) {
    compare(on_cpu(ppo, *batch, {}),
            shuffled(seed, [&] { return on_device(ppo, *batch, {}, nullptr, "a masked half"); }), *batch,
            "a masked half");
    const std::vector<int64_t> bytes = emulation::bytes_copied_by_blocks();
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    expect(bytes.size() > 1 && *most - *least <= bytes_of_step, "a masked half: blocks read from " +
                                                                    std::to_string(*least) + " to " +
                                                                    std::to_string(*most) + " bytes");
    expect(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) == live * bytes_of_step,
           "a masked half: each live step is read once");
  }
}

// Tests the KL value of each token, with and without a column `base` from which the values are subtracted.
void test_kl_values(const Shape& shape) {
  for (int estimator = 0; estimator < estimator_count(); ++estimator)
    for (const bool with_base : {false, true}) {
      const auto batch = draw_batch(shape, DType::kFloat32, false, 11);
      std::vector<float> base(batch->tokens, 0.5f), expected(batch->tokens), found(batch->tokens, 42.0f);
      cpu::KlEvaluation evaluation(estimator, batch->view, with_base ? base.data() : nullptr, kKlScale,
                                   expected.data());
      cpu::run_here(evaluation);
      double mean = -1;
      const cuda::KlCall call =
          kl_call_into(found.data(), &mean, estimator, with_base ? base.data() : nullptr);
      cuda::Problem problem;
      const std::string what = "values of " + kl_estimators()[estimator].name + ", " + shape.name;
      const cuda::Status status = shuffled(1, [&] { return cuda::kl_host(0, batch->view, call, &problem); });
      expect(status == cuda::Status::kOk, what + ": " + problem.message);
      for (int64_t i = 0; i < batch->tokens; ++i)
        expect(close(found[i], expected[i], 1.0), what + " at " + std::to_string(i));
      if (with_base) expect(close(mean, evaluation.mean_kl(), 1.0), what + ": mean");
    }
}

}  // namespace

std::vector<Piece> evaluation_pieces() {
  std::vector<Piece> pieces;
  constexpr int kLossesOfAPiece = 5;
  for (int loss = 0; loss < loss_count(); loss += kLossesOfAPiece)
    pieces.push_back({"a million tokens",
                      [=] { test_a_million_tokens(loss, std::min(loss + kLossesOfAPiece, loss_count())); }});
  int turn = 0;
  for (const Shape& shape : shapes()) {
    for (const DType dtype : dtypes_of(shape))
      pieces.push_back({std::string("functions, ") + shape.name + ", " + name_of(dtype),
                        [&shape, dtype, turn = turn += 1000] { test_functions(shape, dtype, turn); }});
    pieces.push_back({std::string("repeats, ") + shape.name,
                      [&shape, turn = turn += 1000] { test_repeats_and_normalizers(shape, turn); }});
  }
  pieces.push_back({"masked tails", test_masked_tails});
  pieces.push_back({"masked half", test_masked_half});
  return pieces;
}

std::vector<Piece> kl_value_pieces() {
  std::vector<Piece> pieces;
  for (const Shape& shape : shapes())
    pieces.push_back({std::string("kl values, ") + shape.name, [&shape] { test_kl_values(shape); }});
  return pieces;
}

}  // namespace kernels_test
