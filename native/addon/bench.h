// Functions for measurements, which only the bench build (POLICY_LOSS_BENCH) has. Their contract is
// bench/lib/native.ts.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

void add_bench_functions(Napi::Env env, Napi::Object exports);

}  // namespace policy_loss::addon
