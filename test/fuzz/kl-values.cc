// Fuzzes the computation of KL values per token. Some calls subtract these values from a base array.
#include "engine/function.h"
#include "test/fuzz/targets.h"
#include "test/fuzz/tasks.h"

namespace fuzz {
namespace {

void read_columns(Bytes& in, Random& random, Values values, unsigned columns, Batch* batch) {
  for (const Column c : {kLogprob, kRefLogprob, kOldLogprob})
    if ((columns & reads(c)) != 0)
      read_column(in, random, values, c,
                  {kLeastLogprob, 0, c == kLogprob || in.flag() ? nullptr : batch, kLogprob, true}, batch);
}

}  // namespace

void fuzz_kl_values(Bytes& in) {
  Function function;
  function.kl = in.below(static_cast<int>(kl_estimators().size()));
  subject = "values of " + kl_estimators()[function.kl].name;
  Batch batch;
  read_layout(in, false, &batch);
  Random random(in.word());
  read_mask(in, random, &batch);
  const Values values = in.below(3) == 2 ? kAny : kOrdinary;
  const bool with_base = in.flag();
  if (!with_base && in.flag()) batch.view.mask = nullptr;
  read_columns(in, random, values, columns_of(function), &batch);
  const double scale = in.between(-2, 2);
  Array<float> base(with_base ? batch.tokens : 0, in.byte());
  for (float& x : base) x = static_cast<float>(random.between(-kMostAdvantage, kMostAdvantage));

  const auto at = [&](Where where, double* mean) {
    Array<float> out = to_be_written<float>(batch.tokens, where, static_cast<int>(scale + 2));
    const auto task = std::make_shared<cpu::KlEvaluation>(
        function.kl, batch.view, with_base ? base.data() : nullptr, scale, out.data());
    perform(where, task);
    *mean = task->mean_kl();
    return out;
  };
  const auto same_bits = [](double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  double mean = 0;
  const Array<float> expected = at(kHere, &mean);
  for (const Where where : {kOneThread, kTwoThreads}) {
    double again = 0;
    require(at(where, &again).same_bits(expected) && same_bits(again, mean),
            "the same bits on the pool's threads");
  }
  if (values == kOrdinary) require(all_finite(expected) && std::isfinite(mean), "finite values");
  if (!with_base) return;
  for (int64_t i = 0; i < batch.tokens; ++i)
    require(batch.mask[i] != 0 || float32_bits(expected[i]) == float32_bits(base[i]),
            "the base under the mask");
  disturb(random, ~0u, false, false, &batch);
  double again = 0;
  require(at(kTwoThreads, &again).same_bits(expected) && same_bits(again, mean),
          "values under the mask do not matter");
}

}  // namespace fuzz
