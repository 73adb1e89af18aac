// Functions for measurements. Only the bench build (POLICY_LOSS_BENCH) has them. The file bench/lib/native.ts
// declares and describes them.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

void add_bench_functions(Napi::Env env, Napi::Object exports);

}  // namespace policy_loss::addon
