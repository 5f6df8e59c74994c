// The mathematics of drawing by blocks, free of TensorFlow. Class i has the feature row x_i and, for a query z, the
// weight w_i = max(quadratic o² + linear o + constant, floor), o = z · x_i. Blocks are runs of block_size class ids.
// A draw takes a block with probability proportional to max(mass + constant |block|, floor |block|), then a class of
// the block in proportion to its weight.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/row_sort.h"

namespace tfxc {

struct Kernel {
  float quadratic, linear, constant, floor;  // floor > 0
};

struct Blocks {
  const float* rows;  // [L, F]
  int64_t num_classes;  // L
  int64_t width;        // F
  int64_t block_size;
  Kernel kernel;

  int64_t Count() const { return (num_classes + block_size - 1) / block_size; }
  int64_t Start(int64_t block) const { return block * block_size; }
  int64_t Size(int64_t block) const { return std::min(block_size, num_classes - Start(block)); }
};

// The distribution over the blocks for one query.
class BlockDistribution {
 public:
  explicit BlockDistribution(const Blocks& blocks);
  // Reads mass [num_blocks]; false if it is not finite.
  bool SetMass(const float* mass);
  int64_t Draw(uint64_t bits) const;
  float LogProb(int64_t block) const;

 private:
  const Blocks& blocks_;
  std::vector<float> masses_;  // floored; 0 fills up the last stretch
  std::vector<double> sums_;   // running sums over stretches of kStretch masses
};

// A slot, number n * S + s, is a draw of a query, or a given class whose probability it wants. Slots of the same block
// are neighbours in `sorted`; a tile is a run of slots that belongs to one block and to at most kTileQueries queries.
struct Tile {
  int64_t first, last;
};
std::vector<Tile> MakeTiles(const std::vector<RowPosition>& sorted, int64_t num_samples);

struct Slots {
  const float* query;   // [N, F]
  int64_t num_samples;  // S
  std::vector<RowPosition> sorted;
  // For draws: random bits of each slot; null if class_ids are given.
  const uint64_t* bits;
  int32_t* class_ids;  // [N, S]
  float* log_prob;     // [N, S]: holds the log-probability of the block, then that of the class
};

// Draws or looks up the slots of some tiles; it reads the rows of a tile's block once for all its queries.
void VisitTiles(const Blocks& blocks, const Tile* tiles, int64_t count, Slots* slots);

}  // namespace tfxc
