#include "candidate_scores/scores.h"

#include <algorithm>
#include <cmath>

#include "candidate_scores/slot_rows.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

TFXC_INLINE void ZeroRow(float* out, int64_t width) { std::fill(out, out + width, 0.0f); }

template <typename Lanes>
TFXC_INLINE void ScoreCandidatesOf(const CandidateProblem& p, int64_t first, int64_t last, float* scores) {
  FewRows few(p.table);
  std::vector<int32_t> filled(p.samples);
  std::vector<float> scales(p.samples);
  for (int64_t n = first; n < last; ++n) {
    float* of_query = scores + n * p.samples;
    ZeroRow(of_query, p.samples);
    const int64_t count = ListFilled(p.ids + n * p.samples, p.samples, filled.data());
    ScoreSlots<Lanes>(p, n, filled.data(), count, &few, scales.data(), of_query);
  }
}

}  // namespace

TFXC_BY_WIDTH(void, ScoreCandidates, (const CandidateProblem& p, int64_t first, int64_t last, float* scores),
              (p, first, last, scores))

TFXC_VECTORIZE void CandidateQueryGradients(const CandidateProblem& p, int64_t first, int64_t last,
                                            const float* gradients, float* query_gradients) {
  std::vector<float> buffer = p.table.Buffer(1);
  // Backwards: the rows that were scored last are the likeliest to be in the cache still.
  for (int64_t n = last - 1; n >= first; --n) {
    float* out = query_gradients + n * p.width;
    ZeroRow(out, p.width);
    for (int64_t slot = (n + 1) * p.samples - 1; slot >= n * p.samples; --slot) {
      p.Prefetch(slot - kPrefetchDistance);
      if (p.ids[slot] < 0 || gradients[slot] == 0.0f) continue;
      const float* row = p.table.Read(p.ids[slot], 1, &buffer);
      AddScaled(gradients[slot] * ScaleOf(p, row), row, out, p.width);
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
