#include "block_draw/blocks.h"

#include <cmath>
#include <cstring>

#include "common/lanes.h"
#include "common/philox.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

// Queries lie side by side in vectors of this width: a feature of a class multiplies all of them at once.
constexpr int kTileQueries = 16;
constexpr int kClassesAtOnce = 8;  // their products stay in registers
constexpr int kPrefetchDistance = 16;  // rows
constexpr int64_t kStretch = 16;       // blocks

struct alignas(64) Feature {
  float of[kTileQueries];
};
struct alignas(64) RunningSum {
  double of[kTileQueries];
};

// after = before + x, in double: a register holds half as many doubles.
template <typename Lanes>
TFXC_INLINE void AddInDouble(Lanes x, const double* before, double* after) {
  typedef typename Related<Lanes>::Doubles Doubles;
  typename Related<Lanes>::Half halves[2];
  std::memcpy(halves, &x, sizeof(halves));
  Doubles sums[2];
  std::memcpy(sums, before, sizeof(sums));
  for (int i = 0; i < 2; ++i) sums[i] += __builtin_convertvector(halves[i], Doubles);
  std::memcpy(after, sums, sizeof(sums));
}

// sums[1 + i] = sums[i] + weight of class i, for kCount classes and the queries of a tile from `first` on.
template <typename Lanes, int kCount>
TFXC_INLINE void AddUpClasses(const float* __restrict rows, int64_t width, const Feature* __restrict query, int first,
                              const Kernel& kernel, RunningSum* __restrict sums) {
  for (int c = 0; c < kCount; ++c) PrefetchRow(rows + (kPrefetchDistance + c) * width, width);
  Lanes products[kCount] = {};
  for (int64_t d = 0; d < width; ++d) {
    const Lanes x = Load<Lanes>(query[d].of + first);
    for (int c = 0; c < kCount; ++c) products[c] += rows[c * width + d] * x;
  }
  for (int c = 0; c < kCount; ++c) {
    const Lanes o = products[c];
    const Lanes weight = Max((kernel.quadratic * o + kernel.linear) * o + kernel.constant, Fill<Lanes>(kernel.floor));
    AddInDouble(weight, sums[c].of + first, sums[c + 1].of + first);
  }
}

// sums[i] = the summed weights of the classes before i of a block, for each query of a tile [width].
template <typename Lanes>
TFXC_INLINE void AddUpBlockOf(const float* rows, int64_t count, int64_t width, const Feature* query,
                              const Kernel& kernel, RunningSum* sums) {
  sums[0] = {};
  for (int q = 0; q < kTileQueries; q += kSizeOf<Lanes>) {
    int64_t i = 0;
    for (; i + kClassesAtOnce <= count; i += kClassesAtOnce) {
      AddUpClasses<Lanes, kClassesAtOnce>(rows + i * width, width, query, q, kernel, sums + i);
    }
    for (; i < count; ++i) AddUpClasses<Lanes, 1>(rows + i * width, width, query, q, kernel, sums + i);
  }
}
TFXC_BY_WIDTH(void, AddUpBlock,
              (const float* rows, int64_t count, int64_t width, const Feature* query, const Kernel& kernel,
               RunningSum* sums),
              (rows, count, width, query, kernel, sums))

// Weights [count] of the classes of a block for one query [width], a row at a time: vectors over queries would be
// empty.
template <typename Lanes>
TFXC_INLINE void WeighBlockOf(const float* __restrict rows, int64_t count, int64_t width,
                              const float* __restrict query, const Kernel& kernel, float* __restrict weights) {
  for (int64_t i = 0; i < count; ++i) {
    const float* row = rows + i * width;
    PrefetchRow(row + kPrefetchDistance * width, width);
    Lanes products[kParts<Lanes>] = {};
    int64_t d = 0;
    while (d + kLanes <= width) {
      for (int part = 0; part < kParts<Lanes>; ++part, d += kSizeOf<Lanes>) {
        products[part] += Load<Lanes>(row + d) * Load<Lanes>(query + d);
      }
    }
    float o = Sum(products);
    for (; d < width; ++d) o += row[d] * query[d];
    const float weight = (kernel.quadratic * o + kernel.linear) * o + kernel.constant;
    weights[i] = weight < kernel.floor ? kernel.floor : weight;  // NaN stays
  }
}
TFXC_BY_WIDTH(void, WeighBlock,
              (const float* rows, int64_t count, int64_t width, const float* query, const Kernel& kernel,
               float* weights),
              (rows, count, width, query, kernel, weights))

// Masses of `count` blocks of that many classes, at least their floors; false if one is not finite.
TFXC_VECTORIZE bool FloorMasses(const float* __restrict mass, int64_t count, int64_t block_size, const Kernel& kernel,
                                float* __restrict floored) {
  const float shift = kernel.constant * block_size, floor = kernel.floor * block_size;
  int32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    bad |= !(mass[i] - mass[i] == 0.0f);
    floored[i] = std::max(mass[i] + shift, floor);
  }
  return bad == 0;
}

// Running sums of the masses, a stretch at a time: the stretches do not depend on each other.
TFXC_VECTORIZE void SumStretches(const float* __restrict masses, int64_t count, double* __restrict sums) {
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0.0;
    for (int64_t j = 0; j < kStretch; ++j) sum += masses[i * kStretch + j];
    sums[i] = sum;
  }
  for (int64_t i = 1; i < count; ++i) sums[i] += sums[i - 1];
}

// The first of `count` indices whose running sum exceeds the value, or the last index: rounding may lift the value to
// the total. It has no branches, as the processor would mispredict half of them.
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

// Visits one tile at a time: it makes the running sums of the block, and from them fills the slots.
class TileVisitor {
 public:
  explicit TileVisitor(const Blocks& blocks)
      : blocks_(blocks), query_(blocks.width), sums_(blocks.block_size + 1), weights_(blocks.block_size) {}
  void Visit(const Tile& tile, Slots* slots);

 private:
  void LookUpForOne(const Tile& tile, int64_t query, Slots* slots);
  void GatherQueries(const Tile& tile, const Slots& slots);
  void Settle(int64_t slot, int lane, int64_t start, int64_t count, Slots* slots);

  const Blocks& blocks_;
  std::vector<Feature> query_;  // [F]
  std::vector<RunningSum> sums_;  // [1 + block_size]
  std::vector<float> weights_;  // [block_size]
  std::vector<int> lanes_;      // of each slot of the tile
};

void TileVisitor::Visit(const Tile& tile, Slots* slots) {
  const int64_t block = Row(slots->sorted[tile.first]);
  const int64_t start = blocks_.Start(block), count = blocks_.Size(block);
  const int64_t first = Position(slots->sorted[tile.first]) / slots->num_samples;
  const int64_t last = Position(slots->sorted[tile.last - 1]) / slots->num_samples;
  if (slots->bits == nullptr && first == last) {
    LookUpForOne(tile, first, slots);
    return;
  }
  GatherQueries(tile, *slots);
  AddUpBlock(blocks_.rows + start * blocks_.width, count, blocks_.width, query_.data(), blocks_.kernel,
             sums_.data());
  for (int64_t i = tile.first; i < tile.last; ++i) {
    Settle(Position(slots->sorted[i]), lanes_[i - tile.first], start, count, slots);
  }
}

void TileVisitor::LookUpForOne(const Tile& tile, int64_t query, Slots* slots) {
  const int64_t block = Row(slots->sorted[tile.first]);
  const int64_t start = blocks_.Start(block), count = blocks_.Size(block), width = blocks_.width;
  WeighBlock(blocks_.rows + start * width, count, width, slots->query + query * width, blocks_.kernel, weights_.data());
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weights_[i];
  for (int64_t i = tile.first; i < tile.last; ++i) {
    const int64_t slot = Position(slots->sorted[i]);
    slots->log_prob[slot] += std::log(weights_[slots->class_ids[slot] - start] / total);
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
    const RunningSum* sums = sums_.data() + 1;
    slots->class_ids[slot] = start + FirstAbove(count, ToUnit(slots->bits[slot]) * total,
                                                [sums, lane](int64_t i) { return sums[i].of[lane]; });
  }
  const int64_t chosen = slots->class_ids[slot] - start;
  // A difference of sums loses a weight beside much larger ones; no weight is below the floor. NaN stays.
  const double weight = sums_[chosen + 1].of[lane] - sums_[chosen].of[lane];
  slots->log_prob[slot] += std::log(std::max<double>(weight, blocks_.kernel.floor) / total);
}

}  // namespace

BlockDistribution::BlockDistribution(const Blocks& blocks)
    : blocks_(blocks), sums_((blocks.Count() + kStretch - 1) / kStretch) {
  masses_.resize(sums_.size() * kStretch);
}

bool BlockDistribution::SetMass(const float* mass) {
  const int64_t last = blocks_.Count() - 1;
  bool finite = FloorMasses(mass, last, blocks_.block_size, blocks_.kernel, masses_.data());
  finite &= FloorMasses(mass + last, 1, blocks_.Size(last), blocks_.kernel, masses_.data() + last);
  SumStretches(masses_.data(), sums_.size(), sums_.data());
  return finite;
}

int64_t BlockDistribution::Draw(uint64_t bits) const {
  const double value = ToUnit(bits) * sums_.back();
  const int64_t stretch = FirstAbove(sums_.size(), value, [this](int64_t i) { return sums_[i]; });
  const int64_t first = stretch * kStretch, last = std::min(first + kStretch, blocks_.Count()) - 1;
  double sum = stretch == 0 ? 0.0 : sums_[stretch - 1];
  int64_t block = first;
  while (block < last && (sum += masses_[block]) <= value) ++block;
  return block;
}

float BlockDistribution::LogProb(int64_t block) const {
  return static_cast<float>(std::log(masses_[block] / sums_.back()));
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
