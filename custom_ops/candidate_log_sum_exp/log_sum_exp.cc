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
// Shares below e^-69 would only make denormal numbers, for which processors take many times as long.
constexpr float kLeastShare = -69.0f;

// Turns scores into their shares of the sum of exponentials, and returns its logarithm. `count` is a multiple of
// kLanes.
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
  const float total = Sum(parts), scale = 1.0f / total;  // NaN for infinite scores
  for (int64_t i = 0; i < count; i += kSizeOf<Lanes>) Store(Load<Lanes>(scores + i) * scale, scores + i);
  return largest + std::log(total);
}

TFXC_BY_WIDTH(float, BecomeShares, (float* scores, int64_t count), (scores, count))

// The factor that scales a row to length one, if class vectors are normalised.
TFXC_INLINE float ScaleOf(const CandidateProblem& p, const float* row) {
  bool is_short;
  return p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
}

// kWidth numbers of the mean by shares, from `start` on, in registers. It does not read a class of share 0.
template <int kWidth, typename Lanes>
TFXC_INLINE void AddUpPart(const CandidateProblem& p, const int32_t* ids, const float* shares, int64_t count,
                           int64_t start, std::vector<float>* buffer, float* mean) {
  constexpr int kVectors = kWidth / kSizeOf<Lanes>;
  Lanes sums[kVectors] = {};
  for (int64_t s = 0; s < count; ++s) {
    if (shares[s] == 0.0f) continue;
    const float* row = p.table.Read(ids[s], 1, buffer) + start;
    for (int v = 0; v < kVectors; ++v) sums[v] += shares[s] * Load<Lanes>(row + v * kSizeOf<Lanes>);
  }
  for (int v = 0; v < kVectors; ++v) Store(sums[v], mean + start + v * kSizeOf<Lanes>);
}

// The mean [D] of class vectors by their shares.
template <typename Lanes>
TFXC_INLINE void AddUpOf(const CandidateProblem& p, const int32_t* ids, const float* shares, int64_t count,
                         std::vector<float>* buffer, float* mean) {
  constexpr int kWide = 64;
  int64_t start = 0;
  for (; start + kWide <= p.width; start += kWide) AddUpPart<kWide, Lanes>(p, ids, shares, count, start, buffer, mean);
  for (; start + kLanes <= p.width; start += kLanes) AddUpPart<kLanes, Lanes>(p, ids, shares, count, start, buffer, mean);
  if (start == p.width) return;
  std::fill(mean + start, mean + p.width, 0.0f);
  for (int64_t s = 0; s < count; ++s) {
    if (shares[s] == 0.0f) continue;
    AddScaled(shares[s], p.table.Read(ids[s], 1, buffer) + start, mean + start, p.width - start);
  }
}

TFXC_BY_WIDTH(void, AddUp, (const CandidateProblem& p, const int32_t* ids, const float* shares, int64_t count,
                            std::vector<float>* buffer, float* mean),
              (p, ids, shares, count, buffer, mean))

}  // namespace

TFXC_VECTORIZE void JoinIds(const int32_t* labels, const int32_t* candidates, const float* offsets,
                            int64_t num_queries, int64_t num_labels, int64_t num_candidates, int32_t* __restrict ids) {
  for (int64_t n = 0; n < num_queries; ++n) {
    ids = std::copy_n(labels + n * num_labels, num_labels, ids);
    for (int64_t s = 0; s < num_candidates; ++s) ids[s] = offsets[s] == -kInfinity ? -1 : candidates[s];
    ids += num_candidates;
    candidates += num_candidates;
    offsets += num_candidates;
  }
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
    const int32_t* candidates = ids + out.num_labels;
    for (int64_t s = 0; s < num_candidates; ++s) {
      scores[s] = candidates[s] < 0 ? 0.0f : scores[s] * scales[s + out.num_labels];
    }
    AddUp(p, candidates, scores.data(), num_candidates, &buffer, out.mean + n * p.width);
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
