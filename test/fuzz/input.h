// Reads numbers from a fuzzer's input. Also defines an array for which AddressSanitizer detects accesses out
// of bounds.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fuzz {

// Reads the bytes of an input one after another. After the last byte it returns zeros, so that inputs of any
// length are valid.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }
  uint32_t word() {
    uint32_t x = 0;
    for (int i = 0; i < 4; ++i) x = x << 8 | byte();
    return x;
  }
  bool flag() { return (byte() & 1) != 0; }
  // Returns a number from 0 to limit − 1.
  int below(int limit) { return (limit > 256 ? static_cast<int>(word() >> 1) : byte()) % limit; }
  double between(double low, double high) { return low + (high - low) * (byte() / 255.0); }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// Generates random numbers with SplitMix64. The seed comes from the input. The numbers fill arrays that are
// too large to be read from the input.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(next() % static_cast<uint64_t>(limit)); }
  double unit() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }
  double between(double low, double high) { return low + (high - low) * unit(); }

 private:
  uint64_t state_;
};

// An array with its own allocation, which ends where the array ends. `shift` moves the beginning of the array
// by up to 7 elements, so that it is misaligned like a view into an ArrayBuffer. Even an empty array has an
// address.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(int64_t size, int shift = 0)
      : memory_(static_cast<char*>(std::malloc(size * sizeof(T) + shift % 8 * sizeof(T)))),
        data_(reinterpret_cast<T*>(memory_ + shift % 8 * sizeof(T))),
        size_(size) {}
  Array(Array&& other) noexcept { *this = std::move(other); }
  Array& operator=(Array&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() { std::free(memory_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

  bool same_bits(const Array& other) const {
    return size_ == other.size_ && (size_ == 0 || std::memcmp(data_, other.data_, size_ * sizeof(T)) == 0);
  }

 private:
  char* memory_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace fuzz
