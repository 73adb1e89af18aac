// Emulates the memory of the devices, and the shared memory of blocks. New memory is
// filled with NaN and lies between guard zones, so that tests notice reads of unset memory and writes out of
// bounds.
//
// The objects of this file are never destroyed, because a thread may still be inside the emulation when the
// process ends.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "address_sanitizer.h"
#include "machine.h"

#if ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace emulation {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xdb;
constexpr unsigned char kFresh = 0xff;  // NaN in every dtype

// The alignment of emulated memory, in bytes. It suits the largest loads.
constexpr size_t kAlignment = 16;

// With AddressSanitizer, guard zones are poisoned: every access to them ends the process. Otherwise they are
// filled with a pattern, and check_guards_of() compares them with it.
#if ADDRESS_SANITIZER
void poison(unsigned char* from, unsigned char* to) {
  ASAN_POISON_MEMORY_REGION(from, static_cast<size_t>(to - from));
}
void unpoison(unsigned char* from, size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(from, bytes);
}
void check_guards_of(const unsigned char*, size_t, const char*) {}
#else
void poison(unsigned char*, unsigned char*) {}
void unpoison(unsigned char*, size_t) {}
void check_guards_of(const unsigned char* begin, size_t bytes, const char* what) {
  for (size_t i = 1; i <= kGuardBytes; ++i) {
    const bool below = begin[-static_cast<ptrdiff_t>(i)] != kGuard;
    const bool above = begin[bytes + i - 1] != kGuard;
    if (!below && !above) continue;
    record_fault("out of bounds: a kernel wrote " + std::string(below ? "before " : "past ") + what + " of " +
                 std::to_string(bytes) + " bytes");
    return;
  }
}
#endif

// Returns the first address, not before `from`, that is a multiple of kAlignment but not of twice as much.
unsigned char* barely_aligned(unsigned char* from) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(from) + kAlignment - 1;
  return reinterpret_cast<unsigned char*>(address / (2 * kAlignment) * (2 * kAlignment) + kAlignment);
}

// Memory between two guard zones, and the room in which all three lie. The room is from malloc(), or a mapped
// file.
struct Guarded {
  size_t bytes = 0;
  unsigned char* begin = nullptr;
  unsigned char* room = nullptr;
  size_t room_bytes = 0;
  bool is_mapped = false;
  int file = -1;  // the file, if it was made for this memory

  // Makes a room of plain memory, or of a new file if `shareable` is set. Leaves `room` null if the host does
  // not have enough memory.
  Guarded(size_t size, bool shareable) : bytes(size), room_bytes(size + 2 * kGuardBytes + 2 * kAlignment) {
    if (shareable) {
      file = memfd_create("emulated device memory", MFD_CLOEXEC);
      if (file < 0 || ftruncate(file, static_cast<off_t>(room_bytes)) != 0 || !map(file)) {
        close_file();
        return;
      }
    } else {
      room = static_cast<unsigned char*>(std::malloc(room_bytes));
      if (!room) return;
    }
    begin = barely_aligned(room + kGuardBytes);
    std::memset(room, kGuard, room_bytes);
    std::memset(begin, kFresh, bytes);
    protect();
  }

  // Maps the file of another process.
  explicit Guarded(const MemoryFile& from) : bytes(from.bytes), room_bytes(from.file_bytes) {
    if (!map(static_cast<int>(from.descriptor))) return;
    begin = room + from.offset;
    protect();
  }

  void free() {
    unpoison(room, room_bytes);
    if (is_mapped)
      munmap(room, room_bytes);
    else
      std::free(room);
    close_file();
  }

  void check(const char* what) const { check_guards_of(begin, bytes, what); }

 private:
  bool map(int from) {
    void* const mapped = mmap(nullptr, room_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
    is_mapped = mapped != MAP_FAILED;
    if (is_mapped) room = static_cast<unsigned char*>(mapped);
    return is_mapped;
  }
  void protect() const {
    poison(room, begin);
    poison(begin + bytes, room + room_bytes);
  }
  void close_file() {
    if (file >= 0) close(file);
    file = -1;
  }
};

struct Allocation {
  Guarded memory;
  int device;
};
using Allocations = std::map<uintptr_t, Allocation>;  // by address
auto& allocations = *new Allocations;
auto& used_bytes = *new std::map<int, size_t>;  // by device
auto& pinned = *new std::map<unsigned char*, Guarded>;
size_t pinned_bytes = 0;
// The allocation of the last access. It is checked first, because most accesses are to the same allocation as
// the access before.
Allocations::const_iterator recent = allocations.end();

bool contains(Allocations::const_iterator allocation, uintptr_t address, size_t bytes) {
  return allocation != allocations.end() && address >= allocation->first &&
         address + bytes <= allocation->first + allocation->second.memory.bytes;
}

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

// Adds memory to the allocations, and returns its address; null if there is none.
static void* add(int device, const Guarded& memory) {
  if (!memory.room) return nullptr;
  allocations.insert({reinterpret_cast<uintptr_t>(memory.begin), {memory, device}});
  used_bytes[device] += memory.bytes;
  return memory.begin;
}

void* allocate(int device, size_t bytes, bool shareable) {
  return add(device, Guarded(bytes, shareable));
}

void* map_file(int device, const MemoryFile& file) {
  return add(device, Guarded(file));
}

MemoryFile file_of(const void* begin) {
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(begin));
  if (found == allocations.end()) return {};
  const Guarded& memory = found->second.memory;
  return {memory.file, memory.room_bytes, static_cast<size_t>(memory.begin - memory.room), memory.bytes};
}

void give_back(void* memory) {
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(memory));
  if (found == allocations.end()) {
    record_fault("memory is given back that was not allocated");
    return;
  }
  Guarded last = found->second.memory;
  used_bytes[found->second.device] -= last.bytes;
  recent = allocations.end();
  allocations.erase(found);
  last.free();
}

void for_each_allocation(const std::function<void(unsigned char* memory, size_t bytes)>& visit) {
  for (const auto& [address, allocation] : allocations)
    visit(reinterpret_cast<unsigned char*>(address), allocation.memory.bytes);
}

int device_of(const void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const auto next = allocations.upper_bound(address);
  if (next == allocations.begin() || !contains(std::prev(next), address, 1)) return -1;
  return std::prev(next)->second.device;
}

void* allocate_pinned(size_t bytes) {
  if (pinned_bytes + bytes > device_memory()) return nullptr;
  const Guarded memory(bytes, false);
  if (!memory.room) return nullptr;
  pinned.insert({memory.begin, memory});
  pinned_bytes += bytes;
  return memory.begin;
}

void give_back_pinned(void* memory) {
  const auto found = pinned.find(static_cast<unsigned char*>(memory));
  if (found == pinned.end()) return record_fault("pinned memory is given back that was not allocated");
  Guarded last = found->second;
  pinned_bytes -= last.bytes;
  pinned.erase(found);
  last.free();
}

bool is_pinned(const void* pointer) {
  unsigned char* const address = static_cast<unsigned char*>(const_cast<void*>(pointer));
  const auto next = pinned.upper_bound(address);
  return next != pinned.begin() && address < std::prev(next)->first + std::prev(next)->second.bytes;
}

void count_memory(Holdings* found) {
  for (const auto& [device, bytes] : used_bytes) found->device_bytes += static_cast<int64_t>(bytes);
  found->pinned_bytes += static_cast<int64_t>(pinned_bytes);
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

void check_copy(const void* device, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(device);
  const auto next = allocations.upper_bound(address);
  if (next == allocations.begin() || !contains(std::prev(next), address, bytes))
    record_fault("out of bounds: a copy of " + std::to_string(bytes) + " bytes, not in an allocation");
}

void check_guards() {
  for (const auto& [address, allocation] : allocations) allocation.memory.check("an allocation");
  for (const auto& [begin, memory] : pinned) memory.check("pinned memory");
}

void SharedMemory::fill(size_t bytes) {
  const size_t needed = bytes + 2 * kGuardBytes + 2 * kAlignment;
  if (room_) unpoison(room_, room_bytes_);
  if (room_bytes_ < needed) {
    std::free(room_);
    room_ = static_cast<unsigned char*>(std::malloc(needed));
    room_bytes_ = needed;
  }
  begin_ = barely_aligned(room_ + kGuardBytes);
  std::memset(room_, kGuard, room_bytes_);
  std::memset(begin_, kFresh, bytes);
  poison(room_, begin_);
  poison(begin_ + bytes, room_ + room_bytes_);
}

void SharedMemory::check_guards(size_t bytes) const {
  check_guards_of(begin_, bytes, "the shared memory that its launch asked for, which is");
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
