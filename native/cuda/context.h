// CUDA's host side below the passes: a device's memory, transfers and streams.
//
// A device has one context for the whole process: a stream for kernels, one for copies, a memory pool that
// keeps what is freed, scratch memory that only grows, and pinned staging. So a call like the one before it
// allocates nothing anew. A batch of the host's goes through the staging in chunks: while one chunk is copied
// to the device, the next is copied into the staging and the last one's rows are summed.
#pragma once

#include <algorithm>
#include <cstring>

#include "advantage/advantage.h"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace policy_loss::cuda {

constexpr int64_t kStageBytes = 1 << 20;
constexpr int kStages = 8;
// Whole spans, whatever their length, and of a float32 column not more than a stage holds.
constexpr int64_t kChunkTokens = kStageBytes / 4;

// Leaves a call; caught where the face begins.
struct Failure {
  Status status;
  const char* message;
};

inline Status status_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Status::kOutOfMemory;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return Status::kNoDevice;
    default:
      return Status::kFailed;
  }
}

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // which would otherwise be the next call's
  throw Failure{status_of(error), cudaGetErrorString(error)};
}

inline void check_abort(const int32_t* abort) {
  // Written by another thread.
  if (abort && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0)
    throw Failure{Status::kAborted, "the call was aborted"};
}

// Memory of a device, given back in the order of its stream.
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

// Kernels read 16 bytes at once, at a batch's end too.
inline int64_t whole_chunks(int64_t tokens) {
  return (tokens + kChunk - 1) / kChunk * kChunk;
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
    most_blocks_ = static_cast<int64_t>(properties.multiProcessorCount) * kBlocksPerMultiprocessor;
    most_fed_blocks_ = static_cast<int64_t>(properties.multiProcessorCount) * fed_blocks_per_multiprocessor();
    check(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&copy_, cudaStreamNonBlocking));
    cudaMemPoolProps pool{};
    pool.allocType = cudaMemAllocationTypePinned;
    pool.location.type = cudaMemLocationTypeDevice;
    pool.location.id = device;
    check(cudaMemPoolCreate(&pool_, &pool));
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
    for (cudaEvent_t* event : {&copied_, &computed_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
    for (cudaEvent_t* event : {&passes_begin_, &tokens_begin_, &passes_end_}) check(cudaEventCreate(event));
    check(cudaMallocHost(reinterpret_cast<void**>(&result_), sizeof(Result)));
    totals_ = Buffer(sizeof(Totals), pool_, compute_);
    device_result_ = Buffer(sizeof(Result), pool_, compute_);
    check(cudaMemsetAsync(totals_.as<void>(), 0, sizeof(Totals), compute_));
  }

  // Runs body as the only one on this device. What it throws leaves the device ready for the next call.
  template <class Body>
  void run(Body body) {
    const Lock lock(mutex_);
    check(cudaSetDevice(device_));
    try {
      body();
    } catch (...) {
      // No count may be left behind.
      cudaStreamSynchronize(copy_);
      cudaStreamSynchronize(compute_);
      cudaMemsetAsync(totals_.as<void>(), 0, sizeof(Totals), compute_);
      cudaGetLastError();
      throw;
    }
  }

  Buffer allocate(int64_t bytes) { return Buffer(bytes, pool_, compute_); }

  // Copies follow the allocation of their memory; kernels, and the giving back of memory, follow the copies.
  void order_copies_after_kernels() {
    check(cudaEventRecord(computed_, compute_));
    check(cudaStreamWaitEvent(copy_, computed_, 0));
  }
  void order_kernels_after_copies() {
    check(cudaEventRecord(copied_, copy_));
    check(cudaStreamWaitEvent(compute_, copied_, 0));
  }

  // From the host's memory to the device's, on the copy stream. The source may go when this returns.
  void send(void* to, const void* from, int64_t bytes) {
    make_stages();
    for (int64_t at = 0; at < bytes; at += kStageBytes) {
      const size_t part = static_cast<size_t>(std::min(kStageBytes, bytes - at));
      Stage& stage = stages_[next_stage_];
      next_stage_ = (next_stage_ + 1) % kStages;
      wait(stage.free);
      std::memcpy(stage.data, static_cast<const char*>(from) + at, part);
      check(cudaMemcpyAsync(static_cast<char*>(to) + at, stage.data, part, cudaMemcpyHostToDevice, copy_));
      check(cudaEventRecord(stage.free, copy_));
    }
  }

  // From the device's memory to the host's. Returns when all of it is there.
  void receive(void* to, const void* from, int64_t bytes, const int32_t* abort) {
    make_stages();
    const int64_t parts = (bytes + kStageBytes - 1) / kStageBytes;
    const auto bytes_of = [&](int64_t part) {
      return static_cast<size_t>(std::min(kStageBytes, bytes - part * kStageBytes));
    };
    int64_t sent = 0;
    for (int64_t part = 0; part < parts; ++part) {
      for (; sent < std::min(parts, part + kStages); ++sent) {
        Stage& stage = stages_[sent % kStages];
        check(cudaMemcpyAsync(stage.data, static_cast<const char*>(from) + sent * kStageBytes, bytes_of(sent),
                              cudaMemcpyDeviceToHost, copy_));
        check(cudaEventRecord(stage.free, copy_));
      }
      check_abort(abort);
      Stage& stage = stages_[part % kStages];
      wait(stage.free);
      std::memcpy(static_cast<char*>(to) + part * kStageBytes, stage.data, bytes_of(part));
    }
  }

  // Room for the columns that are wanted, and those sent that are per row. What is per token follows in
  // chunks. Of the layout the device has only the numbers.
  DeviceBatch allocate_columns(const BatchView& host, unsigned columns) {
    DeviceBatch batch;
    batch.tokens = host.layout.tokens();
    batch.view.layout.rows = host.layout.rows;
    batch.view.layout.columns = host.layout.columns;
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& from = host.column[c];
      if ((columns & (1u << c)) == 0 || !from.data) continue;
      batch.column[c] =
          allocate((from.per_row ? host.layout.rows : whole_chunks(batch.tokens)) * size_of(from.dtype));
      batch.view.column[c] = {batch.column[c].as<void>(), from.dtype, from.per_row};
    }
    order_copies_after_kernels();
    for (int c = 0; c < kColumns; ++c)
      if (host.column[c].per_row && batch.column[c].bytes() > 0)
        send(batch.column[c].as<void>(), host.column[c].data, batch.column[c].bytes());
    // Should a later step fail, these copies must still come before the memory is given back.
    order_kernels_after_copies();
    return batch;
  }

  // The same with masks and offsets: a whole batch.
  DeviceBatch allocate_batch(const BatchView& host, unsigned columns) {
    DeviceBatch batch = allocate_columns(host, columns);
    if (host.mask) batch.mask = allocate(whole_chunks(batch.tokens));
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

  // The tokens [first, last) of a batch that allocate_batch() has made room for.
  void send_tokens(const BatchView& host, const DeviceBatch& batch, int64_t first, int64_t last) {
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& from = host.column[c];
      if (batch.column[c].bytes() == 0 || from.per_row) continue;
      const int64_t size = size_of(from.dtype);
      send(batch.column[c].as<char>() + first * size, static_cast<const char*>(from.data) + first * size,
           (last - first) * size);
    }
    if (batch.mask.bytes() > 0) send(batch.mask.as<uint8_t>() + first, host.mask + first, last - first);
  }

  // How long spans are: all warps get the same number of them, of nearly the same length.
  int64_t span_of(int64_t tokens) const {
    const int64_t warps = most_fed_blocks_ * kWarps;
    const int64_t rounds = tokens / (warps * kMaxSpan) + 1;
    const int64_t fair = (tokens + warps * rounds - 1) / (warps * rounds);
    return std::max<int64_t>((fair + kSpanStep - 1) / kSpanStep, 1) * kSpanStep;
  }

  // The parts of a pass that do not depend on the function, with scratch memory for it.
  Pass prepare(const DeviceBatch& batch, unsigned columns, bool pairs) {
    Pass pass{};
    pass.batch = batch.view;
    pass.tokens = batch.tokens;
    pass.columns = columns;
    pass.kl = -1;
    pass.span = span_of(batch.tokens);
    pass.spans = (batch.tokens + pass.span - 1) / pass.span;
    const int64_t rows = batch.view.layout.rows;
    pass.totals = totals_.as<Totals>();
    pass.result = device_result_.as<Result>();
    pass.parts = {scratch<RowPart>(kRows, rows), scratch<RowPart>(kHeads, pass.spans),
                  scratch<RowPart>(kTails, pass.spans)};
    pass.states = scratch<char>(kStates, rows * row_state_bytes());
    pass.pair_sums = scratch<double>(kPairSums, pairs ? rows : 0);
    pass.row_partials = scratch<double>(kRowPartials, most_blocks() * kMaxRowMetrics);
    pass.token_partials = scratch<double>(kTokenPartials, most_blocks() * kTokenSums);
    return pass;
  }

  // How many blocks a grid has at most.
  int64_t most_blocks() const { return most_blocks_; }
  // Grids for so much work of a block, a warp or a thread each.
  Grid grid(int64_t blocks) const {
    return {static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most_blocks_)), compute_};
  }
  // Of kernels that are fed: no more blocks than run at once, which all get the same number of spans.
  Grid grid_of_spans(int64_t spans) const {
    return {static_cast<unsigned>(std::clamp<int64_t>((spans + kWarps - 1) / kWarps, 1, most_fed_blocks_)),
            compute_};
  }
  Grid grid_of_warps(int64_t warps) const { return grid((warps + kWarps - 1) / kWarps); }
  Grid grid_of_threads(int64_t threads) const { return grid((threads + kThreads - 1) / kThreads); }

  // Asks for the result of all that has been launched, and lets copies follow it.
  void copy_result() {
    check(cudaGetLastError());
    check(cudaMemcpyAsync(result_, device_result_.as<void>(), sizeof(Result), cudaMemcpyDeviceToHost,
                          compute_));
    order_copies_after_kernels();
  }
  // Waits for it, unless a later copy has been waited for already.
  Result result() const {
    wait(computed_);
    return *result_;
  }

  void mark_passes_begin() { check(cudaEventRecord(passes_begin_, compute_)); }
  void mark_tokens_begin() { check(cudaEventRecord(tokens_begin_, compute_)); }
  void mark_passes_end() { check(cudaEventRecord(passes_end_, compute_)); }
  float passes_ms() const { return milliseconds(passes_begin_); }
  float token_pass_ms() const { return milliseconds(tokens_begin_); }

  cudaStream_t compute() const { return compute_; }

 private:
  struct Stage {
    void* data = nullptr;
    cudaEvent_t free = nullptr;
  };
  enum { kRows, kHeads, kTails, kStates, kPairSums, kRowPartials, kTokenPartials, kScratches };

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

  void make_stages() {
    for (Stage& stage : stages_) {
      if (!stage.data) check(cudaMallocHost(&stage.data, kStageBytes));
      if (!stage.free)
        check(cudaEventCreateWithFlags(&stage.free, cudaEventDisableTiming | cudaEventBlockingSync));
    }
  }

  // Most waits are shorter than it takes to put a thread to sleep; the others should cost no core.
  static void wait(cudaEvent_t event) {
    const long long patience = now() + 50'000;
    cudaError_t state;
    while ((state = cudaEventQuery(event)) == cudaErrorNotReady)
      if (now() > patience) {
        state = cudaEventSynchronize(event);
        break;
      }
    check(state);
  }

  float milliseconds(cudaEvent_t since) const {
    float result = 0;
    check(cudaEventSynchronize(passes_end_));
    check(cudaEventElapsedTime(&result, since, passes_end_));
    return result;
  }

  const int device_;
  int64_t most_blocks_ = 0, most_fed_blocks_ = 0;
  Mutex mutex_;
  cudaStream_t compute_ = nullptr, copy_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  cudaEvent_t copied_ = nullptr, computed_ = nullptr;
  cudaEvent_t passes_begin_ = nullptr, tokens_begin_ = nullptr, passes_end_ = nullptr;
  Result* result_ = nullptr;  // pinned
  Buffer totals_, device_result_;
  Buffer scratch_[kScratches];
  Stage stages_[kStages];
  int next_stage_ = 0;
};

}  // namespace policy_loss::cuda
