// Functions for measurements. Only the bench build has them (POLICY_LOSS_BENCH); bench/native.d.ts is their
// contract.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

void add_bench_functions(Napi::Env env, Napi::Object exports);

}  // namespace policy_loss::addon
