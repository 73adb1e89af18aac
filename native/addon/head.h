// The call that computes logits from hidden states, or the gradients back.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

// Implements head(call).
Napi::Value head(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon
