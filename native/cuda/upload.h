// Sends batches to a device: columns of host memory in slices, and columns that already are in the memory of
// the device.
#pragma once

#include <algorithm>

#include "cuda/resident.h"

namespace policy_loss::cuda {

// Sends a batch to the device in slices that consist of whole chunks. After it has started the copy of a
// slice, it calls after(first, last) for the slice's tokens [first, last). Kernels that after() launches wait
// for the copy.
template <class After>
void send_in_slices(Channel& channel, const BatchView& host, const DeviceBatch& batch, int64_t chunk,
                    const int32_t* abort, After after) {
  const int64_t slice = kSliceTokens / chunk * chunk;
  for (int64_t first = 0; first < batch.tokens; first += slice) {
    check_abort(abort);
    const int64_t last = std::min(batch.tokens, first + slice);
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
    kEveryColumn & ~(1u << kOldLogprobInput | 1u << kTeacherLogprobInput | 1u << kValuesInput);

// Sends the columns that are in the set `columns` and that the host batch has.
inline DeviceBatch send_columns(Channel& channel, const BatchView& host, unsigned columns,
                                const int32_t* abort) {
  DeviceBatch batch = channel.allocate_columns(host, columns);
  send_in_slices(channel, host, batch, kFeedTile, abort, [](int64_t, int64_t) {});
  return batch;
}

}  // namespace policy_loss::cuda
