// The one inner loop of matrix multiplication and convolution: a tile of accumulators
// c[row][lane] += a(row, k) * b(k, lane), where k runs over segments with fixed steps inside.
#pragma once

#include "simd.hpp"

namespace TY_ISA {

// Rows and vectors of the largest tile: what fits the register file beside b and one broadcast.
#if TY_VF == 16
enum { TILE_ROWS = 14, TILE_VECTORS = 2, TILE_LANES = 32 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2, TILE_LANES = 16 };
#endif

// Rows are cut into as few tiles as hold them, which are alike within a row.
TY_INLINE int64_t tiles_of(int64_t rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }

// `count` steps of k: a starts at offset `a`, b at offset `b`, in floats.
struct TileSegment {
  int64_t a, b, count;
};

// How far apart the rows of a are: compile-time distances make shorter address arithmetic.
// TILE_AHEAD is TILE_STRIDED whose rows of c lie c_row apart, and which may add a residual to what
// it stores, clip it, and fetch memory for later. It and TILE_BLOCK may subtract b from other
// memory, which costs little beside their products.
enum TileKind { TILE_UNIT = 0, TILE_BLOCK = 1, TILE_STRIDED = 2, TILE_AHEAD = 3 };

// Whether TILE_AHEAD subtracts: a step of k in AVX2 has no room for it beside its products.
enum { AHEAD_SUBTRACTS = TY_VF == 16 };

// Finishes a tile whose lanes are channels of blocked images while its sums are in registers:
// clip(sum + bias + residual). Rows are pixels.
struct TileOut {
  float *sums;        // where sums are stored before `plus` is added, rows without gaps, or NULL
  const float *plus;  // in the same form
  float *y;
  const float *residual;  // in the form of y, or NULL
  int64_t next, half;     // distances of the second vector, and of the second half of the rows
  int64_t lanes;          // channels that are there; zeros follow, as infinity * 0 is no zero
  float lower, upper;
  alignas(64) float bias[TILE_LANES];
};

struct TileArgs {
  const float *a, *b;
  const TileSegment *segments;
  int64_t n_segments;
  int64_t a_row;   // TILE_STRIDED, TILE_AHEAD: distance of rows; else of the two halves of the rows
  int64_t a_step;  // distance of k in a
  int64_t b_step;  // distance of k in b
  int64_t b_next;  // distance of the second vector of b from the first
  int64_t ahead;   // TILE_BLOCK: distance in b to what is read next, which is brought near
  bool accumulate;     // start from what `c` holds instead of `bias`
  const float *bias;   // what every row starts from; zero where NULL
  float *c;            // rows x vectors x VF; of TILE_AHEAD, rows that lie c_row apart
  const TileOut *out;  // TILE_UNIT, TILE_BLOCK: where finished sums go instead of `c`, or NULL
  // TILE_BLOCK, TILE_AHEAD:
  const float *from;     // what `accumulate` starts from instead of `c`, rows without gaps, or NULL
  const float *plus;     // added to `from`, in the same form, or NULL
  const float *minuend;  // in the form of b: `difference` becomes it less b on the way, or NULL
  float *difference;
  const float *line;  // what is fetched, line_step floats further at each k, where that is not 0
  int64_t line_step;
  // TILE_AHEAD only, which reads `line` in any case:
  int64_t c_row;
  const float *scale;     // of a row, before all else is added, or NULL
  const float *offset;    // added to every row, or NULL
  const float *residual;  // in the form of c, or NULL
  bool clips;
  float lower, upper;
  // Fetched for writing: c, or what has its form, in rows that lie `written_row` apart, twice.
  const float *written[2];
  int64_t written_row;
};

typedef void (*TileRun)(const TileArgs *);

// Tile of `rows` rows and `vectors` vectors. `halves` is 1, or 2 where the rows are two runs of
// rows / 2 that lie a_row apart (TILE_UNIT and TILE_BLOCK only). Where `lanes`, of the last vector,
// is no more than half of VF, the others may be taken for zeros, which costs less.
TileRun tile_of(TileKind kind, int halves, int rows, int vectors, int64_t lanes = VF);

// Transposes VF vectors of VF lanes.
TY_INLINE void vtranspose(vf *r) {
#if TY_VF == 16
  vf t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    vf lo0 = _mm512_unpacklo_ps(r[4 * i], r[4 * i + 1]);
    vf hi0 = _mm512_unpackhi_ps(r[4 * i], r[4 * i + 1]);
    vf lo1 = _mm512_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]);
    vf hi1 = _mm512_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]);
    t[4 * i] = _mm512_shuffle_ps(lo0, lo1, 0x44);
    t[4 * i + 1] = _mm512_shuffle_ps(lo0, lo1, 0xee);
    t[4 * i + 2] = _mm512_shuffle_ps(hi0, hi1, 0x44);
    t[4 * i + 3] = _mm512_shuffle_ps(hi0, hi1, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    vf a = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88);
    vf b = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xdd);
    vf c = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88);
    vf d = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xdd);
    r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
    r[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
#else
  vf t[8];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    vf lo0 = _mm256_unpacklo_ps(r[4 * i], r[4 * i + 1]);
    vf hi0 = _mm256_unpackhi_ps(r[4 * i], r[4 * i + 1]);
    vf lo1 = _mm256_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]);
    vf hi1 = _mm256_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]);
    t[4 * i] = _mm256_shuffle_ps(lo0, lo1, 0x44);
    t[4 * i + 1] = _mm256_shuffle_ps(lo0, lo1, 0xee);
    t[4 * i + 2] = _mm256_shuffle_ps(hi0, hi1, 0x44);
    t[4 * i + 3] = _mm256_shuffle_ps(hi0, hi1, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x31);
  }
#endif
}

// Columns of up to VF rows that lie `step` floats apart: `columns` vectors, at most VF, whose lanes
// behind the last row are zero.
TY_INLINE void vload_columns(vf *to, const float *from, int64_t step, int64_t rows,
                             int64_t columns) {
  const vtail tail = vtail_of(columns);
#pragma GCC unroll 16
  for (int r = 0; r < VF; ++r) to[r] = r < rows ? vload_tail(from + r * step, tail) : vzero();
  vtranspose(to);
}

}  // namespace TY_ISA
