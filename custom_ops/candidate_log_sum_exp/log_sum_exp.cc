#include "candidate_log_sum_exp/log_sum_exp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/aligned_vector.h"
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

TFXC_BY_WIDTH(float, BecomeShares, (float* scores, int64_t count), (scores, count))

// What scales a row to length one, if class vectors are normalised.
TFXC_INLINE float ScaleOf(const CandidateProblem& p, const float* row) {
  bool is_short;
  return p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
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

TFXC_VECTORIZE void FoldCandidates(const CandidateProblem& p, const LogSumExp& out, int64_t first, int64_t last) {
  const int64_t num_candidates = p.samples - out.num_labels;
  const int64_t padded = (num_candidates + kLanes - 1) / kLanes * kLanes;
  std::vector<float> buffer = p.table.Buffer(1), scales(p.samples);
  AlignedVector<float> scores(padded);
  for (int64_t n = first; n < last; ++n) {
    const float* query = p.query + n * p.width;
    const float* offsets = out.offsets + n * num_candidates;
    const int32_t* ids = p.ids + n * p.samples;
    std::fill(scores.begin(), scores.end(), -kInfinity);
    for (int64_t s = 0; s < p.samples; ++s) {
      p.Prefetch(n * p.samples + s + kPrefetchDistance);
      float score = 0.0f;
      if (ids[s] >= 0) {
        const float* row = p.table.Read(ids[s], 1, &buffer);
        scales[s] = ScaleOf(p, row);
        score = scales[s] * Dot(query, row, p.width);
      }
      if (s < out.num_labels) {
        const int64_t label = n * out.num_labels + s;
        out.label_scores[label] = score;
        if (ids[s] >= 0) {
          ScaleInto(scales[s], p.table.Read(ids[s], 1, &buffer), out.label_vectors + label * p.width, p.width);
        }
      } else if (ids[s] >= 0) {
        scores[s - out.num_labels] = score + offsets[s - out.num_labels];
      }
    }
    out.log_sum[n] = BecomeShares(scores.data(), padded);
    std::copy_n(scores.data(), num_candidates, out.shares + n * num_candidates);
    float* mean = out.mean + n * p.width;
    std::fill(mean, mean + p.width, 0.0f);
    for (int64_t s = out.num_labels; s < p.samples; ++s) {
      const float share = scores[s - out.num_labels];
      if (ids[s] < 0 || share == 0.0f) continue;
      AddScaled(share * scales[s], p.table.Read(ids[s], 1, &buffer), mean, p.width);
    }
  }
}

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
