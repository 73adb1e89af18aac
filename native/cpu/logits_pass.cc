#include "cpu/logits_pass.h"

#include "cpu/logits_gradient.h"
#include "cpu/logits_sums.h"
#include "cpu/narrow.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

int length_of_tile(int64_t at, int64_t last) {
  return static_cast<int>(last - at < kLogitsTile ? last - at : kLogitsTile);
}

// Writes the gradient of one row of logits, a tile at a time.
class GradientOfRow {
 public:
  GradientOfRow(const LogitsRow& row, const SoftmaxGradient& gradient, bool with_entropy,
                const LogitsTerms& saved, void* out, DType out_dtype)
      : row_(row),
        gradient_(gradient),
        from_zero_(relative_to(0, gradient)),
        with_entropy_(with_entropy),
        allows_small_(has_digits(gradient.by_logprob, from_zero_.by_logprob) &&
                      has_digits(gradient.by_distance, from_zero_.by_distance)),
        saved_(saved),
        out_(out),
        out_dtype_(out_dtype) {}

  // Writes the gradient of the logits [at, at + n). Logits that are small bfloat16 numbers are computed in
  // pairs if the gradient is bfloat16 too. The target's gradient replaces that of the formula for others.
  void write_tile(int64_t at, int n, const Ahead& ahead) {
    const TermsOfTile tile = saved_.term ? saved_.tile[at / kLogitsTile] : TermsOfTile{};
    // Which formula computes a gradient must not depend on where it is written.
    const uint16_t* pairs =
        allows_small_ && (!saved_.term || tile.in_pairs) ? pairs_of(row_, at, n) : nullptr;
    if (pairs && !saved_.term && !has_small_logits(pairs, n, 1 / row_.temperature)) pairs = nullptr;
    if (pairs && out_dtype_ == DType::kBFloat16)
      write_pairs(pairs, at, n, ahead);
    else
      write_numbers(tile, pairs != nullptr, at, n, ahead);
  }

 private:
  bool has_target(int64_t at, int n) const { return row_.target >= at && row_.target < at + n; }

  // Returns the target's gradient, where `logit` is its capped logit unless that was saved.
  float of_target(float logit) const {
    return gradient_of_target(gradient_, saved_.term ? *saved_.target : logit);
  }

  void write_pairs(const uint16_t* pairs, int64_t at, int n, const Ahead& ahead) {
    uint16_t* const grad = static_cast<uint16_t*>(out_) + at;
    // The gradient may be written in place of the logits, so the target's is computed first.
    const int64_t target = row_.target - at;
    const float target_grad = has_target(at, n) ? of_target(float_of_bfloat16(pairs[target])) : 0.0f;
    write_gradient_of_pairs(from_zero_, saved_.term ? saved_.term + at : nullptr, pairs, n, with_entropy_,
                            ahead, grad);
    if (has_target(at, n)) grad[target] = bfloat16_of_float(target_grad);
  }

  void write_numbers(const TermsOfTile& tile, bool is_small, int64_t at, int n, const Ahead& ahead) {
    const float* const terms = saved_.term && !tile.in_pairs ? saved_.term + at : nullptr;
    const bool reads_logits = with_entropy_ || row_.softcap > 0 || !terms;
    const float* const x = reads_logits ? read(row_, at, n, &wide_) : terms;
    const float* const z = row_.softcap > 0 ? cap(x, n, row_.softcap, &capped_) : x;
    // A gradient in place of the logits must not overwrite logits that are still needed.
    const bool direct = out_dtype_ == DType::kFloat32 && n % kGranule == 0 && z == x;
    float* const grad = direct ? static_cast<float*>(out_) + at : buffer_.of;
    const int64_t target = row_.target - at;
    const float target_grad = has_target(at, n) ? of_target(z[target]) : 0.0f;
    const SoftmaxGradient shared = terms      ? relative_to(tile.reference, gradient_)
                                   : is_small ? from_zero_
                                              : gradient_;
    write_gradient(shared, terms, is_small, z, padded(n), with_entropy_, ahead, grad);
    if (has_target(at, n)) grad[target] = target_grad;
    if (row_.softcap > 0) multiply_by_softcap_derivative(x, padded(n), row_.softcap, grad);
    if (!direct) store_numbers(grad, n, out_dtype_, out_, at);
  }

  const LogitsRow& row_;
  const SoftmaxGradient& gradient_;
  const SoftmaxGradient from_zero_;  // relative to a logit of 0
  const bool with_entropy_, allows_small_;
  const LogitsTerms& saved_;
  void* const out_;
  const DType out_dtype_;
  Buffer wide_, capped_, buffer_;
};

}  // namespace

void sum_logits(const LogitsRow& row, bool with_entropy, int64_t first, int64_t last,
                const LogitsTerms& saved, SoftmaxSums* sums, double* target) {
  Buffer wide, capped;
  NextTile next = {};
  // Whether the last tile's logits were small. Then the next tile's sums are computed without a check first,
  // unless terms are saved: the check then reads the tile from the second-level cache into the first.
  bool expects_small = true;
  const double inverse_temperature = 1 / row.temperature;
  for (int64_t at = first; at < last; at += kLogitsTile) {
    const int n = length_of_tile(at, last);
    const Ahead ahead(row, at, saved, at);
    float* const terms = saved.term ? saved.term + at : nullptr;
    const bool has_target = row.target >= at && row.target < at + n;
    const uint16_t* const pairs = pairs_of(row, at, n);
    if (pairs && ((expects_small && !terms) || has_small_logits(pairs, n, inverse_temperature)) &&
        add_pairs(pairs, n, inverse_temperature, with_entropy, ahead, terms, sums, &expects_small)) {
      if (terms) saved.tile[at / kLogitsTile] = {0, 1};
      if (has_target) *target = float_of_bfloat16(pairs[row.target - at]);
      continue;
    }
    const float* z = read(row, at, n, &wide);
    if (row.softcap > 0) z = cap(z, n, row.softcap, &capped);
    // The terms may be written in place of the logits.
    if (has_target) *target = z[row.target - at];
    const float max = next.n > 0 ? next.largest : largest(z, padded(n));
    next = next_tile(row, at + n, last, z);
    const SoftmaxSums tile = sum_tile(z, padded(n), max, static_cast<float>(inverse_temperature),
                                      with_entropy, ahead, terms, &next);
    if (terms) saved.tile[at / kLogitsTile] = {static_cast<float>(tile.max), 0};
    add_sums(tile, inverse_temperature, sums);
  }
}

void logits_gradient(const LogitsRow& row, const SoftmaxGradient& gradient, bool with_entropy, int64_t first,
                     int64_t last, const LogitsTerms& saved, void* out, DType out_dtype) {
  GradientOfRow of_row(row, gradient, with_entropy, saved, out, out_dtype);
  const int64_t tiles = (last - first + kLogitsTile - 1) / kLogitsTile;
  for (int64_t i = 0; i < tiles; ++i) {
    // The sums, from which terms were saved, end with the last tile, so that one is still in the cache.
    const int64_t at = first + (saved.term ? tiles - 1 - i : i) * kLogitsTile;
    of_row.write_tile(at, length_of_tile(at, last), Ahead(row, at, saved, row.vocabulary + i * kLogitsTile));
  }
}

void largest_of_groups(const LogitsRow& row, float* largest) {
  Buffer wide;
  for (int64_t at = 0; at < row.length; at += kLogitsTile) {
    const int n = length_of_tile(at, row.length);
    const float* const z = read(row, at, n, &wide);
    for (int begin = 0; begin < n; begin += cpu::kLogitsOfGroups) {
      const int last = static_cast<int>(begin + cpu::kLogitsOfGroups);
      const int end = last < padded(n) ? last : padded(n);
      alignas(64) float most[kSumLanes];
      for (float& each : most) each = -kInfinity;
      for (int i = begin; i < end; i += kSumLanes) {
        PL_FOR_LANES
        for (int l = 0; l < kSumLanes; ++l) most[l] = z[i + l] > most[l] ? z[i + l] : most[l];
      }
      memcpy(largest, most, sizeof most);
      largest += kSumLanes;
    }
  }
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
