// The inputs of a MACH decode: bucket scores of some queries, and the hash functions from classes to buckets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/simd.h"

namespace tfxc {

enum class Decoder { kMean, kMin, kMedian };

// h(i) = ((multiplier i + offset) mod prime) mod M, all below 2^31.
struct HashFunction {
  uint64_t multiplier, offset, inverse;
};

struct Hashes {
  std::vector<HashFunction> functions;
  uint64_t prime;
  int64_t num_buckets;  // M
  int64_t num_classes;  // L

  int64_t Count() const { return functions.size(); }
  uint64_t Value(int64_t r, int64_t id) const {
    return (functions[r].multiplier * id + functions[r].offset) % prime;
  }
  int64_t Bucket(int64_t r, int64_t id) const { return Value(r, id) % num_buckets; }
};

// Scores [B, R, M], and the excluded classes [B, X], -1 for none.
struct Queries {
  const float* tables;
  int64_t count;  // B
  const int32_t* exclude;
  int64_t num_excluded;  // X
  Decoder decoder;

  const float* Table(const Hashes& hashes, int64_t query, int64_t r) const {
    return tables + (query * hashes.Count() + r) * hashes.num_buckets;
  }
  float Value(const Hashes& hashes, int64_t query, int64_t r, int64_t id) const {
    return Table(hashes, query, r)[hashes.Bucket(r, id)];
  }
  bool IsExcluded(int64_t query, int64_t id) const {
    const int32_t* ids = exclude + query * num_excluded;
    return std::find(ids, ids + num_excluded, id) != ids + num_excluded;
  }
};

// The score of a class from the values of its buckets, with the same bits as the score of all classes.
inline float Decode(Decoder decoder, std::vector<float>* values) {
  const int64_t count = values->size();
  if (decoder == Decoder::kMean) {
    float sum = 0.0f;
    for (float value : *values) sum += value;
    return sum * (1.0f / count);
  }
  for (float value : *values) {
    if (value != value) return value;  // NaN cannot be sorted
  }
  std::sort(values->begin(), values->end());
  if (decoder == Decoder::kMin) return values->front();
  return 0.5f * ((*values)[(count - 1) / 2] + (*values)[count / 2]);
}

// No score is above this factor times the sum over the repetitions: a median is at most twice the mean, a minimum at
// most the mean. The slack is for rounding.
inline float Reach(Decoder decoder, int64_t count) {
  return (decoder == Decoder::kMedian ? 2.0002f : 1.0001f) / count;
}

}  // namespace tfxc
