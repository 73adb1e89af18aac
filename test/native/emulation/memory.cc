// Emulates the memory of the devices, and the shared memory of the block that is running. New memory is
// filled with NaN and lies between guard zones, so that tests notice reads of unset memory and writes out of
// bounds.
//
// The objects of this file are never destroyed, because a thread may still be inside the emulation when the
// process ends.
#include <cstdlib>
#include <map>
#include <vector>

#include "machine.h"

namespace emulation {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xdb;
constexpr unsigned char kFresh = 0xff;  // NaN in every dtype

struct Allocation {
  size_t bytes;
  int device;
};
using Allocations = std::map<uintptr_t, Allocation>;  // by address
auto& allocations = *new Allocations;
auto& used_bytes = *new std::map<int, size_t>;  // by device
auto& pinned = *new std::map<void*, size_t>;    // the sizes of pinned host memory
// The allocation of the last access. It is checked first, because most accesses are to the same allocation as
// the access before.
Allocations::const_iterator recent = allocations.end();

bool contains(Allocations::const_iterator allocation, uintptr_t address, size_t bytes) {
  return allocation != allocations.end() && address >= allocation->first &&
         address + bytes <= allocation->first + allocation->second.bytes;
}

// Emulated shared memory is an array of chunks. Their alignment suits the largest loads, of 16 bytes.
struct alignas(16) Chunk {
  unsigned char bytes[16];
};
auto& shared_memory = *new std::vector<Chunk>;
// The most dynamic shared memory that a kernel may request without permit_shared(): CUDA's limit of 48 KB,
// minus the most static shared memory that a kernel may declare (kOwnSharedBytes in native/cuda/kernels.h).
constexpr size_t kPlainShared = 48 * 1024 - 8704;
auto& permitted_shared = *new std::map<void*, size_t>;  // by kernel

}  // namespace

size_t device_memory() {
  return number_from_environment("POLICY_LOSS_EMULATION_MEMORY", size_t{1} << 32);
}

bool has_room(int device, size_t bytes) {
  return used_bytes[device] + bytes <= device_memory();
}

void* allocate(int device, size_t bytes) {
  const size_t whole = (bytes + 2 * kGuardBytes + 255) / 256 * 256;
  unsigned char* const block = static_cast<unsigned char*>(std::aligned_alloc(256, whole));
  if (!block) return nullptr;
  std::memset(block, kGuard, whole);
  std::memset(block + kGuardBytes, kFresh, bytes);
  allocations[reinterpret_cast<uintptr_t>(block + kGuardBytes)] = {bytes, device};
  used_bytes[device] += bytes;
  return block + kGuardBytes;
}

void give_back(void* memory) {
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(memory));
  if (found == allocations.end()) {
    record_fault("memory is given back that was not allocated");
    return;
  }
  used_bytes[found->second.device] -= found->second.bytes;
  recent = allocations.end();
  allocations.erase(found);
  std::free(static_cast<unsigned char*>(memory) - kGuardBytes);
}

int device_of(const void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const auto next = allocations.upper_bound(address);
  if (next == allocations.begin() || !contains(std::prev(next), address, 1)) return -1;
  return std::prev(next)->second.device;
}

void* allocate_pinned(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory) pinned[memory] = bytes;
  return memory;
}

void give_back_pinned(void* memory) {
  pinned.erase(memory);
  std::free(memory);
}

void count_memory(Holdings* found) {
  for (const auto& [device, bytes] : used_bytes) found->device_bytes += static_cast<int64_t>(bytes);
  for (const auto& [memory, bytes] : pinned) found->pinned_bytes += static_cast<int64_t>(bytes);
}

void check_access(const void* pointer, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address % bytes != 0)
    fault("misaligned: %zu bytes at %p in thread %u", bytes, pointer, indices.thread.x);
  if (contains(recent, address, bytes)) return;
  const auto next = allocations.upper_bound(address);
  recent = next == allocations.begin() ? allocations.end() : std::prev(next);
  if (!contains(recent, address, bytes))
    fault("out of bounds: %zu bytes at %p, in no allocation, by thread %u of block %u", bytes, pointer,
          indices.thread.x, indices.block.x);
}

void check_guards() {
  for (const auto& [address, allocation] : allocations) {
    const unsigned char* const begin = reinterpret_cast<const unsigned char*>(address);
    for (size_t i = 1; i <= kGuardBytes; ++i) {
      const bool below = begin[-static_cast<ptrdiff_t>(i)] != kGuard;
      const bool above = begin[allocation.bytes + i - 1] != kGuard;
      if (!below && !above) continue;
      record_fault("out of bounds: a kernel wrote " + std::string(below ? "before" : "past") +
                   " an allocation of " + std::to_string(allocation.bytes) + " bytes");
      return;
    }
  }
}

void fill_shared(size_t bytes) {
  const size_t whole = (bytes + 15) / 16 * 16;
  shared_memory.resize((whole + 2 * kGuardBytes) / sizeof(Chunk));
  unsigned char* const begin = shared_memory[0].bytes;
  std::memset(begin, kGuard, whole + 2 * kGuardBytes);
  std::memset(begin + kGuardBytes, kFresh, bytes);
}

void check_shared_guards(size_t bytes) {
  const unsigned char* const begin = shared_memory[0].bytes + kGuardBytes;
  for (size_t i = 1; i <= kGuardBytes; ++i)
    if (begin[-static_cast<ptrdiff_t>(i)] != kGuard || begin[bytes + i - 1] != kGuard)
      record_fault("out of bounds: a kernel wrote beyond the " + std::to_string(bytes) +
                   " bytes of shared memory that its launch asked for");
}

char* launch_memory() {
  return reinterpret_cast<char*>(shared_memory.data() + kGuardBytes / sizeof(Chunk));
}

void permit(void* kernel, size_t bytes) {
  permitted_shared[kernel] = bytes;
}

void check_shared(void* kernel, size_t bytes) {
  const auto permitted = permitted_shared.find(kernel);
  if (bytes > (permitted == permitted_shared.end() ? kPlainShared : permitted->second))
    record_fault("a launch asks for " + std::to_string(bytes) + " bytes of shared memory");
}

}  // namespace emulation
