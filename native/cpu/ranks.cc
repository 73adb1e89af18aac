#include "cpu/ranks.h"

#include <algorithm>

#include "program/select.h"

namespace policy_loss::cpu {

// The low half of a key is the token's position, so equal values rank in the order of their tokens.
void replace_with_ranks(const uint8_t* mask, int64_t length, uint64_t* keys, float* values) {
  int64_t count = 0;
  for (int64_t at = 0; at < length; ++at)
    if (mask[at] != 0) keys[count++] = uint64_t{key_of(values[at])} << 32 | static_cast<uint64_t>(at);
  std::sort(keys, keys + count);
  for (int64_t rank = 0; rank < count; ++rank) values[keys[rank] & 0xffffffffu] = static_cast<float>(rank);
}

}  // namespace policy_loss::cpu
