// Emulates device memory that processes share. Memory of cudaMalloc() lies in a file without a name. A handle
// names the process and its file descriptor, so that another process can open the file through /proc. This is
// possible until the memory is freed or the process ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <map>

#include "machine.h"

using namespace emulation;

namespace {

struct Handle {
  uint64_t check;  // of the other members
  uint64_t inode;  // tells whether the descriptor still belongs to the same file
  MemoryFile memory;
  int process, device;
  uint64_t unused;
};
static_assert(sizeof(Handle) == sizeof(cudaIpcMemHandle_t));

// Returns the FNV-1a hash of everything after `check`.
uint64_t check_of(const Handle& handle) {
  const auto bytes = std::bit_cast<std::array<unsigned char, sizeof handle>>(handle);
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = sizeof handle.check; i < bytes.size(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

// The memory of other processes that is open, by inode.
auto& opened = *new std::map<uint64_t, void*>;

}  // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  ENTER();
  Handle exported{};
  exported.memory = file_of(memory);
  struct stat found;
  if (exported.memory.descriptor < 0 || fstat(exported.memory.descriptor, &found) != 0)
    return set_error(cudaErrorInvalidValue);
  exported.inode = found.st_ino;
  exported.process = getpid();
  exported.device = device_of(memory);
  exported.check = check_of(exported);
  *handle = std::bit_cast<cudaIpcMemHandle_t>(exported);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  ENTER();
  const auto exported = std::bit_cast<Handle>(handle);
  if (exported.check != check_of(exported) || exported.device >= device_count() ||
      opened.contains(exported.inode))
    return set_error(cudaErrorInvalidValue);
  if (exported.process == getpid()) return set_error(cudaErrorDeviceUninitialized);
  if (!makes_room(exported.device, exported.memory.bytes)) return set_error(cudaErrorMemoryAllocation);
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.memory.descriptor);
  MemoryFile file = exported.memory;
  file.descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found;
  const bool is_same = fstat(file.descriptor, &found) == 0 && found.st_ino == exported.inode;
  *memory = is_same ? map_file(exported.device, file) : nullptr;
  close(file.descriptor);
  if (!*memory) return set_error(cudaErrorNotPermitted);  // as seen on an H200
  opened[exported.inode] = *memory;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* memory) {
  ENTER();
  if (std::erase_if(opened, [=](const auto& each) { return each.second == memory; }) == 0)
    return set_error(cudaErrorInvalidValue);
  give_back(memory);
  return cudaSuccess;
}
