// Computes from logits on a device, a slice of rows at a time.
#include "cuda/logits.cuh"

#include <algorithm>

#include "cuda/contexts.h"
#include "cuda/fence.h"
#include "cuda/ipc.h"
#include "cuda/resident.h"
#include "cuda/top_logits.cuh"

namespace policy_loss::cuda {
namespace {

// The memory that a slice takes on the device, in bytes, unless it has only one row. It is large enough that
// copying a slice takes much longer than starting its kernels.
constexpr int64_t kSliceBytes = 32 << 20;

// Returns the address of logits, or of their gradient, in the memory of the device. Throws if they are not
// there.
void* find_rows(const LogitsCall& call, const ColumnView& given, int64_t stride, const IpcHandle& handle,
                int device, OpenedMemory* opened, const char* name) {
  const int64_t numbers = call.rows == 0 ? 0 : (call.rows - 1) * stride + call.vocabulary;
  if (numbers == 0) return const_cast<void*>(given.data);
  return find_memory(opened, given, handle, device, numbers * size_of(given.dtype), name);
}

// Collects the arrays of a slice that are copied, and copies them together.
template <class Copy>
class Batcher {
 public:
  explicit Batcher(Copy copy) : copy_(copy) {}
  void add(char* device, const char* host, int64_t bytes) {
    if (count_ == kMost) flush();
    transfers_[count_++] = Channel::transfer_to(device, host, bytes);
  }
  void flush() {
    copy_(transfers_, count_);
    count_ = 0;
  }

 private:
  static constexpr int kMost = 64;
  Copy copy_;
  Transfer transfers_[kMost];
  int count_ = 0;
};

// One call.
class LogitsEvaluation {
 public:
  LogitsEvaluation(Context& context, int device, const DeviceLogits& logits)
      : context_(context), host_(logits.call), logits_(logits), opened_(context), pass_{} {
    LogitsCall& call = pass_.call = logits.call;
    if (logits.data_there)
      call.data = find_rows(call, {call.data, call.dtype}, call.row_stride, logits.data_handle, device,
                            &opened_, "logits");
    if (logits.out_there)
      host_.out = call.out = find_rows(call, {call.out, call.out_dtype}, call.out_stride, logits.out_handle,
                                       device, &opened_, "out");
    pass_.chunks =
        host_.token_ids ? 1 : static_cast<unsigned>((host_.vocabulary + kLogitsChunk - 1) / kLogitsChunk);
    send(host_.targets, &call.targets, &targets_);
    send(host_.temperatures, &call.temperatures, &temperatures_);
    send(host_.grad_logprob, &call.grad_logprob, &grad_logprob_);
    send(host_.grad_entropy, &call.grad_entropy, &grad_entropy_);
    send(host_.others, &call.others, &others_);
    send(host_.grad_others, &call.grad_others, &grad_others_);
    send_list(&call);
    if (host_.token_ids) call.offsets = context.send_array(host_.offsets, host_.rows + 1, &offsets_);
    pass_.needs_sums = host_.needs_sums();
    if (!pass_.needs_sums) {
      send<double>(host_.logsumexp, &call.logsumexp, &logsumexp_);
      send<float>(host_.entropy, &call.entropy, &entropy_);
      return;
    }
    call.logprob = make<float>(host_.logprob, &logprob_);
    call.logsumexp = make<double>(true, &logsumexp_);
    call.entropy = make<float>(host_.entropy || host_.grad_entropy, &entropy_);
  }

  void compute() {
    context_.order_kernels_after_copies();
    if (host_.top_length > 0) find_largest();
    if (host_.wants_only_top()) return;
    if (logits_.kernels_ms) context_.mark_passes_begin();
    for (int64_t first = 0; first < host_.rows;) {
      check_abort(logits_.abort);
      const int64_t last = end_of_slice(first);
      compute(first, last);
      first = last;
    }
    if (logits_.kernels_ms) context_.mark_passes_end();
    context_.order_copies_after_kernels();
    if (!host_.out) {
      receive(host_.logprob, pass_.call.logprob);
      receive(host_.logsumexp, pass_.call.logsumexp);
      receive(host_.entropy, pass_.call.entropy);
      if (host_.list_ids)
        context_.receive(host_.list_logprob, pass_.call.list_logprob, list_places() * int64_t{sizeof(float)},
                         logits_.abort);
    }
    context_.await_kernels();
    if (logits_.kernels_ms) *logits_.kernels_ms = context_.passes_ms();
  }

 private:
  // Finds the largest logits of a slice of rows at a time.
  void find_largest() {
    LogitsCall call = pass_.call;
    const int64_t count = call.top_length;
    const int64_t bytes_per_row = count * static_cast<int64_t>(sizeof(uint64_t) + sizeof(int32_t));
    const int64_t rows = std::max<int64_t>(kSliceBytes / bytes_per_row, 1);
    for (int64_t first = 0; first < host_.rows; first += rows) {
      check_abort(logits_.abort);
      call.rows = std::min(rows, host_.rows - first);
      const Buffer keys = context_.allocate(call.rows * count * static_cast<int64_t>(sizeof(uint64_t)));
      const Buffer found = context_.allocate(call.rows * count * static_cast<int64_t>(sizeof(int32_t)));
      const Grid grid{static_cast<unsigned>(call.rows), context_.compute()};
      cuda::launch("top_logits_kernel", top_logits_kernel, grid,
                   {call, keys.as<uint64_t>(), found.as<int32_t>()});
      context_.order_copies_after_kernels();
      context_.receive(host_.top_ids + first * count, found.as<void>(), found.bytes(), logits_.abort);
      call.data = static_cast<const char*>(call.data) + call.rows * call.row_stride * size_of(call.dtype);
      call.targets += call.rows;
    }
  }

  // Sends an array with one number per row.
  template <class T>
  void send(const T* from, T const** to, Buffer* buffer) {
    *to = context_.send_array(from, host_.rows, buffer);
  }
  template <class T>
  void send(const T* from, T** to, Buffer* buffer) {
    *to = const_cast<T*>(context_.send_array(from, host_.rows, buffer));
  }
  // Sends the lists of all rows, or allocates memory for their log-probabilities.
  void send_list(LogitsCall* call) {
    if (!host_.list_ids) return;
    call->list_ids = context_.send_array(host_.list_ids, list_places(), &list_ids_);
    call->list_grad = context_.send_array(host_.list_grad, list_places(), &list_grad_);
    if (host_.out) {
      const float* const logprob = host_.list_logprob;
      call->list_logprob = const_cast<float*>(context_.send_array(logprob, list_places(), &list_logprob_));
      return;
    }
    list_logprob_ = context_.allocate(list_places() * int64_t{sizeof(float)});
    call->list_logprob = list_logprob_.as<float>();
  }
  int64_t list_places() const { return host_.list_begin(host_.rows); }
  // Allocates an array with one number per row, if it is wanted.
  template <class T>
  T* make(bool wanted, Buffer* buffer) {
    if (wanted) *buffer = context_.allocate(host_.rows * static_cast<int64_t>(sizeof(T)));
    return buffer->as<T>();
  }
  template <class T>
  void receive(T* to, const T* from) {
    if (to) context_.receive(to, from, host_.rows * static_cast<int64_t>(sizeof(T)), logits_.abort);
  }

  int64_t ids_between(int64_t first, int64_t last) const {
    return host_.token_ids ? host_.offsets[last] - host_.offsets[first] : 0;
  }

  // Returns whether the gradient replaces logits that were copied to the device.
  bool replaces_copy() const {
    return !logits_.data_there && !logits_.out_there && host_.dtype == host_.out_dtype;
  }

  // Returns the end of the slice of rows that begins with row `first`.
  int64_t end_of_slice(int64_t first) const {
    int64_t bytes_per_row =
        pass_.partials_per_row() * int64_t{sizeof(SoftmaxSums)} + int64_t{sizeof(RowGradient)};
    if (!logits_.data_there) bytes_per_row += host_.vocabulary * size_of(host_.dtype);
    if (host_.out && !logits_.out_there && !replaces_copy())
      bytes_per_row += host_.vocabulary * size_of(host_.out_dtype);
    constexpr int64_t kBytesPerId = sizeof(int32_t) + sizeof(float);
    int64_t last = first + 1;
    while (last < host_.rows &&
           (last + 1 - first) * bytes_per_row + ids_between(first, last + 1) * kBytesPerId <= kSliceBytes)
      ++last;
    return last;
  }

  void compute(int64_t first, int64_t last) {
    LogitsPass pass = pass_;
    LogitsCall& call = pass.call;
    call.rows = last - first;
    const Buffer partials = context_.allocate(
        pass.needs_sums ? call.rows * pass.partials_per_row() * int64_t{sizeof(SoftmaxSums)} : 0);
    const Buffer gradients = context_.allocate(host_.out ? call.rows * int64_t{sizeof(RowGradient)} : 0);
    pass.partials = partials.as<SoftmaxSums>();
    pass.gradients = gradients.as<RowGradient>();
    Buffer data, out, ids, grad_of_ids;
    const int64_t size = call.rows * call.vocabulary;
    if (logits_.data_there) {
      call.data = at(call.data, call.dtype, first * call.row_stride);
    } else {
      data = context_.allocate(size * size_of(call.dtype));
      call.data = data.as<void>();
      call.row_stride = call.vocabulary;
    }
    if (logits_.out_there) {
      call.out = at(call.out, call.out_dtype, first * call.out_stride);
    } else if (host_.out) {
      if (!replaces_copy()) out = context_.allocate(size * size_of(call.out_dtype));
      call.out = replaces_copy() ? data.as<void>() : out.as<void>();
      call.out_stride = call.vocabulary;
    }
    if (host_.token_ids) {
      const int64_t count = ids_between(first, last);
      pass.first_id = host_.offsets[first];
      ids = context_.allocate(count * static_cast<int64_t>(sizeof(int32_t)));
      if (host_.out) grad_of_ids = context_.allocate(count * static_cast<int64_t>(sizeof(float)));
      // Without an id, the address is not used, but it tells that there is a support.
      call.token_ids = count > 0 ? ids.as<int32_t>() : host_.token_ids;
      pass.grad_of_ids = grad_of_ids.as<float>();
    }
    context_.order_copies_after_kernels();
    if (host_.token_ids) context_.send(ids.as<void>(), host_.token_ids + pass.first_id, ids.bytes());
    if (!logits_.data_there) send_rows(data.as<char>(), first, last);
    context_.order_kernels_after_copies();
    advance(first, &call);
    launch(pass);
    if (host_.out && !logits_.out_there) receive_rows(static_cast<const char*>(call.out), first, last);
  }

  static char* at(const void* data, DType dtype, int64_t index) {
    return const_cast<char*>(static_cast<const char*>(data)) + index * size_of(dtype);
  }

  // Makes the arrays with one number per row begin with row `first`.
  static void advance(int64_t first, LogitsCall* call) {
    const auto by = [first](auto* array) { return array ? array + first : nullptr; };
    call->targets = by(call->targets);
    call->temperatures = by(call->temperatures);
    call->offsets = by(call->offsets);
    call->logprob = by(call->logprob);
    call->logsumexp = by(call->logsumexp);
    call->entropy = by(call->entropy);
    call->grad_logprob = by(call->grad_logprob);
    call->grad_entropy = by(call->grad_entropy);
    call->others = by(call->others);
    call->grad_others = by(call->grad_others);
    const auto by_list = [&](auto* array) { return array ? array + call->list_begin(first) : nullptr; };
    call->list_ids = by_list(call->list_ids);
    call->list_logprob = by_list(call->list_logprob);
    call->list_grad = by_list(call->list_grad);
  }

  void launch(const LogitsPass& pass) {
    // With one block per chunk, the device balances the load.
    const Grid grid{std::max(pass.count(), 1u), context_.compute()};
    if (pass.needs_sums) cuda::launch("logits_sums_kernel", logits_sums_kernel, grid, pass);
    cuda::launch("logits_rows_kernel", logits_rows_kernel,
                 context_.grid_of_threads(pass.call.rows * pass.lanes()), pass);
    if (host_.out) cuda::launch("logits_gradient_kernel", logits_gradient_kernel, grid, pass);
    const int64_t places = pass.call.list_begin(pass.call.rows);
    if (places > 0)
      cuda::launch("logits_list_kernel", logits_list_kernel, context_.grid_of_threads(places), pass);
  }

  // Sends the rows of a slice, without those that are ignored. Rows that lie one after another are sent
  // together.
  void send_rows(char* to, int64_t first, int64_t last) {
    Batcher batcher([&](const Transfer* transfers, int count) { context_.send(transfers, count); });
    const int64_t bytes = host_.vocabulary * size_of(host_.dtype);
    const bool together = host_.row_stride == host_.vocabulary;
    for (int64_t row = first; row < last;) {
      int64_t end = row + 1;
      if (host_.targets[row] != kIgnoredTarget) {
        while (together && end < last && host_.targets[end] != kIgnoredTarget) ++end;
        batcher.add(to + (row - first) * bytes, at(host_.data, host_.dtype, row * host_.row_stride),
                    (end - row) * bytes);
      }
      row = end;
    }
    batcher.flush();
  }

  void receive_rows(const char* from, int64_t first, int64_t last) {
    context_.order_copies_after_kernels();
    Batcher batcher(
        [&](const Transfer* transfers, int count) { context_.receive(transfers, count, logits_.abort); });
    const int64_t bytes = host_.vocabulary * size_of(host_.out_dtype);
    const int64_t together = host_.out_stride == host_.vocabulary ? last - first : 1;
    for (int64_t row = first; row < last; row += together)
      batcher.add(const_cast<char*>(from) + (row - first) * bytes,
                  at(host_.out, host_.out_dtype, row * host_.out_stride), together * bytes);
    batcher.flush();
  }

  Context& context_;
  LogitsCall host_;  // the call, except that memory of the device has its address there
  const DeviceLogits& logits_;
  OpenedMemory opened_;
  // The arguments of the kernels for all rows. Arrays with one number per row are in memory of the device.
  LogitsPass pass_;
  Buffer targets_, temperatures_, offsets_, grad_logprob_, grad_entropy_, others_, grad_others_;
  Buffer list_ids_, list_logprob_, list_grad_;
  Buffer logprob_, logsumexp_, entropy_;
};

}  // namespace

Status logits(int device, const DeviceLogits& logits, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      check_abort(logits.abort);
      const Fence fence(context, device, logits.stream);
      LogitsEvaluation(context, device, logits).compute();
    });
  });
}

}  // namespace policy_loss::cuda
