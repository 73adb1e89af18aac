// The call that computes log-probabilities and entropies from logits, or the gradient with respect to the
// logits.
#pragma once

#include <napi.h>

#include "addon/read.h"

namespace policy_loss::addon {

// Implements logits() and logitsSync(). If `later` is set, returns a promise. Arguments from JavaScript:
// call.
Napi::Value logits(const Napi::CallbackInfo& info, bool later);

// Implements evaluate() and evaluateSync() with NativeCall.logits, which is `object`.
Napi::Value logits_gradient(const Napi::CallbackInfo& info, const FunctionHandle& function,
                            const BatchView& batch, const Call& call, const Napi::Object& object, bool later);

}  // namespace policy_loss::addon
