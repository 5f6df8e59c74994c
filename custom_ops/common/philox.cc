#include "common/philox.h"

#include "common/vectorize.h"

namespace tfxc {

TFXC_VECTORIZE void FillBits(const Seed& seed, uint32_t stream, int64_t count, uint64_t* first, uint64_t* second) {
  Philox(seed, stream, count, first, second);
}

}  // namespace tfxc
