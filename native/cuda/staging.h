// Copies between host and device through a ring of pinned host buffers, which are called stages. While the
// device copies some stages, several host threads fill or empty the others. A single host thread would reach
// at most a fifth of the speed of the link to the device.
//
// A copy is cut into pieces of a stage's size. Pieces have consecutive numbers, called tickets. Each piece
// waits until the previous piece in the same stage is done.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "cuda/failure.h"
#include "cuda/host.h"
#include "cuda/memory.h"
#include "cuda/share.h"

namespace policy_loss::cuda {

// A stage is large enough to hide the cost of starting a copy. It is small enough that a chunk of a batch
// keeps many threads busy. There are enough stages to keep the device's link busy while some threads start or
// finish.
constexpr int64_t kStageBytes = 1 << 20;
constexpr int kStages = 12;
// If a copy has fewer pieces than this, the calling thread copies them all, because it is done before another
// thread would have woken up.
constexpr int64_t kFewPieces = 4;

// One array to copy between host and device, in either direction.
struct Transfer {
  char* device = nullptr;
  char* host = nullptr;
  int64_t bytes = 0;

  int64_t pieces() const { return (bytes + kStageBytes - 1) / kStageBytes; }
  // Return the offset of a piece in the array, and the size of the piece, both in bytes.
  int64_t offset(int64_t piece) const { return piece * kStageBytes; }
  size_t size(int64_t piece) const {
    return static_cast<size_t>(std::min(kStageBytes, bytes - offset(piece)));
  }
};

// How long a thread polls before it sleeps, in nanoseconds. Most waits end before a thread could fall asleep.
// During a longer wait, the thread should not occupy a core.
constexpr long long kPatience = 50'000;

inline cudaError_t wait_for(cudaEvent_t event) {
  const long long patience = now() + kPatience;
  cudaError_t state;
  while ((state = cudaEventQuery(event)) == cudaErrorNotReady) {
    cudaGetLastError();  // cudaErrorNotReady is not an error, but the runtime records it as the last one
    if (now() > patience) return cudaEventSynchronize(event);
  }
  return state;
}

class Staging {
 public:
  // Sets the device and the stream of the copies. Must be called first.
  void open(int device, cudaStream_t stream) {
    device_ = device;
    stream_ = stream;
    for (int k = 0; k < kStages; ++k) stages_[k].turn = k;
  }

  // Copies arrays to the device. When this returns, the caller may free the sources, but the copies may still
  // be in progress on the stream.
  void send(const Transfer* transfers, int count) {
    Run run = begin(transfers, count, nullptr);
    if (run.pieces > 0) finish(run, send_piece);
  }

  // Copies an array from the device, after the work that is already on the stream. Returns when the copy is
  // complete. If *abort becomes non-zero, throws a Failure with the status kAborted.
  void receive(const Transfer& transfer, const int32_t* abort) {
    Run run = begin(&transfer, 1, abort);
    if (run.pieces == 0) return;
    for (int64_t early = 0; early < std::min<int64_t>(run.pieces, kStages); ++early) ask_for(run, early);
    // Waits here until the first piece has arrived. Otherwise all threads that share the copying would have
    // to wait for the kernels that come before the copy.
    run.note(wait_for(run.stage(0).copied), "cudaEventQuery");
    finish(run, receive_piece);
  }

 private:
  struct Stage {
    PinnedMemory data;
    Event copied;
    int64_t turn = 0;  // the ticket of the piece that may use the stage
  };

  // The state of one call of send() or receive(). The threads that share the copying all use it.
  struct Run {
    Staging* staging;
    const Transfer* transfers;
    int64_t pieces;
    int64_t first;  // the first piece's ticket
    const int32_t* abort;
    cudaError_t error = cudaSuccess;    // the first error
    const char* failed_call = nullptr;  // the function that returned it
    bool aborted = false;

    Stage& stage(int64_t piece) { return staging->stages_[(first + piece) % kStages]; }
    // Returns whether the run should continue: false after an abort or an error.
    bool goes_on() {
      if (is_aborted(abort)) __atomic_store_n(&aborted, true, __ATOMIC_RELAXED);
      return !__atomic_load_n(&aborted, __ATOMIC_RELAXED) &&
             __atomic_load_n(&error, __ATOMIC_RELAXED) == cudaSuccess;
    }
    bool set_device() { return note(cudaSetDevice(staging->device_), "cudaSetDevice"); }
    // Records `found` if it is the first error of the run. Returns true if `found` is not an error. `call` is
    // the name of the function that returned it.
    bool note(cudaError_t found, const char* call) {
      if (found == cudaSuccess) return true;
      cudaGetLastError();  // clears the error on this thread
      cudaError_t none = cudaSuccess;
      if (__atomic_compare_exchange_n(&error, &none, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        failed_call = call;
      return false;
    }
  };

  Run begin(const Transfer* transfers, int count, const int32_t* abort) {
    Run run{this, transfers, 0, next_ticket_, abort};
    for (int k = 0; k < count; ++k) run.pieces += transfers[k].pieces();
    if (run.pieces > 0) make_stages();
    return run;
  }

  void finish(Run& run, void (*piece)(void*, int64_t)) {
    if (run.pieces < kFewPieces)
      for (int64_t at = 0; at < run.pieces; ++at) piece(&run, at);
    else
      share_work()(run.pieces, piece, &run);
    next_ticket_ += run.pieces;  // not reached if share_work() threw; then no piece has begun
    check(run.error, run.failed_call);
    if (run.aborted) end_aborted_call();
  }

  // Copy one piece of a run, on any thread. Pieces begin in order, so the previous piece in the same stage
  // has already begun, and waiting for it cannot last forever. Even after an error, these functions pass the
  // stage on to the next piece.
  static void send_piece(void* what, int64_t piece) {
    Run& run = *static_cast<Run*>(what);
    Stage& stage = run.stage(piece);
    await_turn(run, stage, piece);
    const Transfer* transfer = run.transfers;
    int64_t at = piece;
    for (; at >= transfer->pieces(); ++transfer) at -= transfer->pieces();
    if (run.goes_on() && run.set_device() && run.note(wait_for(stage.copied), "cudaEventQuery")) {
      std::memcpy(stage.data.as(), transfer->host + transfer->offset(at), transfer->size(at));
      run.note(cudaMemcpyAsync(transfer->device + transfer->offset(at), stage.data.as(), transfer->size(at),
                               cudaMemcpyHostToDevice, run.staging->stream_),
               "cudaMemcpyAsync");
      run.note(cudaEventRecord(stage.copied, run.staging->stream_), "cudaEventRecord");
    }
    end_turn(run, stage, piece);
  }

  static void receive_piece(void* what, int64_t piece) {
    Run& run = *static_cast<Run*>(what);
    Stage& stage = run.stage(piece);
    await_turn(run, stage, piece);
    if (run.goes_on() && run.set_device() && run.note(wait_for(stage.copied), "cudaEventQuery")) {
      const Transfer& transfer = *run.transfers;
      std::memcpy(transfer.host + transfer.offset(piece), stage.data.as(), transfer.size(piece));
      if (piece + kStages < run.pieces) ask_for(run, piece + kStages);
    }
    end_turn(run, stage, piece);
  }

  // Starts the copy of a piece from the device into its stage.
  static void ask_for(Run& run, int64_t piece) {
    Stage& stage = run.stage(piece);
    const Transfer& transfer = *run.transfers;
    run.note(cudaMemcpyAsync(stage.data.as(), transfer.device + transfer.offset(piece), transfer.size(piece),
                             cudaMemcpyDeviceToHost, run.staging->stream_),
             "cudaMemcpyAsync");
    run.note(cudaEventRecord(stage.copied, run.staging->stream_), "cudaEventRecord");
  }

  static void await_turn(const Run& run, const Stage& stage, int64_t piece) {
    const long long patience = now() + kPatience;
    while (__atomic_load_n(&stage.turn, __ATOMIC_ACQUIRE) != run.first + piece)
      if (now() > patience)
        sleep_for(kPatience);
      else
        sched_yield();
  }
  static void end_turn(const Run& run, Stage& stage, int64_t piece) {
    __atomic_store_n(&stage.turn, run.first + piece + kStages, __ATOMIC_RELEASE);
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
  int64_t next_ticket_ = 0;
};

}  // namespace policy_loss::cuda
