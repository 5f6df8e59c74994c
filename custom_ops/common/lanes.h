// Sixteen floats that the compiler keeps in the widest registers there are, and the functions of them in use here.
#ifndef TFXC_COMMON_LANES_H_
#define TFXC_COMMON_LANES_H_

#include <cstdint>
#include <cstring>

#include "common/simd.h"

namespace tfxc {

typedef float Lanes __attribute__((vector_size(64), aligned(64)));
typedef int32_t IntLanes __attribute__((vector_size(64), aligned(64)));
typedef uint32_t UintLanes __attribute__((vector_size(64), aligned(64)));

// Sixteen floats from anywhere. Their bits are read by a value cast, `(IntLanes)x`: read through a reference to another
// type, the compiler may take them from before the last store.
TFXC_INLINE Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

// NaN in x stays.
TFXC_INLINE Lanes Max(Lanes x, Lanes y) { return y > x ? y : x; }
TFXC_INLINE Lanes Fill(float x) { return Lanes{} + x; }

TFXC_INLINE float Sum(Lanes x) {
  x += __builtin_shuffle(x, IntLanes{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  x += __builtin_shuffle(x, IntLanes{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  x += __builtin_shuffle(x, IntLanes{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return x[0] + x[1];
}

// Rows become columns. Each pass swaps the off-diagonal halves of smaller and smaller squares.
template <int kStep>
TFXC_INLINE void SwapSquares(Lanes* rows) {
  IntLanes low, high;
  for (int j = 0; j < kLanes; ++j) {
    low[j] = j & kStep ? kLanes + j - kStep : j;
    high[j] = j & kStep ? kLanes + j : j + kStep;
  }
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Lanes upper = rows[i], lower = rows[i + kStep];
    rows[i] = __builtin_shuffle(upper, lower, low);
    rows[i + kStep] = __builtin_shuffle(upper, lower, high);
  }
}

TFXC_INLINE void Transpose(Lanes* rows) {
  SwapSquares<8>(rows);
  SwapSquares<4>(rows);
  SwapSquares<2>(rows);
  SwapSquares<1>(rows);
}

// Whether a comparison holds in any lane.
TFXC_INLINE bool Any(IntLanes mask) {
  int64_t words[8], any = 0;
  std::memcpy(words, &mask, sizeof(mask));
  for (int64_t word : words) any |= word;
  return any != 0;
}

// Whether any lane of x is other than 0; NaN is.
TFXC_INLINE bool AnyNonZero(const Lanes* x, int count) {
  IntLanes bits{};
  for (int v = 0; v < count; ++v) bits |= (IntLanes)x[v] << 1;  // without the sign
  return Any(bits);
}

// exp(x) to about 2 units in the last place; below -87 it is tiny, above 88 it is 1.6e38.
TFXC_INLINE Lanes Exp(Lanes x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = x < -87.0f ? Fill(-87.0f) : x;
  x = x > 88.0f ? Fill(88.0f) : x;
  const Lanes shifted = x * 1.44269504f + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Lanes scaled = (Lanes)((IntLanes)p + ((IntLanes)shifted << 23));
  return x == x ? scaled : x;  // NaN stays
}

// log(1 + exp(x)) = max(x, 0) + log1p(e), e = exp(-|x|), by the series of 2 atanh(e / (2 + e)).
TFXC_INLINE Lanes Softplus(Lanes x) {
  const Lanes e = Exp(x > 0.0f ? -x : x);
  const Lanes s = e / (e + 2.0f), q = s * s;
  Lanes p = q * (1.0f / 13) + 1.0f / 11;
  p = p * q + 1.0f / 9;
  p = p * q + 1.0f / 7;
  p = p * q + 1.0f / 5;
  p = p * q + 1.0f / 3;
  p = p * q + 1.0f;
  return Max(x, Lanes{}) + 2.0f * s * p;
}

TFXC_INLINE Lanes Sigmoid(Lanes x) {
  const Lanes e = Exp(x > 0.0f ? -x : x);
  return (x > 0.0f ? Fill(1.0f) : e) / (e + 1.0f);
}

}  // namespace tfxc

#endif  // TFXC_COMMON_LANES_H_
