// The row pass of losses without row sums. It computes the numbers of unmasked tokens, and the tiles of each
// chunk that the token pass skips. All of it follows from the mask and the layout of a batch. So the upload
// of a resident batch computes it, and calls on the batch launch no row pass.
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

class MaskPass {
 public:
  MaskPass() = default;

  // Launches the pass for a batch on the stream of `channel`. The mask must have been sent.
  MaskPass(const Context& context, Channel& channel, const DeviceBatch& batch) {
    Pass pass{};
    pass.batch = batch.view;
    pass.tokens = batch.tokens;
    context.cut(context.most_fed_blocks(), &pass);
    totals_ = channel.allocate_zeros(sizeof(Totals));
    rows_ = channel.allocate(batch.view.layout.rows * static_cast<int64_t>(sizeof(RowTotals)));
    heads_ = channel.allocate(pass.chunks * static_cast<int64_t>(sizeof(RowTotals)));
    tails_ = channel.allocate(pass.chunks * static_cast<int64_t>(sizeof(RowTotals)));
    chunk_states_ = channel.allocate(pass.chunks * static_cast<int64_t>(sizeof(ChunkState)));
    pass.totals = totals_.as<Totals>();
    share_with(&pass);
    launch_rows(kNone, nullptr, pass, 0, pass.chunks,
                {context.grid_of_warps(pass.chunks).blocks, channel.compute()});
  }

  // Returns whether the pass was launched. It is not for a batch without a mask.
  bool is_there() const { return totals_.as<void>() != nullptr; }

  // Makes a call read what this pass has computed.
  void share_with(Pass* pass) const {
    pass->known = totals_.as<Totals>();
    pass->partials = {rows_.as<RowTotals>(), heads_.as<RowTotals>(), tails_.as<RowTotals>()};
    pass->chunk_states = chunk_states_.as<ChunkState>();
  }

  // Makes the channel of `memory` free the arrays, in the order of its own work.
  void hand_over(Memory& memory) {
    for (Buffer* const buffer : {&totals_, &rows_, &heads_, &tails_, &chunk_states_})
      buffer->hand_over(memory);
  }

 private:
  Buffer totals_, rows_, heads_, tails_, chunk_states_;
};

}  // namespace policy_loss::cuda
