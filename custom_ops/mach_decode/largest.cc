#include "mach_decode/largest.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "common/vectorize.h"

namespace tfxc {
namespace {

constexpr int64_t kGroup = 4 * kLanes;

// The largest of each group of 64 numbers, ignoring NaN; the last group may be smaller.
template <typename Lanes>
TFXC_INLINE void GroupMaximaOf(const float* values, int64_t count, float* maxima) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  int64_t start = 0;
  for (; start + kGroup <= count; start += kGroup) {
    Lanes largest = Fill<Lanes>(kLowest);
    for (int64_t v = 0; v < kGroup; v += kSizeOf<Lanes>) {
      const Lanes next = Load<Lanes>(values + start + v);
      largest = next > largest ? next : largest;
    }
    float one = kLowest;
    for (int j = 0; j < kSizeOf<Lanes>; ++j) one = std::max(one, largest[j]);
    maxima[start / kGroup] = one;
  }
  if (start == count) return;
  float one = kLowest;
  for (; start < count; ++start) one = values[start] > one ? values[start] : one;
  maxima[count / kGroup] = one;
}
TFXC_BY_WIDTH(void, GroupMaxima, (const float* values, int64_t count, float* maxima), (values, count, maxima))

// So many groups hold a number at least as large, so the wanted numbers are no smaller.
float Floor(std::vector<float> maxima, int64_t wanted) {
  if (wanted > static_cast<int64_t>(maxima.size())) return std::numeric_limits<float>::lowest();
  std::nth_element(maxima.begin(), maxima.begin() + wanted - 1, maxima.end(), std::greater<float>());
  return maxima[wanted - 1];
}

}  // namespace

float FloorOfLargest(const float* values, int64_t count, int64_t wanted) {
  std::vector<float> maxima((count + kGroup - 1) / kGroup);
  GroupMaxima(values, count, maxima.data());
  return Floor(std::move(maxima), wanted);
}

void FindLargest(const float* values, int64_t count, int64_t wanted, std::vector<Scored>* largest) {
  std::vector<float> maxima((count + kGroup - 1) / kGroup);
  GroupMaxima(values, count, maxima.data());
  const float floor = Floor(maxima, wanted);
  largest->clear();
  for (size_t group = 0; group < maxima.size(); ++group) {
    if (maxima[group] < floor) continue;
    const int64_t end = std::min<int64_t>((group + 1) * kGroup, count);
    for (int64_t i = group * kGroup; i < end; ++i) {
      if (values[i] >= floor) largest->push_back({values[i], static_cast<int32_t>(i)});
    }
  }
  const size_t kept = std::min<size_t>(wanted, largest->size());
  std::partial_sort(largest->begin(), largest->begin() + kept, largest->end());
  largest->resize(kept);
}

}  // namespace tfxc
