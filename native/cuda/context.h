// Manages a device for the host: its memory, its streams, and the division of a batch into spans (pass.h) and
// grids.
//
// A device has one context for the whole process: a stream for kernels, one for copies, a memory pool that
// keeps freed memory, scratch memory that only grows, and pinned staging. A call of the same size as the
// previous one therefore allocates nothing from the driver. A batch in host memory is sent in chunks. While
// the device copies one chunk, the host copies the next one into the staging memory, and kernels sum the rows
// of the previous one.
#pragma once

#include <algorithm>
#include <utility>

#include "advantage/advantage.h"
#include "cuda/failure.h"
#include "cuda/host.h"
#include "cuda/kernels.h"
#include "cuda/staging.h"

namespace policy_loss::cuda {

// The number of tokens in a chunk. It is large enough for threads to share the copying. It is small enough
// that little work remains for the kernels after the last chunk has arrived.
constexpr int64_t kTokensAtOnce = 1 << 20;

// Owns memory of a device. The memory is freed in stream order, after the kernels that use it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(int64_t bytes, cudaMemPool_t pool, cudaStream_t stream) : stream_(stream), bytes_(bytes) {
    if (bytes > 0) check(cudaMallocFromPoolAsync(&data_, static_cast<size_t>(bytes), pool, stream));
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(stream_, other.stream_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_) cudaFreeAsync(data_, stream_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
  int64_t bytes_ = 0;
};

// Rounds a number of tokens up to whole granules, because kernels read 16 bytes at once even at the end of a
// batch.
inline int64_t whole_granules(int64_t tokens) {
  return (tokens + kGranule - 1) / kGranule * kGranule;
}

// A batch's arrays on a device. `view` points into them.
struct DeviceBatch {
  BatchView view;
  int64_t tokens = 0;
  Buffer column[kColumns];
  Buffer mask, expert, offsets;
};

class Context {
 public:
  explicit Context(int device) : device_(device) {
    check(cudaSetDevice(device));
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device));
    multiprocessors_ = properties.multiProcessorCount;
    shared_bytes_ = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
    reserved_shared_bytes_ = static_cast<int64_t>(properties.reservedSharedMemPerBlock);
    check(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&copy_, cudaStreamNonBlocking));
    cudaMemPoolProps pool{};
    pool.allocType = cudaMemAllocationTypePinned;
    pool.location.type = cudaMemLocationTypeDevice;
    pool.location.id = device;
    check(cudaMemPoolCreate(&pool_, &pool));
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
    staging_.open(device, copy_);
    for (cudaEvent_t* event : {&copied_, &computed_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
    for (cudaEvent_t* event : {&passes_begin_, &tokens_begin_, &passes_end_}) check(cudaEventCreate(event));
    check(cudaMallocHost(reinterpret_cast<void**>(&result_), sizeof(Result)));
    totals_ = Buffer(sizeof(Totals), pool_, compute_);
    device_result_ = Buffer(sizeof(Result), pool_, compute_);
    check(cudaMemsetAsync(totals_.as<void>(), 0, sizeof(Totals), compute_));
  }

  // Runs body while no other call uses this device. If body throws, makes the device ready for the next call
  // and rethrows.
  template <class Body>
  void run(Body body) {
    const Lock lock(mutex_);
    check(cudaSetDevice(device_));
    try {
      body();
    } catch (...) {
      // Each call expects that all totals are 0.
      cudaStreamSynchronize(copy_);
      cudaStreamSynchronize(compute_);
      cudaMemsetAsync(totals_.as<void>(), 0, sizeof(Totals), compute_);
      cudaGetLastError();
      throw;
    }
  }

  Buffer allocate(int64_t bytes) { return Buffer(bytes, pool_, compute_); }

  // Order the two streams. Copies must come after the allocation of their memory, and kernels and the freeing
  // of memory after the copies.
  void order_copies_after_kernels() {
    check(cudaEventRecord(computed_, compute_));
    check(cudaStreamWaitEvent(copy_, computed_, 0));
  }
  void order_kernels_after_copies() {
    check(cudaEventRecord(copied_, copy_));
    check(cudaStreamWaitEvent(compute_, copied_, 0));
  }

  // Copies to the device, on the copy stream. The caller may free the source when this returns.
  void send(void* to, const void* from, int64_t bytes) {
    const Transfer transfer = transfer_to(to, from, bytes);
    staging_.send(&transfer, 1);
  }

  // Copies from the device. Returns when the copy is complete.
  void receive(void* to, const void* from, int64_t bytes, const int32_t* abort) {
    staging_.receive(transfer_to(const_cast<void*>(from), to, bytes), abort);
  }

  // Allocates the wanted columns and sends those that are per row. send_tokens() sends the others. Copies the
  // layout's rows and row_length, but not its offsets.
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
    // If a later step fails, these copies must still come before the memory is freed.
    order_kernels_after_copies();
    return batch;
  }

  // Allocates a whole batch: the wanted columns, the mask, the expert's rows and the offsets.
  DeviceBatch allocate_batch(const BatchView& host, unsigned columns) {
    DeviceBatch batch = allocate_columns(host, columns);
    if (host.mask) batch.mask = allocate(whole_granules(batch.tokens));
    if (host.expert) batch.expert = allocate(host.layout.rows);
    if (host.layout.offsets) batch.offsets = allocate((host.layout.rows + 1) * sizeof(int32_t));
    order_copies_after_kernels();
    if (host.expert) send(batch.expert.as<void>(), host.expert, batch.expert.bytes());
    if (host.layout.offsets) send(batch.offsets.as<void>(), host.layout.offsets, batch.offsets.bytes());
    order_kernels_after_copies();
    batch.view.mask = batch.mask.as<uint8_t>();
    batch.view.expert = batch.expert.as<uint8_t>();
    batch.view.layout.offsets = batch.offsets.as<int32_t>();
    return batch;
  }

  // Sends the tokens [first, last) of a batch that allocate_batch() or allocate_columns() allocated.
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
    staging_.send(transfers, count);
  }

  // Cuts the tokens into spans for a fed kernel (feed.cuh) whose blocks use `memory` bytes of dynamic shared
  // memory. All warps that run at once get the same number of spans, of nearly the same length.
  void cut(int memory, SpannedBatch* pass) const {
    const int64_t blocks = shared_bytes_ / (memory + kOwnSharedBytes + reserved_shared_bytes_);
    pass->fed_blocks = multiprocessors_ * std::clamp<int64_t>(blocks, 1, kFedBlocksPerMultiprocessor);
    const int64_t warps = pass->fed_blocks * kWarps;
    const int64_t rounds = pass->tokens / (warps * kMaxSpan) + 1;
    const int64_t fair = (pass->tokens + warps * rounds - 1) / (warps * rounds);
    pass->span = std::max<int64_t>((fair + kSpanStep - 1) / kSpanStep, 1) * kSpanStep;
    pass->spans = (pass->tokens + pass->span - 1) / pass->span;
  }

  // Returns a pass with its scratch memory and every member that does not depend on the function.
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
    pass.token_partials = scratch<double>(kTokenPartials, pass.fed_blocks * kTokenSums);
    return pass;
  }

  // Returns the most blocks that a grid may have.
  int64_t most_blocks() const { return multiprocessors_ * kBlocksPerMultiprocessor; }
  // Returns a grid with this number of blocks, but at least one and at most most_blocks().
  Grid grid(int64_t blocks) const {
    return {static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most_blocks())), compute_};
  }
  // Returns the grid of a fed kernel for this number of spans. It has at most as many blocks as run at once.
  Grid grid_of_spans(const SpannedBatch& pass, int64_t spans) const {
    return {static_cast<unsigned>(std::clamp<int64_t>((spans + kWarps - 1) / kWarps, 1, pass.fed_blocks)),
            compute_};
  }
  // Returns the grid of a kernel that calls for_whole_rows().
  Grid grid_of_rows(const SpannedBatch& pass) const {
    const int64_t rows = pass.batch.layout.rows;
    return is_row_for_warp(pass) ? grid_of_warps(rows) : grid_of_threads(rows);
  }
  Grid grid_of_warps(int64_t warps) const { return grid((warps + kWarps - 1) / kWarps); }
  Grid grid_of_threads(int64_t threads) const { return grid((threads + kThreads - 1) / kThreads); }

  // Starts to copy the result to the host, after the kernels that were launched so far.
  void copy_result() {
    check(cudaGetLastError());
    check(cudaMemcpyAsync(result_, device_result_.as<void>(), sizeof(Result), cudaMemcpyDeviceToHost,
                          compute_));
    order_copies_after_kernels();
  }
  // Waits until the result has arrived, and returns it.
  Result result() const {
    check(wait_for(computed_));
    return *result_;
  }

  void mark_passes_begin() { check(cudaEventRecord(passes_begin_, compute_)); }
  void mark_tokens_begin() { check(cudaEventRecord(tokens_begin_, compute_)); }
  void mark_passes_end() { check(cudaEventRecord(passes_end_, compute_)); }
  float passes_ms() const { return milliseconds(passes_begin_); }
  float token_pass_ms() const { return milliseconds(tokens_begin_); }

  cudaStream_t compute() const { return compute_; }

 private:
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
    check(cudaEventSynchronize(passes_end_));
    check(cudaEventElapsedTime(&result, since, passes_end_));
    return result;
  }

  const int device_;
  int64_t multiprocessors_ = 0;
  int64_t shared_bytes_ = 0;           // shared memory of one multiprocessor
  int64_t reserved_shared_bytes_ = 0;  // shared memory that the driver takes for each block
  Mutex mutex_;
  cudaStream_t compute_ = nullptr, copy_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  cudaEvent_t copied_ = nullptr, computed_ = nullptr;
  cudaEvent_t passes_begin_ = nullptr, tokens_begin_ = nullptr, passes_end_ = nullptr;
  Result* result_ = nullptr;  // in pinned host memory
  Buffer totals_, device_result_;
  Buffer scratch_[kScratches];
  Staging staging_;
};

}  // namespace policy_loss::cuda
