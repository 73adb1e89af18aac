// The inner loops of the KL estimators and of the entropy loss.
#include "cpu/loops.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

template <class K, bool with_grad, bool add, bool masked, class Values>
void kl_loop(const TileColumns& in, int n, float weight, float* grad, LaneSum<float>* sum) {
  const Values logprob = in.get<Values>(kLogprob);
  const Values ref = in.get<Values>(kRefLogprob);
  const Values old = in.get<Values>(kOldLogprob);
  const Lane* lanes = in.lanes;
  const int32_t counts = weight != 0.0f ? -1 : 0;  // a coefficient of 0 gives 0, even if the KL is infinite
  float partial[kSumLanes];
  sum->store(partial);
  for (int at = 0; at < n; at += kSumLanes) {
    fetch_ahead(ref + at);
    // If the gradient is added to a loss's, the loop of the loss has prefetched the rest.
    if constexpr (!add) {
      fetch_ahead(logprob + at);
      if constexpr (K::reads_old_logprob) fetch_ahead(old + at);
      if constexpr (with_grad) fetch_ahead<1>(grad + at);
    }
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) {
      const int i = at + l;
      const KlTerm term = K::token(logprob[i], ref[i], K::reads_old_logprob ? old[i] : 0.0f);
      const int32_t lane = masked ? lanes[i] : -1;
      if constexpr (with_grad) {
        const float derivative = if_unmasked(term.derivative * weight, lane & counts);
        grad[i] = add ? grad[i] + derivative : derivative;
      }
      partial[l] += if_unmasked(term.value, lane);
    }
  }
  sum->load(partial);
}

// The estimator whose loops compute the values of the estimator K.
template <class K>
struct ValueOf {
  using Estimator = K;
};
template <class K>
requires requires {
  typename K::Value;
}
struct ValueOf<K> {
  using Estimator = typename K::Value;
};

template <class K>
void kl_tile(const TileColumns& in, int n, float weight, float* grad, bool add, LaneSum<float>* sum) {
  in.with_type([&]<class Values>() {
    if (!grad)
      return kl_loop<typename ValueOf<K>::Estimator, false, false, true, Values>(in, n, weight, grad, sum);
    in.with_mask([&]<bool masked>() {
      return add ? kl_loop<K, true, true, masked, Values>(in, n, weight, grad, sum)
                 : kl_loop<K, true, false, masked, Values>(in, n, weight, grad, sum);
    });
  });
}

template <class K>
void kl_values(const TileColumns& in, int n, float* out) {
  in.with_type([&]<class Values>() {
    const Values logprob = in.get<Values>(kLogprob);
    const Values ref = in.get<Values>(kRefLogprob);
    const Values old = in.get<Values>(kOldLogprob);
    for (int at = 0; at < n; at += kVector) {
      PL_FOR_LANES_COMPACTLY
      for (int i = at; i < at + kVector; ++i)
        out[i] = K::token(logprob[i], ref[i], K::reads_old_logprob ? old[i] : 0.0f).value;
    }
  });
}

template <bool masked, class Values>
void entropy_loop(const TileColumns& in, int n, float weight, float* grad, LaneSum<float>* sum) {
  const Values entropy = in.get<Values>(kEntropy);
  const Lane* lanes = in.lanes;
  float partial[kSumLanes];
  sum->store(partial);
  for (int at = 0; at < n; at += kSumLanes) {
    fetch_ahead(entropy + at);
    if (grad) fetch_ahead<1>(grad + at);
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l)
      partial[l] += if_unmasked(entropy[at + l], masked ? lanes[at + l] : -1);
  }
  sum->load(partial);
  if (grad) {
#pragma omp simd
    for (int i = 0; i < n; ++i) grad[i] = if_unmasked(weight, masked ? lanes[i] : -1);
  }
}

template <class List>
struct KlTable;
template <class... K>
struct KlTable<TypeList<K...>> {
  static constexpr KlLoops loops[] = {
      {kl_tile<K>, kl_values<typename ValueOf<K>::Estimator>,
       reads(kLogprob) | reads(kRefLogprob) | (K::reads_old_logprob ? reads(kOldLogprob) : 0u)}...};
};

}  // namespace

const KlLoops& kl_loops(int index) {
  return KlTable<KlEstimators>::loops[index];
}

void entropy_tile(const TileColumns& in, int n, float weight, float* grad, LaneSum<float>* sum) {
  in.with_type([&]<class Values>() {
    in.with_mask([&]<bool masked>() { entropy_loop<masked, Values>(in, n, weight, grad, sum); });
  });
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
