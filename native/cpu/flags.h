// Visits the few of a block's values that a vectorised loop has flagged.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// One flag per value of a block, 0 or 1.
struct alignas(64) Flags {
  uint8_t of[kBlock];

  // Calls visit(i) for each value i that is flagged, in order. One loop over the flags of the whole block has
  // fewer branches that a processor cannot predict than a loop per word.
  template <class Visit>
  PL_FN void visit(Visit visit) const {
    for (uint64_t left = bits(); left != 0; left &= left - 1) visit(__builtin_ctzll(left));
  }

 private:
  // Returns the flags as one bit each.
  PL_FN uint64_t bits() const {
    uint64_t result = 0;
#if defined(__AVX512BW__)
    static_assert(kBlock == sizeof(__m512i));
    const __m512i bytes = _mm512_load_si512(of);
    result = _mm512_test_epi8_mask(bytes, bytes);
#elif defined(__SSE2__)
    constexpr int kBytes = sizeof(__m128i);
    for (int w = 0; w < kBlock / kBytes; ++w) {
      // Moves each flag to the sign of its byte.
      const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(of) + w);
      const auto signs = static_cast<uint64_t>(_mm_movemask_epi8(_mm_slli_epi16(bytes, 7)));
      result |= signs << (w * kBytes);
    }
#else
    constexpr int kWord = sizeof(uint64_t);
    static_assert(kBlock == kWord * 8);
    for (int w = 0; w < kBlock / kWord; ++w) {
      uint64_t word;
      memcpy(&word, of + w * kWord, kWord);
      // Moves the lowest bit of each byte to the last byte, in the bytes' order.
      result |= (word * 0x0102040810204080u >> 56) << (w * kWord);
    }
#endif
    return result;
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
