#include "block_draw/blocks.h"

#include <cmath>

#include "common/lanes.h"
#include "common/philox.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

// Queries lie side by side in vectors of this width: a feature of a class multiplies all of them at once.
constexpr int kTileQueries = 16;
constexpr int kClassesAtOnce = 8;  // their products stay in registers
constexpr int kPrefetchDistance = 16;  // rows

typedef double DoubleLanes __attribute__((vector_size(kTileQueries * sizeof(double)), aligned(64)));

// In structs, since std::vector would forget the alignment of the vector types themselves.
struct alignas(64) Feature {
  Lanes of;
};
struct alignas(64) Sum {
  DoubleLanes of;
};

// sums[1 + i] = sums[i] + weight of class i, for kCount classes and all queries of a tile.
template <int kCount>
TFXC_INLINE void AddUpClasses(const float* __restrict rows, int64_t width, const Feature* __restrict query,
                              const Kernel& kernel, Sum* __restrict sums) {
  for (int c = 0; c < kCount; ++c) PrefetchRow(rows + (kPrefetchDistance + c) * width, width);
  Lanes products[kCount] = {};
  for (int64_t d = 0; d < width; ++d) {
    for (int c = 0; c < kCount; ++c) products[c] += rows[c * width + d] * query[d].of;
  }
  for (int c = 0; c < kCount; ++c) {
    const Lanes o = products[c];
    const Lanes weight = Max((kernel.quadratic * o + kernel.linear) * o + kernel.constant, Fill(kernel.floor));
    sums[c + 1].of = sums[c].of + __builtin_convertvector(weight, DoubleLanes);
  }
}

// sums[i] = the summed weights of the classes before i of a block, for each query of a tile [width].
TFXC_VECTORIZE void AddUpBlock(const float* rows, int64_t count, int64_t width, const Feature* query,
                               const Kernel& kernel, Sum* sums) {
  sums[0].of = DoubleLanes{};
  int64_t i = 0;
  for (; i + kClassesAtOnce <= count; i += kClassesAtOnce) {
    AddUpClasses<kClassesAtOnce>(rows + i * width, width, query, kernel, sums + i);
  }
  for (; i < count; ++i) AddUpClasses<1>(rows + i * width, width, query, kernel, sums + i);
}

// The first of `count` indices whose running sum exceeds the value, or the last one: rounding may lift the value to
// the total. Without branches, which would be mispredicted half of the time.
template <typename SumAt>
TFXC_INLINE int64_t FirstAbove(int64_t count, double value, SumAt sum_at) {
  int64_t first = 0;
  while (count > 1) {
    const int64_t half = count / 2;
    first += sum_at(first + half - 1) <= value ? half : 0;
    count -= half;
  }
  return first;
}

// One tile at a time: the running sums of its block, and from them its slots.
class TileVisitor {
 public:
  explicit TileVisitor(const Blocks& blocks)
      : blocks_(blocks), query_(blocks.width), sums_(blocks.block_size + 1) {}
  void Visit(const Tile& tile, Slots* slots);

 private:
  void GatherQueries(const Tile& tile, const Slots& slots);
  void Settle(int64_t slot, int lane, int64_t start, int64_t count, Slots* slots);

  const Blocks& blocks_;
  std::vector<Feature> query_;  // [F]
  std::vector<Sum> sums_;       // [1 + block_size]
  std::vector<int> lanes_;      // of each slot of the tile
};

void TileVisitor::Visit(const Tile& tile, Slots* slots) {
  const int64_t block = Row(slots->sorted[tile.first]);
  const int64_t start = blocks_.Start(block), count = blocks_.Size(block);
  GatherQueries(tile, *slots);
  AddUpBlock(blocks_.rows + start * blocks_.width, count, blocks_.width, query_.data(), blocks_.kernel,
             sums_.data());
  for (int64_t i = tile.first; i < tile.last; ++i) {
    Settle(Position(slots->sorted[i]), lanes_[i - tile.first], start, count, slots);
  }
}

// A lane for each query of the tile; the slots of one query are neighbours.
void TileVisitor::GatherQueries(const Tile& tile, const Slots& slots) {
  lanes_.clear();
  int64_t last = -1;
  int lane = -1;
  for (int64_t i = tile.first; i < tile.last; ++i) {
    const int64_t n = Position(slots.sorted[i]) / slots.num_samples;
    if (n != last) {
      ++lane;
      for (int64_t d = 0; d < blocks_.width; ++d) query_[d].of[lane] = slots.query[n * blocks_.width + d];
    }
    last = n;
    lanes_.push_back(lane);
  }
}

void TileVisitor::Settle(int64_t slot, int lane, int64_t start, int64_t count, Slots* slots) {
  const double total = sums_[count].of[lane];
  if (slots->bits != nullptr) {
    const Sum* sums = sums_.data() + 1;
    slots->class_ids[slot] = start + FirstAbove(count, ToUnit(slots->bits[slot]) * total,
                                                [sums, lane](int64_t i) { return sums[i].of[lane]; });
  }
  const int64_t chosen = slots->class_ids[slot] - start;
  // Beside much larger weights a difference of sums may be lost; no weight is below the floor. NaN stays.
  const double weight = sums_[chosen + 1].of[lane] - sums_[chosen].of[lane];
  slots->log_prob[slot] += std::log(std::max<double>(weight, blocks_.kernel.floor) / total);
}

}  // namespace

bool BlockDistribution::SetMass(const float* mass) {
  double sum = 0.0;
  bool finite = true;
  for (int64_t block = 0; block < blocks_.Count(); ++block) {
    finite &= mass[block] - mass[block] == 0.0f;
    const float size = blocks_.Size(block);
    sum += std::max(mass[block] + blocks_.kernel.constant * size, blocks_.kernel.floor * size);
    sums_[block] = sum;
  }
  return finite;
}

int64_t BlockDistribution::Draw(uint64_t bits) const {
  return FirstAbove(sums_.size(), ToUnit(bits) * sums_.back(), [this](int64_t i) { return sums_[i]; });
}

float BlockDistribution::LogProb(int64_t block) const {
  const double mass = sums_[block] - (block == 0 ? 0.0 : sums_[block - 1]);
  const double floor = static_cast<double>(blocks_.kernel.floor) * blocks_.Size(block);
  return static_cast<float>(std::log(std::max(mass, floor) / sums_.back()));
}

std::vector<Tile> MakeTiles(const std::vector<RowPosition>& sorted, int64_t num_samples) {
  std::vector<Tile> tiles;
  const int64_t size = sorted.size();
  int64_t query = -1, num_queries = 0;
  for (int64_t i = 0; i < size; ++i) {
    const bool new_block = i == 0 || Row(sorted[i]) != Row(sorted[i - 1]);
    const bool new_query = new_block || Position(sorted[i]) / num_samples != query;
    if (new_query) {
      query = Position(sorted[i]) / num_samples;
      if (new_block || num_queries == kTileQueries) {
        tiles.push_back({i, i});
        num_queries = 0;
      }
      ++num_queries;
    }
    tiles.back().last = i + 1;
  }
  return tiles;
}

void VisitTiles(const Blocks& blocks, const Tile* tiles, int64_t count, Slots* slots) {
  TileVisitor visitor(blocks);
  for (int64_t i = 0; i < count; ++i) visitor.Visit(tiles[i], slots);
}

}  // namespace tfxc
