// The drawing itself, free of TensorFlow. A cell (a, b) holds the classes quantised to row
// codeword a and column codeword b; a query with row logits u and column logits v draws the
// cell with probability mass[a, b] exp(u[a] + v[b]) / Z, then a class of the cell.
#ifndef TFXC_MIDX_DRAW_DRAW_H_
#define TFXC_MIDX_DRAW_DRAW_H_

#include <cstdint>
#include <vector>

#include "common/philox.h"

namespace tfxc {

struct Cells {
  // Precondition: the offsets start at 0, never decrease and end at L.
  Cells(int64_t num_codewords, int64_t num_classes, const float* mass, const int32_t* offsets,
        const int32_t* classes, const double* cumulative_weight, const int32_t* guide);

  int64_t num_codewords;                        // C
  int64_t num_classes;                          // L
  const float* mass;                            // [C, C]
  const int32_t* offsets;                       // [C * C + 1]: where the classes of a cell start
  const int32_t* classes;                       // [L], sorted by cell
  const double* cumulative_weight;              // [L + 1]: 0, then sums of the weights of classes
  const int32_t* guide;                         // [L]: positions where to look first; a hint
  std::vector<double> row_in_use, column_in_use;  // 1 where a codeword has any mass, else 0
  std::vector<double> weight_before;            // [C * C + 1]: the sums of weights at the offsets, side by side
};

struct CellQueries {
  const float* row_logits;     // u [N, C]
  const float* column_logits;  // v [N, C]
  Seed seed;
  int64_t num_samples;         // S
};

// Draws for queries first <= n < last into class_ids [N, S] and log_prob [N, S]; log Z into log_partition [N]. What
// comes out is a pure function of the seed, the query's number and the draw's number. Precondition: some
// mass is positive, every cell with mass has a class, and the logits are finite. A class of
// non-positive weight, which a decreasing cumulative_weight can yield, gets log_prob NaN.
void DrawClasses(const Cells& cells, const CellQueries& queries, int64_t first, int64_t last, int32_t* class_ids,
                 float* log_prob, float* log_partition);

}  // namespace tfxc

#endif  // TFXC_MIDX_DRAW_DRAW_H_
