// A table with a number for each of some classes. Where these are few it is much smaller than L, and classes may share
// a place.
#pragma once

#include <cstdint>

#include "common/lanes.h"

namespace tfxc {

// The place of each id in such a table.
class Places {
 public:
  // At least so many places; where that is enough for each id in [0, most], each id has its own.
  Places(int64_t wanted, int64_t most) {
    int bits = 4;
    while (bits < 31 && int64_t{1} << bits < wanted) ++bits;
    if (int64_t{1} << bits > most) {
      count_ = most + 1;
    } else {
      count_ = int64_t{1} << bits;
      multiplier_ = 0x9E3779B1u;
      shift_ = 32 - bits;
    }
  }

  int64_t Count() const { return count_; }

  template <typename Ids>
  TFXC_INLINE Ids Of(Ids ids) const {
    return ids * multiplier_ >> shift_;
  }

 private:
  int64_t count_;
  uint32_t multiplier_ = 1;
  int shift_ = 0;
};

}  // namespace tfxc
