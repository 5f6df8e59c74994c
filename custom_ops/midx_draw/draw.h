// The mathematics of the MIDX draw, free of TensorFlow. A cell (a, b) holds the classes quantised to row codeword a and
// column codeword b. A query with row logits u and column logits v draws the cell with probability
// mass[a, b] exp(u[a] + v[b]) / Z, then a class of the cell.
#pragma once

#include <cstdint>
#include <vector>

#include "common/philox.h"

namespace tfxc {

// A place in the alias table of a cell with its class, in one line of the cache. A draw that falls on the place stays
// there with probability `threshold`, else it moves to the place `alias`.
struct Slot {
  float threshold;
  int32_t alias, class_id;
  float weight;
};

struct Cells {
  // Precondition: the offsets start at 0, never decrease and end at L.
  Cells(int64_t num_codewords, int64_t num_classes, const float* mass, const int32_t* offsets, const Slot* slots);

  int64_t num_codewords;                          // C
  int64_t num_classes;                            // L
  const float* mass;                              // [C, C]
  const int32_t* offsets;                         // [C * C + 1]: where the slots of a cell start
  const Slot* slots;                              // [L], sorted by cell
  std::vector<double> row_in_use, column_in_use;  // 1 where a codeword has any mass, else 0
};

struct CellQueries {
  const float* row_logits;     // u [N, C]
  const float* column_logits;  // v [N, C]
  Seed seed;
  int64_t num_samples;         // S
};

// Draws for queries first <= n < last into class_ids [N, S] and log_prob [N, S]; log Z into log_partition [N]. The
// results are a pure function of the seed, the query's number and the draw's number. Precondition: some mass is
// positive, every cell with mass has a class, and the logits are finite. A class whose weight is not positive gets
// log_prob NaN, and a draw whose alias is no slot gets class -1.
void DrawClasses(const Cells& cells, const CellQueries& queries, int64_t first, int64_t last, int32_t* class_ids,
                 float* log_prob, float* log_partition);

}  // namespace tfxc
