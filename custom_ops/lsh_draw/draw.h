// Candidates from hash tables, free of TensorFlow. A query has M parts (itself, or its labels), each
// with a code in every one of T tables; a class is near a part if their codes agree in many tables.
#ifndef TFXC_LSH_DRAW_DRAW_H_
#define TFXC_LSH_DRAW_DRAW_H_

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

// The buckets of one query, the expected count of any class, and the candidates. Precondition: codes
// are below num_buckets, a part's codes being all -1 or none, and the offsets of these buckets ascend in
// [0, L]. What comes out is a pure function of the seed, the query's number and the candidate's number.
class QueryBuckets {
 public:
  QueryBuckets(const HashTables& tables, const Scheme& scheme);

  // codes [M, T], -1 for a part that is absent. Without any part, only uniform draws are left.
  void SetQuery(const int32_t* codes, int64_t num_parts);

  // Log of the expected count of classes ids [count] in [0, L).
  void LogExpectedCounts(const int32_t* ids, int64_t count, float* log_expected_count);

  // Candidates ids [S] (-1: none) and their log expected counts. If members or codes are not what they
  // should be, a candidate's log count is NaN and its id names the culprit.
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
  int64_t parts_ = 0;            // M, absent parts left out
  double everywhere_ = 0.0;      // the expected count of a class that is in no bucket
  // Of each bucket [M, T]; weight: what a member adds to its expected count, or in a union to the chance
  // that its table takes it.
  std::vector<int32_t> code_;
  std::vector<double> weight_;
  std::vector<int64_t> start_, size_;
  std::vector<double> chance_, expected_;    // [T], [most classes asked for at once]
  std::vector<uint64_t> first_bits_, second_bits_;
  std::vector<int64_t> position_, origin_;   // [S] in members, -1: the class itself or none; the bucket or -1
  std::vector<int32_t> candidate_, seen_;    // [S]; a hash set
};

}  // namespace tfxc

#endif  // TFXC_LSH_DRAW_DRAW_H_
