// The call that computes log-probabilities and entropies from logits, or the gradient with respect to the
// logits.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

// Implements logits() and logitsSync(). If `later` is set, returns a promise. Arguments from JavaScript:
// call.
Napi::Value logits(const Napi::CallbackInfo& info, bool later);

}  // namespace policy_loss::addon
