// What a MACH decode reads: bucket scores of some queries, and the hash functions that send classes to buckets.
#ifndef TFXC_CUSTOM_OPS_MACH_DECODE_TABLES_H_
#define TFXC_CUSTOM_OPS_MACH_DECODE_TABLES_H_

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

// Scores [B, R, M] and the classes [B, X] that are passed over, -1 for none.
struct Queries {
  const float* tables;
  int64_t count;  // B
  const int32_t* exclude;
  int64_t num_excluded;  // X
  Decoder decoder;

  const float* Table(const Hashes& hashes, int64_t query, int64_t r) const {
    return tables + (query * hashes.Count() + r) * hashes.num_buckets;
  }
};

}  // namespace tfxc

#endif  // TFXC_CUSTOM_OPS_MACH_DECODE_TABLES_H_
