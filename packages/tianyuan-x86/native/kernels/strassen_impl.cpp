// One level of Strassen's method over the tiles of ordinary products. Columns of b are two panels,
// as far apart as half of the matrix. P and W stay near, so results leave once per block of k.
#include "strassen.hpp"

namespace TY_ISA {
namespace {

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
  // Of a plain b: two panels; what results of upper, then of lower rows are multiplied by, or NULL.
  float *packed, *scales;
};

// Of magnitudes as integers, which are in the order of the floats; those of NaN are the largest.
TY_INLINE vi larger(vi magnitudes, vf x) {
  return vi_max(magnitudes, vi_and(vf_as_vi(x), vi_set1(0x7fffffff)));
}

TY_INLINE float largest(vi magnitudes) {
  const int32_t bits = vi_hmax(magnitudes);
  float most;
  memcpy(&most, &bits, sizeof bits);
  return most;
}

// Whether two rows of these magnitudes may meet.
bool alike(vi magnitudes, vi others) {
  const float most[] = {largest(magnitudes), largest(others)};
  return most[0] <= STRASSEN_MOST && most[1] <= STRASSEN_MOST &&
         most[0] <= STRASSEN_RATIO * most[1] && most[1] <= STRASSEN_RATIO * most[0];
}

// The same of columns, one in each lane.
bool columns_alike(vi magnitudes, vi others) {
  const vf a = vi_as_vf(magnitudes), b = vi_as_vf(others);
  const vf most = vset1(STRASSEN_MOST), ratio = vset1(STRASSEN_RATIO);
  const vm fits = vm_and(vm_and(vle(a, most), vle(b, most)),
                         vm_and(vle(a, vmul(ratio, b)), vle(b, vmul(ratio, a))));
  return vm_bits(vm_not(fits)) == 0;
}

// Powers of two by which results of rows are multiplied whose values are divided by them, so that
// all rows are of one size; of zeros, 0. Returns whether all rows have such a power.
bool find_scales(const Work &work) {
  const int64_t k = work.s.k, size = 2 * work.depth;
  for (int64_t i = 0; i < 2 * work.half; ++i) {
    const int64_t row = work.i0 + (i < work.half ? i : work.lower + i - work.half);
    const float *const from = work.s.a + row * k + work.k0;
    vi magnitudes = vi_set1(0);
    for (int64_t j = 0; j < size; j += VF)
      magnitudes = larger(magnitudes, vload_tail(from + j, vtail_of(size - j)));
    const float most = largest(magnitudes);
    if (!(most <= STRASSEN_MOST) || (most > 0.0f && most < 1.0f / STRASSEN_MOST)) return false;
    int32_t bits;
    memcpy(&bits, &most, sizeof bits);
    bits &= 0x7f800000;
    memcpy(work.scales + i, &bits, sizeof bits);
  }
  return true;
}

TY_INLINE vf divisor(const Work &work, int64_t row) {
  const float scale = work.scales ? work.scales[row] : 0.0f;
  return vset1(scale != 0.0f ? 1.0f / scale : 1.0f);
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
  const bool scaled = work->scales, copies = k % 1024 == 0 || scaled;
  bool all_alike = true;
  const int64_t size = half * depth + STAGGER;
  float *const s1 = to, *const s2 = to + size, *const s3 = to + 2 * size, *const s4 = to + 3 * size;
  float *const copy = to + 4 * size;
  for (int64_t i = 0; i < half; ++i) {
    vi upper = vi_set1(0), lower = vi_set1(0);
    const vf by = divisor(*work, i), below = divisor(*work, half + i);
    for (int64_t j = 0; j < depth; j += VF) {
      const vtail tail = vtail_of(depth - j);
      vf x11 = vload_tail(a11 + i * k + j, tail), x12 = vload_tail(a12 + i * k + j, tail);
      vf x21 = vload_tail(a21 + i * k + j, tail), x22 = vload_tail(a22 + i * k + j, tail);
      if (scaled) {
        x11 = vmul(x11, by);
        x12 = vmul(x12, by);
        x21 = vmul(x21, below);
        x22 = vmul(x22, below);
      }
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
    all_alike &= scaled || alike(upper, lower);
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
                 const float *plus, const float *scales, int64_t rows) {
  for (int v = 0; v < TILE_LANES; v += VF) {
    const vf bias = r.bias ? vload(r.bias + v) : vzero();
    for (int64_t i = 0; i < rows; ++i) {
      vf x = vload(from + i * TILE_LANES + v);
      if (plus) x = vadd(x, vload(plus + i * TILE_LANES + v));
      if (scales) x = vmul(x, vset1(scales[i]));
      x = vadd(x, bias);
      if (r.residual) x = vadd(x, vload(r.residual + i * s.n + v));
      vstore(r.c + i * s.n + v, GELU ? vgelu(x) : activate(x, e));
    }
  }
}

// What results of rows are multiplied by, from a row of the upper or of the lower half on, or NULL.
TY_INLINE const float *scales_of(const Work &work, bool lower, int64_t row) {
  return work.scales ? work.scales + (lower ? work.half : 0) + row : nullptr;
}

// c = activation((from + plus) scale + ...), the activation behind the last block of k only.
void finish(const Work &work, const Result &r, const float *from, const float *plus,
            const float *scales, int64_t rows) {
  const Epilogue none = {ACT_IDENTITY, 0.0f, 0.0f};
  const Epilogue &e = work.last ? work.s.epilogue : none;
  if (e.activation == ACT_GELU)
    finish_rows<true>(r, work.s, e, from, plus, scales, rows);
  else
    finish_rows<false>(r, work.s, e, from, plus, scales, rows);
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

// Brings a part of the next two panels of a plain b near, of which there are `turns`.
void fetch_plain(const Work &work, const float *next, int64_t turn, int64_t turns, TileArgs *t) {
  enum { LINE = 16 };
  const Strassen &s = work.s;
  const int64_t far = s.n / 2 * s.b_column;
  if (s.b_column == 1) {
    // A line of each row of half of the terms; every line of the two panels twice.
    const int64_t lines = 2 * TILE_LANES / LINE, line = turn / 2;
    if (line >= lines) return;
    t->line = next + (line % 2 ? far : 0) + line / 2 * LINE + turn % 2 * work.depth * s.b_step;
    t->line_step = s.b_step;
    return;
  }
  const int64_t columns = 2 * TILE_LANES, end = columns * (turn + 1) / turns;
  int64_t column = columns * turn / turns;
  const auto place = [&](int64_t c) {
    return next + (c < TILE_LANES ? 0 : far) + c % TILE_LANES * s.b_column;
  };
  if (column >= end) return;
  t->line = place(column);  // evenly in the tile
  t->line_step = 2;
  for (++column; column < end; ++column)
    for (int64_t k = 0; k < 2 * work.depth; k += LINE) __builtin_prefetch(place(column) + k, 0, 2);
}

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
  const int64_t share = ceil_div(4 * TILE_LANES, PRODUCTS * tiles);
  const int64_t second = work.s.n / 2 * work.s.k - 2 * TILE_LANES * work.depth;
  for (int64_t at = 0; at < tiles; ++at) {
    const int64_t i = work.half * at / tiles, rows = work.half * (at + 1) / tiles - i;
    t.a = a.at + i * a.row;
    t.minuend = AHEAD_SUBTRACTS && at == 0 ? step.minuend : nullptr;
    const int64_t line = share * (step.product * tiles + at);
    t.line = a.at;
    t.line_step = 0;
    if (step.next && work.packed) {
      fetch_plain(work, step.next, step.product * tiles + at, PRODUCTS * tiles, &t);
    } else if (step.next) {
      t.line = step.next + line * work.depth + (line < 2 * TILE_LANES ? 0 : second);
      t.line_step = share;
    }
    t.from = step.from ? step.from + i * TILE_LANES : nullptr;
    t.plus = step.plus ? step.plus + i * TILE_LANES : nullptr;
    const float *const scales = scales_of(work, step.row > 0, i);
    const TileRun run = tile_of(TILE_AHEAD, 1, static_cast<int>(rows), TILE_VECTORS);
    if (step.to || work.smooth) {
      t.c = step.to ? step.to + i * TILE_LANES : work.tile;
      t.c_row = TILE_LANES;
      run(&t);
      if (!step.to)
        finish(work, result_of(work, step.row + i, step.column), work.tile, nullptr, scales, rows);
      continue;
    }
    const Result r = result_of(work, step.row + i, step.column);
    t.c = r.c;
    t.c_row = work.s.n;
    t.scale = scales;
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

// Packs the terms of a block of both panels of a pair; returns whether the columns that meet are
// alike. Rows are read once, as each may lie in a page of its own.
bool pack_rows(const Work &work, const float *from, float *left, float *right) {
  const Strassen &s = work.s;
  const int64_t depth = 2 * work.depth, far = s.n / 2;
  vi most[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
  for (int64_t k = 0; k < depth; ++k, from += s.b_step) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const vf x = vload(from + (v < 2 ? 0 : far) + v % 2 * VF);
      most[v] = larger(most[v], x);
      vstore((v < 2 ? left : right) + k * TILE_LANES + v % 2 * VF, x);
    }
  }
  return columns_alike(most[0], most[2]) && columns_alike(most[1], most[3]);
}

// The same where columns lie contiguous.
bool pack_columns(const Work &work, const float *from, float *left, float *right) {
  const Strassen &s = work.s;
  const int64_t depth = 2 * work.depth;
  vi most[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
  for (int v = 0; v < 4; ++v) {
    const float *const column = from + ((v < 2 ? 0 : s.n / 2) + v % 2 * VF) * s.b_column;
    float *const to = (v < 2 ? left : right) + v % 2 * VF;
    for (int64_t k = 0; k < depth; k += VF) {
      const int64_t some = lesser(VF, depth - k);
      vf block[VF];
      vload_columns(block, column + k, s.b_column, VF, some);
      for (int64_t i = 0; i < some; ++i) {
        most[v] = larger(most[v], block[i]);
        vstore(to + (k + i) * TILE_LANES, block[i]);
      }
    }
  }
  return columns_alike(most[0], most[2]) && columns_alike(most[1], most[3]);
}

// Two panels of b from a term on, s.n / 2 columns apart, and what to fetch for later.
struct Panels {
  const float *near, *far, *next;
};

// The four panels of c that belong to pair `pair`.
void multiply_panels(const Work &work, int64_t pair, const Panels &b) {
  const Strassen &s = work.s;
  const int64_t size = work.depth * TILE_LANES, left = pair * TILE_LANES, right = s.n / 2 + left;
  float *const p = work.p, *const w = work.w;
  const float *const b21 = b.near + size, *const b22 = b.far + size;
  float *const t1 = work.t, *const t2 = t1 + size + STAGGER;
  float *const t3 = t2 + size + STAGGER, *const t4 = t3 + size + STAGGER;
  float *const sums[] = {t1, t2, t3, t4};
  const float *const panels[RIGHTS] = {b.near, b21, b.far, b22, t1, t2, t3, t4};
  const auto run_turn = [&](const Turn &turn) {
    const float *const minuend = turn.makes ? panels[turn.minuend] : nullptr;
    const float *const from = turn.from_p ? p : nullptr, *const plus = turn.plus_w ? w : nullptr;
    float *const to = turn.to == TO_RESULT ? nullptr : turn.to == TO_W ? w : p;
    run_step(work,
             {turn.left, panels[turn.right], minuend, sums[turn.difference - T1], b.next, from,
              plus, to, turn.lower_rows ? work.lower : 0, turn.right_columns ? right : left});
  };
  if (work.ordinary) {
    for (const Turn &turn : ORDINARY) run_turn(turn);
    return;
  }
  if (!AHEAD_SUBTRACTS) add_panels(work, b.near, b.far);
  for (const Turn &turn : TURNS) run_turn(turn);
  finish(work, result_of(work, work.lower, right), p, w, scales_of(work, true, 0), work.half);
}

void multiply_pair(const Work &work, int64_t pair, bool fetches) {
  const Strassen &s = work.s;
  const int64_t column = pair * TILE_LANES;
  if (!work.packed) {
    const float *const b = s.b + column * s.k + work.k0 * TILE_LANES;
    multiply_panels(work, pair, {b, b + s.n / 2 * s.k, fetches ? b + TILE_LANES * s.k : nullptr});
    return;
  }
  const float *const b = s.plain + column * s.b_column + work.k0 * s.b_step;
  float *const far = work.packed + 2 * work.depth * TILE_LANES + STAGGER;
  const bool meets = s.b_column == 1 ? pack_rows(work, b, work.packed, far)
                                     : pack_columns(work, b, work.packed, far);
  const Panels panels = {work.packed, far, fetches ? b + TILE_LANES * s.b_column : nullptr};
  if (meets || work.ordinary) return multiply_panels(work, pair, panels);
  Work ordinary = work;
  ordinary.ordinary = true;
  ordinary.scales = nullptr;
  read_in_place(&ordinary);
  multiply_panels(ordinary, pair, {work.packed, far, nullptr});
}

}  // namespace

int64_t strassen_workspace(int64_t m, int64_t k, bool plain) {
  const int64_t half = lesser(m, STRASSEN_ROWS) / 2, depth = lesser(k, STRASSEN_TERMS) / 2;
  const int64_t own = plain ? 4 * depth * TILE_LANES + 2 * half : 0;
  const int64_t sums = half * (7 * depth + 2 * TILE_LANES) + (TILE_ROWS + 4 * depth) * TILE_LANES;
  return round_up(sums + own, 16) + 13 * STAGGER;
}

void multiply_strassen(const Strassen &s, const StrassenPiece &piece, float *workspace) {
  const int64_t blocks = ceil_div(s.k, STRASSEN_TERMS), half = piece.rows;
  const int64_t most = lesser(s.k, STRASSEN_TERMS) / 2;  // terms of a quarter
  const bool bounds = as_clip(s.epilogue).activation == ACT_CLIP;
  Work work = {s,     piece.row, half,    piece.lower, 0,       0,       false,   false,  false,
               false, {},        nullptr, nullptr,     nullptr, nullptr, nullptr, nullptr};
  work.p = workspace;
  work.w = work.p + half * TILE_LANES;
  work.tile = work.w + half * TILE_LANES;
  work.t = work.tile + TILE_ROWS * TILE_LANES;
  float *const sums = work.t + 4 * (most * TILE_LANES + STAGGER);
  if (s.plain) work.packed = sums + 7 * (half * most + STAGGER);
  float *const scales = s.plain ? work.packed + 4 * most * TILE_LANES + STAGGER : nullptr;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t start = s.k / 2 * block / blocks;
    work.k0 = 2 * start;
    work.depth = s.k / 2 * (block + 1) / blocks - start;
    work.first = block == 0;
    work.last = block == blocks - 1;
    work.smooth = work.last && !bounds;
    work.scales = scales;
    const bool fits = !scales || find_scales(work);
    if (!fits) work.scales = nullptr;
    work.ordinary = !fits || !add_quarters(&work, sums) ||
                    !are_alike(work, piece.block, piece.row) ||
                    !are_alike(work, piece.row + half, piece.block + piece.lower);
    if (work.ordinary) read_in_place(&work);
    for (int64_t pair = piece.first; pair < piece.last; ++pair)
      multiply_pair(work, pair, pair + 1 < piece.last && !work.ordinary);
  }
}

}  // namespace TY_ISA
