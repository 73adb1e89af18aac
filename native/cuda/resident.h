// Resident batches: batches in the memory of a device.
//
// A resident batch never changes. An update makes another one, which shares the memory of all columns that
// the update leaves as they are. So a call that runs meanwhile reads the values with which it began.
#pragma once

#include <utility>

#include "cuda/advantages.h"
#include "cuda/ipc.h"
#include "cuda/mask_pass.h"

namespace policy_loss::cuda {

// An object with several owners, which may be on different threads. The last owner deletes the object.
template <class T>
class Shared {
 public:
  Shared() = default;
  T* get() const { return node_ ? &node_->value : nullptr; }
  explicit Shared(T&& value) : node_(new Node{std::move(value)}) {}
  Shared(const Shared& other) : node_(other.node_) {
    if (node_) __atomic_add_fetch(&node_->owners, 1, __ATOMIC_RELAXED);
  }
  Shared& operator=(Shared other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~Shared() {
    if (node_ && __atomic_sub_fetch(&node_->owners, 1, __ATOMIC_ACQ_REL) == 0) delete node_;
  }

 private:
  struct Node {
    T value;
    int owners = 1;
  };
  Node* node_ = nullptr;
};

struct Resident {
  // The memory of everything but the columns with one value per token, which updates replace.
  struct Unchanging {
    DeviceBatch batch;
    DeviceInputs inputs;
    MaskPass mask_pass;
  };

  int device = 0;
  // Only the members that own no memory are used.
  DeviceBatch batch;
  DeviceInputs inputs;
  Shared<Buffer> columns[kColumns], advantage_columns[kColumns];
  Shared<Unchanging> unchanging;

  // Makes a resident batch from the columns of losses and everything else that they read, and from the inputs
  // of advantage functions. The columns of the latter are in `advantage`.
  Resident(int on, DeviceBatch losses, DeviceBatch advantage, DeviceInputs given, MaskPass mask_pass)
      : device(on) {
    set_views(losses, given);
    replace(&losses, &advantage);
    unchanging = Shared<Unchanging>({std::move(losses), std::move(given), std::move(mask_pass)});
  }

  // Makes a copy in which the columns that the two batches have replace those of `other`.
  Resident(const Resident& other, DeviceBatch losses, DeviceBatch advantage)
      : device(other.device), unchanging(other.unchanging) {
    set_views(other.batch, other.inputs);
    for (int c = 0; c < kColumns; ++c) {
      columns[c] = other.columns[c];
      advantage_columns[c] = other.advantage_columns[c];
    }
    replace(&losses, &advantage);
  }

 private:
  void set_views(const DeviceBatch& losses, const DeviceInputs& given) {
    batch.view = losses.view;
    batch.tokens = losses.tokens;
    inputs.view = given.view;
    inputs.tokens = losses.tokens;
    inputs.bad_rewards = given.bad_rewards;
    inputs.bad_baselines = given.bad_baselines;
    inputs.view.tokens.layout = losses.view.layout;
    inputs.view.tokens.mask = losses.view.mask;
  }

  void replace(DeviceBatch* losses, DeviceBatch* advantage) {
    replace(losses, &batch.view, columns);
    replace(advantage, &inputs.view.tokens, advantage_columns);
    // Losses read the log-probabilities of the sampling policy and of the teacher, and the values too, so the
    // batch has these only once.
    inputs.view.tokens.column[kOldLogprobInput] = batch.view.column[kOldLogprob];
    inputs.view.tokens.column[kTeacherLogprobInput] = batch.view.column[kTeacherLogprob];
    inputs.view.tokens.column[kValuesInput] = batch.view.column[kValues];
  }

  static void replace(DeviceBatch* from, BatchView* view, Shared<Buffer>* memory) {
    for (int c = 0; c < kColumns; ++c) {
      if (!from->view.column[c].data) continue;
      memory[c] = Shared<Buffer>(std::move(from->column[c]));
      view->column[c] = from->view.column[c];
    }
  }
};

// Make the channel of `memory` free the arrays, in the order of its own work. The work of the channel that
// allocated them must have ended.
inline void hand_over(DeviceBatch* batch, Memory& memory) {
  for (Buffer& column : batch->column) column.hand_over(memory);
  for (Buffer& column : batch->row_column) column.hand_over(memory);
  for (Buffer* const buffer : {&batch->mask, &batch->expert, &batch->offsets}) buffer->hand_over(memory);
}
inline void hand_over(DeviceInputs* inputs, Memory& memory) {
  for (Buffer* const buffer :
       {&inputs->rewards, &inputs->baselines, &inputs->named_rewards, &inputs->reward_weights})
    buffer->hand_over(memory);
  for (DeviceGroups* const groups : {&inputs->groups, &inputs->runs})
    for (Buffer* const buffer : {&groups->offsets, &groups->members, &groups->last_row, &groups->member_rows,
                                 &groups->member_of_row})
      buffer->hand_over(memory);
}

// Checks the address of an array that a caller owns. `name` is for the message of the error. The last byte is
// looked up too, because the runtime does not tell where an allocation ends.
inline void check_is_on(int device, const void* first, int64_t bytes, const char* name) {
  for (const int64_t offset : {int64_t{0}, bytes - 1}) {
    cudaPointerAttributes found{};
    CUDA_CHECK(cudaPointerGetAttributes(&found, static_cast<const char*>(first) + offset));
    if (found.type == cudaMemoryTypeManaged) continue;
    if (found.type == cudaMemoryTypeDevice && found.device == device) continue;
    throw Failure(Status::kBadPointer,
                  "%s: expected memory of the device with room for all values, got another address", name);
  }
}

// Returns the address of an array of the caller's, of which `view` has the address in the memory of `handle`
// if there is one. Throws if the array is not in the memory of the device.
inline void* find_memory(OpenedMemory* opened, const ColumnView& view, const IpcHandle& handle, int device,
                         int64_t bytes, const char* name) {
  const void* const found = opened->find(view, handle, device).data;
  check_is_on(device, found, bytes, name);
  return const_cast<void*>(found);
}

// Copies columns within the memory of the channel's device to a batch. `opened` opens the memory of other
// processes.
inline void copy_columns(Channel& channel, int device, const ColumnsThere& columns, OpenedMemory* opened,
                         DeviceBatch* to) {
  for (int c = 0; c < kColumns; ++c) {
    const ColumnView& from = columns.column[c];
    if (!from.data && !columns.handle[c].given) continue;
    const int64_t length = from.per_row ? to->view.layout.rows : to->tokens;
    const int64_t bytes = length * size_of(from.dtype);
    if (bytes == 0) continue;
    const void* const data =
        find_memory(opened, from, columns.handle[c], device, bytes, "a column's pointer");
    to->column[c] = channel.allocate((from.per_row ? length : whole_granules(length)) * size_of(from.dtype));
    to->view.column[c] = {to->column[c].as<void>(), from.dtype, from.per_row};
    CUDA_CHECK(cudaMemcpyAsync(to->column[c].as<void>(), data, static_cast<size_t>(bytes),
                               cudaMemcpyDeviceToDevice, channel.compute()));
  }
}

}  // namespace policy_loss::cuda
