// Host code that manages a device. It cuts batches into chunks (ranges of tokens, see pass.h), keeps scratch
// memory and the results of calls, and chooses the grids of kernels.
//
// Each device has one context for the whole process. It is the channel (channel.h) of the calls that compute,
// and has another channel for uploads.
#pragma once

#include <algorithm>

#include "cuda/channel.h"
#include "cuda/kernels.h"

namespace policy_loss::cuda {

class Context : public Channel {
 public:
  explicit Context(int device) : Channel(device), uploads_(device, this) {
    const CurrentDevice current(device);
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    multiprocessors_ = properties.multiProcessorCount;
    shared_bytes_ = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
    reserved_shared_bytes_ = static_cast<int64_t>(properties.reservedSharedMemPerBlock);
    for (Event* event : {&passes_begin_, &tokens_begin_, &passes_end_}) event->create(0);
    totals_ = allocate(sizeof(Totals));
    device_result_ = allocate(sizeof(Result));
    result_.create(sizeof(Result), cudaHostAllocMapped);
    int can_map = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&can_map, cudaDevAttrCanMapHostMemory, device));
    if (can_map) CUDA_CHECK(cudaHostGetDevicePointer(&mapped_result_, result_.as<void>(), 0));
  }

  // Channel::run() for a call that launches passes.
  template <class Body>
  void run(Body body) {
    Channel::run([&] {
      // The call expects all totals to be 0. A failed call may have left other values.
      if (!totals_are_zero_) CUDA_CHECK(cudaMemsetAsync(totals_.as<void>(), 0, sizeof(Totals), compute()));
      totals_are_zero_ = false;
      body();
      totals_are_zero_ = true;
    });
  }

  // The channel of uploads, which run at the same time as calls that compute.
  Channel& uploads() { return uploads_; }

  // Waits until no call uses the device, and makes all later calls wait for ever. For the end of the process.
  void close() {
    Channel::close();
    uploads_.close();
  }

  // Gives scratch memory, pinned buffers and the memory that was freed back to the driver.
  void trim() {
    run([&] {
      uploads_.run([&] {
        for (Buffer& buffer : scratch_) buffer = Buffer();
        for (Channel* const channel : {static_cast<Channel*>(this), &uploads_}) {
          channel->finish();
          channel->free_staging();
        }
        memory().trim();
      });
    });
  }

  // Returns how many blocks of a kernel with a feed (feed.cuh) the device runs at once. A block uses `memory`
  // bytes of dynamic shared memory.
  int64_t fed_blocks(int memory) const {
    const int64_t blocks = shared_bytes_ / (memory + kOwnSharedBytes + reserved_shared_bytes_);
    return multiprocessors_ * std::clamp<int64_t>(blocks, 1, kFedBlocksPerMultiprocessor);
  }

  // Returns the most blocks of a kernel with a feed that the device runs at once.
  int64_t most_fed_blocks() const { return multiprocessors_ * kFedBlocksPerMultiprocessor; }

  // Chooses the number of blocks and stages for a kernel with a feed that needs this memory.
  void choose_feed(const FeedMemory& memory, ChunkedBatch* pass) const {
    pass->fed_blocks = fed_blocks(memory.bytes(kLeastFeedStages));
    const bool most = fed_blocks(memory.bytes(kMostFeedStages)) == pass->fed_blocks;
    pass->feed_stages = most ? kMostFeedStages : kLeastFeedStages;
  }

  // Cuts the batch's tokens into chunks (pass.h). Their length is chosen so that all warps of this number of
  // blocks get nearly the same number of tokens.
  void cut(int64_t blocks, ChunkedBatch* pass) const {
    const int64_t warps = blocks * kWarps;
    const int64_t rounds = pass->tokens / (warps * kMaxChunk) + 1;
    const int64_t fair = (pass->tokens + warps * rounds - 1) / (warps * rounds);
    pass->chunk_tokens = std::max<int64_t>((fair + kFeedTile - 1) / kFeedTile, 1) * kFeedTile;
    pass->chunks = (pass->tokens + pass->chunk_tokens - 1) / pass->chunk_tokens;
  }

  // Returns the arguments of the passes over a batch: the scratch memory, and all members that do not depend
  // on the evaluated function. The caller sets the others. `memory` is that of the kernel with a feed.
  // `pairs` tells whether the loss is over pairs of rows. `by_chunk` tells whether the warps of a kernel with
  // a feed compute whole chunks. Otherwise the chunks are those of the batch's mask pass (mask_pass.h).
  Pass prepare(const DeviceBatch& batch, unsigned columns, const FeedMemory& memory, bool pairs,
               bool by_chunk) {
    Pass pass{};
    pass.batch = batch.view;
    pass.tokens = batch.tokens;
    pass.columns = columns;
    choose_feed(memory, &pass);
    cut(by_chunk ? pass.fed_blocks : most_fed_blocks(), &pass);
    const int64_t rows = batch.view.layout.rows;
    pass.totals = totals_.as<Totals>();
    pass.result = device_result_.as<Result>();
    pass.partials = {scratch<RowTotals>(kRows, rows), scratch<RowTotals>(kHeads, pass.chunks),
                     scratch<RowTotals>(kTails, pass.chunks)};
    pass.chunk_states = scratch<ChunkState>(kChunkStates, pass.chunks);
    pass.states = scratch<char>(kStates, rows * row_state_bytes());
    pass.pair_sums = scratch<double>(kPairSums, pairs ? rows : 0);
    pass.row_partials = scratch<double>(kRowPartials, most_blocks() * kMaxRowMetrics);
    pass.token_partials =
        scratch<double>(kTokenPartials, pass.fed_blocks * std::max(kTokenSums, kProgramSums));
    return pass;
  }

  // Returns the largest number of blocks that grid() gives to a grid.
  int64_t most_blocks() const { return multiprocessors_ * kBlocksPerMultiprocessor; }
  // Returns a grid with `blocks` blocks, but at least one and at most most_blocks(). The kernels loop over
  // their work, so even a smaller grid does all the work.
  Grid grid(int64_t blocks) const {
    return {static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most_blocks())), compute()};
  }
  // Returns the grid of a kernel that uses a feed (feed.cuh) and computes this number of chunks. The grid has
  // at most as many blocks as the device can run at once.
  Grid grid_of_chunks(const ChunkedBatch& pass, int64_t chunks) const {
    return {static_cast<unsigned>(std::clamp<int64_t>((chunks + kWarps - 1) / kWarps, 1, pass.fed_blocks)),
            compute()};
  }
  // Returns the grid of a kernel that calls for_whole_rows() (chunks.cuh). It has one warp per row if rows
  // are long, otherwise one thread per row.
  Grid grid_of_rows(const ChunkedBatch& pass) const {
    const int64_t rows = pass.batch.layout.rows;
    return is_row_for_warp(pass) ? grid_of_warps(rows) : grid_of_threads(rows);
  }
  Grid grid_of_warps(int64_t warps) const { return grid((warps + kWarps - 1) / kWarps); }
  Grid grid_of_threads(int64_t threads) const { return grid((threads + kThreads - 1) / kThreads); }

  // Where the last kernel of a call writes the result: mapped memory of the host. Null if the device cannot
  // write there.
  Result* mapped_result() const { return static_cast<Result*>(mapped_result_); }
  // Must be called after the last kernel of a call. Starts a copy of the result, if the kernel could not
  // write it to the host. Later copies wait for the kernels.
  void end_passes() {
    if (!mapped_result_)
      CUDA_CHECK(cudaMemcpyAsync(result_.as<void>(), device_result_.as<void>(), sizeof(Result),
                                 cudaMemcpyDeviceToHost, compute()));
    order_copies_after_kernels();
  }
  // Returns the result. The caller must have waited for the kernels since end_passes().
  const Result& result() const { return *result_.as<Result>(); }

  void mark_passes_begin() { CUDA_CHECK(cudaEventRecord(passes_begin_, compute())); }
  void mark_tokens_begin() { CUDA_CHECK(cudaEventRecord(tokens_begin_, compute())); }
  void mark_passes_end() { CUDA_CHECK(cudaEventRecord(passes_end_, compute())); }
  float passes_ms() const { return milliseconds(passes_begin_); }
  float token_pass_ms() const { return milliseconds(tokens_begin_); }

 private:
  enum { kRows, kHeads, kTails, kChunkStates, kStates, kPairSums, kRowPartials, kTokenPartials, kScratches };

  template <class T>
  T* scratch(int which, int64_t n) {
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    Buffer& buffer = scratch_[which];
    if (buffer.bytes() < bytes) {
      buffer = Buffer();
      buffer = allocate(bytes);
    }
    return buffer.as<T>();
  }

  float milliseconds(cudaEvent_t since) const {
    float result = 0;
    CUDA_CHECK(cudaEventSynchronize(passes_end_));
    CUDA_CHECK(cudaEventElapsedTime(&result, since, passes_end_));
    return result;
  }

  int64_t multiprocessors_ = 0;
  int64_t shared_bytes_ = 0;           // shared memory of one multiprocessor
  int64_t reserved_shared_bytes_ = 0;  // shared memory that the driver takes for each block
  Event passes_begin_, tokens_begin_, passes_end_;
  PinnedMemory result_;
  void* mapped_result_ = nullptr;  // the address of result_ on the device; null if it has none
  Buffer totals_, device_result_;
  bool totals_are_zero_ = false;
  Buffer scratch_[kScratches];
  Channel uploads_;
};

}  // namespace policy_loss::cuda
