// Runs calls that compute from logits on CUDA devices.
#pragma once

#include <napi.h>

#include "logits/call.h"

namespace policy_loss::addon {

// Implements logits() and logitsSync() for a call with NativeLogits.device. `object` is the argument from
// JavaScript of which `call` was read.
Napi::Value logits_on_cuda(const Napi::CallbackInfo& info, const Napi::Object& object, const LogitsCall& call,
                           bool later);

}  // namespace policy_loss::addon
