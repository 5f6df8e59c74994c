// Candidates from hash tables, free of TensorFlow. A query has M parts (itself, or its labels), each with a code in
// each of T tables; a class is near a part if their codes agree in many tables.
#pragma once

#include <cstdint>
#include <vector>

#include "common/philox.h"

namespace tfxc {

struct HashTables {
  int64_t num_classes;      // L
  int64_t num_tables;       // T
  int64_t num_buckets;
  const uint16_t* codes;    // [L, T]
  const int32_t* offsets;   // [T, num_buckets + 1]
  const int32_t* members;   // [T, L], sorted by bucket
};

struct Scheme {
  int64_t num_candidates;   // S
  double uniform_fraction;  // epsilon: the share of draws from all classes
  int64_t bucket_slots;     // 0: independent draws; else the most classes that a table adds to a union
};

// The buckets of one query, the expected count of any class, and the candidates. Precondition: codes are below
// num_buckets, the codes of a part are all -1 or none is, and the offsets of these buckets ascend in [0, L]. The
// results are a pure function of the seed, the query's number and the candidate's number.
class QueryBuckets {
 public:
  QueryBuckets(const HashTables& tables, const Scheme& scheme);

  // Reads codes [M, T], -1 for an absent part. Without parts, all draws are uniform.
  void SetQuery(const int32_t* codes, int64_t num_parts);

  // Log of the expected count of classes ids [count] in [0, L).
  void LogExpectedCounts(const int32_t* ids, int64_t count, float* log_expected_count);

  // Candidates ids [S] (-1: none) and their log expected counts. Where members or codes are malformed, a candidate's
  // log count is NaN, and its id is that of the bad member.
  void Draw(const Seed& seed, uint32_t query, int32_t* ids, float* log_expected_count);

 private:
  void DrawEach(const Seed& seed, uint32_t query);
  void DrawUnion(const Seed& seed, uint32_t query);
  void TakeFromBucket(int64_t bucket, double unit, int64_t first_slot);
  void ReadMembers(int32_t* ids);
  void DropRepeats(int32_t* ids);
  bool IsConsistent(int64_t slot, int32_t id) const;

  const HashTables tables_;
  const Scheme scheme_;
  const int64_t uniform_slots_;  // of a union
  int64_t parts_ = 0;            // M, without absent parts
  double everywhere_ = 0.0;      // the expected count of a class that is in no bucket
  // For each bucket [M, T]; weight: what it adds to the expected count of a member, or in a union to the chance that
  // its table takes the member.
  std::vector<int32_t> code_;
  std::vector<double> weight_;
  std::vector<int64_t> start_, size_;
  std::vector<double> chance_, expected_;    // [T], [the most classes of one call]
  std::vector<uint64_t> first_bits_, second_bits_;
  std::vector<int64_t> position_, origin_;   // [S] in members, -1: the class itself or none; the bucket or -1
  std::vector<int32_t> candidate_, seen_;    // [S]; a hash set
};

}  // namespace tfxc
