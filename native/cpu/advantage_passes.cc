// The CPU engine's passes for advantage functions. Each call computes one chunk of a batch. This file is
// compiled once for each instruction set.
#include "cpu/advantage_passes.h"

#include "cpu/advantage_tiles.h"
#include "cpu/baseline_rows.h"
#include "cpu/recurrence_rows.h"
#include "cpu/row_sums.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

// Returns the sum of a row's token rewards. As in Trinity-RFT, the sum includes masked tokens.
double sum_rewards(const BatchView& view, int64_t row, float* buffer, NonFiniteValue* bad) {
  const int64_t begin = view.layout.begin(row);
  const int64_t length = view.layout.length(row);
  LaneSum<double> sum;
  for (int64_t at = 0; at < length; at += kTile) {
    const int n = static_cast<int>(length - at < kTile ? length - at : kTile);
    const float* x = load_tile(view.column[kTokenLevelRewardsInput], begin + at, n, buffer);
    for_lanes(n, [&](int lane, int i) { sum.lane[lane] += x[i]; });
    if (bad->input == NonFiniteInput::kNone && any_not_finite(x, nullptr, n))
      report(bad, NonFiniteInput::kTokenRewards, row);
  }
  return sum.take();
}

double mean_logprob_of(const BatchView& view, int64_t row, float* buffer) {
  const int64_t begin = view.layout.begin(row);
  const int64_t length = view.layout.length(row);
  const uint8_t* mask = view.mask + begin;
  LaneSum<double> sum;
  int64_t count = 0;
  for (int64_t at = 0; at < length; at += kTile) {
    const int n = static_cast<int>(length - at < kTile ? length - at : kTile);
    const float* x = load_tile(view.column[kOldLogprobInput], begin + at, n, buffer);
    for_lanes(n, [&](int lane, int i) { sum.lane[lane] += if_unmasked_by(mask[at + i], x[i]); });
    count += count_mask(mask + at, n);
  }
  return mean_logprob(sum.take(), count);
}

// The sums of the divergence and of the advantage over one row, or over its tokens in one chunk.
struct DistillSums {
  double divergence = 0, advantage = 0;
};

template <class F>
DistillSums distill_row(const F& shared, const cpu::AdvantagePass& pass, int64_t begin, int64_t first,
                        int64_t last) {
  const F f = shared;
  const BatchView& view = pass.batch->tokens;
  alignas(64) float old_buffer[kTile];
  alignas(64) float teacher_buffer[kTile];
  alignas(64) float divergences[kTile];
  DistillSums total;
  LaneSum<double> divergence, advantage;
  for (int64_t at = first; at < last; at += kTile) {
    const int n = static_cast<int>(last - at < kTile ? last - at : kTile);
    const float* old = load_tile(view.column[kOldLogprobInput], begin + at, n, old_buffer);
    const float* teacher = load_tile(view.column[kTeacherLogprobInput], begin + at, n, teacher_buffer);
    const uint8_t* mask = view.mask + begin + at;
    float* out = pass.outputs.advantages + begin + at;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
      const DistillTerm term = f.token(old[i], teacher[i]);
      const bool unmasked = mask[i] != 0;
      out[i] = unmasked ? term.advantage : 0.0f;
      divergences[i] = unmasked ? term.divergence : 0.0f;
    }
    for_lanes(n, [&](int lane, int i) {
      divergence.lane[lane] += divergences[i];
      advantage.lane[lane] += out[i];
    });
    if (!ends_sum(at + n, last, kChunkTokens)) continue;
    total.divergence += divergence.take();
    total.advantage += advantage.take();
  }
  return total;
}

}  // namespace

void find_row_statistics(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, NonFiniteValue* bad) {
  const AdvantageBatch& batch = *pass.batch;
  const BatchView& view = batch.tokens;
  alignas(64) float buffer[kTile];
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const uint8_t* const mask = view.mask + view.layout.begin(row);
    if (pass.row_tokens)
      pass.row_tokens[row] = static_cast<double>(count_mask(mask, view.layout.length(row)));
    if (!pass.row_statistics) continue;
    double* const out = pass.row_statistics + row;
    if (pass.statistic_of != kTokenLevelRewardsInput) {
      *out = mean_logprob_of(view, row, buffer);
    } else if (view.column[kTokenLevelRewardsInput].data) {
      *out = sum_rewards(view, row, buffer, bad);
    } else {
      // The row's reward belongs to its last unmasked token. If the row has no unmasked token, its reward
      // counts as 0.
      *out = last_unmasked(mask, view.layout.length(row)) >= 0 ? batch.rewards[row] : 0.0;
      if (!is_finite(batch.rewards[row])) report(bad, NonFiniteInput::kRewards, row);
    }
  }
}

void broadcast(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk) {
  const BatchView& view = pass.batch->tokens;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t begin = view.layout.begin(row);
    const int64_t first = begin + chunk.first_token_of_row();
    const int64_t last = begin + chunk.last_token_of_row(view.layout, row);
    const float score = pass.scores[row];
    float* out = pass.outputs.advantages;
    const uint8_t* mask = view.mask;
#pragma omp simd
    for (int64_t i = first; i < last; ++i) out[i] = mask[i] != 0 ? score : 0.0f;
  }
}

void measure(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, Spread* spreads, NonFiniteValue* bad) {
  with_function(
      pass.index, pass.options,
      [&]<class F>(const F& f) {
        if constexpr (F::traits.whitened)
          for (int64_t row = chunk.first_row; row < chunk.last_row; ++row)
            RecurrenceOfRow<F, true>(f, pass, row, spreads + row, bad).run();
      },
      RecurrentAdvantages{});
}

void recur(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, NonFiniteValue* bad) {
  with_function(
      pass.index, pass.options,
      [&]<class F>(const F& f) {
        for (int64_t row = chunk.first_row; row < chunk.last_row; ++row)
          RecurrenceOfRow<F, false>(f, pass, row, nullptr, bad).run();
      },
      RecurrentAdvantages{});
}

void distill(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, double* partial) {
  const Layout& layout = pass.batch->tokens.layout;
  with_function(
      pass.index, pass.options,
      [&](const auto& f) {
        for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
          const DistillSums sums = distill_row(f, pass, layout.begin(row), chunk.first_token_of_row(),
                                               chunk.last_token_of_row(layout, row));
          double* const out = chunk.is_within_row() ? partial : pass.row_sums + 2 * row;
          out[0] = sums.divergence;
          out[1] = sums.advantage;
        }
      },
      DistillAdvantages{});
}

void subtract_baselines(const cpu::AdvantagePass& pass, const cpu::BaselineRows& group, NonFiniteValue* bad) {
  with_function(
      pass.index, pass.options, [&](const auto& f) { BaselineOfGroup(f, pass, group, bad).run(); },
      BaselineAdvantages{});
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
