// The kernels of group functions (advantage/group.h).
//
// One warp computes one group. Its lanes share the loading of rewards, but each lane adds up all rewards of
// the group, in the order of the members. The mean therefore has the same bits as on the CPU, and comparing a
// reward with it gives the same outcome. One lane makes the random choices, with the same random numbers as
// the CPU.
#pragma once

#include "advantage/draw.h"
#include "cuda/chunks.cuh"
#include "cuda/finite.cuh"
#include "cuda/whitening.cuh"
#include "engine/advantage_registry.h"

namespace policy_loss::cuda {

// The set of columns of which value_sums_kernel() reads at most one.
constexpr unsigned kRowValueColumns = reads(kTokenLevelRewardsInput) | reads(kOldLogprobInput);

// Returns the set of columns that value_sums_kernel() reads in this call: the column row_value_column, or
// none if the batch does not have this column.
PL_FN unsigned row_value_columns(const AdvantagePass& pass) {
  return pass.batch.column[pass.row_value_column].data ? reads(pass.row_value_column) : 0u;
}

// Sums a column over each row: either the rewards of all tokens, masked or not, or the log-probabilities of
// the unmasked tokens. Also counts the unmasked tokens.
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    value_sums_kernel(const AdvantagePass pass) {
  const bool rewards = pass.row_value_column == kTokenLevelRewardsInput;
  const Feed<0> feed(pass, row_value_columns(pass));
  for (int64_t chunk = first_warp(); chunk < pass.chunks; chunk += all_warps())
    sum_rows(
        feed, pass, pass.partials, chunk,
        [&](int64_t row, int64_t, unsigned which, unsigned unmasked, const auto& quads, RowTotals* partial) {
          const unsigned live = unmasked & which;
          partial->tokens += __popc(live);
          const Quad x = rewards ? quads.template column<kTokenLevelRewardsInput>()
                                 : quads.template column<kOldLogprobInput>();
          if (rewards && (non_finite_bits(x) & which) != 0)
            report_non_finite(pass, NonFiniteInput::kTokenRewards, row);
          const unsigned summed = rewards ? which : live;
#pragma unroll
          for (int j = 0; j < kQuad; ++j) partial->sum += summed >> j & 1 ? x[j] : 0.0f;
        },
        [](int64_t, const RowTotals&) {});
}

// Computes each row's value, its reward or its mean log-probability, from the sums of value_sums_kernel().
static __global__ void __launch_bounds__(kThreads) row_value_kernel(const AdvantagePass pass) {
  for_whole_rows(pass, pass.partials, [&](int64_t row, const RowTotals& totals) {
    if (pass.row_tokens) pass.row_tokens[row] = static_cast<double>(totals.tokens);
    if (pass.named_rewards)
      pass.row_values[row] = 0;
    else if (pass.row_value_column != kTokenLevelRewardsInput)
      pass.row_values[row] = mean_logprob(totals.sum, totals.tokens);
    else if (pass.batch.column[kTokenLevelRewardsInput].data)
      pass.row_values[row] = totals.sum;
    else  // the row's reward belongs to its last unmasked token
      pass.row_values[row] = totals.tokens > 0 ? pass.rewards[row] : 0.0;
  });
}

// Counts the rows whose value is not 0.
static __global__ void __launch_bounds__(kThreads) count_rewarded_kernel(const AdvantagePass pass) {
  for (int64_t row = first_thread(); row < pass.batch.layout.rows; row += all_threads())
    if (pass.row_values[row] != 0) atomicAdd(&pass.state->rewarded, 1ull);
}

// Returns the index of the group to which groups.members[at] belongs.
__device__ __forceinline__ int64_t group_of(const GroupsView& groups, int64_t at) {
  int64_t low = 0, high = groups.size - 1;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (groups.offsets[middle + 1] > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Applies the rank penalty to the rewards. One thread handles one member of a group. The rank of the member
// is the number of members of its group that have a smaller value, or an equal value and an earlier place.
template <class F>
__global__ void __launch_bounds__(kThreads) rank_kernel(const AdvantagePass pass, const F f) {
  const GroupsView& groups = pass.groups;
  for (int64_t at = first_thread(); at < groups.member_count; at += all_threads()) {
    const int64_t group = group_of(groups, at);
    const int64_t first = groups.offsets[group], last = groups.offsets[group + 1];
    const double value = pass.row_values[groups.members[at]];
    int64_t rank = 0;
    PL_NO_UNROLL
    for (int64_t other = first; other < last; ++other) {
      const double theirs = pass.row_values[groups.members[other]];
      rank += theirs < value || (theirs == value && other < at) ? 1 : 0;
    }
    const double reward = pass.rewards[groups.last_row[groups.members[at]]];
    pass.penalised[at] = last - first > 1 ? f.penalised(reward, rank, last - first) : reward;
  }
}

// Reads the numbers load(0) to load(n − 1) for a whole warp. All lanes must ask for the same number i, and
// each gets it. Each lane loads only one number out of 32; the lanes then pass the numbers to each other.
template <class Load>
class SharedLoads {
 public:
  __device__ __forceinline__ SharedLoads(int64_t n, Load load) : load_(load), n_(n) {}

  __device__ __forceinline__ double operator()(int64_t i) {
    if (i / kWarp != loaded_) {
      loaded_ = i / kWarp;
      const int64_t mine = loaded_ * kWarp + threadIdx.x % kWarp;
      x_ = mine < n_ ? load_(mine) : 0.0;
    }
    return __shfl_sync(kAllLanes, x_, static_cast<int>(i % kWarp));
  }

 private:
  Load load_;
  int64_t n_;
  int64_t loaded_ = -1;
  double x_ = 0;
};

// Balances a group in which more than half of the rewards are below the mean. Draws members at random from
// those below the mean, and marks them in pass.left_out. As many members then remain below the mean as not.
template <class Reward>
__device__ __forceinline__ void leave_out_surplus(const AdvantagePass& pass, int64_t group, int64_t size,
                                                  double mean, Reward reward) {
  const int lane = threadIdx.x % kWarp;
  int64_t* const negatives = pass.negatives + pass.groups.offsets[group];
  uint8_t* const left_out = pass.left_out + pass.groups.offsets[group];
  int64_t n = 0;
  PL_NO_UNROLL
  for (int64_t first = 0; first < size; first += kWarp) {
    const int64_t i = first + lane;
    const bool negative = i < size && reward(i) < mean;
    const unsigned found = __ballot_sync(kAllLanes, negative);
    if (negative) negatives[n + __popc(found & ((1u << lane) - 1u))] = i;
    if (i < size) left_out[i] = 0;
    n += __popc(found);
  }
  __syncwarp();
  const int64_t surplus = 2 * n - size;
  if (lane == 0 && surplus > 0) {
    draw_surplus(pass.seed, group, surplus, n, negatives);
    for (int64_t i = 0; i < surplus; ++i) left_out[negatives[i]] = 1;
  }
  __syncwarp();
}

// The rewards of the members of one group.
template <class F>
struct GroupRewards {
  const AdvantagePass& pass;
  int64_t first;  // the group's first place in groups.members

  // Returns the reward of member i.
  __device__ __forceinline__ double operator()(int64_t i) const {
    const int64_t member = pass.groups.members[first + i];
    if constexpr (F::traits.sums_token_rewards)
      return pass.row_values[member];
    else
      return pass.rewards[pass.groups.last_row[member]];
  }
  // Returns the reward of member i after the rank penalty, or the plain reward if there is no penalty. The
  // group's mean and deviation are computed from this value.
  __device__ __forceinline__ double penalised(int64_t i) const {
    return pass.penalised ? pass.penalised[first + i] : (*this)(i);
  }
};

// Returns the moments (mean, deviation and others) of a group's rewards. Sets *some_left_out to true if the
// function may leave members out. pass.left_out then has a flag for each member.
template <class F>
__device__ __forceinline__ GroupMoments moments_of_group(const AdvantagePass& pass, const F& f,
                                                         const GroupRewards<F>& reward, int64_t group,
                                                         int64_t size, bool* some_left_out) {
  const auto seen = [&](int64_t i) { return reward.penalised(i); };
  *some_left_out = false;
  GroupMoments moments;
  if constexpr (F::traits.has_balance) {
    *some_left_out = f.balance && size > 1;
    if (*some_left_out) {
      const double mean = moments_of(size, SharedLoads(size, seen)).mean;
      leave_out_surplus(pass, group, size, mean, reward);
      const auto counts = [&](int64_t i) { return pass.left_out[reward.first + i] != 0 ? 0.0 : 1.0; };
      SharedLoads shared_counts(size, counts);
      moments =
          moments_of(size, SharedLoads(size, seen), [=](int64_t i) mutable { return shared_counts(i) != 0; });
    }
  }
  if (!*some_left_out) moments = moments_of(size, SharedLoads(size, seen));
  moments.batch_std = pass.groups.batch_std;
  if constexpr (F::traits.has_soft_baseline) {
    if (f.soft) moments.log_mean_exp = log_mean_exp(size, SharedLoads(size, seen), f.tau);
  }
  if constexpr (F::traits.has_token_mean) {
    const auto tokens = [&](int64_t i) { return pass.row_tokens[pass.groups.members[reward.first + i]]; };
    moments.token_mean = weighted_mean(size, SharedLoads(size, seen), SharedLoads(size, tokens));
  }
  if constexpr (F::traits.has_second) moments.second = second_largest(size, SharedLoads(size, seen));
  if constexpr (F::traits.has_rewarded)
    moments.batch_rewarded = at_least(static_cast<double>(pass.state->rewarded), 1.0) /
                             static_cast<double>(pass.batch.layout.rows);
  return moments;
}

// Computes the scores of a group's rows by the named rewards of the batch: the weighted sum of the row's
// scores by each of these rewards.
template <class F>
__device__ __forceinline__ void score_named_rewards(const AdvantagePass& pass, const F& f, int64_t group) {
  const int64_t* const members = pass.groups.members + pass.groups.offsets[group];
  const int64_t size = pass.groups.offsets[group + 1] - pass.groups.offsets[group];
  const int lane = threadIdx.x % kWarp;
  PL_NO_UNROLL
  for (int64_t k = 0; k < pass.named; ++k) {
    const double* const rewards = pass.named_rewards + k * pass.batch.layout.rows;
    const auto reward = [&](int64_t i) { return rewards[members[i]]; };
    const GroupRule rule = f.rule(moments_of(size, SharedLoads(size, reward)));
    PL_NO_UNROLL
    for (int64_t i = lane; i < size; i += kWarp) {
      double* const score = pass.unwhitened + members[i];
      *score = (k == 0 ? 0.0 : *score) + pass.reward_weights[k] * rule.score(reward(i));
      pass.repeats[members[i]] = 1;
    }
  }
}

// Finds how the scores are whitened. Every unmasked token counts with its row's score.
static __global__ void __launch_bounds__(kThreads) measure_scores_kernel(const AdvantagePass pass) {
  Spread mine;
  for (int64_t row = first_thread(); row < pass.batch.layout.rows; row += all_threads())
    mine.add({pass.row_tokens[row], pass.unwhitened[row], 0});
  find_whitening(pass, mine, kVerlTokens);
}

static __global__ void __launch_bounds__(kThreads) whiten_scores_kernel(const AdvantagePass pass) {
  for (int64_t row = first_thread(); row < pass.batch.layout.rows; row += all_threads())
    pass.scores[row] = static_cast<float>(pass.state->whitening.whiten(pass.unwhitened[row]));
}

// Computes the score of every member, and how often the member counts. A member is a row or a run of rows
// (engine/groups.h). One warp computes one group.
template <class F>
__global__ void __launch_bounds__(kThreads) group_kernel(const AdvantagePass pass, const F f) {
  const GroupsView& groups = pass.groups;
  const int lane = threadIdx.x % kWarp;
  for (int64_t group = first_warp(); group < groups.size; group += all_warps()) {
    const int64_t first = groups.offsets[group];
    const int64_t size = groups.offsets[group + 1] - first;
    if constexpr (F::traits.has_reward_keys) {
      if (pass.named_rewards) {
        score_named_rewards(pass, f, group);
        if (lane == 0) pass.outcomes[group] = GroupOutcome{};
        continue;
      }
    }
    const GroupRewards<F> reward{pass, first};
    bool some_left_out;
    const GroupRule rule = f.rule(moments_of_group(pass, f, reward, group, size, &some_left_out));
    int64_t rows = 0;
    PL_NO_UNROLL
    for (int64_t i = lane; i < size; i += kWarp) {
      const int64_t member = groups.members[first + i];
      rows += groups.member_rows[member];
      double score = rule.score(reward(i));
      if constexpr (F::traits.by_runs) {
        if (f.step_norm) score /= static_cast<double>(groups.member_rows[member]);
      }
      const bool counts = rule.kept && !(some_left_out && pass.left_out[first + i] != 0);
      pass.member_scores[member] = counts ? static_cast<float>(score) : 0.0f;
      pass.member_repeats[member] = rule.kept ? 1 : 0;
      if constexpr (F::traits.whitened) pass.unwhitened[member] = score;
    }
    rows = warp_sum(rows);
    if (lane == 0) {
      GroupOutcome outcome;
      for (int k = 0; k < kGroupMetrics; ++k) outcome.metric[k] = rule.metric[k];
      outcome.rows = static_cast<double>(rows);
      outcome.kept = rule.kept;
      pass.outcomes[group] = outcome;
    }
  }
}

// Copies the score of each run, and the number of times that the run counts, to the rows of the run.
static __global__ void __launch_bounds__(kThreads) run_kernel(const AdvantagePass pass) {
  for (int64_t row = first_thread(); row < pass.batch.layout.rows; row += all_threads()) {
    const int64_t member = pass.groups.member_of_row[row];
    pass.scores[row] = pass.member_scores[member];
    pass.repeats[row] = pass.member_repeats[member];
  }
}

// Draws a kept group for each dropped one, which it replaces. One warp is enough, because few calls need this
// kernel.
static __global__ void __launch_bounds__(kThreads) draw_kernel(const AdvantagePass pass) {
  if (threadIdx.x >= kWarp) return;
  const int lane = threadIdx.x;
  const int64_t groups = pass.groups.size;
  int64_t n = 0;
  for (int64_t first = 0; first < groups; first += kWarp) {
    const int64_t group = first + lane;
    const bool kept = group < groups && pass.outcomes[group].kept;
    const unsigned found = __ballot_sync(kAllLanes, kept);
    if (kept) pass.kept[n + __popc(found & ((1u << lane) - 1u))] = group;
    if (group < groups) pass.drawn[group] = 0;
    n += __popc(found);
  }
  __syncwarp();
  if (lane == 0)
    draw_duplicates(pass.seed, groups, n, pass.kept, [&](int64_t group) { ++pass.drawn[group]; });
}

// Lets each row count once more for each time that draw_kernel() drew the row's group.
static __global__ void __launch_bounds__(kThreads) repeat_drawn_kernel(const AdvantagePass pass) {
  for (int64_t group = first_warp(); group < pass.groups.size; group += all_warps())
    for (int64_t at = pass.groups.offsets[group] + threadIdx.x % kWarp; at < pass.groups.offsets[group + 1];
         at += kWarp)
      pass.repeats[pass.groups.members[at]] += pass.drawn[group];
}

// Writes each row's score to its unmasked tokens, and 0 to the masked ones.
static __global__ void __launch_bounds__(kThreads) broadcast_kernel(const AdvantagePass pass) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t chunk = first_warp(); chunk < pass.chunks; chunk += all_warps()) {
    ChunkRows rows(pass, chunk);
    rows.visit(
        0, rows.length(),
        [&](int64_t row, bool, int from, int to) {
          const float score = pass.scores[row];
          for (int at = from / kQuad * kQuad + lane * kQuad; at < to; at += kTile) {
            const int64_t i = rows.first() + at;
            const unsigned live = load_mask<Reuse::kNever>(pass.batch.mask, i);
            float value[kQuad];
#pragma unroll
            for (int j = 0; j < kQuad; ++j) value[j] = live >> j & 1 ? score : 0.0f;
            store_quad(pass.advantages, i, bits_within(at, from, to), value);
          }
        },
        [](int64_t) {});
  }
}

}  // namespace policy_loss::cuda
