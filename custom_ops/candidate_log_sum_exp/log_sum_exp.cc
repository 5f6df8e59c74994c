#include "candidate_log_sum_exp/log_sum_exp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "candidate_scores/slot_rows.h"
#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// What is below e^-69 would only make numbers so small that processors take many times as long for them.
constexpr float kLeastShare = -69.0f;

// Scores become their shares of the sum of exponentials; its logarithm. `count` is a multiple of kLanes.
template <typename Lanes>
TFXC_INLINE float BecomeSharesOf(float* scores, int64_t count) {
  Lanes most = Fill<Lanes>(-kInfinity);
  for (int64_t i = 0; i < count; i += kSizeOf<Lanes>) most = Max(most, Load<Lanes>(scores + i));
  float largest = most[0];
  for (int j = 1; j < kSizeOf<Lanes>; ++j) largest = std::max(largest, most[j]);
  const bool is_nothing = std::all_of(scores, scores + count, [](float score) { return score == -kInfinity; });
  if (is_nothing) {
    std::fill(scores, scores + count, 0.0f);
    return kNothing;
  }
  Lanes parts[kParts<Lanes>] = {};
  for (int64_t i = 0; i < count;) {
    for (int part = 0; part < kParts<Lanes>; ++part, i += kSizeOf<Lanes>) {
      const Lanes e = Exp<false>(Load<Lanes>(scores + i) - largest, kLeastShare);
      Store(e, scores + i);
      parts[part] += e;
    }
  }
  const float total = Sum(parts), scale = 1.0f / total;  // NaN, of infinite scores
  for (int64_t i = 0; i < count; i += kSizeOf<Lanes>) Store(Load<Lanes>(scores + i) * scale, scores + i);
  return largest + std::log(total);
}

template <typename Lanes>
TFXC_INLINE void FoldCandidatesOf(const CandidateProblem& p, const LogSumExp& out, int64_t first, int64_t last) {
  const int64_t num_labels = out.num_labels, num_candidates = p.samples - num_labels;
  const int64_t padded = (num_candidates + kLanes - 1) / kLanes * kLanes;
  FewRows few(p.table);
  std::vector<int32_t> filled(p.samples);
  std::vector<float> scales(p.samples), scores(num_labels + padded), weights(p.samples);
  float* const shares = scores.data() + num_labels;
  for (int64_t n = first; n < last; ++n) {
    const int32_t* ids = p.ids + n * p.samples;
    int64_t count = ListFilled(ids, p.samples, filled.data());
    std::fill(scores.begin(), scores.end(), -kInfinity);
    ScoreSlots<Lanes>(p, n, filled.data(), count, &few, scales.data(), scores.data());

    for (int32_t s = 0; s < num_labels; ++s) {
      const int64_t label = n * num_labels + s;
      out.label_scores[label] = ids[s] < 0 ? 0.0f : scores[s];
      if (ids[s] < 0) continue;
      few.Read<1>(ids, &s);
      ScaleInto(scales[s], few.rows[0], out.label_vectors + label * p.width, p.width);
    }
    const float* offsets = out.offsets + n * num_candidates;
    for (int64_t s = 0; s < num_candidates; ++s) shares[s] += ids[num_labels + s] < 0 ? 0.0f : offsets[s];
    out.log_sum[n] = BecomeSharesOf<Lanes>(shares, padded);
    std::copy_n(shares, num_candidates, out.shares + n * num_candidates);

    count = 0;
    for (int64_t s = num_labels; s < p.samples; ++s) {
      const float share = shares[s - num_labels];
      if (ids[s] < 0 || share == 0.0f) continue;
      weights[count] = share * scales[s];
      filled[count++] = s;
    }
    float* mean = out.mean + n * p.width;
    std::fill(mean, mean + p.width, 0.0f);
    AddSlots<Lanes>(p, ids, filled.data(), weights.data(), count, &few, mean);
  }
}

}  // namespace

TFXC_VECTORIZE std::vector<int32_t> FilledIds(const CandidateProblem& p, int64_t num_labels, const float* offsets) {
  std::vector<int32_t> ids(p.ids, p.ids + p.num_slots);
  for (int64_t start = num_labels; start < p.num_slots; start += p.samples) {
    const int64_t num_candidates = p.samples - num_labels;
    for (int64_t s = 0; s < num_candidates; ++s) ids[start + s] = offsets[s] == -kInfinity ? -1 : ids[start + s];
    offsets += num_candidates;
  }
  return ids;
}

TFXC_BY_WIDTH(void, FoldCandidates, (const CandidateProblem& p, const LogSumExp& out, int64_t first, int64_t last),
              (p, out, first, last))

TFXC_VECTORIZE void UnfoldCandidates(const CandidateProblem& p, const LogSumExpGradients& given, int64_t first,
                                     int64_t last, float* query_gradients, float* score_gradients) {
  const int64_t num_labels = given.num_labels, num_candidates = p.samples - num_labels;
  for (int64_t n = first; n < last; ++n) {
    float* of_query = query_gradients + n * p.width;
    float* of_scores = score_gradients + n * p.samples;
    ScaleInto(given.of_log_sum[n], given.mean + n * p.width, of_query, p.width);
    ScaleInto(given.of_log_sum[n], given.shares + n * num_candidates, of_scores + num_labels, num_candidates);
    for (int64_t s = 0; s < num_labels; ++s) {
      const int64_t label = n * num_labels + s;
      const float gradient = of_scores[s] = given.of_label_scores[label];
      if (p.ids[n * p.samples + s] < 0 || gradient == 0.0f) continue;
      AddScaled(gradient, given.label_vectors + label * p.width, of_query, p.width);
    }
  }
}

}  // namespace tfxc
