// Sends batches to a device: columns of host memory in chunks, and columns that already are in the memory of
// the device.
#pragma once

#include <algorithm>

#include "cuda/resident.h"

namespace policy_loss::cuda {

// Sends a batch to the device in chunks that consist of whole spans. After it has started the copy of a
// chunk, it calls after(first, last) for the chunk's tokens [first, last). Kernels that after() launches wait
// for the copy.
template <class After>
void send_in_chunks(Channel& channel, const BatchView& host, const DeviceBatch& batch, int64_t span,
                    const int32_t* abort, After after) {
  const int64_t chunk = kTokensAtOnce / span * span;
  for (int64_t first = 0; first < batch.tokens; first += chunk) {
    check_abort(abort);
    const int64_t last = std::min(batch.tokens, first + chunk);
    channel.send_tokens(host, batch, first, last);
    channel.order_kernels_after_copies();
    after(first, last);
  }
  if (batch.tokens == 0) {
    channel.order_kernels_after_copies();
    after(0, 0);
  }
}

constexpr unsigned kEveryColumn = (1u << kColumns) - 1;
// Losses read the log-probabilities of the sampling policy and of the teacher too, so a resident batch
// already has them.
constexpr unsigned kColumnsOfAdvantages =
    kEveryColumn & ~(1u << kOldLogprobInput | 1u << kTeacherLogprobInput);

// Sends the columns that are in the set `columns` and that the host batch has.
inline DeviceBatch send_columns(Channel& channel, const BatchView& host, unsigned columns,
                                const int32_t* abort) {
  DeviceBatch batch = channel.allocate_columns(host, columns);
  send_in_chunks(channel, host, batch, kSpanStep, abort, [](int64_t, int64_t) {});
  return batch;
}

}  // namespace policy_loss::cuda
