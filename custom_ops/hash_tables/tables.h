// Builds hash tables as sorted arrays, free of TensorFlow: a counting sort of codes [L, T] gives each bucket's members.
#pragma once

#include <cstdint>

namespace tfxc {

// The number of tables that one thread sorts at once: so few that the ends of all buckets stay in the cache.
constexpr int64_t kTablesAPass = 8;

struct Codes {
  const uint16_t* values;  // [L, T]
  int64_t num_classes;     // L
  int64_t num_tables;      // T
  int64_t num_buckets;
};

// Sorts tables first <= t < last into offsets [T, num_buckets + 1] and members [T, L]; returns a class whose code is
// out of range, or -1.
int64_t SortTables(const Codes& codes, int64_t first, int64_t last, int32_t* offsets, int32_t* members);

}  // namespace tfxc
