// Scores of a few chosen classes of each query of the uniformly sparse head, and their gradients, free of TensorFlow.
// Their cost does not depend on L.
#pragma once

#include <cstdint>
#include <vector>

#include "common/row_sort.h"
#include "sparse_head/tiles.h"

namespace tfxc {

// Class ids [N, S] in [-1, L), -1 for an empty slot, and the queries [N, E] they belong to.
struct CandidateSlots {
  const int32_t* ids;
  int64_t count;    // N S
  int64_t samples;  // S
  const float* query;
};

// The first class in the slots that reads an input out of range, or kNoClass. This is the first use of the rows, so it
// prefetches them.
int64_t FindBadCandidate(const SparseRows& rows, const CandidateSlots& slots);

// Scores of queries first <= n < last, without biases.
void SparseScores(const SparseRows& rows, const CandidateSlots& slots, int64_t first, int64_t last, float* scores);

// Query gradients [N, E] of queries first <= n < last, from those of the scores.
void SparseQueryGradients(const SparseRows& rows, const CandidateSlots& slots, const float* gradient, int64_t first,
                          int64_t last, float* query_gradient);

// The filled slots, sorted by class, so that each row's gradient is summed in one place.
std::vector<RowPosition> SortedByClass(const CandidateSlots& slots, int64_t num_classes);

// Row gradients [touched, K] and ids of touched classes first <= u < last, whose slots start at starts[u] in `sorted`.
void SparseRowGradients(const SparseRows& rows, const CandidateSlots& slots, const float* gradient,
                        const std::vector<RowPosition>& sorted, const std::vector<int64_t>& starts, int64_t first,
                        int64_t last, float* row_gradients, int32_t* class_ids);

}  // namespace tfxc
