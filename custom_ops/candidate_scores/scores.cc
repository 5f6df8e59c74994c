#include "candidate_scores/scores.h"

#include <algorithm>
#include <cmath>

#include "common/vectorize.h"

namespace tfxc {
namespace {

TFXC_INLINE void ZeroRow(float* out, int64_t width) { std::fill(out, out + width, 0.0f); }

}  // namespace

TFXC_VECTORIZE void ScoreCandidates(const CandidateProblem& p, int64_t first, int64_t last, float* scores) {
  std::vector<float> buffer = p.table.Buffer(1);
  for (int64_t n = first; n < last; ++n) {
    const float* query = p.query + n * p.width;
    for (int64_t slot = n * p.samples; slot < (n + 1) * p.samples; ++slot) {
      p.Prefetch(slot + kPrefetchDistance);
      if (p.ids[slot] < 0) {
        scores[slot] = 0.0f;
        continue;
      }
      const float* row = p.table.Read(p.ids[slot], 1, &buffer);
      bool is_short;
      const float scale = p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
      scores[slot] = scale * Dot(query, row, p.width);
    }
  }
}

TFXC_VECTORIZE void CandidateQueryGradients(const CandidateProblem& p, int64_t first, int64_t last,
                                            const float* gradients, float* query_gradients) {
  std::vector<float> buffer = p.table.Buffer(1);
  // Backwards, because the rows that were scored last are most likely still in the cache.
  for (int64_t n = last - 1; n >= first; --n) {
    float* out = query_gradients + n * p.width;
    ZeroRow(out, p.width);
    for (int64_t slot = (n + 1) * p.samples - 1; slot >= n * p.samples; --slot) {
      p.Prefetch(slot - kPrefetchDistance);
      if (p.ids[slot] < 0 || gradients[slot] == 0.0f) continue;
      const float* row = p.table.Read(p.ids[slot], 1, &buffer);
      bool is_short;
      const float scale = p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
      AddScaled(gradients[slot] * scale, row, out, p.width);
    }
  }
}

std::vector<RowPosition> SortSlots(const CandidateProblem& p) {
  std::vector<RowPosition> slots;
  slots.reserve(p.num_slots);
  for (int64_t slot = 0; slot < p.num_slots; ++slot) {
    if (p.ids[slot] >= 0) slots.push_back(Pack(p.ids[slot], slot));
  }
  SortByRow(p.num_classes, &slots);
  return slots;
}

ClassSlots GroupByClass(const CandidateProblem& p) {
  ClassSlots groups{SortSlots(p), {}};
  groups.starts = GroupStarts(groups.slots);
  return groups;
}

TFXC_VECTORIZE void CandidateRowGradients(const CandidateProblem& p, const ClassSlots& groups, int64_t first,
                                          int64_t last, const float* gradients, float* row_gradients) {
  std::vector<float> buffer = p.table.Buffer(1);
  for (int64_t u = first; u < last; ++u) {
    float* out = row_gradients + u * p.width;
    ZeroRow(out, p.width);
    for (int64_t i = groups.starts[u]; i < groups.starts[u + 1]; ++i) {
      const int64_t slot = Position(groups.slots[i]);
      AddScaled(gradients[slot], p.query + slot / p.samples * p.width, out, p.width);
    }
    if (!p.normalize) continue;
    const float* row = p.table.Read(Row(groups.slots[groups.starts[u]]), 1, &buffer);
    bool is_short;
    const float scale = InverseNorm(row, p.width, &is_short);
    const float along = is_short ? 0.0f : Dot(out, row, p.width) * scale * scale;
    for (int64_t d = 0; d < p.width; ++d) out[d] = is_short ? 0.0f : scale * (out[d] - along * row[d]);
  }
}

}  // namespace tfxc
