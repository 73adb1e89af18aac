// The call that computes log-probabilities and entropies from logits, or the gradient with respect to the
// logits.
#pragma once

#include <napi.h>

#include "addon/read.h"

namespace policy_loss::addon {

// Implements logits(call).
Napi::Value logits(const Napi::CallbackInfo& info);

// Implements evaluate(call) for a call with NativeCall.logits, which is `logits`.
Napi::Value logits_gradient(const Napi::Object& object, const FunctionHandle& function,
                            const BatchView& batch, const Call& call, const Napi::Object& logits);

}  // namespace policy_loss::addon
