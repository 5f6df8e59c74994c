// How classes and queries are cut: a tile of classes, with its logits for one block of queries, stays in the cache.
#ifndef TFXC_DENSE_SCAN_BLOCKS_H_
#define TFXC_DENSE_SCAN_BLOCKS_H_

#include <cstdint>

namespace tfxc::dense_scan {

constexpr int kBlockWidths[] = {16, 48};
constexpr int kTileClasses = 96;

inline int BlockWidth(int64_t num_queries) { return num_queries <= kBlockWidths[0] ? kBlockWidths[0] : kBlockWidths[1]; }

}  // namespace tfxc::dense_scan

#endif  // TFXC_DENSE_SCAN_BLOCKS_H_
