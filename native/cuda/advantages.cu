// Launches the kernels of advantage functions and fetches their results.
#include "cuda/advantages.h"

#include <algorithm>
#include <cmath>

#include "cuda/distill.cuh"
#include "cuda/group.cuh"
#include "cuda/long_rows.cuh"
#include "cuda/recurrence.cuh"
#include "cuda/token_baseline.cuh"

namespace policy_loss::cuda {
namespace {

// If a batch has a row longer than this, each row is computed by a whole block instead of one warp.
constexpr int64_t kLongRow = 4 * kTile;
// If a row is longer than this, and so long that computing rows one by one would leave most of the GPU idle
// for most of the time, all warps compute tiles of it.
constexpr int64_t kSharedRow = 32 * kTile;
constexpr int64_t kSharesOfBlock = 4;

NonFiniteValue first_non_finite(NonFiniteInput input, const double* numbers, int64_t n) {
  for (int64_t i = 0; numbers && i < n; ++i)
    if (!std::isfinite(numbers[i])) return {input, i};
  return {};
}

// Returns the one of two non-finite values that is in the earlier row. If only one of the arguments holds a
// value, returns that one.
NonFiniteValue earlier(const NonFiniteValue& a, const NonFiniteValue& b) {
  if (a.input == NonFiniteInput::kNone || b.input == NonFiniteInput::kNone)
    return a.input == NonFiniteInput::kNone ? b : a;
  return b.row < a.row ? b : a;
}

DeviceGroups send_groups(Channel& context, const GroupsView& host, int64_t rows) {
  DeviceGroups groups;
  groups.view = host;
  if (!host.offsets) return groups;
  groups.view.offsets = context.send_array(host.offsets, host.size + 1, &groups.offsets);
  groups.view.members = context.send_array(host.members, host.member_count, &groups.members);
  groups.view.last_row = context.send_array(host.last_row, host.member_count, &groups.last_row);
  groups.view.member_rows = context.send_array(host.member_rows, host.member_count, &groups.member_rows);
  groups.view.member_of_row = context.send_array(host.member_of_row, rows, &groups.member_of_row);
  return groups;
}

}  // namespace

DeviceInputs send_inputs(Channel& context, const AdvantageInputs& host) {
  const int64_t rows = host.tokens.layout.rows;
  DeviceInputs inputs;
  inputs.view.rewards = context.send_array(host.rewards, rows, &inputs.rewards);
  inputs.view.baselines = context.send_array(host.baselines, rows, &inputs.baselines);
  inputs.view.named = host.named;
  inputs.view.named_rewards =
      context.send_array(host.named_rewards, host.named * rows, &inputs.named_rewards);
  inputs.view.reward_weights = context.send_array(host.reward_weights, host.named, &inputs.reward_weights);
  inputs.groups = send_groups(context, host.groups, rows);
  inputs.runs = send_groups(context, host.runs, rows);
  inputs.view.groups = inputs.groups.view;
  inputs.view.runs = inputs.runs.view;
  inputs.bad_rewards = first_non_finite(NonFiniteInput::kRewards, host.rewards, rows);
  inputs.bad_baselines = first_non_finite(NonFiniteInput::kBaselines, host.baselines, rows);
  context.order_kernels_after_copies();
  return inputs;
}

unsigned columns_of_advantage(const AdvantageRequest& request) {
  unsigned columns = 0;
  switch (request.shape) {
    case AdvantageShape::kGroup:
      with_function(
          request.index, request.options,
          [&]<class F>(const F& f) {
            if constexpr (F::traits.sums_token_rewards) columns = reads(kTokenLevelRewardsInput);
            if constexpr (F::traits.has_rank_penalty)
              columns = f.rank_penalty != 0 ? reads(kOldLogprobInput) : 0;
          },
          GroupAdvantages{});
      break;
    case AdvantageShape::kRecurrence:
      with_function(
          request.index, request.options,
          [&]<class F>(const F&) {
            columns = reads(kTokenLevelRewardsInput) | (F::traits.reads_values ? reads(kValuesInput) : 0u);
          },
          RecurrentAdvantages{});
      break;
    case AdvantageShape::kDistill:
      columns = reads(kOldLogprobInput) | reads(kTeacherLogprobInput);
      break;
    case AdvantageShape::kBaseline:
      columns = kBaselineColumns;
      break;
  }
  return columns;
}

template <class T>
T* AdvantageEvaluation::room(int64_t n) {
  if (rooms_in_use_ == kMostRooms)
    throw Failure(Status::kFailed, "an advantage function needs more arrays than there is room for");
  return (rooms_[rooms_in_use_++] = context_.allocate(n * sizeof(T))).template as<T>();
}

template <class Total>
Partials<Total> AdvantageEvaluation::partials() {
  return {room<Total>(rows_), room<Total>(pass_.chunks), room<Total>(pass_.chunks)};
}

AdvantageEvaluation::AdvantageEvaluation(Context& context, const DeviceInputs& inputs,
                                         const AdvantageRequest& request, bool per_token, bool returns)
    : context_(context), inputs_(inputs), shape_(request.shape), rows_(inputs.view.tokens.layout.rows) {
  const AdvantageInputs& view = inputs.view;
  pass_.batch = view.tokens;
  pass_.tokens = inputs.tokens;
  context.choose_feed(shape_ == AdvantageShape::kDistill ? Feed<kDistillColumns>::memory(kDistillColumns)
                                                         : Feed<0>::memory(kRowValueColumns),
                      &pass_);
  context.cut(pass_.fed_blocks, &pass_);
  pass_.rewards = view.rewards;
  pass_.baselines = view.baselines;
  pass_.named_rewards = view.named_rewards;
  pass_.reward_weights = view.reward_weights;
  pass_.named = view.named;
  pass_.seed = request.seed;
  pass_.state = room<AdvantageState>(1);
  CUDA_CHECK(cudaMemsetAsync(pass_.state, 0, sizeof(AdvantageState), context.compute()));
  if (shape_ != AdvantageShape::kGroup || per_token)
    pass_.advantages = room<float>(whole_granules(pass_.tokens));
  if ((shape_ == AdvantageShape::kRecurrence || shape_ == AdvantageShape::kBaseline) && returns)
    pass_.returns = room<float>(whole_granules(pass_.tokens));
  switch (shape_) {
    case AdvantageShape::kGroup:
      with_function(
          request.index, request.options, [&](const auto& f) { launch_group(f, per_token); },
          GroupAdvantages{});
      break;
    case AdvantageShape::kRecurrence:
      with_function(
          request.index, request.options, [&](const auto& f) { launch_recurrence(f); },
          RecurrentAdvantages{});
      break;
    case AdvantageShape::kDistill:
      with_function(
          request.index, request.options, [&](const auto& f) { launch_distill(f); }, DistillAdvantages{});
      break;
    case AdvantageShape::kBaseline:
      with_function(
          request.index, request.options, [&](const auto& f) { launch_baselines(f); }, BaselineAdvantages{});
      break;
  }
}

// Launches the kernels that compute row_values (a row's sum of token rewards, or its mean log-probability)
// and row_tokens, if the function needs them.
template <class F>
void AdvantageEvaluation::launch_row_values(const F& f) {
  bool needed = F::traits.sums_token_rewards;
  pass_.row_value_column = kTokenLevelRewardsInput;
  if constexpr (F::traits.has_rank_penalty) {
    if (f.rank_penalty != 0) {
      needed = true;
      pass_.row_value_column = kOldLogprobInput;
    }
  }
  if (F::traits.counts_tokens()) pass_.row_tokens = room<double>(rows_);
  if (!needed && !pass_.row_tokens) return;
  pass_.partials = partials<RowTotals>();
  pass_.row_values = room<double>(rows_);
  Grid fed = context_.grid_of_chunks(pass_, pass_.chunks);
  fed.memory = Feed<0>::memory(row_value_columns(pass_)).bytes(pass_.feed_stages);
  launch("value_sums_kernel", value_sums_kernel, fed, pass_);
  launch("row_value_kernel", row_value_kernel, context_.grid_of_rows(pass_), pass_);
  if constexpr (F::traits.has_rewarded)
    launch("count_rewarded_kernel", count_rewarded_kernel, context_.grid_of_threads(rows_), pass_);
}

template <class F>
void AdvantageEvaluation::launch_group(const F& f, bool per_token) {
  pass_.groups = F::traits.by_runs ? inputs_.view.runs : inputs_.view.groups;
  const int64_t members = pass_.groups.member_count;
  const int64_t groups = pass_.groups.size;
  if (!F::traits.has_reward_keys) pass_.named_rewards = nullptr;
  if (!F::traits.sums_token_rewards || !pass_.batch.column[kTokenLevelRewardsInput].data)
    bad_ = inputs_.bad_rewards;
  launch_row_values(f);
  if constexpr (F::traits.whitened) pass_.unwhitened = room<double>(rows_);
  if constexpr (F::traits.has_rank_penalty) {
    if (f.rank_penalty != 0) {
      pass_.penalised = room<double>(members);
      launch("rank_kernel", rank_kernel<F>, context_.grid_of_threads(members), pass_, f);
    }
  }
  if constexpr (F::traits.has_balance) {
    pass_.negatives = room<int64_t>(members);
    pass_.left_out = room<uint8_t>(members);
  }
  pass_.scores = room<float>(rows_);
  pass_.repeats = room<uint32_t>(rows_);
  pass_.member_scores = F::traits.by_runs ? room<float>(members) : pass_.scores;
  pass_.member_repeats = F::traits.by_runs ? room<uint32_t>(members) : pass_.repeats;
  pass_.outcomes = room<GroupOutcome>(groups);
  launch("group_kernel", group_kernel<F>, context_.grid_of_warps(groups), pass_, f);
  if constexpr (F::traits.whitened) {
    pass_.spreads = room<Spread>(context_.most_blocks());
    launch("measure_scores_kernel", measure_scores_kernel, context_.grid_of_threads(rows_), pass_);
    launch("whiten_scores_kernel", whiten_scores_kernel, context_.grid_of_threads(rows_), pass_);
  }
  if constexpr (F::traits.by_runs) launch("run_kernel", run_kernel, context_.grid_of_threads(rows_), pass_);
  if constexpr (F::traits.has_duplicates) {
    if (f.duplicates) {
      pass_.kept = room<int64_t>(groups);
      pass_.drawn = room<uint32_t>(groups);
      launch("draw_kernel", draw_kernel, context_.grid_of_warps(1), pass_);
      launch("repeat_drawn_kernel", repeat_drawn_kernel, context_.grid_of_warps(groups), pass_);
    }
  }
  if (per_token) launch("broadcast_kernel", broadcast_kernel, context_.grid_of_warps(pass_.chunks), pass_);
}

bool AdvantageEvaluation::shares_rows() const {
  const int64_t longest = pass_.batch.layout.row_length;
  return longest > kSharedRow && longest * context_.most_blocks() > kSharesOfBlock * pass_.tokens;
}

Grid AdvantageEvaluation::grid_of_recurrence(int64_t warps) const {
  Grid grid = context_.grid_of_warps(warps);
  const int64_t most = context_.most_blocks() / kBlocksPerMultiprocessor * kRecurrenceBlocks;
  grid.blocks = static_cast<unsigned>(std::min<int64_t>(grid.blocks, most));
  return grid;
}

template <class F>
void AdvantageEvaluation::launch_recurrence(const F& f) {
  if (!pass_.batch.column[kTokenLevelRewardsInput].data) bad_ = inputs_.bad_rewards;
  if constexpr (F::traits.reads_baseline) bad_ = earlier(inputs_.bad_baselines, bad_);
  if (shares_rows()) {
    const int64_t tiles = count_tiles(pass_);
    pass_.tiles = room<TileState>(tiles);
    launch("tile_sums_kernel", tile_sums_kernel<F>, grid_of_recurrence(tiles), pass_, f);
    launch("tile_chain_kernel", tile_chain_kernel, context_.grid_of_warps(rows_), pass_);
  }
  if constexpr (F::traits.whitened) {
    pass_.spreads = room<Spread>(context_.most_blocks());
    launch_rows_of<true>(f);
  }
  launch_rows_of<false>(f);
}

template <bool measured, class F>
void AdvantageEvaluation::launch_rows_of(const F& f) {
  if (pass_.tiles)
    return launch("tile_kernel", tile_kernel<F, measured>, grid_of_recurrence(count_tiles(pass_)), pass_, f);
  if constexpr (!F::traits.skips_masked) {
    if (pass_.batch.layout.row_length > kLongRow)
      return launch("recurrence_kernel", recurrence_kernel<F, kWarps, measured>,
                    grid_of_recurrence(rows_ * kWarps), pass_, f);
  }
  launch("recurrence_kernel", recurrence_kernel<F, 1, measured>, grid_of_recurrence(rows_), pass_, f);
}

template <class F>
void AdvantageEvaluation::launch_distill(const F& f) {
  pass_.distill_partials = partials<DistillTotals>();
  pass_.row_divergences = room<double>(rows_);
  pass_.row_advantages = room<double>(rows_);
  Grid fed = context_.grid_of_chunks(pass_, pass_.chunks);
  fed.memory = Feed<kDistillColumns>::memory(kDistillColumns).bytes(pass_.feed_stages);
  launch("distill_kernel", distill_kernel<F>, fed, pass_, f);
  launch("row_distill_kernel", row_distill_kernel, context_.grid_of_rows(pass_), pass_);
}

template <class F>
void AdvantageEvaluation::launch_baselines(const F& f) {
  if (!pass_.batch.column[kTokenLevelRewardsInput].data) bad_ = inputs_.bad_rewards;
  pass_.groups = inputs_.view.groups;
  pass_.row_tokens = room<double>(rows_);
  pass_.to_go = room<double>(whole_granules(pass_.tokens));
  pass_.weights = room<double>(whole_granules(pass_.tokens));
  pass_.weighted = room<double>(whole_granules(pass_.tokens));
  const int64_t tiles = count_tiles(pass_);
  pass_.baseline_tiles = room<BaselineTile>(tiles);
  const Grid grid = grid_of_recurrence(tiles);
  launch("baseline_sums_kernel", baseline_sums_kernel<F>, grid, pass_, f);
  launch("baseline_chain_kernel", baseline_chain_kernel, context_.grid_of_warps(rows_), pass_);
  launch("energy_kernel", energy_kernel<F>, grid, pass_, f);
  launch("baseline_kernel", baseline_kernel<F>, context_.grid_of_warps(baseline_chunks(pass_)), pass_, f);
  launch("subtract_kernel", subtract_kernel<F>, grid, pass_, f);
}

ColumnView AdvantageEvaluation::column() const {
  const bool per_row = !pass_.advantages;
  return {per_row ? pass_.scores : pass_.advantages, DType::kFloat32, per_row};
}

bool AdvantageEvaluation::fetch(const AdvantageCall& call, const int32_t* abort) {
  context_.order_copies_after_kernels();
  AdvantageState state;
  context_.receive(&state, pass_.state, sizeof state, abort);
  NonFiniteValue found;
  if (state.non_finite != 0) {
    const unsigned long long key = ~state.non_finite;
    found = {static_cast<NonFiniteInput>(key % 8), static_cast<int64_t>(key / 8)};
  }
  *call.not_finite = earlier(bad_, found);
  if (call.not_finite->input != NonFiniteInput::kNone) return false;
  const auto copy = [&](auto* to, const auto* from, int64_t n) {
    if (to && from) context_.receive(to, from, n * sizeof(*to), abort);
  };
  copy(call.advantages, pass_.advantages, pass_.tokens);
  copy(call.returns, pass_.returns, pass_.tokens);
  copy(call.scores, pass_.scores, rows_);
  copy(call.repeats, pass_.repeats, rows_);
  copy(call.groups, pass_.outcomes, pass_.groups.size);
  copy(call.row_divergences, pass_.row_divergences, rows_);
  copy(call.row_advantages, pass_.row_advantages, rows_);
  return true;
}

}  // namespace policy_loss::cuda
