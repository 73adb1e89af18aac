// Computes the output head on a device: logits from hidden states, and the gradients back.
#include <cstring>
#include <memory>

#include "cuda/contexts.h"
#include "cuda/device_array.h"
#include "cuda/fence.h"
#include "cuda/product.cuh"

namespace policy_loss::cuda {
namespace {

// One call.
class HeadEvaluation {
 public:
  HeadEvaluation(Context& context, const DeviceHead& head)
      : context_(context), head_(head), call_(head.call) {
    const HeadCall& host = head.call;
    // A vector would need functions of the C++ library of nvcc's compiler, with which the addon is not
    // linked.
    const std::unique_ptr<int64_t[]> rows(new int64_t[host.rows]);
    const HeadRows found = find_rows(host, rows.get());
    first_ = found.first;
    // The device gets the rows from the first that takes part to the last one.
    call_.rows = found.count == 0 ? 0 : rows[found.count - 1] + 1;
    rows_.count = found.count;
    rows_.rows = context.send_array(found.rows, found.count, &places_);
    const float one = 1.0f;
    one_there_ = context.send_array(&one, 1, &one_);
    const int64_t states = call_.rows * call_.size;
    call_.hidden = send(number_at(host.hidden, host.hidden_dtype, first_ * call_.size),
                        states * size_of(host.hidden_dtype), &hidden_);
    call_.bias = send(host.bias, call_.vocabulary * size_of(host.bias_dtype), &bias_);
    call_.weight = send_weight();
    call_.logits = memory_of(head.logits);
    call_.grad_weight = memory_of(head.grad_weight);
    call_.grad_bias = memory_of(head.grad_bias);
    if (host.grad_hidden) {
      grad_hidden_ = context.allocate_zeros(states * size_of(host.grad_hidden_dtype));
      call_.grad_hidden = grad_hidden_.as<void>();
    }
  }

  void compute() {
    context_.order_kernels_after_copies();
    const HeadProducts products = products_of(call_, rows_, one_there_);
    for (int i = 0; i < products.count; ++i) {
      check_abort(head_.abort);
      const Product& product = products.of[i];
      const auto tiles = [](int64_t n) { return (n + kTileSide - 1) / kTileSide; };
      cuda::launch("product_kernel", product_kernel,
                   context_.grid(tiles(product.rows) * tiles(product.columns)), product);
    }
    context_.order_copies_after_kernels();
    if (head_.call.grad_hidden) receive_grad_hidden();
    context_.await_kernels();
    for (DeviceArray* const array : {head_.weight, head_.logits, head_.grad_weight, head_.grad_bias})
      if (array) array->written = true;
  }

 private:
  // Sends bytes to the device, and returns their address there. Returns null if `from` is null.
  const void* send(const void* from, int64_t bytes, Buffer* buffer) {
    return context_.send_array(static_cast<const char*>(from), bytes, buffer);
  }

  // Returns the address of the weight on the device. The first call copies it there.
  const void* send_weight() {
    DeviceArray& array = *head_.weight;
    if (!array.written)
      send(head_.call.weight, call_.vocabulary * call_.size * size_of(call_.weight_dtype), &array.memory);
    return array.memory.as<void>();
  }

  // Returns the memory of an array that stays on the device; null if there is no array.
  float* memory_of(DeviceArray* array) {
    if (!array) return nullptr;
    const int64_t bytes = array->length * static_cast<int64_t>(sizeof(float));
    if (array->memory.bytes() < bytes) array->memory = context_.allocate(bytes);
    return array->memory.as<float>();
  }

  void receive_grad_hidden() {
    const int64_t bytes_per_row = call_.size * size_of(call_.grad_hidden_dtype);
    char* const begin = static_cast<char*>(head_.call.grad_hidden) + first_ * bytes_per_row;
    char* const end = begin + call_.rows * bytes_per_row;
    context_.receive(begin, grad_hidden_.as<void>(), call_.rows * bytes_per_row, head_.abort);
    std::memset(head_.call.grad_hidden, 0, first_ * bytes_per_row);
    std::memset(end, 0, (head_.call.rows - first_ - call_.rows) * bytes_per_row);
  }

  Context& context_;
  const DeviceHead& head_;
  HeadCall call_;  // the call with addresses on the device, for the rows that are sent there
  int64_t first_ = 0;
  HeadRows rows_;
  const float* one_there_ = nullptr;
  Buffer places_, one_, hidden_, bias_, grad_hidden_;
};

}  // namespace

Status head(int device, const DeviceHead& head, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      check_abort(head.abort);
      const Fence fence(context, device, head.stream);
      HeadEvaluation(context, head).compute();
    });
  });
}

}  // namespace policy_loss::cuda
