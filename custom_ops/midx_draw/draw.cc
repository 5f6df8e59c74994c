#include "midx_draw/draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/philox.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

// A total below this may have lost cells to underflow; the slow way sums it again.
constexpr double kSmallestTotal = 1e-280;

// The largest double below a positive one.
TFXC_INLINE double Below(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  --bits;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// NaN becomes the limit.
TFXC_INLINE double AtMost(double x, double limit) { return x < limit ? x : limit; }

// The distribution over the cells of one query as two levels of cumulative sums, and the draws.
class CellSampler {
 public:
  CellSampler(const Cells& cells, int64_t num_samples);
  void SetQuery(const float* row_logits, const float* column_logits);
  void Draw(const Seed& seed, uint32_t query, int32_t* class_ids, float* log_prob);
  // log Z for the given logits; valid after Draw.
  double LogPartition(const float* row_logits, const float* column_logits) const;

 private:
  void AddUpSeparably();
  void AddUpCellByCell();
  void ChooseCells();
  void ChooseSlots();

  const Cells& cells_;
  const int64_t codewords_;  // C
  const int64_t padded_;     // C rounded up to a power of two, so that bisection needs no bounds
  const int64_t samples_;    // S
  // u[a] and v[b] relative to a shift, and the factors that multiply the masses: the weight of
  // a cell is row_weight_[a] * mass[a, b] * column_weight_[b].
  std::vector<double> row_logit_, column_logit_, row_weight_, column_weight_;
  std::vector<double> row_sums_;     // [padded, C]: sums over a' <= a of the weights without column_weight_
  std::vector<double> column_sums_;  // [1 + padded]: 0, then sums over b' <= b of the weights
  double total_ = 0.0;
  std::vector<uint64_t> cell_bits_, class_bits_;          // [S]
  std::vector<double> value_;                             // [S]
  std::vector<int32_t> row_, column_, slot_;              // [S]
};

int64_t RoundUpToPowerOfTwo(int64_t x) {
  int64_t power = 1;
  while (power < x) power *= 2;
  return power;
}

CellSampler::CellSampler(const Cells& cells, int64_t num_samples)
    : cells_(cells),
      codewords_(cells.num_codewords),
      padded_(RoundUpToPowerOfTwo(cells.num_codewords)),
      samples_(num_samples),
      row_logit_(codewords_),
      column_logit_(codewords_),
      row_weight_(codewords_),
      column_weight_(codewords_),
      row_sums_(padded_ * codewords_, std::numeric_limits<double>::infinity()),
      column_sums_(1 + padded_, std::numeric_limits<double>::infinity()),
      cell_bits_(samples_),
      class_bits_(samples_),
      value_(samples_),
      row_(samples_),
      column_(samples_),
      slot_(samples_) {
  column_sums_[0] = 0.0;
}

// exp(x) for x <= 0, to two units in the last place, and 0 below the smallest normal number. exp(x) = 2^n exp(r) with
// |r| <= ln(2) / 2, and exp(r) by its Taylor polynomial.
TFXC_INLINE double ExpOfNegative(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
  constexpr double kRound = 0x1.8p52;  // a sum with it is rounded to a whole number, in its lowest bits
  constexpr double kLeast = -708.0;
  const double bounded = x > kLeast ? x : kLeast, rounded = bounded * kLog2E + kRound, n = rounded - kRound;
  const double r = (bounded - n * kLn2High) - n * kLn2Low;
  constexpr double kFactorials[] = {1.0, 1.0, 2.0, 6.0, 24.0, 120.0, 720.0, 5040.0, 40320.0, 362880.0, 3628800.0,
                                    39916800.0, 479001600.0, 6227020800.0};
  double sum = 1.0 / kFactorials[13];
#pragma GCC unroll 13
  for (int i = 12; i >= 0; --i) sum = sum * r + 1.0 / kFactorials[i];
  uint64_t power;
  std::memcpy(&power, &rounded, sizeof(power));
  power = (power + 1023) << 52;
  double scale;
  std::memcpy(&scale, &power, sizeof(scale));
  return x < kLeast ? 0.0 : sum * scale;
}

// log(x) for x > 0, to two units in the last place; NaN for all else. log(x) = e ln(2) + log(m) with 1/sqrt(2) <= m <
// sqrt(2), and log(m) = 2 artanh(s) with s = (m - 1) / (m + 1), by its series.
TFXC_INLINE double LogOfPositive(double x) {
  constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd, kOne = 1023ull << 52, kWhole = 0x4330000000000000;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1, kSmallestNormal = 0x1p-1022;
  const bool tiny = x < kSmallestNormal;
  const double normal = tiny ? x * 0x1p54 : x;
  uint64_t bits;
  std::memcpy(&bits, &normal, sizeof(bits));
  const uint64_t biased = (bits - kRootOfHalf + kOne) >> 52, number = biased | kWhole;
  bits -= (biased << 52) - kOne;
  double m, e;
  std::memcpy(&m, &bits, sizeof(m));
  std::memcpy(&e, &number, sizeof(e));
  e -= 0x1p52 + 1023 + (tiny ? 54.0 : 0.0);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double sum = 1.0 / 21.0;
#pragma GCC unroll 10
  for (int i = 19; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
  return x > 0.0 ? e * kLn2 + 2.0 * s * sum : std::numeric_limits<double>::quiet_NaN();
}

// Logits relative to the largest one in use; unused codewords get weight 0.
TFXC_VECTORIZE void Exponentiate(const float* __restrict logits, const double* __restrict in_use, int64_t codewords,
                                 double* __restrict relative, double* __restrict weight) {
  float shift = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < codewords; ++i) shift = in_use[i] != 0.0 ? std::max(shift, logits[i]) : shift;
  for (int64_t i = 0; i < codewords; ++i) relative[i] = static_cast<double>(logits[i]) - shift;
  for (int64_t i = 0; i < codewords; ++i) weight[i] = in_use[i] * ExpOfNegative(relative[i] < 0.0 ? relative[i] : 0.0);
}

// Numbers below the total, from random bits.
TFXC_VECTORIZE void BelowTotal(const uint64_t* __restrict bits, double total, int64_t count, double* __restrict out) {
  const double limit = Below(total);
  for (int64_t s = 0; s < count; ++s) out[s] = AtMost(ToUnit(bits[s]) * total, limit);
}

// The excess of each number over the sums before its column, in units of the column's weight, below the column's sum.
TFXC_VECTORIZE void Remainders(const double* __restrict sums_before, const double* __restrict weights,
                               const double* __restrict column_sums, const int32_t* __restrict column, int64_t count,
                               double* __restrict value) {
  for (int64_t s = 0; s < count; ++s) {
    const int32_t b = column[s];
    value[s] = AtMost((value[s] - sums_before[b]) / weights[b], Below(column_sums[b]));
  }
}

// sums[a, b] = sum over a' <= a of row_weight[a'] * mass[a', b]
TFXC_VECTORIZE void AddUpRows(const float* __restrict mass, const double* __restrict row_weight,
                              int64_t codewords, double* __restrict sums) {
  for (int64_t b = 0; b < codewords; ++b) sums[b] = row_weight[0] * mass[b];
  for (int64_t a = 1; a < codewords; ++a) {
    const double* __restrict above = sums + (a - 1) * codewords;
    double* __restrict here = sums + a * codewords;
    const float* __restrict masses = mass + a * codewords;
    for (int64_t b = 0; b < codewords; ++b) here[b] = above[b] + row_weight[a] * masses[b];
  }
}

// For each draw, the first index whose sum exceeds its value. The sums of draw s are sums[index * stride + lane[s]];
// all draws step together, so that their reads overlap.
TFXC_VECTORIZE void Bisect(const double* __restrict sums, int64_t padded, int64_t stride,
                           const int32_t* __restrict lane, const double* __restrict value, int64_t count,
                           int32_t* __restrict index) {
  std::fill(index, index + count, 0);
  for (int64_t step = padded / 2; step > 0; step /= 2) {
    for (int64_t s = 0; s < count; ++s) {
      const double sum = sums[(index[s] + step - 1) * stride + lane[s]];
      index[s] += sum <= value[s] ? static_cast<int32_t>(step) : 0;
    }
  }
}

// log Q of drawn classes, from u + v of their cells, their weights and the total. NaN where a weight is not positive.
TFXC_VECTORIZE void LogProbabilities(const double* __restrict row_logit, const double* __restrict column_logit,
                                     const int32_t* __restrict row, const int32_t* __restrict column,
                                     const double* __restrict weight, double log_total, int64_t count,
                                     float* __restrict log_prob) {
  for (int64_t s = 0; s < count; ++s) {
    const double log_q = row_logit[row[s]] + column_logit[column[s]] - log_total + LogOfPositive(weight[s]);
    log_prob[s] = static_cast<float>(log_q);
  }
}

void CellSampler::SetQuery(const float* row_logits, const float* column_logits) {
  Exponentiate(row_logits, cells_.row_in_use.data(), codewords_, row_logit_.data(), row_weight_.data());
  Exponentiate(column_logits, cells_.column_in_use.data(), codewords_, column_logit_.data(), column_weight_.data());
  AddUpSeparably();
  if (!(total_ > kSmallestTotal)) AddUpCellByCell();
}

void CellSampler::AddUpSeparably() {
  AddUpRows(cells_.mass, row_weight_.data(), codewords_, row_sums_.data());
  const double* last_row = &row_sums_[(codewords_ - 1) * codewords_];
  total_ = 0.0;
  for (int64_t b = 0; b < codewords_; ++b) {
    total_ += column_weight_[b] * last_row[b];
    column_sums_[1 + b] = total_;
  }
}

// Where the cell of the best row and the best column is empty, every other cell may underflow: then logits are relative
// to the best cell with mass, at one exponential a cell.
void CellSampler::AddUpCellByCell() {
  double best = -std::numeric_limits<double>::infinity();
  double row_shift = 0.0, column_shift = 0.0;
  for (int64_t cell = 0; cell < codewords_ * codewords_; ++cell) {
    const double row_logit = row_logit_[cell / codewords_], column_logit = column_logit_[cell % codewords_];
    if (cells_.mass[cell] > 0.0f && row_logit + column_logit > best) {
      best = row_logit + column_logit;
      row_shift = row_logit;
      column_shift = column_logit;
    }
  }
  for (double& logit : row_logit_) logit -= row_shift;
  for (double& logit : column_logit_) logit -= column_shift;
  std::fill(column_weight_.begin(), column_weight_.end(), 1.0);
  total_ = 0.0;
  for (int64_t b = 0; b < codewords_; ++b) {
    double sum = 0.0;
    for (int64_t a = 0; a < codewords_; ++a) {
      const double mass = cells_.mass[a * codewords_ + b];
      if (mass > 0.0) sum += mass * std::exp(row_logit_[a] + column_logit_[b]);
      row_sums_[a * codewords_ + b] = sum;
    }
    total_ += sum;
    column_sums_[1 + b] = total_;
  }
}

// A number below the total falls into a column, and its excess over the columns before falls into a row. A cell without
// weight adds nothing to a sum, so it is never the first above.
void CellSampler::ChooseCells() {
  BelowTotal(cell_bits_.data(), total_, samples_, value_.data());
  std::fill(row_.begin(), row_.end(), 0);
  Bisect(&column_sums_[1], padded_, 1, row_.data(), value_.data(), samples_, column_.data());
  Remainders(column_sums_.data(), column_weight_.data(), &row_sums_[(codewords_ - 1) * codewords_], column_.data(),
             samples_, value_.data());
  Bisect(row_sums_.data(), padded_, codewords_, column_.data(), value_.data(), samples_, row_.data());
}

// The alias method: a uniform slot of the chosen cell, then the slot itself or its alias. Prefetches run ahead of the
// reads.
void CellSampler::ChooseSlots() {
  for (int64_t s = 0; s < samples_; ++s) {
    const int64_t cell = row_[s] * codewords_ + column_[s];
    const int32_t start = cells_.offsets[cell], size = cells_.offsets[cell + 1] - start;
    const double place = ToUnit(class_bits_[s]) * size;
    const int32_t whole = static_cast<int32_t>(place);
    value_[s] = place - whole;
    slot_[s] = start + whole;
    __builtin_prefetch(cells_.slots + slot_[s]);
  }
  for (int64_t s = 0; s < samples_; ++s) {
    const Slot& slot = cells_.slots[slot_[s]];
    slot_[s] = value_[s] < slot.threshold ? slot_[s] : slot.alias;
    __builtin_prefetch(cells_.slots + slot_[s]);
  }
}

void CellSampler::Draw(const Seed& seed, uint32_t query, int32_t* class_ids, float* log_prob) {
  FillBits(seed, query, samples_, cell_bits_.data(), class_bits_.data());
  ChooseCells();
  ChooseSlots();
  for (int64_t s = 0; s < samples_; ++s) {
    const bool is_slot = slot_[s] >= 0 && slot_[s] < cells_.num_classes;
    class_ids[s] = is_slot ? cells_.slots[slot_[s]].class_id : -1;
    value_[s] = is_slot ? cells_.slots[slot_[s]].weight : 0.0;
  }
  LogProbabilities(row_logit_.data(), column_logit_.data(), row_.data(), column_.data(), value_.data(),
                   std::log(total_), samples_, log_prob);
}

// The shift is a given logit minus the relative one, the same at every codeword: here at those of the first draw.
double CellSampler::LogPartition(const float* row_logits, const float* column_logits) const {
  const int32_t a = row_[0], b = column_[0];
  return std::log(total_) + (row_logits[a] - row_logit_[a]) + (column_logits[b] - column_logit_[b]);
}

}  // namespace

Cells::Cells(int64_t num_codewords, int64_t num_classes, const float* mass, const int32_t* offsets, const Slot* slots)
    : num_codewords(num_codewords),
      num_classes(num_classes),
      mass(mass),
      offsets(offsets),
      slots(slots),
      row_in_use(num_codewords, 0.0),
      column_in_use(num_codewords, 0.0) {
  for (int64_t row = 0; row < num_codewords; ++row) {
    for (int64_t column = 0; column < num_codewords; ++column) {
      if (mass[row * num_codewords + column] > 0.0f) row_in_use[row] = column_in_use[column] = 1.0;
    }
  }
}

void DrawClasses(const Cells& cells, const CellQueries& queries, int64_t first, int64_t last, int32_t* class_ids,
                 float* log_prob, float* log_partition) {
  CellSampler sampler(cells, queries.num_samples);
  for (int64_t n = first; n < last; ++n) {
    const float* row_logits = queries.row_logits + n * cells.num_codewords;
    const float* column_logits = queries.column_logits + n * cells.num_codewords;
    sampler.SetQuery(row_logits, column_logits);
    sampler.Draw(queries.seed, static_cast<uint32_t>(n), class_ids + n * queries.num_samples,
                 log_prob + n * queries.num_samples);
    log_partition[n] = static_cast<float>(sampler.LogPartition(row_logits, column_logits));
  }
}

}  // namespace tfxc
