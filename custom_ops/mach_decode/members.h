// The classes of a bucket, found by inverting the hash function.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/lanes.h"
#include "mach_decode/tables.h"

namespace tfxc {

// The i with (a i + b) mod p = bucket, bucket + M, bucket + 2 M, ... Each is the previous one plus a constant, modulo
// p; p is hardly above L, so nearly all of them are classes.
template <typename Lanes>
class Members {
 public:
  TFXC_INLINE Members(const Hashes& hashes, int64_t r, int64_t bucket) {
    const HashFunction& hash = hashes.functions[r];
    prime_ = hashes.prime;
    left_ = (hashes.prime - bucket + hashes.num_buckets - 1) / hashes.num_buckets;
    const uint64_t step = hash.inverse * hashes.num_buckets % hashes.prime;
    uint64_t id = hash.inverse * ((bucket + hashes.prime - hash.offset) % hashes.prime) % hashes.prime;
    for (int j = 0; j < kSizeOf<Lanes>; ++j) {
      ids_[j] = id;
      id += step;
      if (id >= hashes.prime) id -= hashes.prime;
    }
    step_ = kSizeOf<Lanes> * step % hashes.prime;
  }

  TFXC_INLINE bool Done() const { return left_ <= 0; }

  // The next vector of members; past the end p, which is no class.
  TFXC_INLINE UintOf<Lanes> Next() {
    constexpr int kSize = kSizeOf<Lanes>;
    IntOf<Lanes> lane;
    for (int j = 0; j < kSize; ++j) lane[j] = j;
    const int32_t left = std::min<int64_t>(left_, kSize);
    const UintOf<Lanes> ids = lane < left ? ids_ : UintOf<Lanes>{} + prime_;
    left_ -= kSize;
    ids_ += step_;
    ids_ = ids_ >= prime_ ? ids_ - prime_ : ids_;
    return ids;
  }

 private:
  UintOf<Lanes> ids_;
  uint32_t prime_, step_;
  int64_t left_;
};

}  // namespace tfxc
