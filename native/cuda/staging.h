// Copies between host and device through a ring of pinned host buffers, which are called stages. While the
// device copies some stages, several host threads fill or empty the others. A single host thread would reach
// at most a fifth of the speed of the link to the device. Arrays that are page-locked themselves need no
// stages (direct.h).
//
// A copy is cut into chunks of a stage's size. Chunks have consecutive numbers, called tickets. Each chunk
// waits until the previous chunk in the same stage is done.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "cuda/direct.h"
#include "cuda/share.h"

namespace policy_loss::cuda {

// A stage is large enough to hide the cost of starting a copy. It is small enough that a slice of a batch
// keeps many threads busy. There are enough stages to keep the device's link busy while some threads start or
// finish.
constexpr int64_t kStageBytes = 1 << 20;
constexpr int kStages = 12;
// If a copy has fewer chunks than this, the calling thread copies them all, because it is done before another
// thread would have woken up.
constexpr int64_t kFewChunks = 4;

// One array to copy between host and device, in either direction.
struct Transfer {
  char* device = nullptr;
  char* host = nullptr;
  int64_t bytes = 0;

  int64_t chunks() const { return (bytes + kStageBytes - 1) / kStageBytes; }
  // Return the offset of a chunk in the array, and the size of the chunk, both in bytes.
  int64_t offset(int64_t chunk) const { return chunk * kStageBytes; }
  size_t size(int64_t chunk) const {
    return static_cast<size_t>(std::min(kStageBytes, bytes - offset(chunk)));
  }
};

class Staging {
 public:
  // Sets the device and the stream of the copies. Must be called first.
  void open(int device, cudaStream_t stream) {
    device_ = device;
    stream_ = stream;
    direct_.open(stream);
    for (int k = 0; k < kStages; ++k) stages_[k].ticket = k;
  }

  // Copies arrays to the device. When this returns, the copies may still be in progress on the stream. The
  // caller may then free the sources, except those in page-locked memory: they must stay until
  // finish_direct() has returned.
  void send(const Transfer* transfers, int count) {
    split(
        transfers, count, [&](const Transfer& one) { direct_.send(one.device, one.host, one.bytes); },
        [&](const Transfer* staged, int n) {
          Copy copy = begin(staged, n, nullptr);
          if (copy.chunks > 0) finish(copy, send_chunk);
        });
  }
  // Waits until the copies from page-locked memory are complete.
  void finish_direct() { direct_.wait(); }

  // Copies arrays from the device, after the work that is already on the stream. Returns when the copies are
  // complete. The result tells whether there was anything to copy. If *abort becomes non-zero, throws a
  // Failure with the status kAborted.
  bool receive(const Transfer* transfers, int count, const int32_t* abort) {
    bool waited = false;
    split(
        transfers, count,
        [&](const Transfer& one) {
          check_abort(abort);
          direct_.receive(one.host, one.device, one.bytes);
          waited = true;
        },
        [&](const Transfer* staged, int n) { waited = receive_staged(staged, n, abort) || waited; });
    direct_.wait();
    return waited;
  }

  // Frees the pinned buffers, which the next copy makes again. No copy may be in progress.
  void free() {
    for (Stage& stage : stages_) stage.data.free();
  }

 private:
  struct Stage {
    PinnedMemory data;
    Event copied;
    int64_t ticket = 0;  // the ticket of the chunk that may use the stage
  };

  // The state of one call of send() or receive(). The threads that share the copying all use it.
  struct Copy {
    Staging* staging;
    const Transfer* transfers;
    int64_t chunks;
    int64_t first;  // the first chunk's ticket
    const int32_t* abort;
    int64_t arrived = 0;                // the first chunks, which are known to have arrived from the device
    cudaError_t error = cudaSuccess;    // the first error
    const char* failed_call = nullptr;  // the function that returned it
    bool aborted = false;

    Stage& stage(int64_t chunk) { return staging->stages_[(first + chunk) % kStages]; }
    // Returns the array that a chunk belongs to, and sets *chunk to the chunk's place in the array.
    const Transfer& transfer(int64_t* chunk) const {
      const Transfer* at = transfers;
      for (; *chunk >= at->chunks(); ++at) *chunk -= at->chunks();
      return *at;
    }
    // Returns whether the copy should continue: false after an abort or an error.
    bool goes_on() {
      if (is_aborted(abort)) __atomic_store_n(&aborted, true, __ATOMIC_RELAXED);
      return !__atomic_load_n(&aborted, __ATOMIC_RELAXED) &&
             __atomic_load_n(&error, __ATOMIC_RELAXED) == cudaSuccess;
    }
    bool set_device() { return note(cudaSetDevice(staging->device_), "cudaSetDevice"); }
    // Records `found` if it is the first error of the copy. Returns true if `found` is not an error. `call`
    // is the name of the function that returned it.
    bool note(cudaError_t found, const char* call) {
      if (found == cudaSuccess) return true;
      cudaGetLastError();  // clears the error on this thread
      cudaError_t none = cudaSuccess;
      if (__atomic_compare_exchange_n(&error, &none, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        failed_call = call;
      return false;
    }
  };

  // Calls direct(transfer) for each array in page-locked memory, and staged(first, n) for each list of arrays
  // between them.
  template <class Direct, class Staged>
  static void split(const Transfer* transfers, int count, Direct direct, Staged staged) {
    int first = 0;
    for (int k = 0; k < count; ++k) {
      if (transfers[k].bytes == 0 || !is_page_locked(transfers[k].host, transfers[k].bytes)) continue;
      staged(transfers + first, k - first);
      direct(transfers[k]);
      first = k + 1;
    }
    staged(transfers + first, count - first);
  }

  bool receive_staged(const Transfer* transfers, int count, const int32_t* abort) {
    Copy copy = begin(transfers, count, abort);
    if (copy.chunks == 0) return false;
    for (int64_t early = 0; early < std::min<int64_t>(copy.chunks, kStages); ++early) ask_for(copy, early);
    // Waits here until the first chunk has arrived. Otherwise all threads that share the copying would have
    // to wait for the kernels that come before the copy. If the chunks are few, waits once for all of them.
    copy.arrived = copy.chunks < kFewChunks ? copy.chunks : 1;
    copy.note(wait_for(copy.stage(copy.arrived - 1).copied), "cudaEventQuery");
    finish(copy, receive_chunk);
    return true;
  }

  Copy begin(const Transfer* transfers, int count, const int32_t* abort) {
    Copy copy{this, transfers, 0, next_ticket_, abort};
    for (int k = 0; k < count; ++k) copy.chunks += transfers[k].chunks();
    if (copy.chunks > 0) make_stages();
    return copy;
  }

  void finish(Copy& copy, void (*chunk)(void*, int64_t)) {
    if (copy.chunks < kFewChunks)
      for (int64_t at = 0; at < copy.chunks; ++at) chunk(&copy, at);
    else
      share_work()(copy.chunks, chunk, &copy);
    next_ticket_ += copy.chunks;  // not reached if share_work() threw; then no chunk has begun
    check(copy.error, copy.failed_call);
    if (copy.aborted) end_aborted_call();
  }

  // Copy one chunk, on any thread. Chunks begin in order, so the previous chunk in the same stage
  // has already begun, and waiting for it cannot last forever. Even after an error, these functions pass the
  // stage on to the next chunk.
  static void send_chunk(void* what, int64_t chunk) {
    Copy& copy = *static_cast<Copy*>(what);
    Stage& stage = copy.stage(chunk);
    await_stage(copy, stage, chunk);
    int64_t at = chunk;
    const Transfer& transfer = copy.transfer(&at);
    if (copy.goes_on() && copy.set_device() && copy.note(wait_for(stage.copied), "cudaEventQuery")) {
      std::memcpy(stage.data.as(), transfer.host + transfer.offset(at), transfer.size(at));
      copy.note(cudaMemcpyAsync(transfer.device + transfer.offset(at), stage.data.as(), transfer.size(at),
                                cudaMemcpyHostToDevice, copy.staging->stream_),
                "cudaMemcpyAsync");
      copy.note(cudaEventRecord(stage.copied, copy.staging->stream_), "cudaEventRecord");
    }
    pass_on(copy, stage, chunk);
  }

  static void receive_chunk(void* what, int64_t chunk) {
    Copy& copy = *static_cast<Copy*>(what);
    Stage& stage = copy.stage(chunk);
    await_stage(copy, stage, chunk);
    const auto arrives = [&] {
      return chunk < copy.arrived || copy.note(wait_for(stage.copied), "cudaEventQuery");
    };
    if (copy.goes_on() && copy.set_device() && arrives()) {
      int64_t at = chunk;
      const Transfer& transfer = copy.transfer(&at);
      std::memcpy(transfer.host + transfer.offset(at), stage.data.as(), transfer.size(at));
      if (chunk + kStages < copy.chunks) ask_for(copy, chunk + kStages);
    }
    pass_on(copy, stage, chunk);
  }

  // Starts the copy of a chunk from the device into its stage.
  static void ask_for(Copy& copy, int64_t chunk) {
    Stage& stage = copy.stage(chunk);
    int64_t at = chunk;
    const Transfer& transfer = copy.transfer(&at);
    copy.note(cudaMemcpyAsync(stage.data.as(), transfer.device + transfer.offset(at), transfer.size(at),
                              cudaMemcpyDeviceToHost, copy.staging->stream_),
              "cudaMemcpyAsync");
    copy.note(cudaEventRecord(stage.copied, copy.staging->stream_), "cudaEventRecord");
  }

  static void await_stage(const Copy& copy, const Stage& stage, int64_t chunk) {
    const long long patience = now() + kPatience;
    while (__atomic_load_n(&stage.ticket, __ATOMIC_ACQUIRE) != copy.first + chunk)
      if (now() > patience)
        sleep_for(kPatience);
      else
        sched_yield();
  }
  static void pass_on(const Copy& copy, Stage& stage, int64_t chunk) {
    __atomic_store_n(&stage.ticket, copy.first + chunk + kStages, __ATOMIC_RELEASE);
  }

  void make_stages() {
    for (Stage& stage : stages_) {
      stage.data.create(kStageBytes);
      stage.copied.create(cudaEventDisableTiming | cudaEventBlockingSync);
    }
  }

  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  Stage stages_[kStages];
  DirectCopies direct_;
  int64_t next_ticket_ = 0;
};

}  // namespace policy_loss::cuda
