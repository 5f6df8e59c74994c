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

bool MoveInTable(const Codes& codes, const Moves& moves, int64_t t, const int32_t* old_offsets,
                 const int32_t* old_members, int32_t* offsets, int32_t* members) {
  const int64_t num_classes = codes.num_classes, num_buckets = codes.num_buckets;
  const auto moved = [&](int64_t i, int64_t* from, int64_t* to) {
    *from = moves.before[i * codes.num_tables + t];
    *to = codes.values[moves.ids[i] * codes.num_tables + t];
    return *from != *to;
  };
  std::vector<uint64_t> leaves((num_classes + 63) / 64, 0);
  std::vector<int32_t> arrivals(num_buckets + 1, 0);  // counts first, then the ends of each bucket's part of `arriving`
  std::copy(old_offsets, old_offsets + num_buckets + 1, offsets);
  int64_t from, to, count = 0;
  for (int64_t i = 0; i < moves.count; ++i) {
    if (!moved(i, &from, &to)) continue;
    leaves[moves.ids[i] / 64] |= uint64_t{1} << (moves.ids[i] % 64);
    ++arrivals[to + 1];
    --offsets[from + 1];
    ++offsets[to + 1];
    ++count;
  }
  if (count == 0) {
    std::copy(old_members, old_members + num_classes, members);
    return std::all_of(members, members + num_classes, [&](int32_t id) { return id >= 0 && id < num_classes; });
  }
  // So far offsets[b + 1] holds the old end of bucket b and its own change; the changes of those before it follow.
  int64_t change = 0;
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    change += offsets[bucket + 1] - old_offsets[bucket + 1];
    offsets[bucket + 1] = static_cast<int32_t>(old_offsets[bucket + 1] + change);
    if (offsets[bucket + 1] < offsets[bucket]) return false;
    arrivals[bucket + 1] += arrivals[bucket];
  }
  std::vector<int32_t> arriving(count);
  for (int64_t i = 0; i < moves.count; ++i) {
    if (moved(i, &from, &to)) arriving[arrivals[to]++] = moves.ids[i];
  }
  const int32_t* next = arriving.data();
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    const int32_t* last = arriving.data() + arrivals[bucket];
    int32_t *out = members + offsets[bucket], *end = members + offsets[bucket + 1];
    for (int64_t place = old_offsets[bucket]; place < old_offsets[bucket + 1]; ++place) {
      const int32_t member = old_members[place];
      if (member < 0 || member >= num_classes) return false;
      if (leaves[member / 64] >> (member % 64) & 1) continue;
      for (; next != last && *next < member && out != end; ++next) *out++ = *next;
      if (out == end) return false;
      *out++ = member;
    }
    for (; next != last && out != end; ++next) *out++ = *next;
    if (out != end || next != last) return false;
  }
  return true;
}

}  // namespace tfxc
