// The rows of a table of float32 or bfloat16, read as float32.
#pragma once

#include <cstdint>
#include <vector>

#include "common/bfloat16.h"
#include "common/simd.h"

namespace tfxc {

class Table {
 public:
  Table() = default;
  Table(const float* rows, int64_t width) : floats_(rows), width_(width) {}
  Table(const Bfloat16* rows, int64_t width) : halves_(rows), width_(width) {}

  // The size of the buffer that `Read` may need for that many rows.
  std::vector<float> Buffer(int64_t num_rows) const {
    return std::vector<float>(halves_ == nullptr ? 0 : num_rows * width_);
  }

  // Some rows [num_rows, width], in place, or widened into the buffer.
  TFXC_INLINE const float* Read(int64_t row, int64_t num_rows, std::vector<float>* buffer) const {
    if (halves_ == nullptr) return floats_ + row * width_;
    Widen(halves_ + row * width_, num_rows * width_, buffer->data());
    return buffer->data();
  }

  TFXC_INLINE void Prefetch(int64_t row) const {
    if (halves_ == nullptr) {
      PrefetchRow(floats_ + row * width_, width_);
    } else {
      PrefetchRow(halves_ + row * width_, width_);
    }
  }

 private:
  const float* floats_ = nullptr;
  const Bfloat16* halves_ = nullptr;
  int64_t width_ = 0;
};

}  // namespace tfxc
