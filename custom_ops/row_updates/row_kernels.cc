#include "row_updates/row_kernels.h"

#include <cmath>
#include <cstring>

#include "common/simd.h"
#include "common/vectorize.h"

namespace tfxc {

TFXC_VECTORIZE void SetMultiple(float multiplier, const float* row, float* sum, int64_t width) {
  ScaleInto(multiplier, row, sum, width);
}

TFXC_VECTORIZE void AddMultiple(float multiplier, const float* row, float* sum, int64_t width) {
  AddScaled(multiplier, row, sum, width);
}

TFXC_VECTORIZE void SgdRow(const float* __restrict g, float learning_rate, float* __restrict x, int64_t width) {
  for (int64_t d = 0; d < width; ++d) x[d] -= learning_rate * g[d];
}

TFXC_VECTORIZE void AdamRow(const float* __restrict g, const AdamScalars& scalars, float* __restrict x,
                            float* __restrict m, float* __restrict v, int64_t width) {
  const AdamScalars s = scalars;
  for (int64_t d = 0; d < width; ++d) {
    m[d] += (g[d] - m[d]) * s.one_minus_beta_1;
    v[d] += (g[d] * g[d] - v[d]) * s.one_minus_beta_2;
    x[d] -= s.learning_rate * m[d] / (std::sqrt(v[d]) + s.epsilon);
  }
}

TFXC_VECTORIZE float MeanSquare(const float* g, int64_t width) {
  // Independent lanes: the compiler may not reorder a single running sum, and could not vectorise it.
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  const int64_t whole = width - width % kLanes;
  for (int64_t d = 0; d < whole; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += g[d + lane] * g[d + lane];
  }
  for (int64_t d = whole; d < width; ++d) lanes[d - whole] += g[d] * g[d];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum / static_cast<float>(width);
}

void DrawForRow(const Seed& seed, uint32_t row, int64_t width, uint64_t* random) {
  const int64_t count = NumCounters(width);
  FillBits(seed, row, count, random, random + count);
}

TFXC_VECTORIZE void RoundRow(const float* __restrict x, const uint64_t* __restrict random, int64_t width,
                             Bfloat16* __restrict out) {
  const auto* bits = reinterpret_cast<const unsigned char*>(random);
  for (int64_t d = 0; d < width; ++d) {
    uint16_t own;
    std::memcpy(&own, bits + d * sizeof(own), sizeof(own));
    out[d] = RoundStochastically(x[d], own);
  }
}

}  // namespace tfxc
