#include "common/philox.h"

#include <algorithm>

#include "common/vectorize.h"

#ifdef TFXC_AVX2
#include <immintrin.h>
#endif

namespace tfxc {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

TFXC_NO_AVX2 inline void Fill(const Seed& seed, uint32_t stream, int64_t count, uint64_t* __restrict first,
                              uint64_t* __restrict second) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x0 = static_cast<uint32_t>(i), x1 = stream;
    uint32_t x2 = static_cast<uint32_t>(seed.sequence), x3 = static_cast<uint32_t>(seed.sequence >> 32);
    uint32_t key0 = static_cast<uint32_t>(seed.key), key1 = static_cast<uint32_t>(seed.key >> 32);
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t product0 = uint64_t{kMultiplier0} * x0;
      const uint64_t product1 = uint64_t{kMultiplier1} * x2;
      x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ key0;
      x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ key1;
      x1 = static_cast<uint32_t>(product1);
      x3 = static_cast<uint32_t>(product0);
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    first[i] = uint64_t{x1} << 32 | x0;
    second[i] = uint64_t{x3} << 32 | x2;
  }
}

#ifdef TFXC_AVX2
// Four counters, one in each 64 bits. Only their lower 32 count: the instruction multiplies no others, which no compiler
// makes of products of 64 bits.
struct FourCounters {
  __m256i x0, x1, x2, x3;
};

TFXC_AVX2 inline __attribute__((always_inline)) void Mix(const __m256i& key0, const __m256i& key1, FourCounters* x) {
  const __m256i product0 = _mm256_mul_epu32(x->x0, _mm256_set1_epi64x(kMultiplier0));
  const __m256i product1 = _mm256_mul_epu32(x->x2, _mm256_set1_epi64x(kMultiplier1));
  x->x0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), x->x1), key0);
  x->x2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), x->x3), key1);
  x->x1 = product1;
  x->x3 = product0;
}

// The lower halves of low, and those of high above them.
TFXC_AVX2 inline __attribute__((always_inline)) __m256i Join(__m256i low, __m256i high) {
  return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0b10101010);
}

TFXC_AVX2 inline void Fill(const Seed& seed, uint32_t stream, int64_t count, uint64_t* __restrict first,
                           uint64_t* __restrict second) {
  constexpr int kAtOnce = 2;  // of four counters: one mixes while the other waits for a product
  __m256i key0[kRounds], key1[kRounds];
  for (uint32_t round = 0; round < kRounds; ++round) {
    key0[round] = _mm256_set1_epi64x(static_cast<uint32_t>(seed.key) + round * kWeyl0);
    key1[round] = _mm256_set1_epi64x(static_cast<uint32_t>(seed.key >> 32) + round * kWeyl1);
  }
  const __m256i x1 = _mm256_set1_epi64x(stream);
  const __m256i x2 = _mm256_set1_epi64x(static_cast<int64_t>(seed.sequence));
  const __m256i x3 = _mm256_set1_epi64x(static_cast<int64_t>(seed.sequence >> 32));
  for (int64_t i = 0; i < count; i += 4 * kAtOnce) {
    FourCounters x[kAtOnce];
    for (int part = 0; part < kAtOnce; ++part) {
      const int64_t counter = i + 4 * part;
      x[part] = {_mm256_set_epi64x(counter + 3, counter + 2, counter + 1, counter), x1, x2, x3};
    }
    for (int round = 0; round < kRounds; ++round) {
      for (int part = 0; part < kAtOnce; ++part) Mix(key0[round], key1[round], &x[part]);
    }
    alignas(32) uint64_t words[2][4 * kAtOnce];
    for (int part = 0; part < kAtOnce; ++part) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(words[0] + 4 * part), Join(x[part].x0, x[part].x1));
      _mm256_store_si256(reinterpret_cast<__m256i*>(words[1] + 4 * part), Join(x[part].x2, x[part].x3));
    }
    const int64_t wanted = std::min<int64_t>(count - i, 4 * kAtOnce);
    std::copy_n(words[0], wanted, first + i);
    std::copy_n(words[1], wanted, second + i);
  }
}
#endif

}  // namespace

void FillBits(const Seed& seed, uint32_t stream, int64_t count, uint64_t* first, uint64_t* second) {
  Fill(seed, stream, count, first, second);
}

}  // namespace tfxc
