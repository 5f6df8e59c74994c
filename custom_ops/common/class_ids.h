// The check of the class ids of a batch of queries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/checks.h"
#include "common/kernel.h"
#include "common/limits.h"

namespace tfxc {

// Checks that ids are [N, any], in no more than kMostSlots slots, and that each is a class or -1.
inline absl::Status CheckClassIds(const char* name, const Tensor& ids, int64_t num_queries, int64_t num_classes) {
  if (ids.dims() != 2 || ids.dim_size(0) != num_queries) {
    return InvalidArgument(name, " must be [N, S] for ", num_queries, " queries, but is ", ids.shape().DebugString(),
                           ".");
  }
  const int64_t count = ids.NumElements(), width = ids.dim_size(1);
  if (count > kMostSlots) {
    return InvalidArgument("At most ", kMostSlots, " ", name, " are taken at once, but got ", ids.shape().DebugString(),
                           ".");
  }
  const int32_t* numbers = Data<int32_t>(ids);
  // Ids have 32 bits; there may be more rows.
  const auto last = static_cast<int32_t>(std::min<int64_t>(num_classes - 1, std::numeric_limits<int32_t>::max()));
  if (AllWithin(numbers, count, -1, last)) return absl::OkStatus();
  const auto is_bad = [last](int32_t id) { return id < -1 || id > last; };
  const int64_t slot = std::find_if(numbers, numbers + count, is_bad) - numbers;
  return InvalidArgument(name, "[", slot / width, ", ", slot % width, "] is ", numbers[slot], ", but there are ",
                         num_classes, " classes: ids are 0 to ", num_classes - 1, ", or -1 for an empty slot.");
}

}  // namespace tfxc
