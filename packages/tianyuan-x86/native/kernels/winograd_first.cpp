// conv2d and conv2d_fused in float32 by Winograd's method for 7 x 7 kernels of stride 2 on plain
// images of few channels, as the first layer of ResNets: 169 products a channel for 4 x 4 outputs
// instead of 784. Rows of tiles are transformed once for all outputs; a row of seven frequencies of
// a few tiles is summed in registers, over channels and over even and odd samples, and transformed
// back there, so that only four sums a row are stored.
#include "conv_call.hpp"
#include "winograd_strided.hpp"

namespace TY_ISA {
namespace {

enum {
  M = STRIDED_OUTPUTS,
  POINTS = STRIDED_POINTS,
  FINITE = STRIDED_FINITE,
  SAMPLES = STRIDED_SAMPLES,
  STEP = STRIDED_STEP
};

// Most tiles of a strip, as the kernels' descriptions in Python know too, for the workspace: one
// row of frequencies stays in the first cache, all that belongs to a strip in the second.
enum { STRIP = 32 };

// Tiles whose sums of one row of frequencies are in registers at once.
enum { GROUP = VF == 16 ? 4 : 2 };

// A call, whose rows of tiles are cut into strips of at most `strip` tiles with room for `width`.
struct First : Call {
  int64_t tiles_y, tiles_x, strips, strip, width, o_blocks;
};

First plan(const Call &call) {
  First f = {};
  static_cast<Call &>(f) = call;
  f.tiles_y = ceil_div(call.shape.oh, M);
  f.tiles_x = ceil_div(call.shape.ow, M);
  f.strips = ceil_div(f.tiles_x, STRIP);
  f.strip = ceil_div(f.tiles_x, f.strips);
  f.width = round_up(f.strip, VF);
  f.o_blocks = ceil_div(call.shape.o, VF);
  return f;
}

// Room of a thread. Transformed tiles lie as [row][odd][channel][VF tiles][frequency][VF], where
// the last row of frequencies has no odd one; then come rows of one channel after the transform of
// their columns, and the sums of a block of outputs as [tile][row][column].
struct Room {
  float *tiles, *rows, *sums;
};

int64_t row_floats(const First &f) { return round_up(STEP * (f.width + 1), VF); }
int64_t tiles_floats(const First &f) { return SAMPLES * f.shape.c * SAMPLES * f.width; }

int64_t room_floats(const First &f) {
  return tiles_floats(f) + SAMPLES * row_floats(f) + f.strip * POINTS * M * VF;
}

Room room_of(const First &f, float *workspace, int64_t slot) {
  Room room;
  room.tiles = workspace + slot * room_floats(f);
  room.sums = room.tiles + tiles_floats(f);
  room.rows = room.sums + f.strip * POINTS * M * VF;
  return room;
}

// Image, row of tiles and strip of an item.
struct Item {
  int64_t image, y, x, tiles;  // first output pixel, how many tiles
};

Item item_of(const First &f, int64_t at) {
  const int64_t strip = at % f.strips, row = at / f.strips;
  const int64_t begin = strip * f.tiles_x / f.strips, end = (strip + 1) * f.tiles_x / f.strips;
  return {row / f.tiles_y, row % f.tiles_y * M, begin * M, end - begin};
}

// One vector of pixels through the transform along columns. Even rows give the first POINTS rows.
template <typename Load>
TY_INLINE void transform_column(const Load &load, float *to, int64_t step) {
  vf d[POINTS], v[FINITE];
#pragma GCC unroll 7
  for (int k = 0; k < POINTS; ++k) d[k] = load(2 * k);
  strided_input(d, v);
#pragma GCC unroll 6
  for (int i = 0; i < FINITE; ++i) vstore(to + i * step, v[i]);
  vstore(to + FINITE * step, strided_input_at_infinity(d));
#pragma GCC unroll 6
  for (int k = 0; k < FINITE; ++k) d[k] = load(2 * k + 1);
  strided_input(d, v);
#pragma GCC unroll 6
  for (int i = 0; i < FINITE; ++i) vstore(to + (POINTS + i) * step, v[i]);
}

// Pixels outside the image count as zero.
void transform_columns(const First &f, const float *plane, int64_t y, int64_t x, float *to) {
  const ConvShape &s = f.shape;
  const int64_t step = row_floats(f);
  const float *rows[SAMPLES];
  for (int k = 0; k < SAMPLES; ++k)
    rows[k] = y + k >= 0 && y + k < s.h ? plane + (y + k) * s.w : nullptr;
  const float *below[STEP];  // the rows that the next row of tiles reads besides
  for (int k = 0; k < STEP; ++k)
    below[k] = plane + lesser(greater(y + SAMPLES + k, 0), s.h - 1) * s.w;
  for (int64_t i = 0; i < step; i += VF) {
    const int64_t at = x + i;
    for (int k = 0; k < STEP; ++k)
      _mm_prefetch(reinterpret_cast<const char *>(below[k] + greater(at, 0)), _MM_HINT_T1);
    if (at >= 0 && at + VF <= s.w) {
      transform_column([&](int k) { return rows[k] ? vload(rows[k] + at) : vzero(); }, to + i,
                       step);
      continue;
    }
    alignas(64) float edge[SAMPLES][VF] = {};
    const int64_t begin = greater(0, -at), end = lesser(VF, s.w - at);
    for (int k = 0; k < SAMPLES; ++k)
      for (int64_t j = begin; rows[k] && j < end; ++j) edge[k][j] = rows[k][at + j];
    transform_column([&](int k) { return vload(edge[k]); }, to + i, step);
  }
}

// Sample k of VF tiles, for k < STEP, from the first sample of the first.
TY_INLINE void split_tiles(const float *from, vf *to) {
#if TY_VF == 16
  vf t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    t[i] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + i * STEP)),
                              _mm256_loadu_ps(from + (i + 8) * STEP), 1);
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  vf half[8];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const vf *r = t + 4 * i;
    const vf lo0 = _mm512_unpacklo_ps(r[0], r[1]), hi0 = _mm512_unpackhi_ps(r[0], r[1]);
    const vf lo1 = _mm512_unpacklo_ps(r[2], r[3]), hi1 = _mm512_unpackhi_ps(r[2], r[3]);
    half[4 * i] = _mm512_shuffle_ps(lo0, lo1, 0x44);
    half[4 * i + 1] = _mm512_shuffle_ps(lo0, lo1, 0xee);
    half[4 * i + 2] = _mm512_shuffle_ps(hi0, hi1, 0x44);
    half[4 * i + 3] = _mm512_shuffle_ps(hi0, hi1, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(half[i]), b = _mm512_castps_pd(half[4 + i]);
    to[i] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, low, b));
    to[4 + i] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, high, b));
  }
#else
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) to[i] = vload(from + i * STEP);
  vtranspose(to);
#endif
}

// Lanes 1 on of `low`, then lane 0 of `high`.
TY_INLINE vf next_lanes(vf low, vf high) {
#if TY_VF == 16
  return vi_as_vf(_mm512_alignr_epi32(vf_as_vi(high), vf_as_vi(low), 1));
#else
  const vi across = _mm256_permute2x128_si256(vf_as_vi(low), vf_as_vi(high), 0x21);
  return vi_as_vf(_mm256_alignr_epi8(across, vf_as_vi(low), 4));
#endif
}

// A row of frequencies of one channel, transformed along the row, from its last tiles to its first:
// the last samples of a tile are the first ones of the next.
void transform_row(const First &f, const float *row, float *to) {
  enum { SHARED = SAMPLES - STEP };
  vf after[SHARED];
#pragma GCC unroll 5
  for (int k = 0; k < SHARED; ++k) after[k] = vset1(row[f.width * STEP + k]);
  for (int64_t t = f.width - VF; t >= 0; t -= VF) {
    vf samples[SAMPLES], v[FINITE];
    split_tiles(row + t * STEP, samples);
#pragma GCC unroll 5
    for (int k = 0; k < SHARED; ++k) {
      samples[STEP + k] = next_lanes(samples[k], after[k]);
      after[k] = samples[k];
    }
    float *const out = to + t * SAMPLES;
    vf d[POINTS];
#pragma GCC unroll 7
    for (int k = 0; k < POINTS; ++k) d[k] = samples[2 * k];
    strided_input(d, v);
#pragma GCC unroll 6
    for (int j = 0; j < FINITE; ++j) vstore(out + j * VF, v[j]);
    vstore(out + FINITE * VF, strided_input_at_infinity(d));
#pragma GCC unroll 6
    for (int k = 0; k < FINITE; ++k) d[k] = samples[2 * k + 1];
    strided_input(d, v);
#pragma GCC unroll 6
    for (int j = 0; j < FINITE; ++j) vstore(out + (POINTS + j) * VF, v[j]);
  }
}

void transform_tiles(const First &f, const Item &item, const Room &room) {
  const ConvShape &s = f.shape;
  const int64_t step = SAMPLES * f.width;
  for (int64_t c = 0; c < s.c; ++c) {
    transform_columns(f, f.x + (item.image * s.c + c) * s.h * s.w, 2 * item.y - s.top,
                      2 * item.x - s.left, room.rows);
    for (int64_t k = 0; k < SAMPLES; ++k) {
      const int64_t odd = k >= POINTS, row = odd ? k - POINTS : k;
      transform_row(f, room.rows + k * row_floats(f),
                    room.tiles + ((2 * row + odd) * s.c + c) * step);
    }
  }
}

// One row of frequencies of T tiles and VF outputs, summed over `terms` channels of even or odd
// rows, and transformed back along the row. What lies at `near` is fetched on the way.
template <int T>
void sum_row(const float *u, const float *v, int64_t step, int64_t terms, vf start,
             const float *near, float *sums) {
  vf acc[T][POINTS];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 7
    for (int j = 0; j < POINTS; ++j) acc[t][j] = j == 0 ? start : vzero();
  }
  for (int64_t i = 0; i < terms; ++i, u += SAMPLES * VF, v += step, near += 8 * GROUP) {
#pragma GCC unroll 13
    for (int j = 0; j < SAMPLES; ++j) {
      if (j == 0 || (j == POINTS && GROUP * VF > 16))
        _mm_prefetch(reinterpret_cast<const char *>(near + (j ? 16 : 0)), _MM_HINT_T1);
      vf weight = vload(u + j * VF);
      asm("" : "+v"(weight));  // or else it is loaded again for each tile
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t)
        acc[t][j % POINTS] = vfma(weight, vset1(v[j * VF + t]), acc[t][j % POINTS]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    vf y[M];
    strided_output(acc[t], y);
#pragma GCC unroll 4
    for (int k = 0; k < M; ++k) vstore(sums + (t * POINTS * M + k) * VF, y[k]);
  }
}

typedef void (*SumRow)(const float *, const float *, int64_t, int64_t, vf, const float *, float *);
#if TY_VF == 16
const SumRow SUM_ROW[GROUP] = {sum_row<1>, sum_row<2>, sum_row<3>, sum_row<4>};
#else
const SumRow SUM_ROW[GROUP] = {sum_row<1>, sum_row<2>};
#endif

// Where the first pixel of a tile lies in a block of outputs.
int64_t pixel_of(const First &f, const Item &item, int64_t block, int64_t tile) {
  const int64_t row = (item.image * f.o_blocks + block) * f.shape.oh + item.y;
  return (row * f.shape.ow + item.x + tile * M) * VF;
}

// Sums of a strip of one block of outputs. All powers of the first point are one, so what is added
// to its sum is added to all outputs: the bias. The pixels that will be stored come near meanwhile.
void sum_tiles(const First &f, const Item &item, const Room &room, int64_t block) {
  const int64_t c = f.shape.c, step = SAMPLES * f.width, row = item.tiles * M;
  const vf bias =
      f.bias ? vload_tail(f.bias + block * VF, vtail_of(f.shape.o - block * VF)) : vzero();
  const float *y = f.y + pixel_of(f, item, block, 0);
  const float *u = f.weight + block * SAMPLES * SAMPLES * c * VF;
  for (int64_t i = 0; i < POINTS; ++i) {
    const int64_t terms = i < FINITE ? 2 * c : c;
    const float *v = room.tiles + i * 2 * c * step;
    for (int64_t t = 0; t < item.tiles; t += GROUP) {
      const int64_t pixel = lesser((i * item.tiles + t) * M / FINITE * M, (M - 1) * row);
      SUM_ROW[lesser(GROUP, item.tiles - t) - 1](
          u, v + t / VF * VF * SAMPLES + t % VF, step, terms, i == 0 ? bias : vzero(),
          y + (pixel / row * f.shape.ow + pixel % row) * VF, room.sums + (t * POINTS + i) * M * VF);
    }
    u += terms * SAMPLES * VF;
  }
}

// Where a tile's pixels of one channel block go.
struct Target {
  float *y;
  const float *residual;
  int64_t row, rows, cols;
  vm valid;
};

TY_INLINE void finish_tile(const float *sums, const Target &t, const Epilogue &e) {
#pragma GCC unroll 4
  for (int k = 0; k < M; ++k) {
    if (k >= t.cols) return;
    vf m[POINTS], y[M];
#pragma GCC unroll 7
    for (int i = 0; i < POINTS; ++i) m[i] = vload(sums + (i * M + k) * VF);
    strided_output(m, y);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      if (i >= t.rows) break;
      if (t.residual) y[i] = vadd(y[i], vload(t.residual + i * t.row + k * VF));
      vstore(t.y + i * t.row + k * VF, vselect(t.valid, activate(y[i], e), vzero()));
    }
  }
}

void finish_tiles(const First &f, const Item &item, const Room &room, int64_t block) {
  const ConvShape &s = f.shape;
  Target t = {};
  t.valid = vtail_mask(vtail_of(s.o - block * VF));
  t.row = s.ow * VF;
  t.rows = s.oh - item.y;
  for (int64_t i = 0; i < item.tiles; ++i) {
    const int64_t at = pixel_of(f, item, block, i);
    t.y = f.y + at;
    t.residual = f.residual ? f.residual + at : nullptr;
    t.cols = s.ow - item.x - i * M;
    const float *sums = room.sums + i * POINTS * M * VF;
    // The activation is a constant where it is inlined, so that the tile has no branch.
    if (f.epilogue.activation == ACT_IDENTITY)
      finish_tile(sums, t, {ACT_IDENTITY, 0, 0});
    else if (f.epilogue.activation == ACT_RELU)
      finish_tile(sums, t, {ACT_RELU, 0, 0});
    else
      finish_tile(sums, t, f.epilogue);
  }
}

int run(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
        const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  if (s.n == 0 || s.o == 0 || s.oh <= 0 || s.ow <= 0) return 0;
  const First f = plan(call);
  ty_parallel(ctx, s.n * f.tiles_y * f.strips, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    const Room room = room_of(f, static_cast<float *>(workspace), slot);
    for (int64_t at = begin; at < end; ++at) {
      const Item item = item_of(f, at);
      transform_tiles(f, item, room);
      for (int64_t block = 0; block < f.o_blocks; ++block) {
        sum_tiles(f, item, room, block);
        finish_tiles(f, item, room, block);
      }
    }
  });
  return 0;
}

CONV_KERNEL(conv2d, run, read_plain)
CONV_KERNEL(conv2d_fused, run, read_fused)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(winograd_first, TY_KERNEL(conv2d, "conv2d_f32", "winograd_first"),
                  TY_KERNEL(conv2d_fused, "conv2d_fused_f32", "winograd_first"),
                  TY_KERNEL(conv2d_fused, "conv2d_fused_f32", "winograd_first_unbiased"))
