#include "sparse_head/groups.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/lanes.h"
#include "common/vectorize.h"
#include "common/folds.h"
#include "common/products.h"
#include "sparse_head/logit_run.h"

namespace tfxc {
namespace {

constexpr int kPanel = 48;     // columns that a product takes at once
constexpr int64_t kRows = 8;   // rows that a product takes at once
// Up to so many nonzero gradients in a panel are applied one by one; with more, the products are faster.
constexpr int kFewGradients = 16;

int64_t RoundUp(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// Numbers aligned to a line of the cache: a vector that crosses a line costs two loads.
class Buffer {
 public:
  explicit Buffer(int64_t size) : lines_(RoundUp(size, kLanes) / kLanes) {}
  float* get() { return reinterpret_cast<float*>(lines_.data()); }

 private:
  struct alignas(64) Line {
    float values[kLanes] = {};
  };
  std::vector<Line> lines_;
};

// Calls work(begin, end) for runs of classes of one group, at most kRun of them, and returns the first bad class.
template <typename Work>
int64_t ForEachPart(const SparseRows& rows, int64_t first, int64_t last, const Work& work) {
  int64_t bad = kNoClass;
  while (first < last) {
    const int64_t end = std::min({last, (first / rows.group_size + 1) * rows.group_size, first + kRun});
    if (ReadsInRange(rows, first)) {
      work(first, end);
    } else {
      bad = std::min(bad, first);
    }
    first = end;
  }
  return bad;
}

// panel[k * columns + q] = tile[inputs[k] * width + q]
TFXC_VECTORIZE void FillPanel(const int32_t* inputs, int64_t fan_in, const float* tile, int width, int columns,
                              float* panel) {
  for (int64_t k = 0; k < fan_in; ++k) {
    const float* from = tile + static_cast<int64_t>(inputs[k]) * width;
    for (int q = 0; q < columns; q += kLanes) std::memcpy(panel + k * columns + q, from + q, kLanes * sizeof(float));
  }
}

// to[c * to_stride + r] = from[r * stride + c], for multiples of 16.
template <typename Lanes>
TFXC_INLINE void TransposeIntoOf(const float* from, int64_t num_rows, int64_t num_columns, int64_t stride, float* to,
                                 int64_t to_stride) {
  constexpr int kSize = kSizeOf<Lanes>;
  for (int64_t r = 0; r < num_rows; r += kSize) {
    for (int64_t c = 0; c < num_columns; c += kSize) {
      Lanes square[kSize];
      for (int i = 0; i < kSize; ++i) square[i] = Load<Lanes>(from + (r + i) * stride + c);
      Transpose(square);
      for (int i = 0; i < kSize; ++i) Store(square[i], to + (c + i) * to_stride + r);
    }
  }
}
TFXC_BY_WIDTH(void, TransposeInto,
              (const float* from, int64_t num_rows, int64_t num_columns, int64_t stride, float* to, int64_t to_stride),
              (from, num_rows, num_columns, stride, to, to_stride))

// to[inputs[k] * width + q] += panel[k * columns + q]
TFXC_VECTORIZE void AddPanel(const int32_t* inputs, int64_t fan_in, const float* panel, int columns, float* to,
                             int width) {
  for (int64_t k = 0; k < fan_in; ++k) {
    float* sum = to + static_cast<int64_t>(inputs[k]) * width;
    for (int q = 0; q < columns; ++q) sum[q] += panel[k * columns + q];
  }
}

// Prefetches what AddPanel changes.
void AskFor(const int32_t* inputs, int64_t fan_in, const float* tile, int width, int columns) {
  for (int64_t k = 0; k < fan_in; ++k) {
    const float* row = tile + static_cast<int64_t>(inputs[k]) * width;
    for (int q = 0; q < columns; q += kLanes) __builtin_prefetch(row + q, /*rw=*/1, /*locality=*/3);
  }
}

// The places of numbers other than 0, including NaN, at most kFewGradients + 1; returns how many it found.
template <typename Lanes>
TFXC_INLINE int NonZerosOf(const float* gradient, int64_t num_rows, int columns, int32_t* places) {
  int count = 0;
  for (int64_t at = 0; at < num_rows * columns; at += kSizeOf<Lanes>) {
    const Lanes x = Load<Lanes>(gradient + at);
    if (!AnyNonZero(&x, 1)) continue;
    for (int j = 0; j < kSizeOf<Lanes>; ++j) {
      if (x[j] == 0.0f) continue;
      places[count++] = static_cast<int32_t>(at + j);
      if (count > kFewGradients) return count;
    }
  }
  return count;
}
TFXC_BY_WIDTH(int, NonZeros, (const float* gradient, int64_t num_rows, int columns, int32_t* places),
              (gradient, num_rows, columns, places))

template <typename Lanes>
TFXC_INLINE void AddRowSumsOf(const float* gradient, int64_t num_rows, int columns, float* sums) {
  for (int64_t r = 0; r < num_rows; ++r) {
    Lanes total[kParts<Lanes>] = {};
    for (const float* next = gradient + r * columns; next < gradient + (r + 1) * columns;) {
      for (int part = 0; part < kParts<Lanes>; ++part, next += kSizeOf<Lanes>) total[part] += Load<Lanes>(next);
    }
    sums[r] += Sum(total);
  }
}
TFXC_BY_WIDTH(void, AddRowSums, (const float* gradient, int64_t num_rows, int columns, float* sums),
              (gradient, num_rows, columns, sums))

// Calls work(r, count) for the rows of a group, a few at a time, and meanwhile prefetches the tile's numbers of the
// following products; `next` are their inputs, or null. The tile is larger than the nearer caches, and to prefetch all
// these numbers at once would stall the products.
template <typename Work>
void ForEachRows(int64_t num_rows, const int32_t* next, int64_t fan_in, const float* next_tile, int width, int columns,
                 const Work& work) {
  const int64_t ahead = next == nullptr ? 0 : (fan_in * kRows + num_rows - 1) / num_rows;  // inputs every kRows rows
  for (int64_t r = 0, k = 0; r < num_rows; r += kRows) {
    for (const int64_t end = std::min(k + ahead, fan_in); k < end; ++k) {
      const float* from = next_tile + static_cast<int64_t>(static_cast<uint32_t>(next[k])) * width;
      for (int q = 0; q < columns; q += kLanes) __builtin_prefetch(from + q, /*rw=*/0, /*locality=*/3);
    }
    work(r, std::min(kRows, num_rows - r));
  }
}

// Logits of a run of classes, for some columns of a tile.
class Logits {
 public:
  explicit Logits(const SparseRows& rows) : rows_(rows), logits_(kRun * kPanel) {}

  // The logits of classes [first, last), at most kRun, and columns [at, at + columns); returns the first bad class.
  int64_t Compute(const float* tile, int width, int at, int columns, int64_t first, int64_t last) {
    const int64_t fan_in = rows_.fan_in;
    return ForEachPart(rows_, first, last, [&](int64_t begin, int64_t end) {
      const int32_t* next = end < last ? InputsOf(rows_, end) : nullptr;
      ForEachRows(end - begin, next, fan_in, tile + at, width, columns, [&](int64_t r, int64_t count) {
        const int64_t l = begin + r;
        tiles::ScatteredLogits(rows_.weights + l * fan_in, fan_in, count, tile + at, width, InputsOf(rows_, begin),
                               columns, fan_in, rows_.bias == nullptr ? nullptr : rows_.bias + l,
                               get() + (l - first) * columns);
      });
    });
  }

  float* get() { return logits_.get(); }  // [last - first, columns]

 private:
  const SparseRows& rows_;
  Buffer logits_;
};

// A run of classes in blocks of sixteen, each block of one group, side by side.
class PackedRun {
 public:
  explicit PackedRun(const SparseRows& rows) : rows_(rows), packed_(kMostBlocks * kLanes * rows.fan_in) {}

  // Goes to classes [first, last), at most kRun, in groups of sixteen and more; returns the first bad class.
  int64_t Start(int64_t first, int64_t last) {
    first_ = first;
    blocks_.clear();
    return ForEachPart(rows_, first, last, [&](int64_t begin, int64_t end) {
      for (int64_t l = begin; l < end; l += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, end - l);
        tiles::PackRows(rows_.weights + l * rows_.fan_in, rows_.fan_in, count, rows_.fan_in,
                        PackedBlock(blocks_.size()));
        Block block{l, {}};
        if (rows_.bias != nullptr) std::copy_n(rows_.bias + l, count, block.bias);
        blocks_.push_back(block);
      }
    });
  }

  // logits[q * kTurnedStride + l - first] for some columns of a tile.
  void Logits(const float* tile, int width, int columns, float* logits) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const int32_t* inputs = InputsOf(rows_, blocks_[i].first);
      const int32_t* next = i + 1 < blocks_.size() ? InputsOf(rows_, blocks_[i + 1].first) : inputs;
      tiles::PackedLogits(PackedBlock(i), tile, width, inputs, columns, rows_.fan_in,
                          rows_.bias == nullptr ? nullptr : blocks_[i].bias, next == inputs ? nullptr : next,
                          logits + blocks_[i].first - first_, kTurnedStride);
    }
  }

 private:
  struct Block {
    int64_t first;
    float bias[kLanes];
  };
  // Each group may end with a block that is not full, and the first and last groups may be cut.
  static constexpr int64_t kMostBlocks = 2 * (kRun / kLanes + 1);

  float* PackedBlock(int64_t block) { return packed_.get() + block * kLanes * rows_.fan_in; }

  const SparseRows& rows_;
  Buffer packed_;  // [blocks, K, 16]
  std::vector<Block> blocks_;
  int64_t first_ = 0;
};

// Gradients of classes of one group. A pass over the columns of the tile sums into private buffers, so the rows of the
// head need not be a multiple of what the products take.
class GroupGradients {
 public:
  explicit GroupGradients(const SparseRows& rows)
      : rows_(rows),
        padded_(RoundUp(rows.fan_in, kLanes)),
        most_(RoundUp(std::min(rows.group_size, kRun), 4)),
        weights_(most_ * padded_),
        own_(most_ * padded_),
        panel_(padded_ * kPanel),
        queries_(kPanel * padded_),
        of_panel_(padded_ * kPanel),
        gradient_(most_ * kPanel),
        bias_(most_) {}

  // Goes to classes [first, last) of one group.
  void Start(int64_t first, int64_t last) {
    first_ = first;
    num_rows_ = last - first;
    for (int64_t r = 0; r < num_rows_; ++r) {
      std::copy_n(rows_.weights + (first + r) * rows_.fan_in, rows_.fan_in, weights_.get() + r * padded_);
    }
    std::fill_n(own_.get(), most_ * padded_, 0.0f);
    std::fill_n(bias_.get(), most_, 0.0f);
  }

  // The logits of the columns, [last - first, columns]; the caller turns them into gradients.
  float* Recompute(const float* tile, int width, int columns) {
    ReadPanel(tile, width, columns);
    const int32_t* inputs = InputsOf(rows_, first_);
    ForEachRows(num_rows_, inputs, rows_.fan_in, tile + kPanel, width, columns, [&](int64_t r, int64_t count) {
      tiles::Logits(weights_.get() + r * padded_, padded_, count, panel_.get(), columns, rows_.fan_in,
                    gradient_.get() + r * columns);
    });
    if (rows_.bias != nullptr) {
      tiles::ScaleAndShift(nullptr, rows_.bias + first_, num_rows_, columns, gradient_.get());
    }
    return gradient_.get();
  }

  void ReadPanel(const float* tile, int width, int columns) {
    FillPanel(InputsOf(rows_, first_), rows_.fan_in, tile, width, columns, panel_.get());
  }

  float* gradient() { return gradient_.get(); }

  // Adds the share of the columns in `gradient`, for the panel that was read last.
  void Add(int columns, float* tile_gradient, int width) {
    int32_t places[kFewGradients + 1];
    const int count = NonZeros(gradient_.get(), num_rows_, columns, places);
    if (count == 0) return;
    AddRowSums(gradient_.get(), num_rows_, columns, bias_.get());
    if (count <= kFewGradients) {
      for (int i = 0; i < count; ++i) AddOne(places[i] / columns, places[i] % columns, columns, tile_gradient, width);
      return;
    }
    AskFor(InputsOf(rows_, first_), rows_.fan_in, tile_gradient, width, columns);
    // The products take four rows at a time.
    std::fill(gradient_.get() + num_rows_ * columns, gradient_.get() + RoundUp(num_rows_, 4) * columns, 0.0f);
    TransposeInto(panel_.get(), padded_, columns, columns, queries_.get(), padded_);
    tiles::AddRowGradients(gradient_.get(), columns, RoundUp(num_rows_, 4), queries_.get(), padded_, own_.get());
    std::fill_n(of_panel_.get(), padded_ * columns, 0.0f);
    // of_panel[k] += Σ_r weights[r, k] · gradient[r]
    tiles::AddQueryGradients(weights_.get(), static_cast<int>(padded_), num_rows_, gradient_.get(), columns,
                                  of_panel_.get());
    AddPanel(InputsOf(rows_, first_), rows_.fan_in, of_panel_.get(), columns, tile_gradient, width);
  }

  // Writes the gradients of the classes, from `slot` on, or adds them to the output.
  void Finish(int64_t slot, const TileGradients& out) {
    for (int64_t r = 0; r < num_rows_; ++r) {
      Write(own_.get() + r * padded_, rows_.fan_in, out.accumulate, out.weight_gradient + (slot + r) * rows_.fan_in);
    }
    if (out.bias_gradient != nullptr) Write(bias_.get(), num_rows_, out.accumulate, out.bias_gradient + slot);
  }

 private:
  void AddOne(int row, int column, int columns, float* tile_gradient, int width) {
    const float g = gradient_.get()[row * columns + column];
    const int32_t* inputs = InputsOf(rows_, first_);
    const float* weights = weights_.get() + row * padded_;
    float* own = own_.get() + row * padded_;
    for (int64_t k = 0; k < rows_.fan_in; ++k) {
      own[k] += g * panel_.get()[k * columns + column];
      tile_gradient[static_cast<int64_t>(inputs[k]) * width + column] += g * weights[k];
    }
  }

  const SparseRows& rows_;
  const int64_t padded_, most_;
  Buffer weights_, own_;               // [most, padded K]
  Buffer panel_, queries_, of_panel_;  // [padded K, columns], its transpose, and its gradient
  Buffer gradient_, bias_;             // [most, columns], [most]
  int64_t first_ = 0, num_rows_ = 0;
};

}  // namespace

int64_t GroupLogits(const SparseRows& rows, const float* tile, int width, int64_t count, int64_t first, int64_t last,
                    float* logits, int64_t stride) {
  if (first == last) return kNoClass;  // without classes, rows may have any width, and buffers would be as wide
  Logits run(rows);
  PackedRun packed(rows);
  const bool packs = rows.group_size >= kLanes;  // else most of the packed numbers would be padding
  Buffer turned(kPanel * kTurnedStride);
  const bool is_large = IsLarge(count, stride);
  int64_t bad = kNoClass;
  for (int64_t start = first; start < last; start += kRun) {
    const int64_t end = std::min(start + kRun, last);
    if (packs) bad = std::min(bad, packed.Start(start, end));
    for (int64_t at = 0; at < count; at += kPanel) {
      const int columns = std::min<int64_t>(kPanel, width - at);
      if (packs) {
        packed.Logits(tile + at, width, columns, turned.get());
      } else {
        bad = std::min(bad, run.Compute(tile, width, at, columns, start, end));
        TransposeInto(run.get(), RoundUp(end - start, kLanes), columns, columns, turned.get(), kTurnedStride);
      }
      const int64_t num_rows = std::min<int64_t>(columns, count - at);
      WriteRun(turned.get(), num_rows, end - start, is_large, logits + at * stride + start - first, stride);
    }
  }
  if (is_large) EndStreams();
  return bad;
}

int64_t GroupReduce(const SparseRows& rows, Reduction reduction, const float* tile, int width, int64_t first,
                    int64_t last, double* sums, float* maxima) {
  Logits run(rows);
  int64_t bad = kNoClass;
  // Not -inf: a logit of -inf minus it would be NaN, and so would the sum.
  std::fill_n(maxima, width, std::numeric_limits<float>::lowest());
  for (int64_t start = first; start < last; start += kRun) {
    const int64_t end = std::min(start + kRun, last);
    for (int at = 0; at < width; at += kPanel) {
      const int columns = std::min(kPanel, width - at);
      bad = std::min(bad, run.Compute(tile, width, at, columns, start, end));
      tiles::Fold(reduction, run.get(), end - start, columns, sums + at, maxima + at);
    }
  }
  return bad;
}

int64_t GroupReduceGradient(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                            const float* reduced, const float* upstream, const LabelGradient* labels,
                            const LabelGradient* labels_end, int64_t first, int64_t last, const TileGradients& out) {
  if (first == last) return kNoClass;
  GroupGradients group(rows);
  return ForEachPart(rows, first, last, [&](int64_t begin, int64_t end) {
    while (labels != labels_end && labels->class_id < begin) ++labels;
    group.Start(begin, end);
    for (int at = 0; at < width; at += kPanel) {
      const int columns = std::min(kPanel, width - at);
      float* gradient = group.Recompute(tile + at, width, columns);
      tiles::ToGradient(reduction, reduced + at, upstream + at, end - begin, columns, gradient, nullptr);
      for (const LabelGradient* label = labels; label != labels_end && label->class_id < end; ++label) {
        const int column = label->lane - at;
        if (column >= 0 && column < columns) gradient[(label->class_id - begin) * columns + column] += label->value;
      }
      group.Add(columns, out.tile_gradient + at, width);
    }
    group.Finish(begin - first, out);
  });
}

int64_t GroupLogitsGradient(const SparseRows& rows, const float* tile, int width, int64_t count, const float* gradient,
                            int64_t stride, int64_t first, int64_t last, const TileGradients& out) {
  if (first == last) return kNoClass;
  GroupGradients group(rows);
  return ForEachPart(rows, first, last, [&](int64_t begin, int64_t end) {
    group.Start(begin, end);
    for (int at = 0; at < width; at += kPanel) {
      const int columns = std::min(kPanel, width - at);
      group.ReadPanel(tile + at, width, columns);
      std::fill_n(group.gradient(), (end - begin) * columns, 0.0f);
      for (int64_t q = 0; q < std::min<int64_t>(columns, count - at); ++q) {
        const float* row = gradient + (at + q) * stride + begin - first;
        for (int64_t r = 0; r < end - begin; ++r) group.gradient()[r * columns + q] = row[r];
      }
      group.Add(columns, out.tile_gradient + at, width);
    }
    group.Finish(begin - first, out);
  });
}

}  // namespace tfxc
