// Copies between host and device through a ring of pinned host buffers, which are called stages. While the
// device copies some stages, several host threads fill or empty the others. A single host thread would reach
// at most a fifth of the speed of the link to the device. Arrays that are page-locked themselves need no
// stages (direct.h).
//
// A copy is cut into pieces of a stage's size. Pieces have consecutive numbers, called tickets. Each piece
// waits until the previous piece in the same stage is done.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "cuda/direct.h"
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

class Staging {
 public:
  // Sets the device and the stream of the copies. Must be called first.
  void open(int device, cudaStream_t stream) {
    device_ = device;
    stream_ = stream;
    direct_.open(stream);
    for (int k = 0; k < kStages; ++k) stages_[k].turn = k;
  }

  // Copies arrays to the device. When this returns, the copies may still be in progress on the stream. The
  // caller may then free the sources, except those in page-locked memory: they must stay until
  // finish_direct() has returned.
  void send(const Transfer* transfers, int count) {
    split(
        transfers, count, [&](const Transfer& one) { direct_.send(one.device, one.host, one.bytes); },
        [&](const Transfer* staged, int n) {
          Run run = begin(staged, n, nullptr);
          if (run.pieces > 0) finish(run, send_piece);
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
    int64_t turn = 0;  // the ticket of the piece that may use the stage
  };

  // The state of one call of send() or receive(). The threads that share the copying all use it.
  struct Run {
    Staging* staging;
    const Transfer* transfers;
    int64_t pieces;
    int64_t first;  // the first piece's ticket
    const int32_t* abort;
    int64_t arrived = 0;                // the first pieces, which are known to have arrived from the device
    cudaError_t error = cudaSuccess;    // the first error
    const char* failed_call = nullptr;  // the function that returned it
    bool aborted = false;

    Stage& stage(int64_t piece) { return staging->stages_[(first + piece) % kStages]; }
    // Returns the array that a piece belongs to, and sets *piece to the piece's place in the array.
    const Transfer& transfer(int64_t* piece) const {
      const Transfer* at = transfers;
      for (; *piece >= at->pieces(); ++at) *piece -= at->pieces();
      return *at;
    }
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
    Run run = begin(transfers, count, abort);
    if (run.pieces == 0) return false;
    for (int64_t early = 0; early < std::min<int64_t>(run.pieces, kStages); ++early) ask_for(run, early);
    // Waits here until the first piece has arrived. Otherwise all threads that share the copying would have
    // to wait for the kernels that come before the copy. If the pieces are few, waits once for all of them.
    run.arrived = run.pieces < kFewPieces ? run.pieces : 1;
    run.note(wait_for(run.stage(run.arrived - 1).copied), "cudaEventQuery");
    finish(run, receive_piece);
    return true;
  }

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
    int64_t at = piece;
    const Transfer& transfer = run.transfer(&at);
    if (run.goes_on() && run.set_device() && run.note(wait_for(stage.copied), "cudaEventQuery")) {
      std::memcpy(stage.data.as(), transfer.host + transfer.offset(at), transfer.size(at));
      run.note(cudaMemcpyAsync(transfer.device + transfer.offset(at), stage.data.as(), transfer.size(at),
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
    const auto arrives = [&] {
      return piece < run.arrived || run.note(wait_for(stage.copied), "cudaEventQuery");
    };
    if (run.goes_on() && run.set_device() && arrives()) {
      int64_t at = piece;
      const Transfer& transfer = run.transfer(&at);
      std::memcpy(transfer.host + transfer.offset(at), stage.data.as(), transfer.size(at));
      if (piece + kStages < run.pieces) ask_for(run, piece + kStages);
    }
    end_turn(run, stage, piece);
  }

  // Starts the copy of a piece from the device into its stage.
  static void ask_for(Run& run, int64_t piece) {
    Stage& stage = run.stage(piece);
    int64_t at = piece;
    const Transfer& transfer = run.transfer(&at);
    run.note(cudaMemcpyAsync(stage.data.as(), transfer.device + transfer.offset(at), transfer.size(at),
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
  DirectCopies direct_;
  int64_t next_ticket_ = 0;
};

}  // namespace policy_loss::cuda
