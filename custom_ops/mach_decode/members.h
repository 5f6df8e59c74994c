// The classes of a bucket, found by inverting the hash function.
#ifndef TFXC_MACH_DECODE_MEMBERS_H_
#define TFXC_MACH_DECODE_MEMBERS_H_

#include <algorithm>
#include <cstdint>

#include "common/lanes.h"
#include "mach_decode/tables.h"

namespace tfxc {

// Those i with (a i + b) mod p = bucket, bucket + M, bucket + 2 M, ... Each is the one before plus a constant, modulo
// p; p is hardly above L, so nearly all of them are classes.
class Members {
 public:
  TFXC_INLINE Members(const Hashes& hashes, int64_t r, int64_t bucket) {
    const HashFunction& hash = hashes.functions[r];
    prime_ = hashes.prime;
    left_ = (hashes.prime - bucket + hashes.num_buckets - 1) / hashes.num_buckets;
    const uint64_t step = hash.inverse * hashes.num_buckets % hashes.prime;
    uint64_t id = hash.inverse * ((bucket + hashes.prime - hash.offset) % hashes.prime) % hashes.prime;
    for (int j = 0; j < kLanes; ++j) {
      ids_[j] = id;
      id += step;
      if (id >= hashes.prime) id -= hashes.prime;
    }
    step_ = kLanes * step % hashes.prime;
  }

  TFXC_INLINE bool Done() const { return left_ <= 0; }

  // The next sixteen; past the end p, which is no class.
  TFXC_INLINE UintLanes Next() {
    const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const UintLanes ids = lane < static_cast<int32_t>(std::min<int64_t>(left_, kLanes)) ? ids_ : UintLanes{} + prime_;
    left_ -= kLanes;
    ids_ += step_;
    ids_ = ids_ >= prime_ ? ids_ - prime_ : ids_;
    return ids;
  }

 private:
  UintLanes ids_;
  uint32_t prime_, step_;
  int64_t left_;
};

}  // namespace tfxc

#endif  // TFXC_MACH_DECODE_MEMBERS_H_
