// The log-sum-exp of the scores of chosen classes, free of TensorFlow. While the rows of a query's candidates are in
// the cache, it averages them by their shares of the sum, and keeps the rows of labels. So the backward pass reads no
// row, unless class vectors are normalised, and does not depend on later changes of the table.
#pragma once

#include <cstdint>

#include "candidate_scores/scores.h"

namespace tfxc {

// The first P of the S slots of a query are labels, the others candidates.
struct LogSumExp {
  int64_t num_labels;    // P
  const float* offsets;  // [N, S - P], added to the scores of candidates
  float* label_scores;   // [N, P]
  float* label_vectors;  // [N, P, D], class vectors; undefined in empty slots
  float* log_sum;        // [N]; kNothing without a candidate
  float* shares;         // [N, S - P] of the sum
  float* mean;           // [N, D] of the candidates' class vectors, by their shares
};

constexpr float kNothing = -1e30f;

// ids [N, P + C] of labels [N, P] and candidates [N, C]; a candidate also gets -1 where its offset [N, C] is -infinity:
// it adds nothing, and its class is not touched.
void JoinIds(const int32_t* labels, const int32_t* candidates, const float* offsets, int64_t num_queries,
             int64_t num_labels, int64_t num_candidates, int32_t* ids);

// Fills the outputs of queries first <= n < last.
void FoldCandidates(const CandidateProblem& p, const LogSumExp& out, int64_t first, int64_t last);

// What the forward pass keeps for the backward pass, and the gradients of the label scores [N, P] and of the sums [N].
struct LogSumExpGradients {
  int64_t num_labels;
  const float *label_vectors, *shares, *mean;
  const float *of_label_scores, *of_log_sum;
};

// The gradients of queries [N, D] and of scores [N, S], for queries first <= n < last.
void UnfoldCandidates(const CandidateProblem& p, const LogSumExpGradients& given, int64_t first, int64_t last,
                      float* query_gradients, float* score_gradients);

}  // namespace tfxc
