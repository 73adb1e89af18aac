// Implements cuda.h: finds devices, keeps resident batches, and runs calls on them.
#include <cstring>
#include <utility>

#include "cuda/contexts.h"
#include "cuda/evaluation.h"
#include "cuda/fence.h"
#include "cuda/upload.h"

namespace policy_loss::cuda {

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

Status trim(int device, Problem* problem) {
  return guarded(problem, [&] {
    if (Context* const context = existing_context(device)) context->trim();
  });
}

Status upload(int device, const BatchView& host, const AdvantageInputs& inputs, const DeviceColumns& there,
              const int32_t* abort, Resident** resident, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    Channel& channel = context.uploads();
    channel.run([&] {
      const Fence fence(channel, device, there.stream);
      DeviceBatch batch = channel.allocate_batch(host, kEveryColumn, (1u << kRowColumns) - 1);
      send_in_slices(channel, host, batch, kFeedTile, abort, [](int64_t, int64_t) {});
      MaskPass mask_pass;
      if (batch.view.mask || batch.tokens == 0) mask_pass = MaskPass(context, channel, batch);
      DeviceBatch advantage = send_columns(channel, inputs.tokens, kColumnsOfAdvantages, abort);
      OpenedMemory opened(channel);
      copy_columns(channel, device, there.losses, &opened, &batch);
      copy_columns(channel, device, there.advantages, &opened, &advantage);
      DeviceInputs given = send_inputs(channel, inputs);
      channel.finish();
      for (DeviceBatch* const each : {&batch, &advantage}) hand_over(each, context.memory());
      hand_over(&given, context.memory());
      mask_pass.hand_over(context.memory());
      *resident = new Resident(device, std::move(batch), std::move(advantage), std::move(given),
                               std::move(mask_pass));
    });
  });
}

Status update(const Resident* resident, const BatchView& columns, const BatchView& advantage_columns,
              const DeviceColumns& there, const int32_t* abort, Resident** updated, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    Channel& channel = context.uploads();
    channel.run([&] {
      check_abort(abort);
      const Fence fence(channel, resident->device, there.stream);
      DeviceBatch losses = send_columns(channel, columns, kEveryColumn, abort);
      DeviceBatch advantage = send_columns(channel, advantage_columns, kColumnsOfAdvantages, abort);
      OpenedMemory opened(channel);
      copy_columns(channel, resident->device, there.losses, &opened, &losses);
      copy_columns(channel, resident->device, there.advantages, &opened, &advantage);
      channel.finish();
      for (DeviceBatch* const each : {&losses, &advantage}) hand_over(each, context.memory());
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

DeviceArray* make_array(int device, int64_t length, bool shareable) {
  return new DeviceArray{device, length, shareable, {}};
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
      context.receive(out, array->memory.as<void>(), array->length * static_cast<int64_t>(sizeof(float)),
                      nullptr);
    });
  });
}

Status export_array(const DeviceArray* array, IpcHandle* handle, Problem* problem) {
  return guarded(problem, [&] {
    context_of(array->device).run([&] {
      cudaIpcMemHandle_t found;
      CUDA_CHECK(cudaIpcGetMemHandle(&found, array->memory.as<void>()));
      std::memcpy(handle->bytes, &found, sizeof found);
    });
  });
}

Status evaluate(const Resident* resident, const Request& request, const Call& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] {
      check_abort(call.abort);
      const Fence fence(context, resident->device, call.stream);
      const auto evaluate_with = [&](AdvantageEvaluation* computed) {
        Evaluation evaluation(context, resident->batch, request, call.repeats, call);
        if (computed) evaluation.use(*computed);
        evaluation.share(resident->unchanging.get()->mask_pass);
        evaluation.sum_rows(0, resident->batch.tokens);
        evaluation.launch();
        if (!computed || computed->fetch(call.advantage_call, call.abort)) evaluation.fetch();
      };
      if (!call.advantage) return evaluate_with(nullptr);
      const AdvantageCall& wanted = call.advantage_call;
      AdvantageEvaluation computed(context, resident->inputs, *call.advantage,
                                   wanted.advantages || looks_under_mask(request.terms.loss),
                                   wanted.returns != nullptr);
      evaluate_with(&computed);
    });
  });
}

Status evaluate_host(int device, const BatchView& host, const Request& request, const Call& call,
                     Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const Fence fence(context, device, call.stream);
      const unsigned row_columns = request.program.row_columns | reads(kNextInPair);
      DeviceBatch batch = context.allocate_batch(host, request.columns, row_columns);
      OpenedMemory opened(context);
      if (call.columns) copy_columns(context, device, *call.columns, &opened, &batch);
      Call found = call;
      if (const int64_t bytes = batch.tokens * size_of(call.grad.dtype); call.grad_there && bytes > 0)
        found.grad.data = find_memory(&opened, {call.grad.data, call.grad.dtype}, call.grad_handle, device,
                                      bytes, "the gradient's pointer");
      Evaluation evaluation(context, batch, request, host.repeats, found);
      send_in_slices(context, host, batch, evaluation.chunk_tokens(), call.abort,
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
      const Fence fence(context, resident->device, call.stream);
      AdvantageEvaluation computed(context, resident->inputs, request, call.advantages != nullptr,
                                   call.returns != nullptr);
      computed.fetch(call, call.abort);
    });
  });
}

Status advantages_host(int device, const AdvantageInputs& host, const AdvantageRequest& request,
                       const AdvantageCall& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const Fence fence(context, device, call.stream);
      const DeviceBatch batch = context.allocate_batch(host.tokens, columns_of_advantage(request), 0);
      send_in_slices(context, host.tokens, batch, kFeedTile, call.abort, [](int64_t, int64_t) {});
      DeviceInputs inputs = send_inputs(context, host);
      inputs.view.tokens = batch.view;
      inputs.tokens = batch.tokens;
      AdvantageEvaluation computed(context, inputs, request, call.advantages != nullptr,
                                   call.returns != nullptr);
      computed.fetch(call, call.abort);
    });
  });
}

Status kl(const Resident* resident, const KlCall& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(resident->device);
    context.run([&] {
      const Fence fence(context, resident->device, call.stream);
      compute_kl(context, resident->batch, call);
    });
  });
}

Status kl_host(int device, const BatchView& host, const KlCall& call, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    context.run([&] {
      const Fence fence(context, device, call.stream);
      const DeviceBatch batch = context.allocate_batch(host, call.columns, 0);
      send_in_slices(context, host, batch, kFeedTile, call.abort, [](int64_t, int64_t) {});
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
