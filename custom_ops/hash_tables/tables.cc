#include "hash_tables/tables.h"

#include <algorithm>
#include <vector>

namespace tfxc {

int64_t SortTables(const Codes& codes, int64_t first, int64_t last, int32_t* offsets, int32_t* members) {
  const int64_t width = codes.num_buckets + 1, count = last - first;
  std::vector<int32_t> next(count * width, 0);  // counts first, then the place of the next member
  for (int64_t i = 0; i < codes.num_classes; ++i) {
    const uint16_t* row = codes.values + i * codes.num_tables + first;
    for (int64_t t = 0; t < count; ++t) {
      if (row[t] >= codes.num_buckets) return i;
      ++next[t * width + row[t] + 1];
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    int32_t* ends = &next[t * width];
    for (int64_t bucket = 1; bucket < width; ++bucket) ends[bucket] += ends[bucket - 1];
  }
  std::copy(next.begin(), next.end(), offsets + first * width);
  for (int64_t i = 0; i < codes.num_classes; ++i) {
    const uint16_t* row = codes.values + i * codes.num_tables + first;
    for (int64_t t = 0; t < count; ++t) {
      members[(first + t) * codes.num_classes + next[t * width + row[t]]++] = static_cast<int32_t>(i);
    }
  }
  return -1;
}

}  // namespace tfxc
