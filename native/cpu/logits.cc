#include "cpu/logits.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cpu/top_logits.h"
#include "math/half.h"

namespace policy_loss::cpu {
namespace {

constexpr int64_t kLogitsChunk = 16 * kLogitsTile;
// The logits that a thread computes at least before it takes the next item.
constexpr int64_t kItemLogits = 2 * kLogitsChunk;
// Fewer rows than these are split, if they are longer than a chunk.
constexpr int64_t kManyRows = 256;
// Rows of so many bytes stay in the cache of a core while their log-probabilities and then their gradients
// are computed.
constexpr int64_t kCachedBytes = 256 << 10;
constexpr int64_t kMostCachedRows = 64;
// The number of threads whose memory for terms is used again. The list has this capacity from the start,
// because a thread of the pool cannot handle a failed allocation.
constexpr size_t kMostUnused = 256;
// The calling thread computes so few logits faster alone.
constexpr int64_t kFewLogits = 8192;

void store(float x, DType dtype, void* out, int64_t index) {
  if (dtype == DType::kFloat32)
    static_cast<float*>(out)[index] = x;
  else
    static_cast<uint16_t*>(out)[index] = dtype == DType::kFloat16 ? half_of_float(x) : bfloat16_of_float(x);
}

char* at(const void* data, DType dtype, int64_t index) {
  return const_cast<char*>(static_cast<const char*>(data)) + index * size_of(dtype);
}

}  // namespace

float logit_at(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kFloat16 ? float_of_half(bits) : float_of_bfloat16(bits);
}

LogitsEvaluation::LogitsEvaluation(const LogitsCall& call, const RowGradients& gradients)
    : call_(call),
      gradients_(gradients),
      sums_(call.needs_sums() || (gradients.entropy && !call.entropy)),
      rows_per_item_(std::max<int64_t>(1, kItemLogits / std::max<int64_t>(1, call.vocabulary))),
      chunks_per_row_((call.vocabulary + kLogitsChunk - 1) / kLogitsChunk) {
  // The gradient over a support is written to the whole row at once, so these rows are not split.
  // Neither are rows whose largest logits are found.
  if (call.rows < kManyRows && chunks_per_row_ > 1 && !call.token_ids && !gradients.logprob && !call.top_ids)
    chunks_.resize(call.rows * chunks_per_row_);
  if (!call.out || !sums_) return;
  call_.logsumexp = logsumexp_.resize(call.rows);
  if (!has_grad_entropy() || call.entropy) return;
  call_.entropy = entropy_.resize(call.rows);
}

bool LogitsEvaluation::is_small() const {
  return call_.rows <= kFewLogits && call_.rows * call_.vocabulary <= kFewLogits;
}

int64_t LogitsEvaluation::open_phase() {
  const int64_t items =
      splits_rows() ? call_.rows * chunks_per_row_ : (call_.rows + rows_per_item_ - 1) / rows_per_item_;
  if (items == 0 || check_abort()) return 0;
  if (phase_ == Phase::kBegin && sums_) {
    phase_ = Phase::kSums;
    return items;
  }
  if (phase_ == Phase::kSums && splits_rows())
    for (int64_t row = 0; row < call_.rows; ++row) {
      ChunkSums total;
      for (int64_t i = 0; i < chunks_per_row_; ++i) {
        const ChunkSums& chunk = chunks_[row * chunks_per_row_ + i];
        add_sums(chunk.sums, 1 / temperature(row), &total.sums);
        total.target += chunk.target;
      }
      finish(row, total);
    }
  if (phase_ == Phase::kGradient || !call_.out) return 0;
  phase_ = Phase::kGradient;
  return items;
}

void LogitsEvaluation::work(int64_t item) {
  if (check_abort()) return;
  if (splits_rows()) {
    const int64_t row = item / chunks_per_row_;
    const int64_t chunk = item % chunks_per_row_;
    const int64_t first = chunk * kLogitsChunk;
    if (phase_ == Phase::kGradient)
      write_gradient(row, first, std::min(first + kLogitsChunk, call_.vocabulary));
    else if (has_target(row))
      sum(row_of(row), chunk, {}, &chunks_[item]);
    return;
  }
  const int64_t first = item * rows_per_item_;
  const int64_t last = std::min(first + rows_per_item_, call_.rows);
  for (int64_t row = first; row < last; ++row) {
    if (phase_ == Phase::kGradient)
      write_gradient(row, 0, call_.vocabulary);
    else
      sum_row(row);
  }
}

const void* LogitsEvaluation::logits_of(int64_t row) const {
  if (row >= call_.rows || !has_target(row)) return nullptr;
  return at(call_.data, call_.dtype, row * call_.row_stride);
}

void* LogitsEvaluation::gradient_of(int64_t row) const {
  return at(call_.out, call_.out_dtype, row * call_.out_stride);
}

LogitsRow LogitsEvaluation::row_of(int64_t row) const {
  LogitsRow view{at(call_.data, call_.dtype, row * call_.row_stride),
                 call_.dtype,
                 call_.vocabulary,
                 nullptr,
                 call_.vocabulary,
                 call_.targets[row],
                 static_cast<float>(call_.softcap),
                 temperature(row)};
  if (!call_.token_ids || !has_target(row)) return view;
  view.token_ids = call_.token_ids + call_.offsets[row];
  view.length = call_.offsets[row + 1] - call_.offsets[row];
  view.target = std::find(view.token_ids, view.token_ids + view.length, call_.targets[row]) - view.token_ids;
  return view;
}

void LogitsEvaluation::sum(const LogitsRow& view, int64_t chunk, const LogitsTerms& saved,
                           ChunkSums* into) const {
  const int64_t first = chunk * kLogitsChunk;
  target()->sum_logits(view, call_.entropy != nullptr, first, std::min(first + kLogitsChunk, view.length),
                       saved, &into->sums, &into->target);
}

void LogitsEvaluation::sum_row(int64_t row, const LogitsTerms& saved) {
  ChunkSums total;
  if (has_target(row) && !call_.wants_only_top()) {
    const LogitsRow view = row_of(row);
    for (int64_t i = 0; i * kLogitsChunk < view.length; ++i) {
      ChunkSums chunk;
      sum(view, i, saved, &chunk);
      add_sums(chunk.sums, 1 / view.temperature, &total.sums);
      total.target += chunk.target;
    }
    if (saved.target) *saved.target = static_cast<float>(total.target);
  }
  if (call_.top_ids) write_top_ids(call_, row);
  finish(row, total);
}

void LogitsEvaluation::finish(int64_t row, const ChunkSums& total) {
  SoftmaxRow result;
  if (has_target(row)) result = softmax_row(total.sums, 1 / temperature(row), total.target);
  if (call_.logprob) call_.logprob[row] = static_cast<float>(result.logprob);
  if (call_.logsumexp) call_.logsumexp[row] = result.logsumexp;
  if (call_.entropy) call_.entropy[row] = static_cast<float>(result.entropy);
  if (call_.list_logprob && !call_.out) write_list(row, result.logsumexp);
}

void LogitsEvaluation::write_list(int64_t row, double logsumexp) {
  const void* const logits = logits_of(row);
  const double inverse_temperature = 1 / temperature(row);
  for (int64_t i = call_.list_begin(row); i < call_.list_begin(row + 1); ++i)
    call_.list_logprob[i] =
        logits && call_.is_listed(i)
            ? static_cast<float>(logit_at(logits, call_.dtype, call_.list_ids[i]) * inverse_temperature -
                                 logsumexp)
            : 0.0f;
}

void LogitsEvaluation::write_gradient(int64_t row, int64_t first, int64_t last, const LogitsTerms& saved) {
  void* const out = gradient_of(row);
  if (!has_target(row)) {
    std::memset(at(out, call_.out_dtype, first), 0, (last - first) * size_of(call_.out_dtype));
    return;
  }
  const LogitsRow view = row_of(row);
  const SoftmaxGradient gradient = softmax_gradient_of_list(
      view.temperature, call_.logsumexp[row], has_grad_entropy() ? call_.entropy[row] : 0, grad_logprob(row),
      grad_entropy(row), call_.grad_of_others(row));
  if (view.token_ids) return write_gradient_of_support(row, view, gradient, saved);
  target()->logits_gradient(view, gradient, has_grad_entropy(), first, last, saved, out, call_.out_dtype);
  if (call_.list_grad) write_gradient_of_list(row, first, last, gradient);
}

void LogitsEvaluation::write_gradient_of_list(int64_t row, int64_t first, int64_t last,
                                              const SoftmaxGradient& gradient) {
  // The places in the list, ordered by their tokens. A token that has several places gets the sum.
  std::vector<std::pair<int32_t, int64_t>> places;
  places.reserve(call_.list_length);
  for (int64_t i = call_.list_begin(row); i < call_.list_begin(row + 1); ++i) {
    const int32_t id = call_.list_ids[i];
    if (first <= id && id < last) places.emplace_back(id, i);
  }
  std::sort(places.begin(), places.end());
  void* const out = gradient_of(row);
  for (size_t at = 0; at < places.size();) {
    const auto [id, place] = places[at];
    double g = 0;
    for (; at < places.size() && places[at].first == id; ++at) g += call_.list_grad[places[at].second];
    store(gradient_of_token(gradient, call_.list_logprob[place], g), call_.out_dtype, out, id);
  }
}

void LogitsEvaluation::write_gradient_of_support(int64_t row, const LogitsRow& view,
                                                 const SoftmaxGradient& gradient, const LogitsTerms& saved) {
  const std::unique_ptr<float[]> grad(new float[view.length]);
  target()->logits_gradient(view, gradient, has_grad_entropy(), 0, view.length, saved, grad.get(),
                            DType::kFloat32);
  void* const out = gradient_of(row);
  std::memset(out, 0, call_.vocabulary * size_of(call_.out_dtype));
  for (int64_t i = 0; i < view.length; ++i) {
    // lib/ has checked the ids, but the caller may change them during the call.
    const uint32_t id = static_cast<uint32_t>(view.token_ids[i]);
    if (id < view.vocabulary) store(grad[i], call_.out_dtype, out, id);
  }
}

LogitsGradient::LogitsGradient(std::shared_ptr<const PreparedFunction> function, const BatchView& batch,
                               const Coefficients& coefficients, const Normalizer& normalizer,
                               const Outputs& outputs, const LogitsCall& call, int64_t first_token)
    : loss_(std::move(function), batch, coefficients, normalizer, outputs),
      logits_(call, {outputs.grad.floats() + first_token,
                     outputs.grad_entropy ? outputs.grad_entropy.floats() + first_token : nullptr}),
      rows_(call.rows),
      first_token_(first_token),
      saves_terms_in_gradient_(call.out_dtype == DType::kFloat32 && call.vocabulary % kLogitsGranule == 0 &&
                               !call.token_ids && !(call.softcap > 0) && !outputs.grad_entropy),
      terms_per_row_(saves_terms_in_gradient_
                         ? 0
                         : (call.vocabulary + kLogitsGranule - 1) / kLogitsGranule * kLogitsGranule),
      tiles_per_row_((call.vocabulary + kLogitsTile - 1) / kLogitsTile),
      bytes_per_row_((terms_per_row_ * sizeof(float) + (tiles_per_row_ + 1) * sizeof(TermsOfTile) + 63) / 64 *
                     64),
      rows_per_item_(std::clamp<int64_t>(
          kCachedBytes / std::max<int64_t>(1, call.vocabulary * (size_of(call.dtype) + 4)), 1,
          kMostCachedRows)),
      rows_to_next_(rows_per_item_ * Pool::shared().threads()) {
  unused_.reserve(kMostUnused);
}

int64_t LogitsGradient::open_phase() {
  if (rows_ == 0 || has_begun_gradients_ || check_abort()) return 0;
  const int64_t items = loss_.next_phase();
  if (loss_.out_of_memory()) throw std::bad_alloc();
  if (!loss_.has_begun_tokens()) return items;
  // Now the weights of the rows are known. The loss does not compute all tokens.
  has_begun_gradients_ = true;
  return (rows_ + rows_per_item_ - 1) / rows_per_item_;
}

LogitsTerms LogitsGradient::terms_of(const Terms& terms, int64_t first, int64_t row) const {
  char* const begin = terms.get() + (row - first) * bytes_per_row_;
  TermsOfTile* const tiles = reinterpret_cast<TermsOfTile*>(begin + terms_per_row_ * sizeof(float));
  return {saves_terms_in_gradient_ ? static_cast<float*>(logits_.gradient_of(row))
                                   : reinterpret_cast<float*>(begin),
          tiles, reinterpret_cast<float*>(tiles + tiles_per_row_), logits_.logits_of(row + rows_to_next_)};
}

void LogitsGradient::work(int64_t item) {
  if (check_abort()) return;
  if (!has_begun_gradients_) return loss_.run(item);
  Terms terms;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!unused_.empty()) {
      terms = std::move(unused_.back());
      unused_.pop_back();
    }
  }
  const int64_t bytes = rows_per_item_ * bytes_per_row_;
  if (!terms) terms.reset(static_cast<char*>(operator new(bytes, kLine)));
  const int64_t first = item * rows_per_item_;
  const int64_t last = std::min(first + rows_per_item_, rows_);
  for (int64_t row = first; row < last; ++row) logits_.sum_row(row, terms_of(terms, first, row));
  loss_.write_gradients(first_token_ + first, first_token_ + last);
  for (int64_t row = last - 1; row >= first; --row) logits_.write_gradient(row, terms_of(terms, first, row));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (unused_.size() < kMostUnused) unused_.push_back(std::move(terms));
}

}  // namespace policy_loss::cpu
