// Page-locked host memory that JavaScript holds as ArrayBuffers.
#pragma once

#include <napi.h>

#include <memory>

#include "cuda/cuda.h"

namespace policy_loss::addon {

// A shared reference to a block of page-locked memory. The block is freed with its last reference.
using PinnedHandle = std::shared_ptr<cuda::PinnedBlock>;

// Returns the block that contains an address, or null if none does. Calls in progress hold the blocks of
// their arrays, because Node frees the memory of a thread's ArrayBuffers when the thread ends, even if they
// are still in use.
PinnedHandle pinned_block_at(const void* address);

Napi::Value alloc_pinned(const Napi::CallbackInfo& info);
Napi::Value free_pinned(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon
