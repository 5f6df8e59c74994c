#include "dense_scan/best.h"

#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc::dense_scan {
namespace {

// Which of 16 queries have a class above their threshold in the tile: bit j for query j.
TFXC_VECTORIZE int Above(const float* logits, int64_t num_rows, int width, const float* thresholds) {
  Lanes largest = Load(thresholds);
  for (int64_t r = 0; r < num_rows; ++r) largest = Max(largest, Load(logits + r * width));
  int bits = 0;
  for (int j = 0; j < kLanes; ++j) bits |= (largest[j] > thresholds[j]) << j;
  return bits;
}

}  // namespace

void AddToBest(const float* logits, int64_t num_rows, int width, int64_t num_queries, int64_t first, int32_t first_id,
               Best* best) {
  for (int q = 0; q < width && q < num_queries; q += kLanes) {
    int bits = Above(logits + q, num_rows, width, best->thresholds() + first + q);
    for (int j = 0; bits != 0 && q + j < num_queries; ++j, bits >>= 1) {
      if ((bits & 1) == 0) continue;
      const float* column = logits + q + j;
      for (int64_t r = 0; r < num_rows; ++r) best->Add(first + q + j, column[r * width], first_id + r);
    }
  }
}

}  // namespace tfxc::dense_scan
