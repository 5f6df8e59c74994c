#include "sparse_head/candidates.h"

#include <algorithm>

#include "common/simd.h"

namespace tfxc {
int64_t FindBadCandidate(const SparseRows& rows, const CandidateSlots& slots) {
  constexpr int64_t kAhead = 16;
  for (int64_t slot = 0; slot < slots.count; ++slot) {
    if (slot + kAhead < slots.count && slots.ids[slot + kAhead] >= 0) {
      const int64_t l = slots.ids[slot + kAhead];
      PrefetchRow(InputsOf(rows, l), rows.fan_in);
      PrefetchRow(rows.weights + l * rows.fan_in, rows.fan_in);
    }
    if (slots.ids[slot] >= 0 && !ReadsInRange(rows, slots.ids[slot])) return slots.ids[slot];
  }
  return kNoClass;
}

void SparseScores(const SparseRows& rows, const CandidateSlots& slots, int64_t first, int64_t last, float* scores) {
  for (int64_t slot = first * slots.samples; slot < last * slots.samples; ++slot) {
    const int64_t l = slots.ids[slot];
    scores[slot] = 0.0f;
    if (l < 0) continue;
    const float* query = slots.query + slot / slots.samples * rows.num_inputs;
    const int32_t* inputs = InputsOf(rows, l);
    const float* weights = rows.weights + l * rows.fan_in;
    float score = 0.0f;
    for (int64_t k = 0; k < rows.fan_in; ++k) score += weights[k] * query[inputs[k]];
    scores[slot] = score;
  }
}

void SparseQueryGradients(const SparseRows& rows, const CandidateSlots& slots, const float* gradient, int64_t first,
                          int64_t last, float* query_gradient) {
  for (int64_t n = first; n < last; ++n) {
    float* out = query_gradient + n * rows.num_inputs;
    std::fill(out, out + rows.num_inputs, 0.0f);
    for (int64_t slot = n * slots.samples; slot < (n + 1) * slots.samples; ++slot) {
      const int64_t l = slots.ids[slot];
      if (l < 0 || gradient[slot] == 0.0f) continue;
      const int32_t* inputs = InputsOf(rows, l);
      const float* weights = rows.weights + l * rows.fan_in;
      for (int64_t k = 0; k < rows.fan_in; ++k) out[inputs[k]] += gradient[slot] * weights[k];
    }
  }
}

std::vector<RowPosition> SortedByClass(const CandidateSlots& slots, int64_t num_classes) {
  std::vector<RowPosition> sorted;
  sorted.reserve(slots.count);
  for (int64_t slot = 0; slot < slots.count; ++slot) {
    if (slots.ids[slot] >= 0) sorted.push_back(Pack(slots.ids[slot], slot));
  }
  SortByRow(num_classes, &sorted);
  return sorted;
}

void SparseRowGradients(const SparseRows& rows, const CandidateSlots& slots, const float* gradient,
                        const std::vector<RowPosition>& sorted, const std::vector<int64_t>& starts, int64_t first,
                        int64_t last, float* row_gradients, int32_t* class_ids) {
  for (int64_t u = first; u < last; ++u) {
    const int64_t l = Row(sorted[starts[u]]);
    const int32_t* inputs = InputsOf(rows, l);
    float* out = row_gradients + u * rows.fan_in;
    std::fill(out, out + rows.fan_in, 0.0f);
    for (int64_t i = starts[u]; i < starts[u + 1]; ++i) {
      const int64_t slot = Position(sorted[i]);
      if (gradient[slot] == 0.0f) continue;
      const float* query = slots.query + slot / slots.samples * rows.num_inputs;
      for (int64_t k = 0; k < rows.fan_in; ++k) out[k] += gradient[slot] * query[inputs[k]];
    }
    class_ids[u] = static_cast<int32_t>(l);
  }
}

}  // namespace tfxc
