// CUDA's host side: devices, memory, transfers, and the passes of a call in their order.
//
// A device has one context for the whole process: a stream for kernels, one for copies, a memory pool that
// keeps what is freed, scratch memory that only grows, and pinned staging. So a call like the one before it
// allocates nothing anew. A batch of the host's goes through the staging in chunks: while one chunk is copied
// to the device, the next is copied into the staging and the last one's rows are summed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/kernels.h"

namespace policy_loss::cuda {
namespace {

constexpr int64_t kStageBytes = 1 << 20;
constexpr int kStages = 8;
// Whole spans, whatever their length, and of a float32 column not more than a stage holds.
constexpr int64_t kChunkTokens = kStageBytes / 4;

// Leaves a call; caught where the face begins.
struct Failure {
  Status status;
  const char* message;
};

Status status_of(cudaError_t error) {
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

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // which would otherwise be the next call's
  throw Failure{status_of(error), cudaGetErrorString(error)};
}

void check_abort(const int32_t* abort) {
  // Written by another thread.
  if (abort && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0)
    throw Failure{Status::kAborted, "the call was aborted"};
}

void say(Problem* problem, const char* message) {
  std::snprintf(problem->message, sizeof problem->message, "%s", message);
}

template <class Body>
Status guarded(Problem* problem, Body body) {
  try {
    body();
    return Status::kOk;
  } catch (const Failure& failure) {
    say(problem, failure.message);
    return failure.status;
  } catch (const std::bad_alloc&) {
    say(problem, "out of memory");
    return Status::kOutOfMemory;
  }
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

// Kernels read four tokens at once, at a batch's end too.
int64_t whole_quads(int64_t tokens) {
  return (tokens + kQuad - 1) / kQuad * kQuad;
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
    std::lock_guard lock(mutex_);
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

  // Room for the columns and masks that are wanted, and what is per row in them. What is per token follows in
  // chunks.
  DeviceBatch allocate_batch(const BatchView& host, unsigned columns) {
    DeviceBatch batch;
    batch.tokens = host.layout.tokens();
    batch.view.layout.rows = host.layout.rows;
    batch.view.layout.columns = host.layout.columns;
    const int64_t room = whole_quads(batch.tokens);
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& from = host.column[c];
      if ((columns & (1u << c)) == 0 || !from.data) continue;
      batch.column[c] = allocate((from.per_row ? host.layout.rows : room) * size_of(from.dtype));
      batch.view.column[c] = {batch.column[c].as<void>(), from.dtype, from.per_row};
    }
    if (host.mask) batch.mask = allocate(room);
    if (host.expert) batch.expert = allocate(host.layout.rows);
    if (host.layout.offsets) batch.offsets = allocate((host.layout.rows + 1) * sizeof(int32_t));
    order_copies_after_kernels();
    for (int c = 0; c < kColumns; ++c)
      if (host.column[c].per_row && batch.column[c].bytes() > 0)
        send(batch.column[c].as<void>(), host.column[c].data, batch.column[c].bytes());
    if (host.expert) send(batch.expert.as<void>(), host.expert, batch.expert.bytes());
    if (host.layout.offsets) send(batch.offsets.as<void>(), host.layout.offsets, batch.offsets.bytes());
    // Should a later step fail, these copies must still come before the memory is given back.
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
    if (host.mask) send(batch.mask.as<uint8_t>() + first, host.mask + first, last - first);
  }

  // The parts of a pass that do not depend on the function, with scratch memory for it.
  Pass prepare(const DeviceBatch& batch, unsigned columns, bool pairs) {
    Pass pass{};
    pass.batch = batch.view;
    pass.tokens = batch.tokens;
    pass.columns = columns;
    pass.kl = -1;
    // All warps get the same number of spans, of nearly the same length.
    const int64_t warps = resident_blocks() * kWarps;
    const int64_t rounds = batch.tokens / (warps * kMaxSpan) + 1;
    const int64_t fair = (batch.tokens + warps * rounds - 1) / (warps * rounds);
    pass.span = std::max<int64_t>((fair + kSpanStep - 1) / kSpanStep, 1) * kSpanStep;
    pass.spans = (batch.tokens + pass.span - 1) / pass.span;
    const int64_t rows = batch.view.layout.rows;
    pass.totals = totals_.as<Totals>();
    pass.result = device_result_.as<Result>();
    pass.rows = scratch<RowPart>(kRows, rows);
    pass.heads = scratch<RowPart>(kHeads, pass.spans);
    pass.tails = scratch<RowPart>(kTails, pass.spans);
    pass.states = scratch<char>(kStates, rows * row_state_bytes());
    pass.pair_sums = scratch<double>(kPairSums, pairs ? rows : 0);
    pass.row_partials = scratch<double>(kRowPartials, resident_blocks() * kMaxRowMetrics);
    pass.token_partials = scratch<double>(kTokenPartials, resident_blocks() * kTokenSums);
    return pass;
  }

  // A grid for so much work of a block each.
  Grid grid(int64_t blocks) const {
    return {static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, resident_blocks())), compute_};
  }
  Grid grid_of_spans(int64_t spans) const { return grid((spans + kWarps - 1) / kWarps); }
  Grid grid_of_rows(int64_t rows) const { return grid((rows + kThreads - 1) / kThreads); }

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

  int64_t resident_blocks() const {
    return static_cast<int64_t>(multiprocessors_) * kBlocksPerMultiprocessor;
  }

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
    const auto patience = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    cudaError_t state;
    while ((state = cudaEventQuery(event)) == cudaErrorNotReady)
      if (std::chrono::steady_clock::now() > patience) {
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
  int multiprocessors_ = 0;
  std::mutex mutex_;
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

// A context is never destroyed: CUDA may be gone before the process's static objects are.
Context& context_of(int device) {
  static std::mutex mutex;
  static std::vector<Context*> contexts;
  std::lock_guard lock(mutex);
  if (contexts.empty()) {
    Problem problem;
    contexts.resize(static_cast<size_t>(device_count(&problem)));
  }
  if (device < 0 || device >= static_cast<int>(contexts.size()))
    throw Failure{Status::kNoDevice, "there is no such device"};
  if (!contexts[device]) contexts[device] = new Context(device);
  return *contexts[device];
}

void describe_function(const Request& request, Pass* pass) {
  pass->has_loss = request.loss >= 0;
  pass->kl = request.kl;
  pass->entropy = request.entropy;
  pass->entropy_of_usual_rows_only = request.entropy_of_usual_rows_only;
  for (int kind = 0; kind < 2; ++kind) pass->loss_aggregation[kind] = request.loss_aggregation[kind];
  pass->kl_aggregation = request.kl_aggregation;
  pass->entropy_aggregation = request.entropy_aggregation;
  pass->coefficients = request.coefficients;
}

// One evaluation: prepared, then the row pass over all spans or as they come, then the rest.
class Evaluation {
 public:
  Evaluation(Context& context, const DeviceBatch& batch, const Request& request, const Call& call)
      : context_(context), batch_(batch), loss_(request.loss), call_(call) {
    construct_loss(loss_, request.options, object_);
    pass_ = context.prepare(batch, request.columns, is_over_pairs(loss_));
    describe_function(request, &pass_);
    if (call.grad || call.grad_stays) grad_ = context.allocate(batch.tokens * sizeof(float));
    if (call.grad_entropy) grad_entropy_ = context.allocate(batch.tokens * sizeof(float));
    pass_.grad = grad_.as<float>();
    pass_.grad_entropy = grad_entropy_.as<float>();
    if (is_timed()) context_.mark_passes_begin();
  }

  int64_t span() const { return pass_.span; }

  void sum_rows(int64_t first_token, int64_t last_token) {
    const int64_t first = first_token / pass_.span;
    const int64_t last = (last_token + pass_.span - 1) / pass_.span;
    launch_rows(loss_, object_, pass_, first, last, context_.grid_of_spans(last - first));
  }

  void finish() {
    check_abort(call_.abort);
    const int64_t rows = pass_.batch.layout.rows;
    launch_weights(loss_, object_, pass_, context_.grid_of_rows(is_over_pairs(loss_) ? 1 : rows));
    // A loss over pairs has seen its columns, and gives each row one gradient.
    if (is_over_pairs(loss_) && pass_.kl < 0) pass_.columns &= reads(kEntropy);
    if (is_timed()) context_.mark_tokens_begin();
    launch_tokens(loss_, object_, pass_, context_.grid_of_spans(pass_.spans));
    if (is_timed()) context_.mark_passes_end();
    context_.copy_result();
    const int64_t bytes = batch_.tokens * static_cast<int64_t>(sizeof(float));
    if (call_.grad) context_.receive(call_.grad, pass_.grad, bytes, call_.abort);
    if (call_.grad_entropy) context_.receive(call_.grad_entropy, pass_.grad_entropy, bytes, call_.abort);
    *call_.result = context_.result();
    if (call_.passes_ms) *call_.passes_ms = context_.passes_ms();
    if (call_.token_pass_ms) *call_.token_pass_ms = context_.token_pass_ms();
  }

 private:
  bool is_timed() const { return call_.passes_ms || call_.token_pass_ms; }

  Context& context_;
  const DeviceBatch& batch_;
  const int loss_;
  const Call& call_;
  Pass pass_;
  alignas(16) unsigned char object_[kLossBytes];
  Buffer grad_, grad_entropy_;
};

void compute_kl(Context& context, const DeviceBatch& batch, const KlCall& call) {
  Pass pass = context.prepare(batch, call.columns, false);
  const int64_t bytes = batch.tokens * static_cast<int64_t>(sizeof(float));
  const Buffer out = context.allocate(bytes);
  Buffer base;
  if (call.base) {
    base = context.allocate(whole_quads(batch.tokens) * sizeof(float));
    context.order_copies_after_kernels();
    context.send(base.as<void>(), call.base, bytes);
    context.order_kernels_after_copies();
  }
  pass.kl = call.estimator;
  launch_kl(pass, {base.as<float>(), static_cast<float>(call.scale), out.as<float>()},
            context.grid_of_spans(pass.spans));
  if (call.base) launch_row_means(pass, context.grid_of_rows(batch.view.layout.rows));
  context.copy_result();
  context.receive(call.out, out.as<void>(), bytes, call.abort);
  const Result result = context.result();
  if (call.mean_kl)
    *call.mean_kl = call.base ? result.sums.row_metric[0] / static_cast<double>(batch.view.layout.rows) : 0.0;
}

// Sends a batch in chunks of whole spans; after(first, last) is told of the tokens that are on their way.
template <class After>
void send_in_chunks(Context& context, const BatchView& host, const DeviceBatch& batch, int64_t span,
                    const int32_t* abort, After after) {
  const int64_t chunk = kChunkTokens / span * span;
  for (int64_t first = 0; first < batch.tokens; first += chunk) {
    check_abort(abort);
    const int64_t last = std::min(batch.tokens, first + chunk);
    context.send_tokens(host, batch, first, last);
    context.order_kernels_after_copies();
    after(first, last);
  }
  if (batch.tokens == 0) {
    context.order_kernels_after_copies();
    after(0, 0);
  }
}

}  // namespace

struct Resident {
  int device;
  DeviceBatch batch;
};

int device_count(Problem* problem) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  // The runtime calls a driver that is not there one too old.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    say(problem, "this machine has no CUDA driver");
  else
    say(problem, cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error));
  return 0;
}

Status device_info(int device, DeviceInfo* info, Problem* problem) {
  return guarded(problem, [&] {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device));
    std::snprintf(info->name, sizeof info->name, "%s", properties.name);
    info->memory = static_cast<int64_t>(properties.totalGlobalMem);
    info->major = properties.major;
    info->minor = properties.minor;
  });
}

Status upload(int device, const BatchView& host, const int32_t* abort, Resident** resident,
              Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    auto result = std::make_unique<Resident>();
    result->device = device;
    context.run([&] {
      result->batch = context.allocate_batch(host, (1u << kColumns) - 1);
      send_in_chunks(context, host, result->batch, kSpanStep, abort, [](int64_t, int64_t) {});
    });
    *resident = result.release();
  });
}

void release(Resident* resident) {
  Problem problem;
  guarded(&problem, [&] { context_of(resident->device).run([&] { delete resident; }); });
}

ResidentInfo resident_info(const Resident* resident) {
  const DeviceBatch& batch = resident->batch;
  const Layout& layout = batch.view.layout;
  unsigned present = 0;
  for (int c = 0; c < kColumns; ++c)
    if (batch.view.column[c].data) present |= 1u << c;
  return {resident->device,        layout.rows, layout.columns, batch.tokens, present, batch.mask.bytes() > 0,
          batch.expert.bytes() > 0};
}

Status evaluate(const Resident* resident, const Request& request, const Call& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] {
      check_abort(call.abort);
      Evaluation evaluation(context, resident->batch, request, call);
      evaluation.sum_rows(0, resident->batch.tokens);
      evaluation.finish();
    });
  });
}

Status evaluate_host(int device, const BatchView& host, const Request& request, const Call& call,
                     Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const DeviceBatch batch = context.allocate_batch(host, request.columns);
      Evaluation evaluation(context, batch, request, call);
      send_in_chunks(context, host, batch, evaluation.span(), call.abort,
                     [&](int64_t first, int64_t last) { evaluation.sum_rows(first, last); });
      evaluation.finish();
    });
  });
}

Status kl(const Resident* resident, const KlCall& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] { compute_kl(context, resident->batch, call); });
  });
}

Status kl_host(int device, const BatchView& host, const KlCall& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const DeviceBatch batch = context.allocate_batch(host, call.columns);
      send_in_chunks(context, host, batch, kSpanStep, call.abort, [](int64_t, int64_t) {});
      compute_kl(context, batch, call);
    });
  });
}

Status copy_bandwidth(int device, int64_t bytes, double* bytes_per_second, Problem* problem) {
  return guarded(problem, [&] {
    constexpr int kCopies = 20;
    Context& context = context_of(device);
    context.run([&] {
      const Buffer from = context.allocate(bytes);
      const Buffer to = context.allocate(bytes);
      const auto copy = [&] {
        check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), static_cast<size_t>(bytes),
                              cudaMemcpyDeviceToDevice, context.compute()));
      };
      copy();
      context.mark_passes_begin();
      for (int i = 0; i < kCopies; ++i) copy();
      context.mark_passes_end();
      *bytes_per_second = 2.0 * kCopies * static_cast<double>(bytes) / (context.passes_ms() * 1e-3);
    });
  });
}

}  // namespace policy_loss::cuda
