// conv2d_quantized of images of up to three channels: for each row of results, a copy of the rows
// that its windows reach, column by column, makes a window one run of terms, filled up to fours
// once and not at every tap or row.
#include "int8_conv.hpp"

namespace TY_ISA {
namespace {

enum { FEW = 4, MAX_FOURS = 4 };  // rows and pixels that are moved at once; fours of rows
// Bytes of columns that a thread copies before it multiplies them (int8_conv_columns.py).
enum { BAND = 32 << 10 };

// What 16 bytes of input become.
struct Terms {
  __m128i order;  // takes the padding between four pixels' channels away
  int64_t zero_point;
  bool is_signed;
};

TY_INLINE void store_terms(uint8_t *to, __m128i bytes, const Terms &t) {
  const __m128i flip = _mm_set1_epi8(Q8_FLIPS && t.is_signed ? -128 : 0);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_xor_si128(bytes, flip));
}
TY_INLINE void store_terms(int16_t *to, __m128i bytes, const Terms &t) {
  const __m256i wide = t.is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
  const __m256i zero = _mm256_set1_epi16(static_cast<int16_t>(t.zero_point));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm256_sub_epi16(wide, zero));
}

// Four pixels of 4 * FOURS rows, which become columns; `some` of them are stored, one behind the
// other. What is stored behind the last term of one is written over by the next.
template <int FOURS>
TY_INLINE void turn_pixels(Operand *to, const uint8_t *const *rows, int64_t at, int64_t some,
                           int64_t c, int64_t column, const Terms &t) {
  __m128i found[FOURS][FEW];
#pragma GCC unroll 4
  for (int f = 0; f < FOURS; ++f) {
    __m128i x[FEW];
#pragma GCC unroll 4
    for (int i = 0; i < FEW; ++i)
      x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows[f * FEW + i] + at));
    const __m128i ab0 = _mm_unpacklo_epi32(x[0], x[1]), ab1 = _mm_unpackhi_epi32(x[0], x[1]);
    const __m128i cd0 = _mm_unpacklo_epi32(x[2], x[3]), cd1 = _mm_unpackhi_epi32(x[2], x[3]);
    found[f][0] = _mm_shuffle_epi8(_mm_unpacklo_epi64(ab0, cd0), t.order);
    found[f][1] = _mm_shuffle_epi8(_mm_unpackhi_epi64(ab0, cd0), t.order);
    found[f][2] = _mm_shuffle_epi8(_mm_unpacklo_epi64(ab1, cd1), t.order);
    found[f][3] = _mm_shuffle_epi8(_mm_unpackhi_epi64(ab1, cd1), t.order);
  }
#pragma GCC unroll 4
  for (int64_t pixel = 0; pixel < FEW; ++pixel, to += column)
#pragma GCC unroll 4
    for (int f = 0; f < FOURS; ++f)
      if (pixel < some) store_terms(to + f * FEW * c, found[f][pixel], t);
}

// The columns of one row of results: `rows` are those of its windows, and what fills them up.
template <int FOURS>
void turn_rows(Operand *to, const uint8_t *const *rows, const Q8ConvShape &s, const Terms &t) {
  const int64_t column = s.kh * s.c, whole = s.w / FEW * FEW, rest = s.w - whole;
  for (int64_t x = 0; x < whole; x += FEW)
    turn_pixels<FOURS>(to + x * column, rows, 4 * x, FEW, s.c, column, t);
  if (rest == 0) return;
  alignas(16) uint8_t last[FOURS * FEW][16];
  const uint8_t *own[FOURS * FEW];
  for (int i = 0; i < FOURS * FEW; ++i) {
    __builtin_memcpy(last[i], rows[i] + 4 * whole, static_cast<size_t>(4 * rest));
    own[i] = last[i];
  }
  turn_pixels<FOURS>(to + whole * column, own, 0, rest, s.c, column, t);
}

typedef void (*TurnRows)(Operand *, const uint8_t *const *, const Q8ConvShape &, const Terms &);
const TurnRows turn_fours[MAX_FOURS] = {turn_rows<1>, turn_rows<2>, turn_rows<3>, turn_rows<4>};

// Operands of a row of results, behind whose last term others may be stored.
TY_INLINE int64_t row_of(const Q8ConvShape &s) {
  return (s.w + s.left + s.right) * s.kh * s.c + 16;
}

// Bands of rows of results, of all images, whose columns are copied at once: as many for each
// thread.
TY_INLINE int64_t bands_of(const Q8ConvShape &s, int64_t threads) {
  const int64_t lines = s.n * s.oh, row = row_of(s) * static_cast<int64_t>(sizeof(Operand));
  const int64_t least = ceil_div(lines, greater(BAND / row, 1));
  return lesser(round_up(least, threads), lines);
}

// Images by columns, with padding around them that stands for zero; `none` is a row of it.
struct Copy {
  const uint8_t *from;
  uint8_t *none;
  int64_t zero_point;
  bool is_signed;
};

// Copies the columns of some rows of results.
void copy_columns(Operand *to, const Copy &copy, const Q8ConvShape &s, int64_t first, int64_t end) {
  const int64_t column = s.kh * s.c, row = row_of(s), fours = ceil_div(s.kh, FEW);
  const Operand zero = static_cast<Operand>(q8_zero(Operand(), copy.zero_point, copy.is_signed));
  alignas(16) int8_t order[16];
  for (int64_t i = 0; i < 16; ++i)
    order[i] = static_cast<int8_t>(i < 4 * s.c ? i / s.c * 4 + i % s.c : -1);
  const Terms t = {_mm_load_si128(reinterpret_cast<const __m128i *>(order)), copy.zero_point,
                   copy.is_signed};
  const TurnRows turn = turn_fours[fours - 1];
  for (int64_t at = first; at < end; ++at, to += row) {
    const uint8_t *rows[MAX_FOURS * FEW];
    for (int64_t i = 0; i < fours * FEW; ++i) {
      const int64_t y = at % s.oh * s.sh + i * s.dh - s.top;
      const bool inside = i < s.kh && y >= 0 && y < s.h;
      rows[i] = inside ? copy.from + (at / s.oh * s.h + y) * s.w * 4 : copy.none;
    }
    q8_fill(to, zero, s.left * column);
    turn(to + s.left * column, rows, s, t);
    q8_fill(to + (s.left + s.w) * column, zero, s.right * column);
  }
}

void run_alone(const ty_ctx *, int64_t n, int64_t, ty_task task, void *arg) {
  if (n > 0) task(arg, 0, n, 0);
}

// Threads take bands, each of which is copied and multiplied by one.
void run_bands(const ty_ctx *ctx, const Q8Plan &plan, const Copy &copy, const Q8ConvShape &s,
               Operand *scratch) {
  ty_ctx alone = *ctx;
  alone.threads = 1;
  alone.parallel_for = run_alone;
  const int64_t lines = s.n * s.oh, bands = bands_of(s, ctx->threads);
  const int64_t most = ceil_div(lines, bands), work = most * s.ow * plan.k4 * 4 * round_up(s.o, 16);
  ty_parallel(ctx, bands, even_grain(ctx, bands, 1 + 400000 / (work + 1)),
              [&](int64_t begin, int64_t end, int32_t slot) {
                Operand *const own = scratch + slot * most * plan.row;
                for (int64_t band = begin; band < end; ++band) {
                  const int64_t first = band * lines / bands, next = (band + 1) * lines / bands;
                  const int64_t target = first * s.ow * plan.y_pixel;
                  copy_columns(own, copy, s, first, next);
                  Q8Plan p = plan;
                  p.x = own;
                  p.oh = next - first;
                  p.image = p.oh * p.row;
                  p.y += target;
                  if (p.residual.data != nullptr) p.residual.data += target;
                  q8_run(&alone, p);
                }
              });
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  const auto &a = *reinterpret_cast<const ty_conv2d_quantized_attrs *>(attrs);
  const Q8ConvShape s = q8_conv_shape(a, inputs, outputs[0]);
  if (s.n * s.o * s.oh * s.ow == 0) return 0;
  const bool is_signed = inputs[0].dtype == TY_INT8;
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Q8Columns columns = {static_cast<int32_t *>(scratch.take(q8_columns_bytes(s.o))), nullptr,
                       static_cast<float *>(scratch.take(q8_columns_bytes(s.o)))};
  q8_fill_columns(columns, {q8_bias_of(a, inputs), TY_FLOATS(&a, a.multipliers), nullptr,
                            a.multipliers.count, 0, s.o, 0});
  uint8_t *none = static_cast<uint8_t *>(scratch.take(4 * s.w + 16));
  __builtin_memset(none, static_cast<int>(a.x_zero_point & 0xff), static_cast<size_t>(4 * s.w));
  const Copy copy = {static_cast<const uint8_t *>(inputs[0].data), none, a.x_zero_point, is_signed};
  const Q8Run whole = {0, ceil_div(s.kw * s.kh * s.c, 4)};
  Q8Plan p = {};
  p.pixel = s.sw * s.kh * s.c;
  p.row = row_of(s);
  p.n = 1;  // lines of results follow each other, whichever image they are of
  p.ow = s.ow;
  p.runs = &whole;
  p.n_runs = 1;
  p.k4 = whole.k4;
  p.o = s.o;
  p.weight = static_cast<const int8_t *>(inputs[1].data);
  q8_fold_zero(columns.bias, nullptr, p.weight, s.o, p.k4, 0,
               q8_zero(Operand(), a.x_zero_point, is_signed));
  p.bias = columns.bias;
  p.multiplier = columns.multiplier;
  p.store = q8_store_of(a);
  p.y = static_cast<uint8_t *>(outputs[0].data);
  p.y_pixel = p.o_room = q8_channels(s.o);
  p.residual = q8_residual_of(a, inputs);
  run_bands(ctx, p, copy, s, static_cast<Operand *>(scratch.take(0)));
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_conv_columns, TY_KERNEL(run, "conv2d_q8", "columns"))
