// Lists all losses and KL estimators. To add one, include its header here and add it to its list. The tables
// of the CPU engine, the CUDA engine's launchers and the addon are made from these lists.
#pragma once

#include "engine/construct.h"
#include "kl/abs.h"
#include "kl/bias_corrected_k3.h"
#include "kl/corrected_k3.h"
#include "kl/k1.h"
#include "kl/k2.h"
#include "kl/k3.h"
#include "kl/low_var_kl.h"
#include "kl/straight_through.h"
#include "loss/cispo.h"
#include "loss/dpo.h"
#include "loss/gspo.h"
#include "loss/importance_sampling.h"
#include "loss/mix.h"
#include "loss/opmd.h"
#include "loss/ppo.h"
#include "loss/rec.h"
#include "loss/sapo.h"
#include "loss/sft.h"
#include "loss/sppo.h"
#include "loss/topr.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

template <class... T>
struct TypeList {
  static constexpr int size = sizeof...(T);
};

using Losses =
    TypeList<Ppo, PpoSequenceMasking, PpoOnPolicy, PpoSequenceMaskingOnPolicy, Gspo, Cispo, Topr, Sapo, Sppo,
             Rec, Opmd, Sft, SftIs, SftPhi, ImportanceSampling, Dpo, MixSft, MixChordSft, MixChordPhi>;
using KlEstimators = TypeList<K1, K2, K3, LowVarKl, Abs, CorrectedK3, StraightK1, StraightAbs,
                              StraightLowVarKl, BiasCorrectedK3, StraightK3>;

// Returns the index of L in a list that contains it.
template <class L, class... T>
constexpr int index_of(TypeList<T...>) {
  int index = 0;
  const bool found = ((std::is_same_v<L, T> || (++index, false)) || ...);
  return found ? index : throw "not in the list";
}

template <class L>
constexpr bool has_row_sums = L::traits.row_sums != RowSums::kNever;

// The set of columns that the row pass reads for a loss: the columns that row_term() may read and, if the
// pass counts negative advantages, the advantages.
template <class L>
constexpr unsigned row_sum_columns = (L::traits.all_columns() & ~reads(kAdvantages)) |
                                     (L::traits.counts_negatives ? reads(kAdvantages) : 0u);

// Returns whether a loss needs row sums. For some losses this depends on the options.
template <class L>
bool needs_row_sums(const L& loss) {
  if constexpr (L::traits.row_sums == RowSums::kByOptions)
    return loss.needs_row_sums();
  else
    return has_row_sums<L>;
}

// Calls use(form) with the simpler form of the loss if it gives the same result, otherwise with the loss
// itself.
template <class L, class Use>
void in_simplest_form(const L& loss, Use use) {
  if constexpr (L::traits.has_simpler_form) {
    if (loss.is_simpler) return use(typename L::Simpler(loss));
  }
  use(loss);
}

// Constructs the function at position `index` of the list from its options, and calls visit with it.
template <class Visit, class... F>
void with_function(int index, const double* options, Visit visit, TypeList<F...>) {
  int at = 0;
  ((at++ == index ? visit(make_function<F>(options)) : void()), ...);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
