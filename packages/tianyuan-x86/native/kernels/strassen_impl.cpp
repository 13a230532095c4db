// One level of Strassen's method over the tiles of ordinary products. Columns of b are two panels,
// as far apart as half of the matrix. P and W stay near, so results leave once per block of k.
#include "strassen.hpp"

namespace TY_ISA {
namespace {

TY_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TY_INLINE int64_t tiles_of(int64_t rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
TY_INLINE int64_t round_up(int64_t a, int64_t to) { return (a + to - 1) / to * to; }

// Floats between sums: at multiples of 4 KiB from each other, stores would hold up loads and lines
// evict one another.
enum { STAGGER = 80 };

struct Operand {
  const float *at;
  int64_t row;
};

struct Work {
  const Strassen &s;
  int64_t i0, half, lower;  // first row, rows of each quarter, distance to the lower ones
  int64_t depth, k0;        // terms of a quarter, first term
  bool first, last;         // block of k
  bool smooth;              // more than bounds follows in the last block
  bool ordinary;            // products
  Operand operands[LEFTS];
  float *p, *w, *tile;  // half x panel each; results of a tile before a smooth activation
  float *t;             // four sums of quarters of two panels of b
};

// Of magnitudes as integers, which are in the order of the floats; those of NaN are the largest.
TY_INLINE vi larger(vi magnitudes, vf x) {
  return vi_max(magnitudes, vi_and(vf_as_vi(x), vi_set1(0x7fffffff)));
}

// Whether two rows of these magnitudes may meet.
bool alike(vi magnitudes, vi others) {
  const int32_t bits[] = {vi_hmax(magnitudes), vi_hmax(others)};
  float most[2];
  memcpy(most, bits, sizeof bits);
  return most[0] <= STRASSEN_MOST && most[1] <= STRASSEN_MOST &&
         most[0] <= STRASSEN_RATIO * most[1] && most[1] <= STRASSEN_RATIO * most[0];
}

void read_in_place(Work *work) {
  const int64_t k = work->s.k;
  const float *const upper = work->s.a + work->i0 * k + work->k0, *lower = upper + work->lower * k;
  work->operands[A11] = {upper, k};
  work->operands[A12] = {upper + work->depth, k};
  work->operands[A21] = {lower, k};
  work->operands[A22] = {lower + work->depth, k};
}

// The sums of quarters of a, and the quarters where their rows would evict one another. Returns
// whether all rows that meet are alike.
bool add_quarters(Work *work, float *to) {
  const int64_t k = work->s.k, half = work->half, depth = work->depth;
  const float *a11 = work->s.a + work->i0 * k + work->k0, *a12 = a11 + depth;
  const float *a21 = a11 + work->lower * k, *a22 = a21 + depth;
  const bool copies = k % 1024 == 0;
  bool all_alike = true;
  const int64_t size = half * depth + STAGGER;
  float *const s1 = to, *const s2 = to + size, *const s3 = to + 2 * size, *const s4 = to + 3 * size;
  float *const copy = to + 4 * size;
  for (int64_t i = 0; i < half; ++i) {
    vi upper = vi_set1(0), lower = vi_set1(0);
    for (int64_t j = 0; j < depth; j += VF) {
      const vtail tail = vtail_of(depth - j);
      const vf x11 = vload_tail(a11 + i * k + j, tail), x12 = vload_tail(a12 + i * k + j, tail);
      const vf x21 = vload_tail(a21 + i * k + j, tail), x22 = vload_tail(a22 + i * k + j, tail);
      const vf y1 = vadd(x21, x22), y2 = vsub(y1, x11);
      const auto put = [&](float *at, vf x) {
        if (depth - j >= VF)
          vstore(at + i * depth + j, x);
        else
          vstore_tail(at + i * depth + j, x, tail);
      };
      put(s1, y1);
      put(s2, y2);
      put(s3, vsub(x21, x11));
      put(s4, vsub(x12, y2));
      upper = larger(larger(upper, x11), x12);
      lower = larger(larger(lower, x21), x22);
      if (!copies) continue;
      put(copy, x11);
      put(copy + size, x12);
      put(copy + 2 * size, x22);
    }
    all_alike &= alike(upper, lower);
  }
  read_in_place(work);
  work->operands[S1] = {s1, depth};
  work->operands[S2] = {s2, depth};
  work->operands[S3] = {s3, depth};
  work->operands[S4] = {s4, depth};
  if (!copies) return all_alike;
  work->operands[A11] = {copy, depth};
  work->operands[A12] = {copy + size, depth};
  work->operands[A22] = {copy + 2 * size, depth};
  return all_alike;
}

// The same of rows that other pieces add up: blocks of rows are computed in one way, so that
// results do not depend on the number of threads.
bool are_alike(const Work &work, int64_t begin, int64_t end) {
  const int64_t k = work.s.k, size = 2 * work.depth;
  for (int64_t i = begin; i < end; ++i) {
    const float *const row = work.s.a + i * k + work.k0, *const met = row + work.lower * k;
    vi upper = vi_set1(0), lower = vi_set1(0);
    for (int64_t j = 0; j < size; j += VF) {
      const vtail tail = vtail_of(size - j);
      upper = larger(upper, vload_tail(row + j, tail));
      lower = larger(lower, vload_tail(met + j, tail));
    }
    if (!alike(upper, lower)) return false;
  }
  return true;
}

// A tile of c: what is added to its sums and where it goes.
struct Result {
  float *c;
  const float *bias, *residual;  // of the whole matrix before the first block, c itself later
};

Result result_of(const Work &work, int64_t row, int64_t column) {
  const Strassen &s = work.s;
  const int64_t at = (work.i0 + row) * s.n + column;
  Result r = {s.c + at, nullptr, s.c + at};
  if (work.first) {
    r.bias = s.bias ? s.bias + column : nullptr;
    r.residual = s.residual ? s.residual + at : nullptr;
  }
  return r;
}

template <bool GELU>
void finish_rows(const Result &r, const Strassen &s, const Epilogue &e, const float *from,
                 const float *plus, int64_t rows) {
  for (int v = 0; v < TILE_LANES; v += VF) {
    const vf bias = r.bias ? vload(r.bias + v) : vzero();
    for (int64_t i = 0; i < rows; ++i) {
      vf x = vload(from + i * TILE_LANES + v);
      if (plus) x = vadd(x, vload(plus + i * TILE_LANES + v));
      x = vadd(x, bias);
      if (r.residual) x = vadd(x, vload(r.residual + i * s.n + v));
      vstore(r.c + i * s.n + v, GELU ? vgelu(x) : activate(x, e));
    }
  }
}

// c = activation(from + plus + ...), the activation behind the last block of k only.
void finish(const Work &work, const Result &r, const float *from, const float *plus, int64_t rows) {
  const Epilogue none = {ACT_IDENTITY, 0.0f, 0.0f};
  const Epilogue &e = work.last ? work.s.epilogue : none;
  if (e.activation == ACT_GELU)
    finish_rows<true>(r, work.s, e, from, plus, rows);
  else
    finish_rows<false>(r, work.s, e, from, plus, rows);
}

// The products of one left operand with a panel, for all tiles of rows.
struct Step {
  int product;
  const float *b;
  const float *minuend;  // `difference` becomes it less b, or NULL
  float *difference;
  const float *next;         // the two panels that follow, s.n / 2 columns apart, or NULL
  const float *from, *plus;  // what sums start from, or NULL
  float *to;                 // NULL: into c, from `row` and `column` on
  int64_t row, column;
};

void run_step(const Work &work, const Step &step) {
  const TileSegment whole = {0, 0, work.depth};
  const int64_t tiles = tiles_of(work.half);
  const Epilogue bounds = as_clip(work.s.epilogue);
  TileArgs t = {};
  t.segments = &whole;
  t.n_segments = 1;
  const Operand &a = work.operands[step.product];
  t.a_row = a.row;
  t.a_step = 1;
  t.b = step.b;
  t.b_step = TILE_LANES;
  t.b_next = VF;
  t.accumulate = step.from != nullptr;
  t.difference = step.difference;
  t.lower = bounds.lower;
  t.upper = bounds.upper;
  // All tiles of the seven products share the floats of the next two panels evenly.
  const int64_t share = (4 * TILE_LANES + PRODUCTS * tiles - 1) / (PRODUCTS * tiles);
  const int64_t second = work.s.n / 2 * work.s.k - 2 * TILE_LANES * work.depth;
  t.line_step = step.next ? share : 0;
  for (int64_t at = 0; at < tiles; ++at) {
    const int64_t i = work.half * at / tiles, rows = work.half * (at + 1) / tiles - i;
    t.a = a.at + i * a.row;
    t.minuend = AHEAD_SUBTRACTS && at == 0 ? step.minuend : nullptr;
    const int64_t line = share * (step.product * tiles + at);
    t.line =
        step.next ? step.next + line * work.depth + (line < 2 * TILE_LANES ? 0 : second) : a.at;
    t.from = step.from ? step.from + i * TILE_LANES : nullptr;
    t.plus = step.plus ? step.plus + i * TILE_LANES : nullptr;
    const TileRun run = tile_of(TILE_AHEAD, 1, static_cast<int>(rows), TILE_VECTORS);
    if (step.to || work.smooth) {
      t.c = step.to ? step.to + i * TILE_LANES : work.tile;
      t.c_row = TILE_LANES;
      run(&t);
      if (!step.to)
        finish(work, result_of(work, step.row + i, step.column), work.tile, nullptr, rows);
      continue;
    }
    const Result r = result_of(work, step.row + i, step.column);
    t.c = r.c;
    t.c_row = work.s.n;
    t.offset = r.bias;
    t.residual = r.residual;
    t.clips = work.last && work.s.epilogue.activation != ACT_IDENTITY;
    run(&t);
  }
}

// The sums of the quarters of two panels, where no product makes them.
void add_panels(const Work &work, const float *left, const float *right) {
  const int64_t size = work.depth * TILE_LANES, step = size + STAGGER;
  for (int64_t i = 0; i < size; i += VF) {
    const vf b11 = vload(left + i), b21 = vload(left + size + i);
    const vf b12 = vload(right + i), b22 = vload(right + size + i);
    const vf t1 = vsub(b12, b11), t2 = vsub(b22, t1);
    vstore(work.t + i, t1);
    vstore(work.t + step + i, t2);
    vstore(work.t + 2 * step + i, vsub(b12, b22));
    vstore(work.t + 3 * step + i, vsub(b21, t2));
  }
}

// The four panels of c that belong to pair `pair`.
void multiply_pair(const Work &work, int64_t pair, bool fetches) {
  const Strassen &s = work.s;
  const int64_t size = work.depth * TILE_LANES, left = pair * TILE_LANES, right = s.n / 2 + left;
  const float *const b = s.b + left * s.k + work.k0 * TILE_LANES, *const far = b + s.n / 2 * s.k;
  const float *const next = fetches ? b + TILE_LANES * s.k : nullptr;
  float *const p = work.p, *const w = work.w;
  const float *const b21 = b + size, *const b22 = far + size;
  float *const t1 = work.t, *const t2 = t1 + size + STAGGER;
  float *const t3 = t2 + size + STAGGER, *const t4 = t3 + size + STAGGER;
  float *const sums[] = {t1, t2, t3, t4};
  const float *const panels[RIGHTS] = {b, b21, far, b22, t1, t2, t3, t4};
  const auto run_turn = [&](const Turn &turn) {
    const float *const minuend = turn.makes ? panels[turn.minuend] : nullptr;
    const float *const from = turn.from_p ? p : nullptr, *const plus = turn.plus_w ? w : nullptr;
    float *const to = turn.to == TO_RESULT ? nullptr : turn.to == TO_W ? w : p;
    run_step(work, {turn.left, panels[turn.right], minuend, sums[turn.difference - T1], next, from,
                    plus, to, turn.lower_rows ? work.lower : 0, turn.right_columns ? right : left});
  };
  if (work.ordinary) {
    for (const Turn &turn : ORDINARY) run_turn(turn);
    return;
  }
  if (!AHEAD_SUBTRACTS) add_panels(work, b, far);
  for (const Turn &turn : TURNS) run_turn(turn);
  finish(work, result_of(work, work.lower, right), p, w, work.half);
}

}  // namespace

int64_t strassen_workspace(int64_t m, int64_t k) {
  const int64_t half = least(m, STRASSEN_ROWS) / 2, depth = least(k, STRASSEN_TERMS) / 2;
  return round_up(half * (7 * depth + 2 * TILE_LANES) + (TILE_ROWS + 4 * depth) * TILE_LANES, 16) +
         11 * STAGGER;
}

void multiply_strassen(const Strassen &s, const StrassenPiece &piece, float *workspace) {
  const int64_t blocks = (s.k + STRASSEN_TERMS - 1) / STRASSEN_TERMS, half = piece.rows;
  const bool bounds = as_clip(s.epilogue).activation == ACT_CLIP;
  Work work = {s,     piece.row, half, piece.lower, 0,       0,       false,  false,
               false, false,     {},   nullptr,     nullptr, nullptr, nullptr};
  work.p = workspace;
  work.w = work.p + half * TILE_LANES;
  work.tile = work.w + half * TILE_LANES;
  work.t = work.tile + TILE_ROWS * TILE_LANES;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t start = s.k / 2 * block / blocks;
    work.k0 = 2 * start;
    work.depth = s.k / 2 * (block + 1) / blocks - start;
    work.first = block == 0;
    work.last = block == blocks - 1;
    work.smooth = work.last && !bounds;
    work.ordinary = !add_quarters(&work, work.t + 4 * (work.depth * TILE_LANES + STAGGER)) ||
                    !are_alike(work, piece.block, piece.row) ||
                    !are_alike(work, piece.row + half, piece.block + piece.lower);
    if (work.ordinary) read_in_place(&work);
    for (int64_t pair = piece.first; pair < piece.last; ++pair)
      multiply_pair(work, pair, pair + 1 < piece.last && !work.ordinary);
  }
}

}  // namespace TY_ISA
