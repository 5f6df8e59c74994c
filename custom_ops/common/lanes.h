// Sixteen floats that the compiler keeps in the widest registers there are, and the functions of them in use here.
#ifndef TFXC_COMMON_LANES_H_
#define TFXC_COMMON_LANES_H_

#include <cstdint>
#include <cstring>
#include <limits>

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

// exp(x) to about 2 units in the last place; below -86.6 it is tiny, above 88 it is 1.6e38; NaN stays. 2^n times a
// polynomial on half a logarithm of 2 to either side of 0, whose error is 1e-8.
TFXC_INLINE Lanes Exp(Lanes x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = x < -86.6f ? Fill(-86.6f) : x;
  x = x > 88.0f ? Fill(88.0f) : x;
  const Lanes shifted = x * 1.44269504f + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Lanes p = r * 1.390130966e-3f + 8.363200058e-3f;
  p = p * r + 4.166685410e-2f;
  p = p * r + 1.666657696e-1f;
  p = p * r + 4.999999955e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * (Lanes)(((IntLanes)shifted << 23) + 0x3f800000);
}

TFXC_INLINE Lanes MinusAbs(Lanes x) { return (Lanes)((IntLanes)x | std::numeric_limits<int32_t>::min()); }

// log(1 + exp(x)) = max(x, 0) + log1p(e), e = exp(-|x|), by a polynomial on [0, 1] whose error is 3e-8.
TFXC_INLINE Lanes Softplus(Lanes x) {
  const Lanes e = Exp(MinusAbs(x));
  Lanes p = e * 5.232691456e-3f - 2.950522752e-2f;
  p = p * e + 7.822593355e-2f;
  p = p * e - 1.366324424e-1f;
  p = p * e + 1.910600603e-1f;
  p = p * e - 2.484298203e-1f;
  p = p * e + 3.331909678e-1f;
  p = p * e - 4.999949314e-1f;
  p = p * e + 9.999999699e-1f;
  return Max(x, Lanes{}) + p * e;
}

// By Newton's method: a division takes twice as long as all the rest.
TFXC_INLINE Lanes Sigmoid(Lanes x) {
  const Lanes e = Exp(MinusAbs(x)), d = e + 1.0f;
  Lanes inverse = 24.0f / 17 - d * (8.0f / 17);  // within 1/17 of it, on [1, 2]
  for (int i = 0; i < 3; ++i) inverse += inverse * (1.0f - d * inverse);
  return (x > 0.0f ? Fill(1.0f) : e) * inverse;
}

}  // namespace tfxc

#endif  // TFXC_COMMON_LANES_H_
