// Rows of a table that a rule changes in float32, whatever the table holds.
#pragma once

#include <cstdint>
#include <vector>

#include "common/bfloat16.h"
#include "common/philox.h"
#include "common/simd.h"
#include "row_updates/row_kernels.h"

namespace tfxc {

// Rows of float32 change in place.
struct FloatRows {
  TFXC_INLINE void Prefetch(int64_t row) const { PrefetchRow(data + row * width, width); }
  float* Open(int64_t row) const { return data + row * width; }
  void Close(int64_t) const {}

  float* data;
  int64_t width;
};

// Rows of bfloat16 are widened, changed and rounded stochastically, by random numbers that depend only on the row and
// the seed. Each thread has a copy of the object.
class Bfloat16Rows {
 public:
  Bfloat16Rows(Bfloat16* data, int64_t width, const Seed& seed)
      : data_(data), width_(width), seed_(seed), values_(width), random_(2 * NumCounters(width)) {}
  TFXC_INLINE void Prefetch(int64_t row) const { PrefetchRow(data_ + row * width_, width_); }
  float* Open(int64_t row) {
    // First, so that it runs while the row comes from memory.
    DrawForRow(seed_, static_cast<uint32_t>(row), width_, random_.data());
    Widen(data_ + row * width_, width_, values_.data());
    return values_.data();
  }
  void Close(int64_t row) { RoundRow(values_.data(), random_.data(), width_, data_ + row * width_); }

 private:
  Bfloat16* data_;
  int64_t width_;
  Seed seed_;
  std::vector<float> values_;
  std::vector<uint64_t> random_;
};

}  // namespace tfxc
