// Vectors of floats that the compiler keeps in registers, and functions of them. Sixteen floats fill a register of
// AVX-512, eight a register of AVX2, four a register of NEON. A vector wider than the registers lies in memory, and is
// many times slower: so code on vectors is a template, compiled for the widths of a processor. See TFXC_BY_WIDTH.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "common/simd.h"

namespace tfxc {

typedef float Lanes16 __attribute__((vector_size(64)));
typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes4 __attribute__((vector_size(16)));
#ifdef __x86_64__
typedef Lanes8 NarrowLanes;
#else
typedef Lanes4 NarrowLanes;
#endif

template <typename Lanes>
struct Related {
  typedef int32_t Signed __attribute__((vector_size(sizeof(Lanes))));
  typedef uint32_t Unsigned __attribute__((vector_size(sizeof(Lanes))));
  typedef double Doubles __attribute__((vector_size(sizeof(Lanes))));
  typedef float Half __attribute__((vector_size(sizeof(Lanes) / 2)));
};
template <typename Lanes>
using IntOf = typename Related<Lanes>::Signed;
template <typename Lanes>
using UintOf = typename Related<Lanes>::Unsigned;

template <typename Lanes>
constexpr int kSizeOf = sizeof(Lanes) / sizeof(float);
template <typename Lanes>
constexpr int kParts = kLanes / kSizeOf<Lanes>;  // vectors in sixteen floats

// Loads floats from any address. Read their bits by a value cast, `(IntOf<Lanes>)x`: through a reference to another
// type, the compiler may read them before the last store.
template <typename Lanes>
TFXC_INLINE Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

template <typename Lanes>
TFXC_INLINE void Store(Lanes lanes, float* to) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

// NaN in x stays.
template <typename Lanes>
TFXC_INLINE Lanes Max(Lanes x, Lanes y) {
  return y > x ? y : x;
}

template <typename Lanes>
TFXC_INLINE Lanes Fill(float x) {
  return Lanes{} + x;
}

// The lanes of x, and of y behind it, that `order` lists.
template <typename Lanes>
TFXC_INLINE Lanes Shuffle(Lanes x, Lanes y, IntOf<Lanes> order) {
#ifdef __clang__
  Lanes out;
  for (int j = 0; j < kSizeOf<Lanes>; ++j) out[j] = (order[j] < kSizeOf<Lanes> ? x : y)[order[j] % kSizeOf<Lanes>];
  return out;
#else
  return __builtin_shuffle(x, y, order);
#endif
}

// The sum of sixteen floats: the same bits for every width.
TFXC_INLINE float Sum(const Lanes4 (&parts)[4]) {
  const Lanes4 x = (parts[0] + parts[2]) + (parts[1] + parts[3]);
  return (x[0] + x[2]) + (x[1] + x[3]);
}

TFXC_INLINE float Sum(const Lanes8 (&parts)[2]) {
  Lanes8 x = parts[0] + parts[1];
  x += Shuffle(x, x, IntOf<Lanes8>{4, 5, 6, 7, 0, 1, 2, 3});
  x += Shuffle(x, x, IntOf<Lanes8>{2, 3, 0, 1, 6, 7, 4, 5});
  return x[0] + x[1];
}

TFXC_INLINE float Sum(const Lanes16 (&parts)[1]) {
  Lanes16 x = parts[0];
  x += Shuffle(x, x, IntOf<Lanes16>{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  x += Shuffle(x, x, IntOf<Lanes16>{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  x += Shuffle(x, x, IntOf<Lanes16>{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return x[0] + x[1];
}

// Transposes a square. Each pass swaps the off-diagonal halves of smaller and smaller squares.
template <int kStep, typename Lanes>
TFXC_INLINE void SwapSquares(Lanes* rows) {
  constexpr int kSize = kSizeOf<Lanes>;
  IntOf<Lanes> low, high;
  for (int j = 0; j < kSize; ++j) {
    low[j] = j & kStep ? kSize + j - kStep : j;
    high[j] = j & kStep ? kSize + j : j + kStep;
  }
  for (int i = 0; i < kSize; ++i) {
    if (i & kStep) continue;
    const Lanes upper = rows[i], lower = rows[i + kStep];
    rows[i] = Shuffle(upper, lower, low);
    rows[i + kStep] = Shuffle(upper, lower, high);
  }
}

// As many rows as a row is long.
template <typename Lanes>
TFXC_INLINE void Transpose(Lanes* rows) {
  if constexpr (kSizeOf<Lanes> == 16) SwapSquares<8>(rows);
  if constexpr (kSizeOf<Lanes> >= 8) SwapSquares<4>(rows);
  SwapSquares<2>(rows);
  SwapSquares<1>(rows);
}

// Whether a comparison holds in any lane.
template <typename Mask>
TFXC_INLINE bool Any(Mask mask) {
  constexpr int kWords = sizeof(mask) / sizeof(int64_t);
  int64_t words[kWords], any = 0;
  std::memcpy(words, &mask, sizeof(mask));
  for (int64_t word : words) any |= word;
  return any != 0;
}

// Whether any lane of x differs from 0; NaN does.
template <typename Lanes>
TFXC_INLINE bool AnyNonZero(const Lanes* x, int count) {
  IntOf<Lanes> bits{};
  for (int v = 0; v < count; ++v) bits |= (IntOf<Lanes>)x[v] << 1;  // without the sign
  return Any(bits);
}

// exp(x) with a relative error of at most 2e-7 + 3e-9 |x|, about that of rounding x. Below `least` it is 0, above 88 at
// least 1e38 or infinite; NaN stays. It is 2^n times a polynomial on [-ln(2) / 2, ln(2) / 2], whose error is 1e-7. An x
// that is known to be at most 0 needs no upper bound.
template <bool kBounded = true, typename Lanes>
TFXC_INLINE Lanes Exp(Lanes x, float least = -87.0f) {
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits; 127 more make it the exponent of a float.
  constexpr float kRound = 12582912.0f + 127;
  constexpr int32_t kMost = 0x4b400000 + 254;
  Lanes shifted = x * 1.44269504f + kRound;
  if (kBounded) shifted = (Lanes)((IntOf<Lanes>)shifted > kMost ? IntOf<Lanes>{} + kMost : (IntOf<Lanes>)shifted);
  const Lanes r = x - (shifted - kRound) * 0.693147182f;
  Lanes p = r * 8.312501013e-3f + 4.189033061e-2f;
  p = p * r + 1.666711569e-1f;
  p = p * r + 4.999923110e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  p *= (Lanes)((IntOf<Lanes>)shifted << 23);
  return x < least ? Lanes{} : p;
}

template <typename Lanes>
TFXC_INLINE Lanes MinusAbs(Lanes x) {
  return (Lanes)((IntOf<Lanes>)x | std::numeric_limits<int32_t>::min());
}

// log(1 + x), x >= 0, to about 2 units in the last place; NaN stays.
template <typename Lanes>
TFXC_INLINE Lanes Log1p(Lanes x) {
  const Lanes u = x + 1.0f;
  const IntOf<Lanes> bits = (IntOf<Lanes>)u - 0x3f3504f3;  // relative to the root of a half
  const Lanes n = __builtin_convertvector(bits >> 23, Lanes);
  const Lanes f = (Lanes)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  // The polynomial of Cephes' logf, between the roots of a half and of 2.
  Lanes p = f * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const Lanes lost = (x - (u - 1.0f)) / u;  // what rounding u loses
  return n * 0.693359375f + (f + (f * f * (p * f - 0.5f) + (lost - n * 2.12194440e-4f)));
}

// Divides by Newton's method: a division would take twice as long as all the rest.
template <typename Lanes>
TFXC_INLINE Lanes Sigmoid(Lanes x) {
  const Lanes e = Exp<false>(MinusAbs(x)), d = e + 1.0f;
  Lanes inverse = (e * (32.0f / 99) - 80.0f / 99) * e + 98.0f / 99;  // within 1/99 of it, on [1, 2]
  for (int i = 0; i < 2; ++i) inverse += inverse * (1.0f - d * inverse);
  return (x > 0.0f ? Fill<Lanes>(1.0f) : e) * inverse;
}

}  // namespace tfxc
