#include "dense_scan/tile_scan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "common/folds.h"
#include "common/products.h"

namespace tfxc::dense_scan {
namespace {

constexpr int64_t kTilesBetweenBounds = 16;

// The scales and biases after the products of some rows of a tile.
void Follow(const float* scales, const float* bias, int64_t row, int64_t num_rows, int width, float* logits) {
  if (scales == nullptr && bias == nullptr) return;
  tiles::ScaleAndShift(scales == nullptr ? nullptr : scales + row, bias == nullptr ? nullptr : bias + row, num_rows,
                       width, logits);
}

}  // namespace

ScanQueries::ScanQueries(const float* query, int64_t count, int64_t dim, bool looks_first)
    : count(count),
      width(BlockWidth(count)),
      num_blocks((count + width - 1) / width),
      blocks(Blocks(query, count, dim, width)),
      looks_first(looks_first),
      rough(looks_first ? RoughQueries(query, count, dim) : RoughQueries()) {}

bool CanLookFirst(Reduction reduction, int64_t num_queries, int64_t dim) {
  return reduction == Reduction::kNone && BlockWidth(num_queries) == kBlockWidths[1] && dim > 0 && HasFirstLook();
}

void ScanShard(const Classes& classes, Reduction reduction, const ScanQueries& queries, Range range,
               const ShardResults& results) {
  const int64_t dim = classes.dim, count = queries.count;
  const int width = queries.width;
  const bool looks_first = queries.looks_first;
  Best* best = results.best;
  alignas(64) float logits[kTileClasses * kBlockWidths[1]];
  float norms[kTileClasses];
  int32_t ids[kTileClasses];
  std::optional<RoughTile> tile;
  if (looks_first) tile.emplace(dim);
  AlignedVector<float> together(looks_first ? kTileClasses * dim : 0);
  std::vector<float> buffer = classes.table.Buffer(kTileClasses);
  for (int64_t start = range.first; start < range.last; start += kTileClasses) {
    if (best != nullptr && (start - range.first) / kTileClasses % kTilesBetweenBounds == 0) best->Update(0, count);
    const int64_t size = std::min<int64_t>(kTileClasses, range.last - start);
    std::iota(ids, ids + size, static_cast<int32_t>(start));
    const float* rows = classes.table.Read(start, size, &buffer);
    if (classes.normalize) tiles::InverseNorms(rows, size, dim, norms);
    const float* bias = classes.bias == nullptr ? nullptr : classes.bias + start;
    const float* scales = classes.normalize ? norms : nullptr;
    if (looks_first) tile->Set(rows, scales, bias, size);
    for (int64_t block = 0; block < queries.num_blocks; ++block) {
      const int64_t first = block * width;
      const float* columns = queries.blocks.data() + first * dim;
      const auto multiply = [&](const float* some_rows, int64_t num_rows) {
        if (count <= tiles::kFew) {
          tiles::LogitsOfFew(some_rows, dim, num_rows, columns, static_cast<int>(count), dim, logits);
        } else {
          tiles::Logits(some_rows, dim, num_rows, columns, width, dim, logits);
        }
      };
      float thresholds[kBlockWidths[1]];
      if (looks_first && tile->Lower(queries.rough, block, best->thresholds() + first, thresholds)) {
        int32_t survivors[kTileClasses];
        tile->Logits(queries.rough, block, logits);
        Follow(scales, bias, 0, size, width, logits);
        const int num_survivors = RowsAbove(logits, size, thresholds, survivors);
        // Packed side by side, sixteen rows are multiplied at once.
        for (int i = 0; i < num_survivors; ++i) {
          std::copy_n(rows + survivors[i] * dim, dim, together.data() + i * dim);
        }
        // One row takes as long as four.
        multiply(together.data(), (num_survivors + 3) / 4 * 4);
        for (int i = 0; i < num_survivors; ++i) {
          Follow(scales, bias, survivors[i], 1, width, logits + i * width);
          survivors[i] += static_cast<int32_t>(start);
        }
        AddToBest(logits, num_survivors, width, count - first, first, survivors, best);
      } else {
        multiply(rows, size);
        Follow(scales, bias, 0, size, width, logits);
        if (best != nullptr) AddToBest(logits, size, width, count - first, first, ids, best);
      }
      if (reduction != Reduction::kNone) {
        tiles::Fold(reduction, logits, size, width, results.sums + first, results.maxima + first);
      }
      if (results.tile_maxima != nullptr) {
        float largest[kBlockWidths[1]];
        tiles::Largest(logits, size, width, largest);
        std::copy_n(largest, std::min<int64_t>(width, count - first),
                    results.tile_maxima + start / kTileClasses * results.stride + first);
      }
    }
  }
}

}  // namespace tfxc::dense_scan
