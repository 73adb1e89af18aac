// The lists of all losses and KL estimators. A new one is its header, included here and named in its list;
// everything that walks over losses (the CPU's tables, the CUDA launchers, the binding) walks these.
#pragma once

#include <variant>

#include "kl/abs.h"
#include "kl/corrected_k3.h"
#include "kl/k1.h"
#include "kl/k2.h"
#include "kl/k3.h"
#include "kl/low_var_kl.h"
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
using KlEstimators = TypeList<K1, K2, K3, LowVarKl, Abs, CorrectedK3>;

// What a loss is found to have.
template <class L>
constexpr bool has_row_facts = requires(const L& l) {
  l.row(0.0, 0.0);
};
template <class L>
constexpr bool has_kinds = requires {
  typename L::Expert;
};
template <class L>
constexpr bool is_by_pairs = requires {
  L::by_pairs;
};
template <class L>
constexpr bool counts_negatives = requires {
  L::counts_negative_advantages;
};
// The columns that row_term() reads, and where negative advantages are counted these.
template <class L>
constexpr unsigned fact_columns = ((reads(kLogprob) | L::columns) & ~reads(kAdvantages)) |
                                  (counts_negatives<L> ? reads(kAdvantages) : 0u);
template <class L>
constexpr int row_metric_count = 0;
template <class L>
requires(has_row_facts<L>) constexpr int row_metric_count<L> = L::row_metrics;

// Whether a loss makes anything of row facts, under its options.
template <class L>
bool wants_facts(const L& loss) {
  if constexpr (requires { loss.wants_facts(); })
    return loss.wants_facts();
  else
    return has_row_facts<L>;
}

// Calls use() with the loss, or with the cheaper form of it that gives the same under its options.
template <class L, class Use>
void in_cheapest_form(const L& loss, Use use) {
  if constexpr (requires { typename L::Simpler; }) {
    if (loss.is_simpler) return use(typename L::Simpler(loss));
  }
  use(loss);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
