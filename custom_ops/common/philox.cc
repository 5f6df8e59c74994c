#include "common/philox.h"

#include <algorithm>

#include "common/vectorize.h"

#ifdef TFXC_AVX2
#include <immintrin.h>
#endif

namespace tfxc {
namespace philox {  // not without a name: Clang would take a version of Fill for unused

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
// Four counters, one in each 64 bits. Only the lower 32 bits count: the instruction multiplies only these, and no
// compiler makes it from products of 64 bits.
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

// Stores the lower halves of `low`, and those of `high` above them; at most `wanted` of the four words.
TFXC_AVX2 inline __attribute__((always_inline)) void Store(__m256i low, __m256i high, int64_t wanted, uint64_t* to) {
  const __m256i words = _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0b10101010);
  if (wanted >= 4) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
  alignas(32) uint64_t own[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(own), words);
  std::copy_n(own, std::max<int64_t>(wanted, 0), to);
}

TFXC_AVX2 inline void Fill(const Seed& seed, uint32_t stream, int64_t count, uint64_t* __restrict first,
                           uint64_t* __restrict second) {
  constexpr int kAtOnce = 2;  // vectors of four counters: one mixes while the other waits for a product
  const __m256i x1 = _mm256_set1_epi64x(stream);
  const __m256i x2 = _mm256_set1_epi64x(static_cast<int64_t>(seed.sequence));
  const __m256i x3 = _mm256_set1_epi64x(static_cast<int64_t>(seed.sequence >> 32));
  for (int64_t i = 0; i < count; i += 4 * kAtOnce) {
    __m256i key0 = _mm256_set1_epi64x(static_cast<int64_t>(seed.key));
    __m256i key1 = _mm256_set1_epi64x(static_cast<int64_t>(seed.key >> 32));
    FourCounters x[kAtOnce];
    for (int part = 0; part < kAtOnce; ++part) {
      const int64_t counter = i + 4 * part;
      x[part] = {_mm256_set_epi64x(counter + 3, counter + 2, counter + 1, counter), x1, x2, x3};
    }
    for (int round = 0; round < kRounds; ++round) {
      for (int part = 0; part < kAtOnce; ++part) Mix(key0, key1, &x[part]);
      key0 = _mm256_add_epi64(key0, _mm256_set1_epi64x(kWeyl0));
      key1 = _mm256_add_epi64(key1, _mm256_set1_epi64x(kWeyl1));
    }
    for (int part = 0; part < kAtOnce; ++part) {
      const int64_t begin = i + 4 * part, wanted = count - begin;
      Store(x[part].x0, x[part].x1, wanted, first + begin);
      Store(x[part].x2, x[part].x3, wanted, second + begin);
    }
  }
}
#endif

#ifdef TFXC_WIDE
// The same for eight counters.
struct EightCounters {
  __m512i x0, x1, x2, x3;
};

constexpr __mmask8 kAllEight = 0xff;  // GCC 12 warns of its own header for instructions without a mask

// The products of the lower 32 bits.
TFXC_WIDE inline __attribute__((always_inline)) __m512i Product(__m512i x, uint32_t multiplier) {
  return _mm512_maskz_mul_epu32(kAllEight, x, _mm512_set1_epi64(multiplier));
}

TFXC_WIDE inline __attribute__((always_inline)) void Mix(const __m512i& key0, const __m512i& key1, EightCounters* x) {
  const __m512i product0 = Product(x->x0, kMultiplier0), product1 = Product(x->x2, kMultiplier1);
  x->x0 = _mm512_maskz_srli_epi64(kAllEight, product1, 32) ^ x->x1 ^ key0;
  x->x2 = _mm512_maskz_srli_epi64(kAllEight, product0, 32) ^ x->x3 ^ key1;
  x->x1 = product1;
  x->x3 = product0;
}

TFXC_WIDE inline __attribute__((always_inline)) void Store(__m512i low, __m512i high, __mmask8 wanted, uint64_t* to) {
  constexpr __mmask16 kUpperHalves = 0xaaaa;
  high = _mm512_maskz_slli_epi64(kAllEight, high, 32);
  _mm512_mask_storeu_epi64(to, wanted, _mm512_mask_blend_epi32(kUpperHalves, low, high));
}

TFXC_WIDE void FillWide(const Seed& seed, uint32_t stream, int64_t count, uint64_t* __restrict first,
                        uint64_t* __restrict second) {
  const __m512i x1 = _mm512_set1_epi64(stream);
  const __m512i x2 = _mm512_set1_epi64(static_cast<int64_t>(seed.sequence));
  const __m512i x3 = _mm512_set1_epi64(static_cast<int64_t>(seed.sequence >> 32));
  for (int64_t i = 0; i < count; i += 8) {
    __m512i key0 = _mm512_set1_epi64(static_cast<int64_t>(seed.key));
    __m512i key1 = _mm512_set1_epi64(static_cast<int64_t>(seed.key >> 32));
    EightCounters x = {_mm512_add_epi64(_mm512_set1_epi64(i), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0)), x1, x2, x3};
    for (int round = 0; round < kRounds; ++round) {
      Mix(key0, key1, &x);
      key0 = _mm512_add_epi64(key0, _mm512_set1_epi64(kWeyl0));
      key1 = _mm512_add_epi64(key1, _mm512_set1_epi64(kWeyl1));
    }
    const auto wanted = static_cast<__mmask8>((1u << std::min<int64_t>(count - i, 8)) - 1);
    Store(x.x0, x.x1, wanted, first + i);
    Store(x.x2, x.x3, wanted, second + i);
  }
}
#endif

}  // namespace philox

void FillBits(const Seed& seed, uint32_t stream, int64_t count, uint64_t* first, uint64_t* second) {
#ifdef TFXC_WIDE
  if (HasWideRegisters()) return philox::FillWide(seed, stream, count, first, second);
#endif
  philox::Fill(seed, stream, count, first, second);
}

}  // namespace tfxc
