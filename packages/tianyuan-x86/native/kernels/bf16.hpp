// Products of pairs in bfloat16: what convolution and matrix product share from packed operands on.
//
// A word of 32 bits holds two neighbouring terms. Weights lie as words over blocks of 16 outputs,
// the other operand's words are broadcast; each product adds two terms to a float32 sum.
#pragma once

#include "element.hpp"
#include "epilogue.hpp"
#include "kernel.hpp"
#include "tile.hpp"

namespace TY_ISA {

// Where the rows of the first operand lie, and what the results are.
enum PairKind {
  PAIR_BLOCKS,  // rows 32 bytes apart, in one or two halves -> blocks of 16 channels
  PAIR_LANES,   // the same of some channels, one half -> the others stay as they are
  PAIR_IMAGE,   // rows `a_row` apart -> blocks of 16 channels
  PAIR_MATRIX,  // rows `a_row` apart -> rows of float32
  PAIR_ROWS     // rows `a_row` apart -> rows that are kept in bfloat16
};

struct PairTile {
  const char *a;
  const float *b;               // words
  const TileSegment *segments;  // a in bytes, b in words, count in pairs
  int64_t n_segments;
  int64_t a_row;           // PAIR_BLOCKS: bytes between the halves; else between rows
  int64_t b_step, b_next;  // words between pairs, between the two vectors
  const char *ahead;       // what tiles to come will read, or NULL
  int64_t ahead_step;      // bytes of it that are asked for with each pair
  const float *bias;       // of the first output, or NULL
  const void *residual;    // in the form of y, or NULL
  void *y;                 // uint16_t or float
  int64_t y_row;           // values between the halves of blocks, or between rows of a matrix
  int64_t y_next;          // values between the two vectors
  vm valid[2];             // outputs that are there
  vm written[2];           // PAIR_LANES: places in blocks that are written
  Epilogue epilogue;       // as_clip has been applied
};

typedef void (*PairRun)(const PairTile *);

// Tile of `rows` rows (in two halves where halves is 2) and 1 or 2 vectors.
PairRun pair_tile_of(PairKind kind, int halves, int rows, int vectors);

}  // namespace TY_ISA
