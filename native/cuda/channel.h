// A channel to a device: host code that runs calls on the device, allocates memory there, and copies between
// host and device.
//
// The calls of a channel run one after another. A device has two channels, so that a batch can be uploaded
// while another call computes. Each channel has one stream for kernels, another for copies, and pinned
// buffers for copies (staging.h). The channels share a pool of device memory, which keeps freed memory. A
// call of the same size as the previous one therefore allocates nothing from the driver.
//
// A batch in host memory is sent in slices. While the device copies one slice, host threads copy the next one
// into the pinned buffers, and kernels sum the rows of the previous one.
#pragma once

#include <utility>

#include "advantage/advantage.h"
#include "cuda/failure.h"
#include "cuda/host.h"
#include "cuda/memory.h"
#include "cuda/pass.h"
#include "cuda/staging.h"

namespace policy_loss::cuda {

// The number of tokens in a slice of a batch that is sent from host memory. A slice is large enough for
// several threads to share its copying. It is small enough that little work remains for the kernels after the
// last slice has arrived.
constexpr int64_t kSliceTokens = 1 << 20;

// Rounds a number of tokens up to a multiple of kGranule. Arrays on a device have this many elements, because
// kernels read 16 bytes at once even at the end of a batch.
inline int64_t whole_granules(int64_t tokens) {
  return (tokens + kGranule - 1) / kGranule * kGranule;
}

// The arrays of a batch in device memory. `view` points into the buffers.
struct DeviceBatch {
  BatchView view;
  int64_t tokens = 0;
  Buffer column[kColumns];
  Buffer row_column[kRowColumns];
  Buffer mask, expert, offsets;
};

class Channel {
 public:
  // Opens a channel to a device. It shares the memory pool of `other`, which must outlive it, or has its own
  // if `other` is null.
  explicit Channel(int device, const Channel* other = nullptr) : device_(device) {
    const CurrentDevice current(device);
    compute_.create();
    copy_.create();
    memory_.open(device, compute_, copy_, other ? &other->memory_ : nullptr);
    shareable_.open_without_pool(compute_, copy_);
    staging_.open(device, copy_);
    for (Event* event : {&copied_, &computed_}) event->create(cudaEventDisableTiming | cudaEventBlockingSync);
  }

  Channel(const Channel&) = delete;

  // Calls body() while no other call uses this channel. If body() throws, waits until the device has ended
  // the work of the call, and rethrows.
  template <class Body>
  void run(Body body) {
    const Lock lock(mutex_);
    if (is_broken_) throw broken_by_;
    check_abort(nullptr);
    const CurrentDevice current(device_);
    launched_kernels.count = 0;
    try {
      body();
      staging_.finish_direct();
    } catch (Failure& failure) {
      if (!finish_failed_work()) mark_broken(&failure);
      throw;
    } catch (...) {
      finish_failed_work();
      throw;
    }
  }

  // Calls body() while no other call uses this channel, even if the device no longer works. body() must not
  // throw.
  template <class Body>
  void run_always(Body body) {
    const Lock lock(mutex_);
    try {
      const CurrentDevice current(device_);
      body();
    } catch (const Failure&) {
      body();  // without the current device
    }
  }

  // Waits until the current call has ended, and makes all later calls wait for ever. For the end of the
  // process.
  void close() { mutex_.lock(); }

  Buffer allocate(int64_t bytes) { return Buffer(bytes, memory_); }
  // Allocates memory that other processes can open. They see whole blocks of 2 MiB, so the memory shares its
  // blocks with nothing else.
  Buffer allocate_shareable(int64_t bytes) {
    constexpr int64_t kBlock = 2 << 20;
    return Buffer((bytes + kBlock - 1) / kBlock * kBlock, shareable_);
  }
  Buffer allocate_zeros(int64_t bytes) {
    Buffer buffer = allocate(bytes);
    if (bytes > 0) CUDA_CHECK(cudaMemsetAsync(buffer.as<void>(), 0, bytes, compute_));
    return buffer;
  }

  // These two functions make one stream wait for the other. A copy must wait until its memory is allocated.
  // Kernels, and the freeing of memory, must wait until the copies are done.
  void order_copies_after_kernels() {
    CUDA_CHECK(cudaEventRecord(computed_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(copy_, computed_, 0));
  }
  void order_kernels_after_copies() {
    CUDA_CHECK(cudaEventRecord(copied_, copy_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, copied_, 0));
    memory_.set_loose_copies(false);
  }

  // Copies bytes from the host to the device, on the copy stream. When this returns, the caller may free the
  // source, but the copy may still be in progress.
  void send(void* to, const void* from, int64_t bytes) {
    const Transfer transfer = transfer_to(to, from, bytes);
    send(&transfer, 1);
  }
  void send(const Transfer* transfers, int count) {
    memory_.set_loose_copies(true);
    staging_.send(transfers, count);
  }

  // Allocates device memory for an array, and copies the array there. Returns null if `from` is null. The
  // caller must call order_kernels_after_copies() before it launches kernels that read the array.
  template <class T>
  const T* send_array(const T* from, int64_t n, Buffer* buffer) {
    if (!from) return nullptr;
    *buffer = allocate(n * sizeof(T));
    order_copies_after_kernels();
    send(buffer->as<void>(), from, buffer->bytes());
    return buffer->as<T>();
  }

  // Copies arrays from the device to the host, on the copy stream. Returns when the copies are complete. If
  // *abort becomes non-zero, throws a Failure with the status kAborted. Returns whether it has waited, which
  // it need not if the arrays are empty.
  bool receive(const Transfer* transfers, int count, const int32_t* abort) {
    memory_.set_loose_copies(true);
    const bool waited = staging_.receive(transfers, count, abort);
    memory_.set_loose_copies(false);
    return waited;
  }
  bool receive(void* to, const void* from, int64_t bytes, const int32_t* abort) {
    const Transfer transfer = transfer_to(const_cast<void*>(from), to, bytes);
    return receive(&transfer, 1, abort);
  }
  static Transfer transfer_to(void* device, const void* host, int64_t bytes) {
    return {static_cast<char*>(device), const_cast<char*>(static_cast<const char*>(host)), bytes};
  }

  // Allocates memory for the columns that are in the set `columns` and that the host batch has. Sends those
  // with one value per row; send_tokens() sends the others. The layout of the result has the rows and
  // row_length of the host batch, but no offsets.
  DeviceBatch allocate_columns(const BatchView& host, unsigned columns) {
    DeviceBatch batch;
    batch.tokens = host.layout.tokens();
    batch.view.layout.rows = host.layout.rows;
    batch.view.layout.row_length = host.layout.row_length;
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& from = host.column[c];
      if ((columns & (1u << c)) == 0 || !from.data) continue;
      batch.column[c] =
          allocate((from.per_row ? host.layout.rows : whole_granules(batch.tokens)) * size_of(from.dtype));
      batch.view.column[c] = {batch.column[c].as<void>(), from.dtype, from.per_row};
    }
    order_copies_after_kernels();
    for (int c = 0; c < kColumns; ++c)
      if (host.column[c].per_row && batch.column[c].bytes() > 0)
        send(batch.column[c].as<void>(), host.column[c].data, batch.column[c].bytes());
    order_kernels_after_copies();
    return batch;
  }

  // Allocates memory for a whole batch: the columns in the set `columns`, the row columns in the set
  // `row_columns`, the mask, the expert mask and the offsets of packed rows, each if the host batch has it.
  // Sends everything that is not per token; send_tokens() sends the rest.
  DeviceBatch allocate_batch(const BatchView& host, unsigned columns, unsigned row_columns) {
    DeviceBatch batch = allocate_columns(host, columns);
    if (host.mask) batch.mask = allocate(whole_granules(batch.tokens));
    if (host.expert) batch.expert = allocate(host.layout.rows);
    if (host.layout.offsets) batch.offsets = allocate((host.layout.rows + 1) * sizeof(int32_t));
    order_copies_after_kernels();
    if (host.expert) send(batch.expert.as<void>(), host.expert, batch.expert.bytes());
    if (host.layout.offsets) send(batch.offsets.as<void>(), host.layout.offsets, batch.offsets.bytes());
    for (int c = 0; c < kRowColumns; ++c)
      if ((row_columns & reads(c)) != 0)
        batch.view.row_column[c] = send_array(host.row_column[c], host.layout.rows, &batch.row_column[c]);
    order_kernels_after_copies();
    batch.view.mask = batch.mask.as<uint8_t>();
    batch.view.expert = batch.expert.as<uint8_t>();
    batch.view.layout.offsets = batch.offsets.as<int32_t>();
    return batch;
  }

  // Sends the data of the tokens [first, last): the columns of the host with one value per token, and the
  // mask. `batch` must come from allocate_batch() or allocate_columns().
  void send_tokens(const BatchView& host, const DeviceBatch& batch, int64_t first, int64_t last) {
    Transfer transfers[kColumns + 1];
    int count = 0;
    const auto add = [&](const Buffer& to, const void* from, int64_t size) {
      if (from && to.bytes() > 0)
        transfers[count++] =
            transfer_to(to.as<char>() + first * size, static_cast<const char*>(from) + first * size,
                        (last - first) * size);
    };
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& from = host.column[c];
      if (!from.per_row) add(batch.column[c], from.data, size_of(from.dtype));
    }
    add(batch.mask, host.mask, 1);
    send(transfers, count);
  }

  // Waits until the device has ended all work of the channel.
  void finish() {
    order_kernels_after_copies();
    order_copies_after_kernels();
    await_kernels();
  }
  // Waits for the kernels that were launched before the last call of order_copies_after_kernels().
  void await_kernels() const { check(wait_for(computed_), "cudaEventQuery"); }

  cudaStream_t compute() const { return compute_; }
  Memory& memory() { return memory_; }
  // Frees the pinned buffers for copies. The device must have ended all work of the channel.
  void free_staging() { staging_.free(); }

 private:
  // Waits until the device has ended the work of a failed call. Returns whether the device still works. An
  // error in a kernel is sticky: all later functions report it too.
  bool finish_failed_work() {
    bool works = true;
    for (int round = 0; round < 2; ++round) {
      works = cudaStreamSynchronize(copy_) == cudaSuccess;
      works = cudaStreamSynchronize(compute_) == cudaSuccess && works;
      cudaGetLastError();
    }
    memory_.set_loose_copies(false);
    return works;
  }

  // Extends the failure's message, and makes all later calls fail with it.
  void mark_broken(Failure* failure) {
    const LaunchedKernels& kernels = launched_kernels;
    for (int k = 0; k < kernels.count; ++k) {
      failure->add(k == 0 ? ", after the launch of " : k + 1 < kernels.count ? ", " : " and ");
      failure->add(kernels.names[k]);
    }
    failure->status = Status::kFailed;
    failure->add(". The process must be restarted before it can use this device again");
    broken_by_ = *failure;
    is_broken_ = true;
  }

  const int device_;
  Mutex mutex_;
  bool is_broken_ = false;
  Failure broken_by_{Status::kOk, "%s", ""};
  Stream compute_, copy_;
  Memory memory_, shareable_;
  Event copied_, computed_;
  Staging staging_;
};

}  // namespace policy_loss::cuda
