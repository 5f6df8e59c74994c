// Scores of chosen classes, and their gradients, free of TensorFlow. The loops read the rows of the table in place: the
// forward pass makes no [N, S, D] tensor, and the backward pass one gradient row for each touched class.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/row_sort.h"
#include "common/simd.h"
#include "common/table.h"

namespace tfxc {

// The scores to compute: [N, S] slots, where -1 is empty.
struct CandidateProblem {
  Table table;  // from the first class on
  const float* query;
  const int32_t* ids;
  int64_t num_slots;  // N * S
  int64_t samples;    // S
  int64_t width;      // D
  int64_t num_classes;  // L
  bool normalize;

  TFXC_INLINE void Prefetch(int64_t slot) const {
    if (0 <= slot && slot < num_slots && ids[slot] >= 0) table.Prefetch(ids[slot]);
  }
};

// How many rows ahead of their use are prefetched: enough to cover a read from a busy memory at D = 64.
constexpr int64_t kPrefetchDistance = 32;
// A class row shorter than this is not scaled up to length one, and gets no gradient.
constexpr float kMinNorm = 1e-12f;
constexpr float kMinSquaredNorm = 1e-24f;

// 1 / max(|row|, kMinNorm); is_short tells whether the maximum is the constant.
TFXC_INLINE float InverseNorm(const float* row, int64_t width, bool* is_short) {
  const float squared_norm = Dot(row, row, width);
  *is_short = squared_norm <= kMinSquaredNorm;
  return 1.0f / (*is_short ? kMinNorm : std::sqrt(squared_norm));
}

// The slots of one class are neighbours in `slots`; class u owns those from starts[u] to starts[u + 1].
struct ClassSlots {
  std::vector<RowPosition> slots;
  std::vector<int64_t> starts;
  int64_t NumClasses() const { return starts.size() - 1; }
};
// The filled slots, sorted by class.
std::vector<RowPosition> SortSlots(const CandidateProblem& p);
ClassSlots GroupByClass(const CandidateProblem& p);

// Scores of queries first <= n < last.
void ScoreCandidates(const CandidateProblem& p, int64_t first, int64_t last, float* scores);

// query_gradient[n] = sum over its slots of gradient * class vector.
void CandidateQueryGradients(const CandidateProblem& p, int64_t first, int64_t last, const float* gradients,
                             float* query_gradients);

// row_gradient[u] = sum over the slots of class u of gradient * query, for touched classes first <= u < last. With
// normalised scores it is the part of that sum perpendicular to the class vector, divided by the vector's length; the
// projection is linear, so each class needs it once.
void CandidateRowGradients(const CandidateProblem& p, const ClassSlots& groups, int64_t first, int64_t last,
                           const float* gradients, float* row_gradients);

}  // namespace tfxc
