#include "addon/device_logits.h"

#include "addon/device_work.h"

namespace policy_loss::addon {

Napi::Value logits_on_cuda(const Napi::CallbackInfo& info, const Napi::Object& object, const LogitsCall& call,
                           bool later) {
  auto work = std::make_shared<Work>();
  cuda::DeviceLogits logits;
  logits.call = call;
  logits.data_there = object.Get("data").IsBigInt();
  logits.out_there = object.Get("out").IsBigInt();
  logits.data_handle = handle_if_any(object.Get("dataHandle"));
  logits.out_handle = handle_if_any(object.Get("outHandle"));
  logits.stream = stream_if_any(object.Get("stream"));
  const int device = object.Get("device").ToNumber().Int32Value();
  work->device = device;
  work->caller_abort = flag_if_any(object.Get("abort"));
  keep_arrays(object.Get("arrays"), &work->arrays);
  take_tensors(object.Get("capsules"), &work->tensors);
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    cuda::DeviceLogits abortable = logits;
    abortable.abort = abort;
    return cuda::logits(device, abortable, problem);
  };
  work->value = [](Napi::Env env) { return Napi::Number::New(env, 0); };
  return perform(info, work, later);
}

}  // namespace policy_loss::addon
