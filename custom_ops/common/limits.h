// How many of something an op takes. No real call comes near; a number beyond is a mistake, and would end in an
// allocation that takes the whole process with it.
#ifndef TFXC_COMMON_LIMITS_H_
#define TFXC_COMMON_LIMITS_H_

#include <cstdint>

namespace tfxc {

// Draws, candidates or results of one query.
constexpr int64_t kMostPerQuery = int64_t{1} << 24;
// Slots [N, S] of a batch: their numbers are sorted as 32 bits.
constexpr int64_t kMostSlots = (int64_t{1} << 32) - 1;
// Classes: their ids are int32.
constexpr int64_t kMostClasses = INT32_MAX;
// Buckets of a hash table: codes are uint16.
constexpr int64_t kMostBuckets = int64_t{1} << 16;

}  // namespace tfxc

#endif  // TFXC_COMMON_LIMITS_H_
