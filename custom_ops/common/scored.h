// A class and its score, in the order in which results name them.
#pragma once

#include <cstdint>

namespace tfxc {

struct Scored {
  float score;
  int32_t id;
  // The better one first, the lower id first among equals.
  bool operator<(const Scored& other) const { return score > other.score || (score == other.score && id < other.id); }
};

}  // namespace tfxc
