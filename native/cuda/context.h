// Host code that manages a device. It holds the device's memory and streams, cuts batches into spans (ranges
// of tokens, see pass.h), and chooses the grids of kernels.
//
// Each device has one context for the whole process. A context has one stream for kernels, another for
// copies, a memory pool that keeps freed memory, scratch memory that only grows, and pinned buffers for
// copies (staging.h). A call of the same size as the previous one therefore allocates nothing from the
// driver.
//
// A batch in host memory is sent in chunks. While the device copies one chunk, host threads copy the next one
// into the pinned buffers, and kernels sum the rows of the previous one.
#pragma once

#include <algorithm>
#include <utility>

#include "advantage/advantage.h"
#include "cuda/failure.h"
#include "cuda/host.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/staging.h"

namespace policy_loss::cuda {

// The number of tokens in a chunk of a batch that is sent from host memory. A chunk is large enough for
// several threads to share its copying. It is small enough that little work remains for the kernels after the
// last chunk has arrived.
constexpr int64_t kTokensAtOnce = 1 << 20;

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

class Context {
 public:
  explicit Context(int device) : device_(device) {
    const CurrentDevice current(device);
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    multiprocessors_ = properties.multiProcessorCount;
    shared_bytes_ = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
    reserved_shared_bytes_ = static_cast<int64_t>(properties.reservedSharedMemPerBlock);
    compute_.create();
    copy_.create();
    memory_.open(device, compute_, copy_);
    staging_.open(device, copy_);
    for (Event* event : {&copied_, &computed_}) event->create(cudaEventDisableTiming | cudaEventBlockingSync);
    for (Event* event : {&passes_begin_, &tokens_begin_, &passes_end_}) event->create(0);
    result_.create(sizeof(Result));
    totals_ = allocate(sizeof(Totals));
    device_result_ = allocate(sizeof(Result));
  }

  // Calls body() while no other call uses this device. If body() throws, waits until the device has ended the
  // work of the call, and rethrows.
  template <class Body>
  void run(Body body) {
    const Lock lock(mutex_);
    if (is_broken_) throw broken_by_;
    check_abort(nullptr);
    const CurrentDevice current(device_);
    launched_kernels.count = 0;
    // The call expects all totals to be 0. A failed call may have left other values.
    if (!totals_are_zero_) CUDA_CHECK(cudaMemsetAsync(totals_.as<void>(), 0, sizeof(Totals), compute_));
    totals_are_zero_ = false;
    try {
      body();
    } catch (Failure& failure) {
      if (!finish_failed_work()) mark_broken(&failure);
      throw;
    } catch (...) {
      finish_failed_work();
      throw;
    }
    totals_are_zero_ = true;
  }

  // Calls body() while no other call uses this device, even if the device no longer works. body() must not
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
    memory_.set_loose_copies(true);
    staging_.send(&transfer, 1);
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

  // Copies bytes from the device to the host, on the copy stream. Returns when the copy is complete. If
  // *abort becomes non-zero, throws a Failure with the status kAborted.
  void receive(void* to, const void* from, int64_t bytes, const int32_t* abort) {
    memory_.set_loose_copies(true);
    staging_.receive(transfer_to(const_cast<void*>(from), to, bytes), abort);
    memory_.set_loose_copies(false);
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

  // Sends the data of the tokens [first, last): the columns with one value per token, and the mask. `batch`
  // must come from allocate_batch() or allocate_columns().
  void send_tokens(const BatchView& host, const DeviceBatch& batch, int64_t first, int64_t last) {
    Transfer transfers[kColumns + 1];
    int count = 0;
    const auto add = [&](const Buffer& to, const void* from, int64_t size) {
      if (to.bytes() > 0)
        transfers[count++] =
            transfer_to(to.as<char>() + first * size, static_cast<const char*>(from) + first * size,
                        (last - first) * size);
    };
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& from = host.column[c];
      if (!from.per_row) add(batch.column[c], from.data, size_of(from.dtype));
    }
    add(batch.mask, host.mask, 1);
    memory_.set_loose_copies(true);
    staging_.send(transfers, count);
  }

  // Cuts the batch's tokens into spans (pass.h) for a kernel that uses a feed (feed.cuh). `memory` is the
  // dynamic shared memory that one block of the kernel uses, in bytes. The length of the spans is chosen so
  // that all warps that run at once get nearly the same number of tokens.
  void cut(int memory, SpannedBatch* pass) const {
    const int64_t blocks = shared_bytes_ / (memory + kOwnSharedBytes + reserved_shared_bytes_);
    pass->fed_blocks = multiprocessors_ * std::clamp<int64_t>(blocks, 1, kFedBlocksPerMultiprocessor);
    const int64_t warps = pass->fed_blocks * kWarps;
    const int64_t rounds = pass->tokens / (warps * kMaxSpan) + 1;
    const int64_t fair = (pass->tokens + warps * rounds - 1) / (warps * rounds);
    pass->span = std::max<int64_t>((fair + kSpanStep - 1) / kSpanStep, 1) * kSpanStep;
    pass->spans = (pass->tokens + pass->span - 1) / pass->span;
  }

  // Returns the arguments of the passes over a batch: the scratch memory, and all members that do not depend
  // on the evaluated function. The caller sets the others. `memory` is the same as in cut(). `pairs` tells
  // whether the loss is over pairs of rows.
  Pass prepare(const DeviceBatch& batch, unsigned columns, int memory, bool pairs) {
    Pass pass{};
    pass.batch = batch.view;
    pass.tokens = batch.tokens;
    pass.columns = columns;
    cut(memory, &pass);
    const int64_t rows = batch.view.layout.rows;
    pass.totals = totals_.as<Totals>();
    pass.result = device_result_.as<Result>();
    pass.parts = {scratch<RowPart>(kRows, rows), scratch<RowPart>(kHeads, pass.spans),
                  scratch<RowPart>(kTails, pass.spans)};
    pass.span_states = scratch<SpanState>(kSpanStates, pass.spans);
    pass.states = scratch<char>(kStates, rows * row_state_bytes());
    pass.pair_sums = scratch<double>(kPairSums, pairs ? rows : 0);
    pass.row_partials = scratch<double>(kRowPartials, most_blocks() * kMaxRowMetrics);
    pass.token_partials =
        scratch<double>(kTokenPartials, pass.fed_blocks * std::max(kTokenSums, kProgramSums));
    return pass;
  }

  // Returns the largest number of blocks that grid() gives to a grid.
  int64_t most_blocks() const { return multiprocessors_ * kBlocksPerMultiprocessor; }
  // Returns a grid with `blocks` blocks, but at least one and at most most_blocks(). The kernels loop over
  // their work, so even a smaller grid does all the work.
  Grid grid(int64_t blocks) const {
    return {static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most_blocks())), compute_};
  }
  // Returns the grid of a kernel that uses a feed (feed.cuh) and computes this number of spans. The grid has
  // at most as many blocks as the device can run at once.
  Grid grid_of_spans(const SpannedBatch& pass, int64_t spans) const {
    return {static_cast<unsigned>(std::clamp<int64_t>((spans + kWarps - 1) / kWarps, 1, pass.fed_blocks)),
            compute_};
  }
  // Returns the grid of a kernel that calls for_whole_rows() (spans.cuh). It has one warp per row if rows are
  // long, otherwise one thread per row.
  Grid grid_of_rows(const SpannedBatch& pass) const {
    const int64_t rows = pass.batch.layout.rows;
    return is_row_for_warp(pass) ? grid_of_warps(rows) : grid_of_threads(rows);
  }
  Grid grid_of_warps(int64_t warps) const { return grid((warps + kWarps - 1) / kWarps); }
  Grid grid_of_threads(int64_t threads) const { return grid((threads + kThreads - 1) / kThreads); }

  // Starts a copy of the result to the host. The copy waits for the kernels that were launched before it.
  void copy_result() {
    CUDA_CHECK(cudaMemcpyAsync(result_.as<void>(), device_result_.as<void>(), sizeof(Result),
                               cudaMemcpyDeviceToHost, compute_));
    order_copies_after_kernels();
  }
  // Waits until the copy that copy_result() started is done, and returns the result.
  Result result() const {
    check(wait_for(computed_), "cudaEventQuery");
    return *result_.as<Result>();
  }

  void mark_passes_begin() { CUDA_CHECK(cudaEventRecord(passes_begin_, compute_)); }
  void mark_tokens_begin() { CUDA_CHECK(cudaEventRecord(tokens_begin_, compute_)); }
  void mark_passes_end() { CUDA_CHECK(cudaEventRecord(passes_end_, compute_)); }
  float passes_ms() const { return milliseconds(passes_begin_); }
  float token_pass_ms() const { return milliseconds(tokens_begin_); }

  cudaStream_t compute() const { return compute_; }

 private:
  // Waits until the device has ended the work of a failed call. Returns whether the device still works. An
  // error in a kernel is sticky: all later functions report it too.
  bool finish_failed_work() {
    bool works = true;
    for (int turn = 0; turn < 2; ++turn) {
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

  static Transfer transfer_to(void* device, const void* host, int64_t bytes) {
    return {static_cast<char*>(device), const_cast<char*>(static_cast<const char*>(host)), bytes};
  }

  enum { kRows, kHeads, kTails, kSpanStates, kStates, kPairSums, kRowPartials, kTokenPartials, kScratches };

  template <class T>
  T* scratch(int which, int64_t n) {
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    Buffer& buffer = scratch_[which];
    if (buffer.bytes() < bytes) {
      buffer = Buffer();
      buffer = allocate(bytes);
    }
    return buffer.as<T>();
  }

  float milliseconds(cudaEvent_t since) const {
    float result = 0;
    CUDA_CHECK(cudaEventSynchronize(passes_end_));
    CUDA_CHECK(cudaEventElapsedTime(&result, since, passes_end_));
    return result;
  }

  const int device_;
  int64_t multiprocessors_ = 0;
  int64_t shared_bytes_ = 0;           // shared memory of one multiprocessor
  int64_t reserved_shared_bytes_ = 0;  // shared memory that the driver takes for each block
  Mutex mutex_;
  bool is_broken_ = false;
  Failure broken_by_{Status::kOk, "%s", ""};
  bool totals_are_zero_ = false;
  Stream compute_, copy_;
  Memory memory_;
  Event copied_, computed_;
  Event passes_begin_, tokens_begin_, passes_end_;
  PinnedMemory result_;
  Buffer totals_, device_result_;
  Buffer scratch_[kScratches];
  Staging staging_;
};

}  // namespace policy_loss::cuda
