#include "dense_scan/best.h"

#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc::dense_scan {
namespace {

// The queries, of 16, with a class above their threshold in some rows: bit j for query j.
template <typename Lanes>
TFXC_INLINE int AboveOf(const float* logits, int64_t num_rows, int width, const float* thresholds) {
  int bits = 0;
  for (int q = 0; q < kLanes; q += kSizeOf<Lanes>) {
    Lanes largest = Load<Lanes>(thresholds + q);
    for (int64_t r = 0; r < num_rows; ++r) largest = Max(largest, Load<Lanes>(logits + r * width + q));
    const auto above = largest > Load<Lanes>(thresholds + q);
    if (!Any(above)) continue;
    for (int j = 0; j < kSizeOf<Lanes>; ++j) bits |= (above[j] & 1) << (q + j);
  }
  return bits;
}

TFXC_BY_WIDTH(int, Above, (const float* logits, int64_t num_rows, int width, const float* thresholds),
              (logits, num_rows, width, thresholds))

}  // namespace

void AddToBest(const float* logits, int64_t num_rows, int width, int64_t num_queries, int64_t first, const int32_t* ids,
               Best* best) {
  if (num_rows == 0) return;
  for (int q = 0; q < width && q < num_queries; q += kLanes) {
    int bits = Above(logits + q, num_rows, width, best->thresholds() + first + q);
    for (int j = 0; bits != 0 && q + j < num_queries; ++j, bits >>= 1) {
      if ((bits & 1) == 0) continue;
      const float* column = logits + q + j;
      for (int64_t r = 0; r < num_rows; ++r) best->Add(first + q + j, column[r * width], ids[r]);
    }
  }
}

}  // namespace tfxc::dense_scan
