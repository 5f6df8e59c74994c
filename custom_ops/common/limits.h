// The largest numbers that ops take. No real call comes near; a larger number is a mistake, and its allocation could
// end the whole process.
#pragma once

#include <cstdint>

namespace tfxc {

// Draws, candidates or results of one query.
constexpr int64_t kMostPerQuery = int64_t{1} << 24;
// Slots [N, S] of a batch: sorts hold their numbers in 32 bits.
constexpr int64_t kMostSlots = (int64_t{1} << 32) - 1;
// Classes: their ids are int32.
constexpr int64_t kMostClasses = INT32_MAX;
// Buckets of a hash table: codes are uint16.
constexpr int64_t kMostBuckets = int64_t{1} << 16;

}  // namespace tfxc
