// The kernels of advantage functions.
//
// Group functions are row-sized work but for the facts of rows that come from tokens, and for the advantages
// per token where those are asked for. A warp takes a group: its lanes load rewards side by side, and all of
// them add the same numbers in the members' order, so that a mean has the CPU's bits, and with it every
// comparison that decides over a row. Random choices are drawn by one lane with the CPU's own numbers.
//
// Recurrences are scans from a row's end: x_t = term_t + decay·x_{t+1} over a stretch is what the stretch
// gives by itself plus a power of decay times what comes after it, and such pieces are put together in a
// fixed tree. A team of warps takes a row, however long, in stretches of 128 tokens a warp. Everything is in
// float64.
#pragma once

#include "advantage/draw.h"
#include "cuda/spans.cuh"
#include "engine/advantage_registry.h"

namespace policy_loss::cuda {

__device__ __forceinline__ bool is_finite(float x) {
  return x - x == 0.0f;
}

__device__ __forceinline__ void blame(const AdvantagePass& pass, NonFiniteInput array, int64_t row) {
  const unsigned long long key = 8ull * static_cast<unsigned long long>(row) + static_cast<unsigned>(array);
  atomicMax(&pass.state->bad, ~key);
}

// Those of a quad's bits whose values are NaN or infinite.
__device__ __forceinline__ unsigned not_finite(const Quad& quad) {
  unsigned bad = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) bad |= is_finite(quad[j]) ? 0u : 1u << j;
  return bad;
}

template <Reuse reuse>
__device__ __forceinline__ Quad load_floats(const ColumnView& view, int64_t i) {
  Quad quad = load_quad<reuse>(view, i);
  widen(view.dtype, &quad);
  return quad;
}

// ---- Group functions ----

// The columns that fact_kernel() may read, and those that it does.
constexpr unsigned kColumnsOfFacts = 1u << kTokenRewards | 1u << kSampledLogprob;
PL_FN unsigned fact_columns_of(const AdvantagePass& pass) {
  return pass.batch.column[pass.facts_of].data ? 1u << pass.facts_of : 0u;
}

// What a function must know of rows' tokens: the sum of all token rewards, masked or not, or of the unmasked
// log-probabilities; and how many tokens are unmasked.
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    fact_kernel(const AdvantagePass pass) {
  const bool rewards = pass.facts_of == kTokenRewards;
  const Feed<0> feed(pass.batch, fact_columns_of(pass));
  for (int64_t span = first_warp(); span < pass.spans; span += all_warps())
    sum_rows(
        feed, pass, pass.parts, span,
        [&](int64_t row, int64_t, unsigned which, unsigned unmasked, const auto& quads, RowPart* part) {
          const unsigned live = unmasked & which;
          part->tokens += __popc(live);
          const Quad x =
              rewards ? quads.template column<kTokenRewards>() : quads.template column<kSampledLogprob>();
          if (rewards && (not_finite(x) & which) != 0) blame(pass, NonFiniteInput::kTokenRewards, row);
          const unsigned summed = rewards ? which : live;
#pragma unroll
          for (int j = 0; j < kQuad; ++j) part->sum += summed >> j & 1 ? x[j] : 0.0f;
        },
        [](int64_t, const RowPart&) {});
}

static __global__ void __launch_bounds__(kThreads) row_fact_kernel(const AdvantagePass pass) {
  for_whole_rows(pass, pass.parts, [&](int64_t row, const RowPart& part) {
    if (pass.facts_of != kTokenRewards)
      pass.facts[row] = mean_logprob(part.sum, part.tokens);
    else if (pass.batch.column[kTokenRewards].data)
      pass.facts[row] = part.sum;
    else  // the row's reward stands on its last unmasked token
      pass.facts[row] = part.tokens > 0 ? pass.rewards[row] : 0.0;
  });
}

// A thread finds one member's rank in its group: how many come before it, by their facts and then in order.
template <class F>
__global__ void __launch_bounds__(kThreads) rank_kernel(const AdvantagePass pass, const F f) {
  const GroupsView& groups = pass.groups;
  for (int64_t at = first_thread(); at < groups.units; at += all_threads()) {
    int64_t low = 0, high = groups.size - 1;  // the group
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (groups.offsets[middle + 1] > at)
        high = middle;
      else
        low = middle + 1;
    }
    const int64_t first = groups.offsets[low], last = groups.offsets[low + 1];
    const double fact = pass.facts[groups.members[at]];
    int64_t rank = 0;
    for (int64_t other = first; other < last; ++other) {
      const double theirs = pass.facts[groups.members[other]];
      rank += theirs < fact || (theirs == fact && other < at) ? 1 : 0;
    }
    const double reward = pass.rewards[groups.last_row[groups.members[at]]];
    pass.penalised[at] = last - first > 1 ? f.penalised(reward, rank, last - first) : reward;
  }
}

// Numbers that a warp goes through together, each the same to all lanes: every lane loads one of 32.
template <class Load>
class InTurn {
 public:
  __device__ __forceinline__ InTurn(int64_t n, Load load) : load_(load), n_(n) {}

  __device__ __forceinline__ double operator()(int64_t i) {
    if (i / kWarp != chunk_) {
      chunk_ = i / kWarp;
      const int64_t mine = chunk_ * kWarp + threadIdx.x % kWarp;
      x_ = mine < n_ ? load_(mine) : 0.0;
    }
    return __shfl_sync(kAllLanes, x_, static_cast<int>(i % kWarp));
  }

 private:
  Load load_;
  int64_t n_;
  int64_t chunk_ = -1;
  double x_ = 0;
};

// Where a group has more rewards below the mean than others, marks the surplus of them, drawn at random, as
// left out.
template <class Reward>
__device__ __forceinline__ void leave_out_surplus(const AdvantagePass& pass, int64_t group, int64_t size,
                                                  double mean, Reward reward) {
  const int lane = threadIdx.x % kWarp;
  int64_t* const negatives = pass.drawn + pass.groups.offsets[group];
  uint8_t* const left_out = pass.left_out + pass.groups.offsets[group];
  int64_t n = 0;
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

template <class F>
__global__ void __launch_bounds__(kThreads) group_kernel(const AdvantagePass pass, const F f) {
  const GroupsView& groups = pass.groups;
  const int lane = threadIdx.x % kWarp;
  for (int64_t group = first_warp(); group < groups.size; group += all_warps()) {
    const int64_t first = groups.offsets[group];
    const int64_t size = groups.offsets[group + 1] - first;
    const int64_t* const members = groups.members + first;
    const auto reward = [&](int64_t i) {
      if constexpr (F::traits.sums_token_rewards)
        return pass.facts[members[i]];
      else
        return pass.rewards[groups.last_row[members[i]]];
    };
    const auto seen = [&](int64_t i) { return pass.penalised ? pass.penalised[first + i] : reward(i); };
    bool choosy = false;
    GroupMoments moments;
    if constexpr (F::traits.has_balance) {
      choosy = f.balance && size > 1;
      if (choosy) {
        const double mean = moments_of(size, InTurn(size, seen)).mean;
        leave_out_surplus(pass, group, size, mean, reward);
        const auto counts = [&](int64_t i) { return pass.left_out[first + i] != 0 ? 0.0 : 1.0; };
        InTurn counts_in_turn(size, counts);
        moments =
            moments_of(size, InTurn(size, seen), [=](int64_t i) mutable { return counts_in_turn(i) != 0; });
      }
    }
    if (!choosy) moments = moments_of(size, InTurn(size, seen));
    moments.batch_std = groups.batch_std;
    if constexpr (F::traits.has_soft_baseline) {
      if (f.soft) moments.log_mean_exp = log_mean_exp(size, InTurn(size, seen), f.tau);
    }
    const GroupRule rule = f.rule(moments);
    int64_t rows = 0;
    for (int64_t i = lane; i < size; i += kWarp) {
      const int64_t unit = members[i];
      rows += groups.unit_rows[unit];
      double score = rule.score(reward(i));
      if constexpr (F::traits.by_runs) {
        if (f.step_norm) score /= static_cast<double>(groups.unit_rows[unit]);
      }
      const bool counts = rule.kept && !(choosy && pass.left_out[first + i] != 0);
      pass.unit_scores[unit] = counts ? static_cast<float>(score) : 0.0f;
      pass.unit_repeats[unit] = rule.kept ? 1 : 0;
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

// Gives every row what its run has.
static __global__ void __launch_bounds__(kThreads) run_kernel(const AdvantagePass pass) {
  for (int64_t row = first_thread(); row < pass.batch.layout.rows; row += all_threads()) {
    const int64_t unit = pass.groups.unit_of_row[row];
    pass.scores[row] = pass.unit_scores[unit];
    pass.repeats[row] = pass.unit_repeats[unit];
  }
}

// Draws the groups that stand in for dropped ones, by one warp: rare, and as long as there are groups.
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
    if (group < groups) pass.again[group] = 0;
    n += __popc(found);
  }
  __syncwarp();
  if (lane == 0)
    draw_duplicates(pass.seed, groups, n, pass.kept, [&](int64_t group) { ++pass.again[group]; });
}

static __global__ void __launch_bounds__(kThreads) count_again_kernel(const AdvantagePass pass) {
  for (int64_t group = first_warp(); group < pass.groups.size; group += all_warps())
    for (int64_t at = pass.groups.offsets[group] + threadIdx.x % kWarp; at < pass.groups.offsets[group + 1];
         at += kWarp)
      pass.repeats[pass.groups.members[at]] += pass.again[group];
}

// A row's score on each of its unmasked tokens.
static __global__ void __launch_bounds__(kThreads) broadcast_kernel(const AdvantagePass pass) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t span = first_warp(); span < pass.spans; span += all_warps()) {
    SpanRows rows(pass, span);
    rows.stretch(
        0, rows.length(),
        [&](int64_t row, bool, int from, int to) {
          const float score = pass.scores[row];
          for (int at = from / kQuad * kQuad + lane * kQuad; at < to; at += kStretch) {
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

// ---- Recurrences ----

// decay to the powers that a warp's scan needs.
struct DecayPowers {
  double of_lanes[5];  // over 4, 8, 16, 32 and 64 tokens
  double to_end;       // from the end of this lane's quad to the end of the warp's stretch
  double of_warp;      // over the whole stretch

  __device__ __forceinline__ DecayPowers(double decay, int lane) {
    double power = decay * decay;
    power *= power;
    to_end = 1;
    // The bits of 31 − lane say which powers make up the distance.
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      of_lanes[k] = power;
      to_end *= (kWarp - 1 - lane) >> k & 1 ? power : 1.0;
      power *= power;
    }
    of_warp = power;
  }
};

// A lane's own spread as it goes: sums of what lies beyond the first number that it has seen, so that no
// digits are lost where all numbers are far from 0.
struct Measure {
  double pivot = 0, count = 0, sum = 0, squares = 0;

  __device__ __forceinline__ void add(double x) {
    if (count == 0) pivot = x;
    const double d = x - pivot;
    count += 1;
    sum += d;
    squares += d * d;
  }
  __device__ __forceinline__ Spread spread() const {
    if (count == 0) return {};
    return {count, pivot + sum / count, squares - sum * (sum / count)};
  }
};

// Spreads of a block's threads as one, in thread 0.
__device__ __forceinline__ Spread block_spread(Spread mine) {
  __shared__ Spread of_warp[kWarps];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    mine.add({__shfl_down_sync(kAllLanes, mine.count, distance),
              __shfl_down_sync(kAllLanes, mine.mean, distance),
              __shfl_down_sync(kAllLanes, mine.squares, distance)});
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Spread all;
  for (int warp = 0; warp < kWarps; ++warp) all.add(of_warp[warp]);
  return all;
}

// Puts the threads' spreads over the whole grid together, in a fixed order.
__device__ __forceinline__ void find_whitening(const AdvantagePass& pass, const Spread& mine) {
  const Spread of_block = block_spread(mine);
  if (threadIdx.x == 0) pass.spreads[blockIdx.x] = of_block;
  if (!is_last_block(&pass.state->ticket)) return;
  Spread several;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
    const Spread& part = pass.spreads[block];
    several.add({__ldcg(&part.count), __ldcg(&part.mean), __ldcg(&part.squares)});
  }
  const Spread all = block_spread(several);
  if (threadIdx.x != 0) return;
  pass.state->shift = all.mean;
  pass.state->scale = all.whitening();
}

// Writes advantages and returns; or with `measured` finds how the advantages are to be whitened, which is
// worth doing everything twice: to keep them until then would cost memory, or their last digits. A team of
// `warps` warps takes a row from its end, a stretch of 128 tokens a warp at a time.
template <class F, int warps, bool measured>
__global__ void __launch_bounds__(kThreads) recurrence_kernel(const AdvantagePass pass, const F f) {
  constexpr bool reads_values = F::traits.reads_values;
  constexpr int64_t stretch = static_cast<int64_t>(warps) * kStretch;
  const Layout& layout = pass.batch.layout;
  const ColumnView& reward_view = pass.batch.column[kTokenRewards];
  const ColumnView& value_view = pass.batch.column[kValues];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp % warps;
  const DecayPowers powers(f.decay, lane);
  // What the team's warps tell each other, by turns in one half and the other, so that none is overwritten
  // before all have read it.
  __shared__ double suffixes[2][kWarps];
  __shared__ int unmasked[2][kWarps];
  int turn = 0;
  Measure measure;
  double shift = 0, scale = 1;
  if constexpr (F::traits.whitened && !measured) {
    shift = pass.state->shift;
    scale = pass.state->scale;
  }

  const int64_t team = static_cast<int64_t>(blockIdx.x) * (kWarps / warps) + threadIdx.x / kWarp / warps;
  const int64_t teams = static_cast<int64_t>(gridDim.x) * (kWarps / warps);
  for (int64_t row = team; row < layout.rows; row += teams) {
    const int64_t begin = layout.begin(row);
    const int64_t end = begin + layout.length(row);
    const int64_t aligned = begin / kQuad * kQuad;
    double baseline = 0;
    if constexpr (F::traits.reads_baseline) baseline = pass.baselines[row];
    // Without token rewards the row's reward stands on its last unmasked token, which is yet to be come to.
    bool reward_waits = !reward_view.data;
    double carried = 0;  // x of the token after the stretch
    for (int64_t at = end > begin ? aligned + (end - 1 - aligned) / stretch * stretch : aligned - 1;
         at >= aligned; at -= stretch) {
      const int64_t i = at + (warp * kWarp + lane) * kQuad;
      const unsigned which = i < end ? bits_within(i, begin, end) : 0;
      unsigned live = 0;
      Quad rewards{}, values{};
      float next = 0;  // the value of the token after the quad
      if (which != 0) {
        live = load_mask<Reuse::kLater>(pass.batch.mask, i) & which;
        if (reward_view.data) {
          rewards = load_floats<Reuse::kNever>(reward_view, i);
          if ((not_finite(rewards) & (F::traits.reads_masked ? which : live)) != 0)
            blame(pass, NonFiniteInput::kTokenRewards, row);
        }
        if constexpr (reads_values) {
          values = load_floats<Reuse::kNever>(value_view, i);
          if ((not_finite(values) & which) != 0) blame(pass, NonFiniteInput::kValues, row);
          if (i + kQuad < end) next = load_one(value_view, i + kQuad);
        }
      }

      int rewarded = -1;  // which of the quad's tokens has the row's reward
      if (reward_waits) {
        const unsigned lanes = __ballot_sync(kAllLanes, live != 0);
        bool mine = lanes != 0 && lane == kWarp - 1 - __clz(lanes);
        bool any = lanes != 0;
        if constexpr (warps > 1) {
          if (lane == 0) unmasked[turn][warp] = any;
          __syncthreads();
          any = false;
          for (int other = 0; other < warps; ++other) {
            any = any || unmasked[turn][other] != 0;
            mine = mine && !(other > warp && unmasked[turn][other] != 0);
          }
        }
        if (mine) rewarded = kWarp - 1 - __clz(live);
        reward_waits = !any;
      }

      double terms[kQuad];
      const auto token = [&](int j) {
        const bool last = i + j + 1 >= end;
        return RecurrenceToken{j == rewarded ? pass.rewards[row] : rewards[j], values[j],
                               last            ? 0.0f
                               : j + 1 < kQuad ? values[j + 1 < kQuad ? j + 1 : 0]
                                               : next,
                               (live >> j & 1) != 0};
      };
      double suffix = 0;
#pragma unroll
      for (int j = kQuad - 1; j >= 0; --j) {
        terms[j] = which >> j & 1 ? f.term(token(j)) : 0.0;
        suffix = terms[j] + f.decay * suffix;
      }
      // Of the tokens from this lane's first to the end of the warp's stretch.
#pragma unroll
      for (int k = 0; k < 5; ++k) {
        const double after = __shfl_down_sync(kAllLanes, suffix, 1u << k);
        suffix += lane + (1 << k) < kWarp ? powers.of_lanes[k] * after : 0.0;
      }
      const double after_lane = __shfl_down_sync(kAllLanes, suffix, 1u);
      const double of_warp = __shfl_sync(kAllLanes, suffix, 0);
      double after_warp = carried;
      if constexpr (warps > 1) {
        if (lane == 0) suffixes[turn][warp] = of_warp;
        __syncthreads();
        for (int other = warps - 1; other >= 0; --other) {
          if (other == warp) after_warp = carried;
          carried = suffixes[turn][other] + powers.of_warp * carried;
        }
        turn ^= 1;
      } else {
        carried = of_warp + powers.of_warp * carried;
      }

      double x = (lane + 1 < kWarp ? after_lane : 0.0) + powers.to_end * after_warp;
      float advantages[kQuad], returns[kQuad];
#pragma unroll
      for (int j = kQuad - 1; j >= 0; --j) {
        x = terms[j] + f.decay * x;
        const RecurrenceToken t = token(j);
        const double a = f.advantage(x, t, baseline);
        if constexpr (measured) {
          if (t.unmasked) measure.add(a);
        } else {
          advantages[j] =
              F::traits.zeroes_masked && !t.unmasked ? 0.0f : static_cast<float>((a - shift) * scale);
          returns[j] = static_cast<float>(f.returns(x, t));
        }
      }
      if constexpr (!measured) {
        store_quad(pass.advantages, i, which, advantages);
        if (pass.returns) store_quad(pass.returns, i, which, returns);
      }
    }
  }
  if constexpr (measured) find_whitening(pass, measure.spread());
}

// ---- Distillation ----

constexpr unsigned kDistillColumns = 1u << kSampledLogprob | 1u << kTeacherLogprob;

template <class F>
__global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    distill_kernel(const AdvantagePass pass, const F f) {
  const Feed<kDistillColumns> feed(pass.batch, kDistillColumns);
  for (int64_t span = first_warp(); span < pass.spans; span += all_warps())
    sum_rows(
        feed, pass, pass.distill_parts, span,
        [&](int64_t, int64_t i, unsigned which, unsigned unmasked, const auto& quads, DistillPart* part) {
          const Quad old = quads.template column<kSampledLogprob>();
          const Quad teacher = quads.template column<kTeacherLogprob>();
          float value[kQuad];
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const DistillTerm term = f.token(old[j], teacher[j]);
            const bool counts = (unmasked & which) >> j & 1;
            value[j] = counts ? term.advantage : 0.0f;
            part->divergence += counts ? term.divergence : 0.0f;
            part->advantage += counts ? term.advantage : 0.0f;
          }
          store_quad(pass.advantages, i, which, value);
        },
        [](int64_t, const DistillPart&) {});
}

static __global__ void __launch_bounds__(kThreads) row_distill_kernel(const AdvantagePass pass) {
  for_whole_rows(pass, pass.distill_parts, [&](int64_t row, const DistillPart& part) {
    pass.row_divergences[row] = part.divergence;
    pass.row_advantages[row] = part.advantage;
  });
}

}  // namespace policy_loss::cuda
