#include "hash_tables/tables.h"

#include <algorithm>
#include <vector>

namespace tfxc {
namespace {

constexpr int64_t kRowsAtOnce = 4096;  // their codes stay in the cache from one table to the next

// Calls visit(class, table, code) for tables first <= t < last, in ascending classes for each table.
template <typename Visit>
void ForEachCode(const Codes& codes, int64_t first, int64_t last, Visit visit) {
  for (int64_t begin = 0; begin < codes.num_classes; begin += kRowsAtOnce) {
    const int64_t end = std::min(begin + kRowsAtOnce, codes.num_classes);
    for (int64_t t = first; t < last; ++t) {
      for (int64_t i = begin; i < end; ++i) visit(i, t, codes.values[i * codes.num_tables + t]);
    }
  }
}

}  // namespace

int64_t SortTables(const Codes& codes, int64_t first, int64_t last, int32_t* offsets, int32_t* members) {
  const int64_t width = codes.num_buckets + 1;
  std::vector<int32_t> next((last - first) * width, 0);  // counts first, then the place of the next member
  int64_t bad = -1;
  ForEachCode(codes, first, last, [&](int64_t i, int64_t t, int64_t code) {
    if (code < codes.num_buckets) {
      ++next[(t - first) * width + code + 1];
    } else if (bad < 0 || i < bad) {
      bad = i;
    }
  });
  if (bad >= 0) return bad;
  for (int64_t t = first; t < last; ++t) {
    int32_t* ends = &next[(t - first) * width];
    for (int64_t bucket = 1; bucket < width; ++bucket) ends[bucket] += ends[bucket - 1];
  }
  std::copy(next.begin(), next.end(), offsets + first * width);
  ForEachCode(codes, first, last, [&](int64_t i, int64_t t, int64_t code) {
    members[t * codes.num_classes + next[(t - first) * width + code]++] = static_cast<int32_t>(i);
  });
  return -1;
}

}  // namespace tfxc
