// The inner loops of policy losses. Several files loss_loops_<file>.cc include this header. Each of them
// compiles the loops of some of the losses.
#pragma once

#include <utility>

#include "cpu/loops.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Makes the Token at index i from a constant set of columns. It reads variables of the surrounding loop:
// logprob, old_logprob, ref_logprob and advantages. It is a macro because GCC does not vectorise a loop that
// gets its Token from a function.
#define PL_TOKEN(columns, i)                                                                               \
  Token {                                                                                                  \
    (reads(kLogprob) & (columns)) ? logprob[i] : 0, (reads(kOldLogprob) & (columns)) ? old_logprob[i] : 0, \
        (reads(kRefLogprob) & (columns)) ? ref_logprob[i] : 0,                                             \
        (reads(kAdvantages) & (columns)) ? advantages[i] : 0                                               \
  }

// Prefetches a constant set of columns from index `at` on. It reads the same variables.
#define PL_FETCH_COLUMNS(columns, at)                                                   \
  do {                                                                                  \
    if constexpr ((reads(kLogprob) & (columns)) != 0) fetch_ahead(logprob + at);        \
    if constexpr ((reads(kOldLogprob) & (columns)) != 0) fetch_ahead(old_logprob + at); \
    if constexpr ((reads(kRefLogprob) & (columns)) != 0) fetch_ahead(ref_logprob + at); \
    if constexpr ((reads(kAdvantages) & (columns)) != 0) fetch_ahead(advantages + at);  \
  } while (false)

template <class L>
PL_FN auto row_of(const L& loss, const RowStatistics& row) {
  if constexpr (has_row_sums<L>)
    return loss.row(row.sum, row.count);
  else
    return NoRow{};
}

// Computes the policy loss on one tile. The version with masked = false is faster, for tiles without masked
// tokens and without weights of tokens. That version exists only with gradients, which most calls want,
// because every version takes time to compile and makes the module larger.
template <class L, bool with_grad, bool masked, class Values>
void loss_loop(const L& shared_loss, const typename L::Row& shared_row, const TileColumns& in, int n,
               float weight, float* grad, LossSums* sums) {
  // The loop uses local copies, so that the compiler knows that writing the gradient does not change them.
  const L loss = shared_loss;
  const typename L::Row row = shared_row;
  constexpr int metrics = L::traits.token_metrics;
  // Columns of 16-bit numbers are read in place only without weights.
  constexpr bool weighted = masked && std::is_pointer_v<Values>;
  const Values logprob = in.get<Values>(kLogprob);
  const Values old_logprob = in.get<Values>(kOldLogprob);
  const Values ref_logprob = in.get<Values>(kRefLogprob);
  const Values advantages = in.get<Values>(kAdvantages);
  const Lane* lanes = in.lanes;
  const float* weights = in.weights;
  // Copies of the sums, which the compiler keeps in registers because no pointer can point to them.
  float value[kSumLanes], m0[kSumLanes], m1[kSumLanes], m2[kSumLanes], m3[kSumLanes];
  sums->loss.store(value);
  if constexpr (metrics > 0) sums->metric[0].store(m0);
  if constexpr (metrics > 1) sums->metric[1].store(m1);
  if constexpr (metrics > 2) sums->metric[2].store(m2);
  if constexpr (metrics > 3) sums->metric[3].store(m3);
  for (int at = 0; at < n; at += kSumLanes) {
    PL_FETCH_COLUMNS(L::traits.token_columns(), at);
    if constexpr (with_grad) fetch_ahead<1>(grad + at);
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) {
      const int i = at + l;
      const TokenTerm term = loss.token(row, PL_TOKEN(L::traits.token_columns(), i));
      const int32_t lane = masked ? lanes[i] : -1;
      const auto weighed = [&](float x) { return weighted ? mul_no_nan(x, weights[i]) : x; };
      if constexpr (with_grad) grad[i] = if_unmasked(weighed(term.derivative * weight), lane);
      value[l] += if_unmasked(weighed(term.value), lane);
      if constexpr (metrics > 0) m0[l] += if_unmasked(term.metric0, lane);
      if constexpr (metrics > 1) m1[l] += if_unmasked(term.metric1, lane);
      if constexpr (metrics > 2) m2[l] += if_unmasked(term.metric2, lane);
      if constexpr (metrics > 3) m3[l] += if_unmasked(term.metric3, lane);
    }
  }
  sums->loss.load(value);
  if constexpr (metrics > 0) sums->metric[0].load(m0);
  if constexpr (metrics > 1) sums->metric[1].load(m1);
  if constexpr (metrics > 2) sums->metric[2].load(m2);
  if constexpr (metrics > 3) sums->metric[3].load(m3);
}

// Runs the loops of a loss L that another loss uses for one kind of rows. It calls them through the table,
// because they may be compiled in another file.
template <class L>
void tile_of(const L& loss, const RowStatistics& row, const TileColumns& in, int n, float weight, float* grad,
             LossSums* sums) {
  loss_loops(index_of<L>(Losses{})).loss_tile(&loss, row, in, n, weight, grad, sums);
}

template <class L>
void loss_tile(const void* object, const RowStatistics& row, const TileColumns& in, int n, float weight,
               float* grad, LossSums* sums) {
  const L& loss = *static_cast<const L*>(object);
  if constexpr (L::traits.two_kinds) {
    if (row.kind == 0)
      tile_of(loss.usual, row, in, n, weight, grad, sums);
    else
      tile_of(loss.expert, row, in, n, weight, grad, sums);
  } else {
    in_simplest_form(loss, [&]<class Form>(const Form& form) {
      const auto row_values = row_of(form, row);
      in.with_type([&]<class Values>() {
        if (!grad) return loss_loop<Form, false, true, Values>(form, row_values, in, n, weight, grad, sums);
        in.with_mask([&]<bool masked>() {
          loss_loop<Form, true, masked, Values>(form, row_values, in, n, weight, grad, sums);
        });
      });
    });
  }
}

template <class L, class Values>
void row_sum_loop(const L& loss, const TileColumns& in, int n, LaneSum<double>* sum) {
  const Values logprob = in.get<Values>(kLogprob);
  const Values old_logprob = in.get<Values>(kOldLogprob);
  const Values ref_logprob = in.get<Values>(kRefLogprob);
  const Values advantages = in.get<Values>(kAdvantages);
  const Lane* lanes = in.lanes;
  double partial[kSumLanes];
  sum->store(partial);
  for (int at = 0; at < n; at += kSumLanes) {
    PL_FETCH_COLUMNS(row_sum_columns<L>, at);
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) {
      const int i = at + l;
      const double term = loss.row_term(PL_TOKEN(row_sum_columns<L>, i));
      partial[l] += lanes[i] != 0 ? term : 0.0;
    }
  }
  sum->load(partial);
}

template <class L>
void row_sum_tile(const void* object, const TileColumns& in, int n, LaneSum<double>* sum) {
  if constexpr (has_row_sums<L>)
    in.with_type(
        [&]<class Values>() { row_sum_loop<L, Values>(*static_cast<const L*>(object), in, n, sum); });
}

template <class L>
void row_metric(const void* object, const RowStatistics& row, double negatives, double* out) {
  if constexpr (L::traits.row_metrics > 0) {
    const L& loss = *static_cast<const L*>(object);
    loss.row_metric(loss.row(row.sum, row.count), row.count, negatives, out);
  }
}

template <class L>
bool needs_row_sums_of(const void* object) {
  return needs_row_sums(*static_cast<const L*>(object));
}

template <class L>
constexpr LossLoops kLoopsOf = {row_sum_tile<L>,      row_metric<L>,      loss_tile<L>,
                                needs_row_sums_of<L>, row_sum_columns<L>, L::traits};

// Returns the loops of loss L if in_file is set. Otherwise returns null, and the compiler does not generate
// the loops.
template <class L, bool in_file>
constexpr const LossLoops* loops_if() {
  if constexpr (in_file)
    return &kLoopsOf<L>;
  else
    return nullptr;
}

template <int file, class... L, int... index>
const LossLoops* find_in_file(int wanted, TypeList<L...>, std::integer_sequence<int, index...>) {
  static constexpr const LossLoops* loops[] = {loops_if<L, index % kLossFiles == file>()...};
  return loops[wanted];
}

template <int file>
const LossLoops* loss_loops_of_file(int index) {
  return find_in_file<file>(index, Losses{}, std::make_integer_sequence<int, Losses::size>{});
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
