#include "cpu/traffic.h"

#include <algorithm>
#include <cstring>

#include "cpu/tile.h"

namespace policy_loss::cpu {
namespace {

// A function with this attribute is compiled once per instruction set. The loader selects the version that
// this machine can run.
#if defined(__x86_64__) && defined(__linux__)
#define PL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PL_CLONES
#endif

// Reads n bytes, rounded down to whole 4-byte words. Returns the bitwise OR of the words.
PL_CLONES uint32_t touch(const char* bytes, int64_t n) {
  uint32_t seen = 0;
#pragma omp simd reduction(| : seen)
  for (int64_t i = 0; i < n / 4; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes + 4 * i, 4);
    seen |= word;
  }
  return seen;
}

// Reads n bytes, rounded down to whole words, and writes them back. `mask` is 0, which the compiler does not
// know.
PL_CLONES void rewrite(char* bytes, int64_t n, uint32_t mask) {
#pragma omp simd
  for (int64_t i = 0; i < n / 4; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes + 4 * i, 4);
    word ^= mask;
    std::memcpy(bytes + 4 * i, &word, 4);
  }
}

// Writes n bytes, rounded down to whole words.
PL_CLONES void fill(char* bytes, int64_t n) {
  const uint32_t word = 0x3f803f80;
#pragma omp simd
  for (int64_t i = 0; i < n / 4; ++i) std::memcpy(bytes + 4 * i, &word, 4);
}

}  // namespace

Traffic::Traffic(std::shared_ptr<const PreparedFunction> function, const BatchView& batch,
                 const Outputs& outputs)
    : function_(std::move(function)),
      batch_(batch),
      columns_(columns_of(function_->function())),
      gradients_{outputs.grad, outputs.grad_entropy},
      chunks_(plan_chunks(batch.layout)) {}

void Traffic::work(int64_t item) {
  const Chunk& chunk = chunks_[item];
  uint32_t seen = 0;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t begin = batch_.layout.begin(row);
    const int64_t last = chunk.last_token_of_row(batch_.layout, row);
    for (int64_t at = chunk.first_token_of_row(); at < last; at += kTile)
      seen |= run_tile(begin + at, std::min<int64_t>(last - at, kTile));
  }
  seen_.fetch_or(seen, std::memory_order_relaxed);
}

uint32_t Traffic::run_tile(int64_t first, int64_t n) const {
  uint32_t seen = 0;
  for (int c = 0; c < kColumns; ++c) {
    const ColumnView& view = batch_.column[c];
    if ((columns_ & (1u << c)) == 0 || view.per_row) continue;
    const int64_t size = size_of(view.dtype);
    seen |= touch(static_cast<const char*>(view.data) + first * size, n * size);
  }
  if (batch_.mask) seen |= touch(reinterpret_cast<const char*>(batch_.mask + first), n);
  for (const GradientView& grad : gradients_)
    if (grad) fill(static_cast<char*>(grad.at(first)), n * size_of(grad.dtype));
  return seen;
}

// What a thread reads at a time, and what it prefetches while it does so.
constexpr int64_t kChunkBytes = 256 << 10;
constexpr int64_t kTileBytes = 4 << 10;

MemoryTraffic::MemoryTraffic(char* data, int64_t bytes, bool writes)
    : data_(data), bytes_(bytes), writes_(writes) {}

int64_t MemoryTraffic::open_phase() {
  if (has_begun_) return 0;
  has_begun_ = true;
  return (bytes_ + kChunkBytes - 1) / kChunkBytes;
}

void MemoryTraffic::work(int64_t item) {
  char* const begin = data_ + item * kChunkBytes;
  const int64_t n = std::min(kChunkBytes, bytes_ - item * kChunkBytes);
  uint32_t seen = 0;
  for (int64_t at = 0; at < n; at += kTileBytes) {
    const int64_t length = std::min(kTileBytes, n - at);
    for (int64_t i = 0; i < length; i += 64) __builtin_prefetch(begin + at + kTileBytes + i);
    if (writes_)
      rewrite(begin + at, length, static_cast<uint32_t>(bytes_ < 0));
    else
      seen |= touch(begin + at, length);
  }
  seen_.fetch_or(seen, std::memory_order_relaxed);
}

}  // namespace policy_loss::cpu
