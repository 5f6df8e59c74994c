// The rows of a query's filled slots, a few at a time: their scores, and sums of them.
#ifndef TFXC_CANDIDATE_SCORES_SLOT_ROWS_H_
#define TFXC_CANDIDATE_SCORES_SLOT_ROWS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "candidate_scores/scores.h"
#include "common/few_rows.h"

namespace tfxc {

// The table's rows of a few slots, where they lie or widened.
class FewRows {
 public:
  explicit FewRows(const Table& table) : table_(table) { buffers_.fill(table.Buffer(1)); }

  template <int kRows>
  TFXC_INLINE void Read(const int32_t* ids, const int32_t* slots) {
    for (int r = 0; r < kRows; ++r) rows[r] = table_.Read(ids[slots[r]], 1, &buffers_[r]);
  }

  std::array<const float*, kFewRows> rows;

 private:
  const Table& table_;
  std::array<std::vector<float>, kFewRows> buffers_;
};

// The slots of a query that hold an id, and how many there are.
TFXC_INLINE int64_t ListFilled(const int32_t* ids, int64_t samples, int32_t* filled) {
  int64_t count = 0;
  for (int64_t s = 0; s < samples; ++s) {
    filled[count] = static_cast<int32_t>(s);
    count += ids[s] >= 0;
  }
  return count;
}

// What scales a row to length one, if class vectors are normalised.
TFXC_INLINE float ScaleOf(const CandidateProblem& p, const float* row) {
  bool is_short;
  return p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
}

template <typename Lanes, int kRows>
TFXC_INLINE void ScoreFew(const CandidateProblem& p, int64_t n, const int32_t* slots, FewRows* few, float* scales,
                          float* scores) {
  for (int r = 0; r < kRows; ++r) p.Prefetch(n * p.samples + slots[r] + kPrefetchDistance);
  few->Read<kRows>(p.ids + n * p.samples, slots);
  float dots[kRows];
  DotRows<Lanes, kRows>(p.query + n * p.width, few->rows.data(), p.width, dots);
  for (int r = 0; r < kRows; ++r) {
    scales[slots[r]] = ScaleOf(p, few->rows[r]);
    scores[slots[r]] = scales[slots[r]] * dots[r];
  }
}

// Scores [S] of query n, and what scales its rows [S], at `count` filled slots; the others stay as they are.
template <typename Lanes>
TFXC_INLINE void ScoreSlots(const CandidateProblem& p, int64_t n, const int32_t* slots, int64_t count, FewRows* few,
                            float* scales, float* scores) {
  int64_t i = 0;
  for (; i + kFewRows <= count; i += kFewRows) ScoreFew<Lanes, kFewRows>(p, n, slots + i, few, scales, scores);
  for (; i < count; ++i) ScoreFew<Lanes, 1>(p, n, slots + i, few, scales, scores);
}

template <typename Lanes, int kRows>
TFXC_INLINE void AddFew(const int32_t* ids, const int32_t* slots, const float* weights, int64_t width, FewRows* few,
                        float* sum) {
  few->Read<kRows>(ids, slots);
  AddScaledRows<Lanes, kRows>(weights, few->rows.data(), sum, width);
}

// sum += weights[i] * row of slots[i], for i below count.
template <typename Lanes>
TFXC_INLINE void AddSlots(const CandidateProblem& p, const int32_t* ids, const int32_t* slots, const float* weights,
                          int64_t count, FewRows* few, float* sum) {
  int64_t i = 0;
  for (; i + kFewRows <= count; i += kFewRows) {
    AddFew<Lanes, kFewRows>(ids, slots + i, weights + i, p.width, few, sum);
  }
  for (; i < count; ++i) AddFew<Lanes, 1>(ids, slots + i, weights + i, p.width, few, sum);
}

}  // namespace tfxc

#endif  // TFXC_CANDIDATE_SCORES_SLOT_ROWS_H_
