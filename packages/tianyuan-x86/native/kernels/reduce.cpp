// sum, mean, prod, max, min and sum_to over any axes. How the work is cut depends on sizes only and
// pieces are combined in a fixed order, so that results do not depend on the number of threads.
#include "kernel.hpp"
#include "vmath.hpp"

namespace TY_ISA {
namespace {

#define TY_MEMBER inline __attribute__((always_inline))

// kernels/reduction.py sizes the workspace by these numbers.
static constexpr int64_t TILE = 256;           // columns that are reduced side by side
static constexpr int64_t SPLIT_SIZE = 131072;  // elements below which one output is one piece
static constexpr int64_t SPLIT_UNITS = 8;      // outputs from which on no output is cut
static constexpr int64_t PIECE = 32768;        // elements of a piece
static constexpr int64_t MOST_PIECES = 64;     // of one output
static constexpr int64_t REDUCE_GRAIN = 16384;

// The input with axes of extent 1 dropped and neighbours of one kind merged.
struct Plan {
  int ndim;
  int64_t shape[TY_MAX_DIMS], stride[TY_MAX_DIMS];
  bool reduced[TY_MAX_DIMS];
  int64_t outputs, count;  // results, and elements that each of them takes in
  int64_t run;             // elements of the last axis
  bool rows;               // whether the last axis is reduced
};

void plan_init(Plan *p, const ty_tensor &x, const bool *reduced) {
  p->ndim = 0;
  p->outputs = p->count = 1;
  for (int d = 0; d < x.ndim; ++d) {
    (reduced[d] ? p->count : p->outputs) *= x.shape[d];
    if (x.shape[d] == 1) continue;
    if (p->ndim > 0 && p->reduced[p->ndim - 1] == reduced[d]) {
      p->shape[p->ndim - 1] *= x.shape[d];
    } else {
      p->shape[p->ndim] = x.shape[d];
      p->reduced[p->ndim++] = reduced[d];
    }
  }
  if (p->ndim == 0) {
    p->shape[0] = 1;
    p->reduced[0] = true;
    p->ndim = 1;
  }
  int64_t stride = 1;
  for (int d = p->ndim - 1; d >= 0; --d) {
    p->stride[d] = stride;
    stride *= p->shape[d];
  }
  p->run = p->shape[p->ndim - 1];
  p->rows = p->reduced[p->ndim - 1];
}

// Where item `index` of the axes of one kind starts; the last axis is left out.
int64_t offset_of(const Plan &p, bool reduced, int64_t index) {
  int64_t offset = 0;
  for (int d = p.ndim - 2; d >= 0; --d) {
    if (p.reduced[d] != reduced) continue;
    offset += index % p.shape[d] * p.stride[d];
    index /= p.shape[d];
  }
  return offset;
}

// Float sums add blocks of at most 2048 elements in float lanes and the blocks in double.
struct SumFloat {
  typedef float T;
  typedef double A;
  static A start() { return 0.0; }
  static A join(A a, A b) { return a + b; }
  static T finish(A a, int64_t) { return (float)a; }
  static A row(const float *x, int64_t n) {
    double total = 0.0;
    for (int64_t block; n > 0; n -= block, x += block) {
      block = n < 2048 ? n : 2048;
      vf s0 = vzero(), s1 = vzero(), s2 = vzero(), s3 = vzero();
      int64_t i = 0;
      for (; i + 4 * VF <= block; i += 4 * VF) {
        s0 = vadd(s0, vload(x + i));
        s1 = vadd(s1, vload(x + i + VF));
        s2 = vadd(s2, vload(x + i + 2 * VF));
        s3 = vadd(s3, vload(x + i + 3 * VF));
      }
      for (; i + VF <= block; i += VF) s0 = vadd(s0, vload(x + i));
      if (i < block) s1 = vadd(s1, vload_tail(x + i, vtail_of(block - i)));
      total += vhsum(vadd(vadd(s0, s1), vadd(s2, s3)));
    }
    return total;
  }
  static void columns(A *sums, const float *x, int64_t rows, int64_t stride, int64_t n) {
    float part[TILE];
    for (int64_t r = 0; r < rows;) {
      const int64_t last = r + 32 < rows ? r + 32 : rows;
      for (int64_t i = 0; i < n; ++i) part[i] = x[r * stride + i];
      for (++r; r < last; ++r)
        for (int64_t i = 0; i < n; ++i) part[i] += x[r * stride + i];
      for (int64_t i = 0; i < n; ++i) sums[i] += part[i];
    }
  }
};

struct MeanFloat : SumFloat {
  static T finish(A a, int64_t count) { return (float)(a / (double)count); }
};

// Extremes by a comparison that lets NaN through.
template <bool Max>
struct ExtremeFloat {
  typedef float T;
  typedef float A;
  static A start() { return Max ? -__builtin_inff() : __builtin_inff(); }
  static A join(A a, A b) { return ((Max ? a > b : a < b) || a != a) ? a : b; }
  static T finish(A a, int64_t) { return a; }
  static TY_MEMBER vf better(vf a, vf b) { return Max ? vmax(a, b) : vmin(a, b); }
  static A row(const float *x, int64_t n) {
    vf s0 = vset1(start()), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
      s0 = better(s0, vload(x + i));
      s1 = better(s1, vload(x + i + VF));
    }
    A best = join(Max ? vhmax(s0) : vhmin(s0), Max ? vhmax(s1) : vhmin(s1));
    for (; i < n; ++i) best = join(best, x[i]);
    return best;
  }
  static void columns(A *best, const float *x, int64_t rows, int64_t stride, int64_t n) {
    for (int64_t r = 0; r < rows; ++r, x += stride) {
      int64_t i = 0;
      for (; i + VF <= n; i += VF) vstore(best + i, better(vload(best + i), vload(x + i)));
      for (; i < n; ++i) best[i] = join(best[i], x[i]);
    }
  }
};

// What plain loops serve: T is the element, A what it is accumulated in.
template <class Op>
struct Looped : Op {
  typedef typename Op::T T;
  typedef typename Op::A A;
  static A row(const T *x, int64_t n) {
    A total = Op::start();
    for (int64_t i = 0; i < n; ++i) total = Op::join(total, (A)x[i]);
    return total;
  }
  static void columns(A *sums, const T *x, int64_t rows, int64_t stride, int64_t n) {
    for (int64_t r = 0; r < rows; ++r, x += stride)
      for (int64_t i = 0; i < n; ++i) sums[i] = Op::join(sums[i], (A)x[i]);
  }
};

template <class Element, class Sum>
struct Adding {
  typedef Element T;
  typedef Sum A;
  static A start() { return A(0); }
  static A join(A a, A b) { return (A)(a + b); }
  static T finish(A a, int64_t) { return (T)a; }
};
template <class Element>
struct Averaging : Adding<Element, Element> {
  static Element finish(Element a, int64_t count) { return a / (Element)count; }
};
template <class Element, class Product>
struct Multiplying {
  typedef Element T;
  typedef Product A;
  static A start() { return A(1); }
  static A join(A a, A b) { return (A)(a * b); }
  static T finish(A a, int64_t) { return (T)a; }
};
// Start values of max and min; a result without elements is refused by the op's inference.
template <class T>
struct Limits;
#define TY_LIMITS(T, low, high)      \
  template <>                        \
  struct Limits<T> {                 \
    static T least() { return low; } \
    static T most() { return high; } \
  };
TY_LIMITS(int32_t, INT32_MIN, INT32_MAX)
TY_LIMITS(int64_t, INT64_MIN, INT64_MAX)
TY_LIMITS(uint8_t, 0, 255)
TY_LIMITS(int8_t, -128, 127)
TY_LIMITS(double, -__builtin_inf(), __builtin_inf())
template <class Element, bool Max>
struct Extreme {
  typedef Element T;
  typedef Element A;
  static A start() { return Max ? Limits<T>::least() : Limits<T>::most(); }
  static A join(A a, A b) { return ((Max ? a > b : a < b) || a != a) ? a : b; }
  static T finish(A a, int64_t) { return a; }
};

// Elements [begin, end) of what output `base` takes in, where the last axis is reduced.
template <class Op>
typename Op::A reduce_rows(const Plan &p, const typename Op::T *base, int64_t begin, int64_t end) {
  typename Op::A total = Op::start();
  while (begin < end) {
    const int64_t row = begin / p.run, at = begin % p.run;
    int64_t n = p.run - at;
    if (n > end - begin) n = end - begin;
    total = Op::join(total, Op::row(base + offset_of(p, true, row) + at, n));
    begin += n;
  }
  return total;
}

// Rows [begin, end) of a tile of n columns, where the last axis is kept.
template <class Op>
void reduce_columns(const Plan &p, const typename Op::T *base, int64_t begin, int64_t end,
                    int64_t n, typename Op::A *totals) {
  for (int64_t i = 0; i < n; ++i) totals[i] = Op::start();
  const int last = p.ndim - 2;  // an axis that is kept has a reduced neighbour, or none
  const int64_t inner = last >= 0 ? p.shape[last] : 1, stride = last >= 0 ? p.stride[last] : 0;
  while (begin < end) {
    const int64_t at = begin % inner;
    int64_t rows = inner - at;
    if (rows > end - begin) rows = end - begin;
    Op::columns(totals, base + offset_of(p, true, begin), rows, stride, n);
    begin += rows;
  }
}

struct Cut {
  int64_t units;   // independent results: outputs, or tiles of columns
  int64_t width;   // results of a unit
  int64_t items;   // what a piece cuts: elements of an output, or rows of a tile
  int64_t pieces;  // of one unit
};

Cut cut_of(const Plan &p) {
  Cut cut;
  const int64_t tiles = (p.run + TILE - 1) / TILE;
  cut.units = p.rows ? p.outputs : (p.run ? p.outputs / p.run : 0) * tiles;
  cut.width = p.rows ? 1 : (p.run < TILE ? p.run : TILE);
  cut.items = p.count;
  cut.pieces = 1;
  if (cut.units < SPLIT_UNITS && p.outputs * p.count >= SPLIT_SIZE) {
    cut.pieces = cut.items * cut.width / PIECE;
    if (cut.pieces < 1) cut.pieces = 1;
    if (cut.pieces > MOST_PIECES) cut.pieces = MOST_PIECES;
  }
  return cut;
}

template <class Op>
void reduce_piece(const Plan &p, const Cut &cut, const typename Op::T *x, typename Op::T *y,
                  typename Op::A *partial, int64_t index) {
  const int64_t unit = index / cut.pieces, piece = index % cut.pieces;
  const int64_t begin = cut.items * piece / cut.pieces, end = cut.items * (piece + 1) / cut.pieces;
  if (p.rows) {
    const typename Op::A total = reduce_rows<Op>(p, x + offset_of(p, false, unit), begin, end);
    if (cut.pieces == 1) {
      y[unit] = Op::finish(total, p.count);
    } else {
      partial[index * TILE] = total;
    }
    return;
  }
  typename Op::A totals[TILE];
  const int64_t tiles = (p.run + TILE - 1) / TILE;
  const int64_t outer = unit / tiles, column = unit % tiles * TILE;
  const int64_t n = p.run - column < TILE ? p.run - column : TILE;
  typename Op::A *to = cut.pieces == 1 ? totals : partial + index * TILE;
  reduce_columns<Op>(p, x + offset_of(p, false, outer) + column, begin, end, n, to);
  if (cut.pieces > 1) return;
  for (int64_t i = 0; i < n; ++i) y[outer * p.run + column + i] = Op::finish(to[i], p.count);
}

template <class Op>
void join_pieces(const Plan &p, const Cut &cut, typename Op::T *y, const typename Op::A *partial) {
  const int64_t tiles = p.rows ? 1 : (p.run + TILE - 1) / TILE;
  for (int64_t unit = 0; unit < cut.units; ++unit) {
    const int64_t column = p.rows ? 0 : unit % tiles * TILE;
    const int64_t left = p.rows ? 1 : p.run - column;
    const int64_t first = p.rows ? unit : unit / tiles * p.run + column;
    for (int64_t i = 0; i < (left < TILE ? left : TILE); ++i) {
      typename Op::A total = Op::start();
      for (int64_t piece = 0; piece < cut.pieces; ++piece) {
        total = Op::join(total, partial[(unit * cut.pieces + piece) * TILE + i]);
      }
      y[first + i] = Op::finish(total, p.count);
    }
  }
}

template <class Op>
int reduce(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y, const bool *reduced,
           void *workspace) {
  Plan p;
  plan_init(&p, x, reduced);
  const Cut cut = cut_of(p);
  const typename Op::T *from = static_cast<const typename Op::T *>(x.data);
  typename Op::T *to = static_cast<typename Op::T *>(y.data);
  typename Op::A *partial = static_cast<typename Op::A *>(workspace);
  const int64_t weight = cut.items * cut.width / cut.pieces + 8;
  ty_parallel(ctx, cut.units * cut.pieces, REDUCE_GRAIN / weight + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i)
                  reduce_piece<Op>(p, cut, from, to, partial, i);
              });
  if (cut.pieces > 1) join_pieces<Op>(p, cut, to, partial);
  return 0;
}

template <class Op, class Attrs>
int by_axes(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
            void *workspace) {
  const Attrs *attrs = reinterpret_cast<const Attrs *>(raw);
  bool reduced[TY_MAX_DIMS] = {};
  const int64_t *axes = TY_INTS(attrs, attrs->axes);
  for (int64_t i = 0; i < attrs->axes.count; ++i) reduced[axes[i]] = true;
  return reduce<Op>(ctx, inputs[0], outputs[0], reduced, workspace);
}

template <class Op>
int to_shape(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
             void *workspace) {
  bool reduced[TY_MAX_DIMS] = {};
  const int lead = inputs[0].ndim - outputs[0].ndim;
  for (int d = 0; d < inputs[0].ndim; ++d) {
    reduced[d] = d < lead || (outputs[0].shape[d - lead] == 1 && inputs[0].shape[d] != 1);
  }
  return reduce<Op>(ctx, inputs[0], outputs[0], reduced, workspace);
}

typedef Looped<Adding<int32_t, uint32_t>> SumInt32;
typedef Looped<Adding<int64_t, uint64_t>> SumInt64;
typedef Looped<Adding<double, double>> SumDouble;
typedef Looped<Averaging<double>> MeanDouble;
typedef Looped<Multiplying<float, double>> ProdFloat;
typedef Looped<Multiplying<int32_t, uint32_t>> ProdInt32;
template <class T>
using Max = Looped<Extreme<T, true>>;
template <class T>
using Min = Looped<Extreme<T, false>>;

}  // namespace
}  // namespace TY_ISA

#define SUM(Op, types) TY_KERNEL((by_axes<Op, ty_sum_attrs>), "sum_" types, "blocked")
#define MAX(Op, types) TY_KERNEL((by_axes<Op, ty_max_attrs>), "max_" types, "blocked")
#define MIN(Op, types) TY_KERNEL((by_axes<Op, ty_min_attrs>), "min_" types, "blocked")
#define SUM_TO(Op, types) TY_KERNEL(to_shape<Op>, "sum_to_" types, "blocked")

TY_EXPORT_KERNELS(reduce, SUM(SumFloat, "f32"), SUM(SumInt32, "i32"), SUM(SumInt64, "i64"),
                  SUM(SumDouble, "f64"),
                  TY_KERNEL((by_axes<MeanFloat, ty_mean_attrs>), "mean_f32", "blocked"),
                  TY_KERNEL((by_axes<MeanDouble, ty_mean_attrs>), "mean_f64", "blocked"),
                  TY_KERNEL((by_axes<ProdFloat, ty_prod_attrs>), "prod_f32", "blocked"),
                  TY_KERNEL((by_axes<ProdInt32, ty_prod_attrs>), "prod_i32", "blocked"),
                  MAX(ExtremeFloat<true>, "f32"), MIN(ExtremeFloat<false>, "f32"),
                  MAX(Max<int32_t>, "i32"), MIN(Min<int32_t>, "i32"), MAX(Max<int64_t>, "i64"),
                  MIN(Min<int64_t>, "i64"), MAX(Max<uint8_t>, "u8"), MIN(Min<uint8_t>, "u8"),
                  MAX(Max<int8_t>, "i8"), MIN(Min<int8_t>, "i8"), MAX(Max<double>, "f64"),
                  MIN(Min<double>, "f64"), SUM_TO(SumFloat, "f32"), SUM_TO(SumInt32, "i32"),
                  SUM_TO(SumDouble, "f64"))
