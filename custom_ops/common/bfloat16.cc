#include "common/bfloat16.h"

#include "common/vectorize.h"

namespace tfxc {

TFXC_VECTORIZE void Widen(const Bfloat16* __restrict from, int64_t count, float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i].bits) << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

}  // namespace tfxc
