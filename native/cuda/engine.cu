// Implements cuda.h: finds devices, keeps resident batches, and runs the passes of a call in order.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cuda/device_array.h"
#include "cuda/program.h"
#include "cuda/resident.h"

namespace policy_loss::cuda {
namespace {

void report(Problem* problem, const char* message) {
  std::snprintf(problem->message, sizeof problem->message, "%s", message);
}

// Calls body(). Returns kOk if it succeeds. If it throws, writes the message to *problem and returns the
// status that belongs to the exception.
template <class Body>
Status guarded(Problem* problem, Body body) {
  try {
    body();
    return Status::kOk;
  } catch (const Failure& failure) {
    report(problem, failure.message);
    return failure.status;
  } catch (...) {
    // Apart from Failure, body() throws only std::bad_alloc.
    report(problem, "out of memory");
    return Status::kOutOfMemory;
  }
}

// An upper limit on the number of devices; no machine has this many.
constexpr int kMostDevices = 256;

// The contexts that exist, by device. They are never destroyed, because at the end of the process CUDA may
// shut down before static objects are destroyed.
Mutex contexts_mutex;
Context* contexts[kMostDevices];

// Ends the calls in progress. The process may end in the middle of a call, and CUDA then shuts down while
// other threads still use it. The runtime registers its own function for the end of the process when it is
// first used, that is, before this one, so this one runs first.
void finish_calls() {
  __atomic_store_n(&process_ends, 1, __ATOMIC_RELAXED);
  contexts_mutex.lock();
  for (Context* const context : contexts)
    if (context) context->close();
}

// Returns the context of a device. The first call for a device creates it.
Context& context_of(int device) {
  static int count = 0;
  const Lock lock(contexts_mutex);
  if (count == 0) {
    Problem problem;
    const DeviceCount found = count_devices(&problem);
    if (found.obstacle != Obstacle::kNone) throw Failure(Status::kNoDevice, "%s", problem.message);
    count = std::min(found.count, kMostDevices);
    std::atexit(finish_calls);
  }
  if (device < 0 || device >= count) throw Failure(Status::kNoDevice, "there is no such device");
  if (!contexts[device]) contexts[device] = new Context(device);
  return *contexts[device];
}

// One evaluation of a function on a device. The constructor prepares it. sum_rows() launches the row pass,
// for the whole batch at once or for one chunk of it. launch() launches the other passes. fetch() copies the
// results to the host. If the call also computes advantages, their AdvantageRun is constructed first.
class Evaluation {
 public:
  // repeats: how often each row counts, in host memory; null if every row counts once.
  Evaluation(Context& context, const DeviceBatch& batch, const Request& request, const uint32_t* repeats,
             const Call& call)
      : context_(context),
        batch_(batch),
        loss_(request.terms.loss),
        object_(request.loss),
        program_(context, request.program, batch, request.batch_metrics),
        call_(call) {
    const bool pairs = is_over_pairs(loss_);
    const unsigned columns = columns_of_tokens(request);
    pass_ = context.prepare(batch, columns, std::max(token_memory(loss_, columns), program_.memory()), pairs);
    pass_.terms = request.terms;
    pass_.coefficients = request.coefficients;
    pass_.normalizer = request.normalizer;
    if (repeats) {
      pass_.batch.repeats = context.send_array(repeats, batch.view.layout.rows, &repeats_);
      context.order_kernels_after_copies();
    }
    if (call.mask) pass_.batch.mask = send_tokens(call.mask, &mask_);
    if (call.weights) pass_.batch.column[kWeights] = {send_tokens(call.weights, &weights_)};
    if (call.logprob) pass_.batch.column[kLogprob] = {send_tokens(call.logprob, &logprob_)};
    if (call.grad || call.grad_stays || call.device_grad)
      grad_.allocate(context, batch.tokens, call.device_grad);
    if (call.grad_entropy || call.device_grad_entropy)
      grad_entropy_.allocate(context, batch.tokens, call.device_grad_entropy);
    pass_.grad = grad_.data();
    pass_.grad_entropy = grad_entropy_.data();
    // Only rows that take part in a program write their gradients.
    if (call.grad_log_z)
      grad_log_z_ = context.allocate_zeros(batch.view.layout.rows * static_cast<int64_t>(sizeof(float)));
    pass_.grad_log_z = grad_log_z_.as<float>();
    if (is_timed()) context_.mark_passes_begin();
  }

  int64_t span() const { return pass_.span; }

  // Makes the loss use the advantages that `run` computes on the same device. If they come from a group
  // function, the rows' repeats come from it too.
  void use(const AdvantageRun& run) {
    pass_.batch.column[kAdvantages] = run.column();
    if (run.repeats()) pass_.batch.repeats = run.repeats();
  }

  void sum_rows(int64_t first_token, int64_t last_token) {
    const int64_t first = first_token / pass_.span;
    const int64_t last = (last_token + pass_.span - 1) / pass_.span;
    launch_rows(loss_, object_, pass_, first, last, context_.grid_of_spans(pass_, last - first));
  }

  // Launches the weights pass and the token pass.
  void launch() {
    check_abort(call_.abort);
    launch_weights(loss_, object_, pass_,
                   is_over_pairs(loss_) ? context_.grid(1) : context_.grid_of_rows(pass_));
    if (is_over_pairs(loss_) && !pass_.terms.has_kl()) pass_.columns &= reads(kEntropy);
    if (is_timed()) context_.mark_tokens_begin();
    if (needs_token_pass()) launch_tokens(loss_, object_, pass_, context_.grid_of_spans(pass_, pass_.spans));
    if (is_program()) program_.run(pass_);
    if (is_timed()) context_.mark_passes_end();
    context_.copy_result();
  }

  void fetch() {
    const int64_t bytes = batch_.tokens * static_cast<int64_t>(sizeof(float));
    if (call_.grad) context_.receive(call_.grad, pass_.grad, bytes, call_.abort);
    if (call_.grad_entropy) context_.receive(call_.grad_entropy, pass_.grad_entropy, bytes, call_.abort);
    if (call_.grad_log_z)
      context_.receive(call_.grad_log_z, pass_.grad_log_z, grad_log_z_.bytes(), call_.abort);
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
  const ProgramRun program_;
  const Call& call_;
  Pass pass_;
  GradientArray grad_, grad_entropy_;
  Buffer grad_log_z_, repeats_, mask_, weights_, logprob_;
};

void compute_kl(Context& context, const DeviceBatch& batch, const KlCall& call) {
  const unsigned columns = call.columns | (call.base ? reads(kAdvantages) : 0u);
  Pass pass = context.prepare(batch, columns, kl_memory(columns), false);
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
            context.grid_of_spans(pass, pass.spans));
  if (call.base) launch_row_means(pass, context.grid_of_rows(pass));
  context.copy_result();
  context.receive(call.out, out.as<void>(), bytes, call.abort);
  const Result result = context.result();
  if (call.mean_kl)
    *call.mean_kl = call.base ? result.sums.row_metric[0] / static_cast<double>(batch.view.layout.rows) : 0.0;
}

// Sends a batch to the device in chunks that consist of whole spans. After it has started the copy of a
// chunk, it calls after(first, last) for the chunk's tokens [first, last). Kernels that after() launches wait
// for the copy.
template <class After>
void send_in_chunks(Context& context, const BatchView& host, const DeviceBatch& batch, int64_t span,
                    const int32_t* abort, After after) {
  const int64_t chunk = kTokensAtOnce / span * span;
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

constexpr unsigned kEveryColumn = (1u << kColumns) - 1;
// Losses read the log-probabilities of the sampling policy and of the teacher too, so a resident batch
// already has them.
constexpr unsigned kColumnsOfAdvantages = kEveryColumn & ~(1u << kSampledLogprob | 1u << kTeacherLogprob);

// Sends the columns that are in the set `columns` and that the host batch has.
DeviceBatch send_columns(Context& context, const BatchView& host, unsigned columns, const int32_t* abort) {
  DeviceBatch batch = context.allocate_columns(host, columns);
  send_in_chunks(context, host, batch, kSpanStep, abort, [](int64_t, int64_t) {});
  return batch;
}

// Copies columns within the memory of the device, and waits until the caller may overwrite them.
void copy_columns(Context& context, int device, const DeviceColumns& from, DeviceBatch* losses,
                  DeviceBatch* advantage) {
  const bool first = copy_columns(context, device, from.losses, losses);
  const bool second = copy_columns(context, device, from.advantages, advantage);
  if (first || second) CUDA_CHECK(cudaStreamSynchronize(context.compute()));
}

}  // namespace

void share_work_by(ShareWork share) {
  __atomic_store_n(&sharing, share, __ATOMIC_RELAXED);
}

void keep_current_device() {
  keeps_device = true;
}

DeviceCount count_devices(Problem* problem) {
  DeviceCount found;
  const cudaError_t error = cudaGetDeviceCount(&found.count);
  cudaDriverGetVersion(&found.driver_version);
  cudaRuntimeGetVersion(&found.build_version);
  cudaGetLastError();
  if (error == cudaSuccess && found.count > 0) return found;
  found.count = 0;
  // Without a driver, the runtime reports that the driver is too old, so this case is tested first.
  if (found.driver_version == 0) {
    found.obstacle = Obstacle::kNoDriver;
    report(problem, "this machine has no CUDA driver");
    return found;
  }
  if (error == cudaErrorInsufficientDriver)
    found.obstacle = Obstacle::kOldDriver;
  else if (error == cudaErrorNoDevice || error == cudaSuccess)
    found.obstacle = Obstacle::kNoDevice;
  else
    found.obstacle = Obstacle::kFailed;
  std::snprintf(problem->message, sizeof problem->message, "%s%s",
                found.obstacle == Obstacle::kFailed ? "cudaGetDeviceCount failed: " : "",
                cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error));
  return found;
}

Status device_info(int device, DeviceInfo* info, Problem* problem) {
  return guarded(problem, [&] {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    std::snprintf(info->name, sizeof info->name, "%s", properties.name);
    info->memory = static_cast<int64_t>(properties.totalGlobalMem);
    info->capability = 10 * properties.major + properties.minor;
    info->least_capability = POLICY_LOSS_LEAST_CAPABILITY;
  });
}

Status upload(int device, const BatchView& host, const AdvantageInputs& inputs, const DeviceColumns& there,
              const int32_t* abort, Resident** resident, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      DeviceBatch batch = context.allocate_batch(host, kEveryColumn, (1u << kRowColumns) - 1);
      send_in_chunks(context, host, batch, kSpanStep, abort, [](int64_t, int64_t) {});
      DeviceBatch advantage = send_columns(context, inputs.tokens, kColumnsOfAdvantages, abort);
      copy_columns(context, device, there, &batch, &advantage);
      *resident = new Resident(device, std::move(batch), std::move(advantage), send_inputs(context, inputs));
    });
  });
}

Status update(const Resident* resident, const BatchView& columns, const BatchView& advantage_columns,
              const DeviceColumns& there, const int32_t* abort, Resident** updated, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] {
      check_abort(abort);
      DeviceBatch losses = send_columns(context, columns, kEveryColumn, abort);
      DeviceBatch advantage = send_columns(context, advantage_columns, kColumnsOfAdvantages, abort);
      copy_columns(context, resident->device, there, &losses, &advantage);
      *updated = new Resident(*resident, std::move(losses), std::move(advantage));
    });
  });
}

void release(Resident* resident) {
  Problem problem;
  guarded(&problem, [&] { context_of(resident->device).run_always([&] { delete resident; }); });
}

ResidentInfo resident_info(const Resident* resident) {
  const DeviceBatch& batch = resident->batch;
  const Layout& layout = batch.view.layout;
  const AdvantageInputs& inputs = resident->inputs.view;
  ResidentInfo info{};
  info.device = resident->device;
  info.rows = layout.rows;
  info.columns = layout.row_length;
  info.tokens = batch.tokens;
  for (int c = 0; c < kColumns; ++c) {
    if (batch.view.column[c].data) info.present |= 1u << c;
    if (inputs.tokens.column[c].data && !inputs.tokens.column[c].per_row) info.advantage_present |= 1u << c;
  }
  for (int c = 0; c < kRowColumns; ++c)
    if (batch.view.row_column[c]) info.row_present |= reads(c);
  info.mask = batch.view.mask != nullptr;
  info.expert = batch.view.expert != nullptr;
  info.rewards = inputs.rewards != nullptr;
  info.baselines = inputs.baselines != nullptr;
  info.groups = inputs.groups.offsets != nullptr;
  info.runs = inputs.runs.offsets != nullptr;
  info.group_count = inputs.groups.size;
  return info;
}

DeviceArray* make_array(int device, int64_t length) {
  return new DeviceArray{device, length, {}};
}

void release(DeviceArray* array) {
  Problem problem;
  guarded(&problem, [&] { context_of(array->device).run_always([&] { delete array; }); });
}

ArrayInfo array_info(const DeviceArray* array) {
  return {array->device, array->length, array->memory.as<void>()};
}

Status read_array(const DeviceArray* array, float* out, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(array->device);
    context.run([&] {
      context.order_copies_after_kernels();
      context.receive(out, array->memory.as<void>(), array->memory.bytes(), nullptr);
    });
  });
}

Status evaluate(const Resident* resident, const Request& request, const Call& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] {
      check_abort(call.abort);
      const auto evaluate_with = [&](AdvantageRun* run) {
        Evaluation evaluation(context, resident->batch, request, call.repeats, call);
        if (run) evaluation.use(*run);
        evaluation.sum_rows(0, resident->batch.tokens);
        evaluation.launch();
        if (!run || run->fetch(call.advantage_call, call.abort)) evaluation.fetch();
      };
      if (!call.advantage) return evaluate_with(nullptr);
      const AdvantageCall& wanted = call.advantage_call;
      AdvantageRun run(context, resident->inputs, *call.advantage,
                       wanted.advantages || looks_under_mask(request.terms.loss), wanted.returns != nullptr);
      evaluate_with(&run);
    });
  });
}

Status evaluate_host(int device, const BatchView& host, const Request& request, const Call& call,
                     Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const DeviceBatch batch = context.allocate_batch(host, request.columns, request.program.row_columns);
      Evaluation evaluation(context, batch, request, host.repeats, call);
      send_in_chunks(context, host, batch, evaluation.span(), call.abort,
                     [&](int64_t first, int64_t last) { evaluation.sum_rows(first, last); });
      evaluation.launch();
      evaluation.fetch();
    });
  });
}

Status advantages(const Resident* resident, const AdvantageRequest& request, const AdvantageCall& call,
                  Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] {
      check_abort(call.abort);
      AdvantageRun run(context, resident->inputs, request, call.advantages != nullptr,
                       call.returns != nullptr);
      run.fetch(call, call.abort);
    });
  });
}

Status advantages_host(int device, const AdvantageInputs& host, const AdvantageRequest& request,
                       const AdvantageCall& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const DeviceBatch batch = context.allocate_batch(host.tokens, columns_of_advantage(request), 0);
      send_in_chunks(context, host.tokens, batch, kSpanStep, call.abort, [](int64_t, int64_t) {});
      DeviceInputs inputs = send_inputs(context, host);
      inputs.view.tokens = batch.view;
      inputs.tokens = batch.tokens;
      AdvantageRun run(context, inputs, request, call.advantages != nullptr, call.returns != nullptr);
      run.fetch(call, call.abort);
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
      const DeviceBatch batch = context.allocate_batch(host, call.columns, 0);
      send_in_chunks(context, host, batch, kSpanStep, call.abort, [](int64_t, int64_t) {});
      compute_kl(context, batch, call);
    });
  });
}

#if defined(POLICY_LOSS_BENCH)
Status copy_bandwidth(int device, int64_t bytes, double* bytes_per_second, Problem* problem) {
  return guarded(problem, [&] {
    constexpr int kCopies = 20;
    Context& context = context_of(device);
    context.run([&] {
      const Buffer from = context.allocate(bytes);
      const Buffer to = context.allocate(bytes);
      const auto copy = [&] {
        CUDA_CHECK(cudaMemcpyAsync(to.as<void>(), from.as<void>(), static_cast<size_t>(bytes),
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
#endif

}  // namespace policy_loss::cuda
