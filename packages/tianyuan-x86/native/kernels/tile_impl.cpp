// Instances of the tile for every height, so that tails run at full width.
#include "tile.hpp"
#include "vmath.hpp"

namespace TY_ISA {
namespace {

template <int KIND>
TY_INLINE const float *row_of(const float *a, int row, int per_half, int64_t a_row) {
  const int within = row % per_half;
  const float *half = row < per_half ? a : a + a_row;
  return half + within * (KIND == TILE_BLOCK ? (int)VF : 1);
}

// `biased`: sums have started from the bias. Distances are read first, as stores could change them.
template <int HALVES, int ROWS, int VECTORS>
TY_INLINE void finish_tile(vf (&c)[ROWS][VECTORS], const TileOut &out, bool biased) {
  if (out.sums) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        vstore(out.sums + (i * VECTORS + v) * VF, c[i][v]);
        c[i][v] = vadd(c[i][v], vload(out.plus + (i * VECTORS + v) * VF));
      }
  }
  const vf lower = vset1(out.lower), upper = vset1(out.upper);
  const float *residual = out.residual;
  float *y = out.y;
  const int64_t next = out.next, half = out.half, lanes = out.lanes;
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v) {
    if (!biased) {
      const vf bias = vload(out.bias + v * VF);
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) c[i][v] = vadd(c[i][v], bias);
    }
    const vm valid = vtail_mask(vtail_of(lanes - v * VF));
    if (residual) {
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i)
        c[i][v] = vadd(c[i][v], vload(row_of<TILE_BLOCK>(residual, i, ROWS / HALVES, half)));
      residual += next;
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
      vstore(y + (i < ROWS / HALVES ? 0 : half) + i % (ROWS / HALVES) * VF,
             vselect(valid, vmin_fast(upper, vmax_fast(lower, c[i][v])), vzero()));
    y += next;
  }
}

// Rows that lie any distance apart: seven rows are one base register plus multiples, that an
// address has room for, of three distances. The barrier keeps the compiler from holding more of
// them.
struct Rows {
  int64_t one, three, five;  // bytes
};

TY_INLINE void hold_rows(Rows *rows) {
  __asm__("" : "+r"(rows->one), "+r"(rows->three), "+r"(rows->five));
}

TY_INLINE const float *strided_row(const float *a, const float *middle, int row, const Rows &by) {
  const char *base = reinterpret_cast<const char *>(row < 7 ? a : middle);
  const int64_t distance[] = {0, by.one, 2 * by.one, by.three, 4 * by.one, by.five, 2 * by.three};
  return reinterpret_cast<const float *>(base + distance[row % 7]);
}

// Half a vector, whose instructions take half the time where the core splits whole ones.
#if TY_VF == 16
typedef __m256 vn;
TY_INLINE vn narrow_zero() { return _mm256_setzero_ps(); }
TY_INLINE vn narrow_load(const float *p) { return _mm256_loadu_ps(p); }
TY_INLINE vn narrow_fma(float a, vn b, vn c) { return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c); }
TY_INLINE vf widened(vn x) { return _mm512_zextps256_ps512(x); }
enum { NARROW_LANES = 8 };
#else
typedef vf vn;
TY_INLINE vn narrow_zero() { return vzero(); }
TY_INLINE vn narrow_load(const float *p) { return vload(p); }
TY_INLINE vn narrow_fma(float a, vn b, vn c) { return vfma(vset1(a), b, c); }
TY_INLINE vf widened(vn x) { return x; }
#endif

// The barrier keeps the compiler from holding the addresses of all rows through the loop.
template <int KIND, class Float>
TY_INLINE Float *next_row(const TileArgs *t, Float *row, int vectors) {
  if (KIND != TILE_AHEAD) return row + vectors * VF;
  row += t->c_row;
  __asm__("" : "+r"(row));
  return row;
}

// Lines of c or of what is written later, fetched one at each k, so that stores need not wait for
// them; all at once, they would hold up loads of b.
struct ResultLines {
  const float *at;
  int64_t step, both;  // to the next line, and to the one behind it
  int left;
  const float *then;  // where as many lines are fetched afterwards, or NULL
};

template <int ROWS, int VECTORS>
TY_INLINE ResultLines result_lines(const TileArgs *t) {
  enum { LINE = 16 };
  const float *const at = t->written[0] ? t->written[0] : t->c;
  const int64_t row = t->written[0] ? t->written_row : t->c_row;
  if (VECTORS * VF > LINE) return {at, LINE, row, 2 * ROWS - 1, t->written[1]};
  return {at, row, 2 * row, ROWS - 1, t->written[1]};
}

template <int ROWS, int VECTORS>
TY_INLINE void fetch_line(ResultLines *lines, const TileArgs *t) {
  __asm__ volatile("prefetchw %0" ::"m"(*lines->at));
  lines->at += lines->step;
  lines->step = lines->both - lines->step;
  if (lines->left-- != 0) return;
  if (lines->then) {
    *lines = result_lines<ROWS, VECTORS>(t);
    lines->at = lines->then;
    lines->then = nullptr;
  } else {
    lines->step = lines->both = 0;
  }
}

// Sums that a tile finishes start from their bias, which costs nothing; additions behind the last
// step take the time of multiply-adds. `bias` of the arguments is for whole vectors only.
template <int KIND, int FULL, int NARROW, int ROWS, int VECTORS>
TY_INLINE void start_tile(const TileArgs *t, vf (&c)[ROWS][VECTORS], vn *half) {
  if (!t->accumulate) {
    constexpr bool may_finish = KIND == TILE_UNIT || KIND == TILE_BLOCK;
    const float *bias = may_finish && t->out ? t->out->bias : t->bias;
    const vn narrow =
        NARROW && may_finish && t->out ? narrow_load(t->out->bias + FULL * VF) : narrow_zero();
    for (int i = 0; NARROW && i < ROWS; ++i) half[i] = narrow;
#pragma GCC unroll 4
    for (int v = 0; v < FULL; ++v) {
      const vf start = bias ? vload(bias + v * VF) : vzero();
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) c[i][v] = start;
    }
    return;
  }
  if ((KIND == TILE_AHEAD || KIND == TILE_BLOCK) && t->from) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) c[i][v] = vload(t->from + (i * VECTORS + v) * VF);
    if (!t->plus) return;
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v)
        c[i][v] = vadd(c[i][v], vload(t->plus + (i * VECTORS + v) * VF));
    return;
  }
  const float *from = t->c;
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < FULL; ++v) c[i][v] = vload(from + v * VF);
    if (NARROW) half[i] = narrow_load(from + FULL * VF);
    from = next_row<KIND>(t, from, VECTORS);
  }
}

// What is subtracted at a step of b, whose vectors are loaded.
template <int FULL>
TY_INLINE void subtract(const TileArgs *t, const float *b, const vf *w) {
  const int64_t at = b - t->b;
#pragma GCC unroll 4
  for (int v = 0; v < FULL; ++v)
    vstore(t->difference + at + v * t->b_next, vsub(vload(t->minuend + at + v * t->b_next), w[v]));
}

// What TILE_AHEAD does to its sums before it stores them.
template <int ROWS, int VECTORS>
TY_INLINE void finish_rows(const TileArgs *t, vf (&c)[ROWS][VECTORS]) {
  if (t->scale) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) c[i][v] = vmul(c[i][v], vset1(t->scale[i]));
  }
  if (t->offset) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      const vf offset = vload(t->offset + v * VF);
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) c[i][v] = vadd(c[i][v], offset);
    }
  }
  if (t->residual) {
    const float *from = t->residual;
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) c[i][v] = vadd(c[i][v], vload(from + v * VF));
      from = next_row<TILE_AHEAD>(t, from, VECTORS);
    }
  }
  if (t->clips) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) c[i][v] = vclip(c[i][v], t->lower, t->upper);
  }
}

template <bool VALUE>
struct Choice {
  static constexpr bool value = VALUE;
};

// FULL whole vectors and, where NARROW, half of another one.
template <int KIND, int HALVES, int ROWS, int FULL, int NARROW>
void run_tile(const TileArgs *t) {
  enum { VECTORS = FULL + NARROW };
  vf c[ROWS][VECTORS];
  vn half[NARROW ? ROWS : 1];
  const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, b_next = t->b_next;
  const float *line = KIND == TILE_BLOCK && !t->line_step ? t->b : t->line;
  ResultLines results = result_lines<ROWS, VECTORS>(t);
  constexpr bool strided = KIND == TILE_STRIDED || KIND == TILE_AHEAD;
  const int64_t bytes = a_row * static_cast<int64_t>(sizeof(float));
  Rows by = {bytes, 3 * bytes, 5 * bytes};
  start_tile<KIND, FULL, NARROW>(t, c, half);
  const TileSegment *segment = t->segments, *end = segment + t->n_segments;
  for (; segment != end; ++segment) {
    const float *a = t->a + segment->a, *b = t->b + segment->b, *middle = a + 7 * a_row;
    const auto steps = [&](auto fetches) __attribute__((always_inline)) {
      for (int64_t k = segment->count; k > 0; --k) {
        if (KIND == TILE_AHEAD) {
          __builtin_prefetch(line, 0, 3);
          line += t->line_step;
          fetch_line<ROWS, VECTORS>(&results, t);
        }
        vf w[FULL + 1];
#pragma GCC unroll 4
        for (int v = 0; v < FULL; ++v) w[v] = vload(b + v * b_next);
        if (((KIND == TILE_AHEAD && AHEAD_SUBTRACTS) || KIND == TILE_BLOCK) && t->minuend)
          subtract<FULL>(t, b, w);
        if (KIND == TILE_BLOCK && fetches.value) {
          __builtin_prefetch(line, 0, 2);
          line += t->line_step;
#pragma GCC unroll 4
          for (int v = 0; v < VECTORS; ++v)
            _mm_prefetch(reinterpret_cast<const char *>(b + v * b_next + t->ahead), _MM_HINT_T1);
        }
        const vn narrow = NARROW ? narrow_load(b + FULL * b_next) : narrow_zero();
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
          const float *x =
              strided ? strided_row(a, middle, i, by) : row_of<KIND>(a, i, ROWS / HALVES, a_row);
#pragma GCC unroll 4
          for (int v = 0; v < FULL; ++v) c[i][v] = vfma(vset1(*x), w[v], c[i][v]);
          if (NARROW) half[i] = narrow_fma(*x, narrow, half[i]);
        }
        a += a_step;
        b += b_step;
        if (strided) middle += a_step;
        if (strided) hold_rows(&by);
      }
    };
    if (KIND == TILE_BLOCK && (t->ahead || t->line_step))
      steps(Choice<true>());
    else
      steps(Choice<false>());
  }
#pragma GCC unroll 16
  for (int i = 0; NARROW && i < ROWS; ++i) c[i][FULL] = widened(half[i]);
  if (KIND != TILE_STRIDED && KIND != TILE_AHEAD && t->out) {
    finish_tile<HALVES, ROWS, VECTORS>(c, *t->out, !t->accumulate);
    return;
  }
  if (KIND == TILE_AHEAD) finish_rows(t, c);
  float *to = t->c;
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) vstore(to + v * VF, c[i][v]);
    to = next_row<KIND>(t, to, VECTORS);
  }
}

#define TILE_FORMS(kind, halves, rows) \
  {run_tile<kind, halves, rows, 1, 0>, run_tile<kind, halves, rows, 2, 0>}
#define TILE_NARROW(kind, halves, rows) \
  {run_tile<kind, halves, rows, 0, 1>, run_tile<kind, halves, rows, 1, 1>}
#define TILE_SIX(form, kind)                                                                \
  form(kind, 1, 1), form(kind, 1, 2), form(kind, 1, 3), form(kind, 1, 4), form(kind, 1, 5), \
      form(kind, 1, 6)
#define TILE_HALVES_SIX(form, kind) form(kind, 2, 2), form(kind, 2, 4), form(kind, 2, 6)
#if TY_VF == 16
#define TILE_ALL(form, kind)                                                                     \
  TILE_SIX(form, kind), form(kind, 1, 7), form(kind, 1, 8), form(kind, 1, 9), form(kind, 1, 10), \
      form(kind, 1, 11), form(kind, 1, 12), form(kind, 1, 13), form(kind, 1, 14)
#define TILE_HALVES(form, kind)                                                        \
  TILE_HALVES_SIX(form, kind), form(kind, 2, 8), form(kind, 2, 10), form(kind, 2, 12), \
      form(kind, 2, 14)
#else
#define TILE_ALL(form, kind) TILE_SIX(form, kind)
#define TILE_HALVES(form, kind) TILE_HALVES_SIX(form, kind)
#endif

const TileRun whole[4][TILE_ROWS][2] = {{TILE_ALL(TILE_FORMS, TILE_UNIT)},
                                        {TILE_ALL(TILE_FORMS, TILE_BLOCK)},
                                        {TILE_ALL(TILE_FORMS, TILE_STRIDED)},
                                        {TILE_ALL(TILE_FORMS, TILE_AHEAD)}};
const TileRun halved[2][TILE_ROWS / 2][2] = {{TILE_HALVES(TILE_FORMS, TILE_UNIT)},
                                             {TILE_HALVES(TILE_FORMS, TILE_BLOCK)}};
#if TY_VF == 16
const TileRun narrow[2][TILE_ROWS][2] = {{TILE_ALL(TILE_NARROW, TILE_UNIT)},
                                         {TILE_ALL(TILE_NARROW, TILE_BLOCK)}};
const TileRun narrow_halved[2][TILE_ROWS / 2][2] = {{TILE_HALVES(TILE_NARROW, TILE_UNIT)},
                                                    {TILE_HALVES(TILE_NARROW, TILE_BLOCK)}};
#endif

}  // namespace

TileRun tile_of(TileKind kind, int halves, int rows, int vectors, int64_t lanes) {
#if TY_VF == 16
  if (lanes <= NARROW_LANES && (kind == TILE_UNIT || kind == TILE_BLOCK)) {
    if (halves == 2) return narrow_halved[kind][rows / 2 - 1][vectors - 1];
    return narrow[kind][rows - 1][vectors - 1];
  }
#else
  (void)lanes;
#endif
  if (halves == 2) return halved[kind][rows / 2 - 1][vectors - 1];
  return whole[kind][rows - 1][vectors - 1];
}

}  // namespace TY_ISA
