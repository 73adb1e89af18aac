// The evaluation of a function on a device: the passes of a call in order.
#pragma once

#include "cuda/advantages.h"
#include "cuda/device_array.h"
#include "cuda/mask_pass.h"
#include "cuda/program.h"

namespace policy_loss::cuda {

// One evaluation of a function on a device. The constructor prepares it. sum_rows() launches the row pass,
// for the whole batch at once or for one slice of it, unless share() makes it unnecessary. launch() launches
// the other passes. fetch() copies the results to the host. If the call also computes advantages, their
// AdvantageEvaluation is constructed first.
class Evaluation {
 public:
  // repeats: how often each row counts, in host memory; null if every row counts once.
  Evaluation(Context& context, const DeviceBatch& batch, const Request& request, const uint32_t* repeats,
             const Call& call)
      : context_(context),
        batch_(batch),
        loss_(request.terms.loss),
        object_(request.loss),
        sums_rows_(sums_over_rows(loss_, object_)),
        program_(context, request, batch),
        call_(call) {
    const bool pairs = is_over_pairs(loss_);
    const unsigned columns = columns_of_tokens(request);
    FeedMemory memory = token_memory(loss_, columns);
    memory.least = program_.memory();
    pass_ = context.prepare(batch, columns, memory, pairs, sums_rows_);
    pass_.terms = request.terms;
    pass_.coefficients = request.coefficients;
    pass_.normalizer = request.normalizer;
    if (repeats) {
      pass_.batch.repeats = context.send_array(repeats, batch.view.layout.rows, &repeats_);
      context.order_kernels_after_copies();
    }
    if (call.mask) pass_.batch.mask = send_tokens(call.mask, &mask_);
    if (call.weights) pass_.batch.column[kTokenWeights] = {send_tokens(call.weights, &weights_)};
    if (call.logprob) pass_.batch.column[kLogprob] = {send_tokens(call.logprob, &logprob_)};
    if (call.grad || call.grad_stays || call.device_grad)
      grad_.allocate(context, batch.tokens, call.grad, call.device_grad);
    if (call.grad_entropy || call.device_grad_entropy)
      grad_entropy_.allocate(context, batch.tokens, call.grad_entropy, call.device_grad_entropy);
    pass_.grad = grad_.data();
    pass_.grad_entropy = grad_entropy_.data();
    // Only rows that take part in a program write their gradients.
    if (call.grad_log_z)
      grad_log_z_ = context.allocate_zeros(batch.view.layout.rows * static_cast<int64_t>(sizeof(float)));
    pass_.grad_log_z = grad_log_z_.as<float>();
    if (is_timed()) context_.mark_passes_begin();
  }

  int64_t chunk_tokens() const { return pass_.chunk_tokens; }

  // Makes the loss use the advantages that `computed` holds on the same device. If they come from a group
  // function, the rows' repeats come from it too.
  void use(const AdvantageEvaluation& computed) {
    pass_.batch.column[kAdvantages] = computed.column();
    if (computed.repeats()) pass_.batch.repeats = computed.repeats();
  }

  // Uses the mask pass of a resident batch instead of a row pass, if the row pass would depend on nothing but
  // the batch's mask and layout. Must be called after use() and before sum_rows().
  void share(const MaskPass& mask_pass) {
    if (pass_.batch.repeats || call_.mask || sums_rows_ || !mask_pass.is_there()) return;
    mask_pass.share_with(&pass_);
  }

  void sum_rows(int64_t first_token, int64_t last_token) {
    if (pass_.known) return;
    const int64_t first = first_token / pass_.chunk_tokens;
    const int64_t last = (last_token + pass_.chunk_tokens - 1) / pass_.chunk_tokens;
    launch_rows(
        loss_, object_, pass_, first, last,
        sums_rows_ ? context_.grid_of_chunks(pass_, last - first) : context_.grid_of_warps(last - first));
  }

  // Launches the weights pass and the token pass. The last kernel writes the result to the host.
  void launch() {
    check_abort(call_.abort);
    if (!is_program() && !needs_token_pass()) pass_.host_result = context_.mapped_result();
    launch_weights(loss_, object_, pass_,
                   is_over_pairs(loss_) ? context_.grid(1) : context_.grid_of_rows(pass_));
    if (is_over_pairs(loss_) && !pass_.terms.has_kl()) pass_.columns &= reads(kEntropy);
    if (is_timed()) context_.mark_tokens_begin();
    if (!is_program()) pass_.host_result = context_.mapped_result();
    if (needs_token_pass())
      launch_tokens(loss_, object_, pass_, context_.grid_of_chunks(pass_, pass_.chunks));
    if (is_program()) program_.run(pass_, context_.mapped_result());
    grad_.launch_narrowing(context_);
    grad_entropy_.launch_narrowing(context_);
    if (call_.grad_there) grad_.copy_there(context_);
    if (is_timed()) context_.mark_passes_end();
    context_.end_passes();
  }

  void fetch() {
    Transfer arrays[3];
    int count = 0;
    if (call_.grad && !call_.grad_there) arrays[count++] = grad_.transfer();
    if (call_.grad_entropy) arrays[count++] = grad_entropy_.transfer();
    if (call_.grad_log_z)
      arrays[count++] = Channel::transfer_to(pass_.grad_log_z, call_.grad_log_z, grad_log_z_.bytes());
    if (!context_.receive(arrays, count, call_.abort)) context_.await_kernels();
    *call_.result = context_.result();
    grad_.finish();
    grad_entropy_.finish();
    if (call_.passes_ms) *call_.passes_ms = context_.passes_ms();
    if (call_.token_pass_ms) *call_.token_pass_ms = context_.token_pass_ms();
  }

 private:
  // Returns the columns that the token pass reads.
  static unsigned columns_of_tokens(const Request& request) {
    const Terms& terms = request.terms;
    // A loss over pairs of rows reads its columns only in the row pass, because all tokens of a row have the
    // same gradient. Without a KL loss, the token pass then reads at most the entropy.
    if (is_over_pairs(terms.loss) && !terms.has_kl()) return request.columns & reads(kEntropy);
    // A user-defined loss has kernels of its own. The token pass only computes the other terms.
    if (terms.loss != kProgram) return request.columns;
    const unsigned of_kl = reads(kLogprob) | reads(kRefLogprob) | reads(kOldLogprob);
    return request.columns & ((terms.has_kl() ? of_kl : 0u) | (terms.entropy ? reads(kEntropy) : 0u));
  }

  // Copies an array with one element per token to the device.
  template <class T>
  const T* send_tokens(const T* from, Buffer* buffer) {
    *buffer = context_.allocate(whole_granules(batch_.tokens) * sizeof(T));
    context_.order_copies_after_kernels();
    context_.send(buffer->as<void>(), from, batch_.tokens * static_cast<int64_t>(sizeof(T)));
    context_.order_kernels_after_copies();
    return buffer->as<T>();
  }

  bool is_timed() const { return call_.passes_ms || call_.token_pass_ms; }
  bool is_program() const { return loss_ == kProgram; }

  bool needs_token_pass() const {
    if (is_program()) return pass_.terms.has_kl() || pass_.terms.entropy || pass_.grad_entropy;
    // A call without any loss term only asks for the counts of the batch, which the weights pass stores. The
    // token pass is then needed only to write zeros to a gradient.
    return !pass_.terms.counts_only() || pass_.grad || pass_.grad_entropy;
  }

  Context& context_;
  const DeviceBatch& batch_;
  const int loss_;
  const void* const object_;
  const bool sums_rows_;
  const ProgramEvaluation program_;
  const Call& call_;
  Pass pass_;
  GradientArray grad_, grad_entropy_;
  Buffer grad_log_z_, repeats_, mask_, weights_, logprob_;
};

// Computes the KL values of a call, and their mean.
inline void compute_kl(Context& context, const DeviceBatch& batch, const KlCall& call) {
  const unsigned columns = call.columns | (call.base ? reads(kAdvantages) : 0u);
  Pass pass = context.prepare(batch, columns, kl_memory(columns), false, true);
  const int64_t bytes = batch.tokens * static_cast<int64_t>(sizeof(float));
  const Buffer out = context.allocate(bytes);
  Buffer base;
  if (call.base) {
    base = context.allocate(whole_granules(batch.tokens) * sizeof(float));
    context.order_copies_after_kernels();
    context.send(base.as<void>(), call.base, bytes);
    context.order_kernels_after_copies();
  }
  pass.terms.kl = call.estimator;
  if (call.base) {
    pass.batch.column[kAdvantages] = {base.as<float>()};
  } else {
    pass.batch.mask = nullptr;  // without a base, masked tokens have a value too
  }
  launch_kl(pass, {call.base != nullptr, static_cast<float>(call.scale), out.as<float>()},
            context.grid_of_chunks(pass, pass.chunks));
  pass.host_result = context.mapped_result();
  if (call.base) launch_row_means(pass, context.grid_of_rows(pass));
  context.end_passes();
  if (!context.receive(call.out, out.as<void>(), bytes, call.abort)) context.await_kernels();
  const double sum = context.result().sums.row_metric[0];
  if (call.mean_kl) *call.mean_kl = call.base ? sum / static_cast<double>(batch.view.layout.rows) : 0.0;
}

}  // namespace policy_loss::cuda
