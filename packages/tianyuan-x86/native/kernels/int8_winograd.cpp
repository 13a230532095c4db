// conv2d_quantized by Winograd's F(4 x 4, 3 x 3) in integers: the results are those of the direct
// sums, bit for bit.
//
// Transformed images and weights fit 16 bits. Their products are summed modulo 2^32, and a sum is
// known from that where it lies within 2^25 of a centre that the weights give. A weight is packed
// as its direct panels; sums of magnitudes, [block of 16 outputs][16]; and transformed panels,
// [block] [36 frequencies][1 + pair of channels][16 outputs][2]. Where magnitudes sum to too much,
// the direct panels are multiplied.
#include "int8_winograd.hpp"

namespace TY_ISA {
namespace {

// What the kernels' descriptions in Python know too, for the workspace: sums of a tile and 16
// outputs are those of a row of frequencies, of GROUP tiles at a time, and those of four columns.
enum { L2_BYTES = 448 * 1024, FEWEST_TILES = 28, GROUP = 28 };
enum { ROW_SUMS = 6 * 16, TILE_SUMS = 6 * WINO_OUT * 16 };
enum { MANY_CHANNELS = 256 };

#if TY_VF == 16
enum { MAX_ROWS = 7, MAX_BLOCKS = 4, HALVED_ROWS = 12 };
#else
enum { MAX_ROWS = 6, MAX_BLOCKS = 1, HALVED_ROWS = 6 };
#endif

// Tiles of a shape: those of all images follow each other.
struct Kind {
  int64_t first, end, y, x, rows, columns;  // from tile (y, x) of an image on
  WinoLength height, width;
};

// A call, and how its tiles are cut: `block` of them are transformed at once.
struct Wino {
  Q8ConvShape s;
  const uint8_t *x, *line;  // the image, and a pixel that stands for zero
  bool is_signed;
  const int8_t *u;
  int64_t channels, c_room, pairs, o_blocks, tiles, block, blocks, group;
  Kind kinds[4];            // short in x; whole; short in y; short in both
  bool halved;              // whether half of the multiplications are saved
  int64_t v_row, v_step;    // int16 values between tiles and between frequencies
  int64_t panel;            // bytes between blocks of outputs
  const int32_t *bias;      // by output, with what the middle of the range adds
  const float *multiplier;  // by output
  Q8Residual residual;
  Q8Store store;
  Q8Narrow narrow;
  uint8_t *y;
  int64_t y_pixel;
};

// The last row and the last column of tiles are short where up to two pixels are left for them.
void plan_kinds(Wino *w) {
  const Q8ConvShape &s = w->s;
  const int64_t short_y = s.oh % 4 == 1 || s.oh % 4 == 2, short_x = s.ow % 4 == 1 || s.ow % 4 == 2;
  const int64_t rows = ceil_div(s.oh, 4) - short_y, columns = ceil_div(s.ow, 4) - short_x;
  w->kinds[0] = {0, 0, 0, columns, rows, short_x, WINO_WHOLE, WINO_SHORT};
  w->kinds[1] = {0, 0, 0, 0, rows, columns, WINO_WHOLE, WINO_WHOLE};
  w->kinds[2] = {0, 0, rows, 0, short_y, columns, WINO_SHORT, WINO_WHOLE};
  w->kinds[3] = {0, 0, rows, columns, short_y, short_x, WINO_SHORT, WINO_SHORT};
  w->tiles = 0;
  for (Kind &kind : w->kinds) {
    kind.first = w->tiles;
    kind.end = w->tiles += s.n * kind.rows * kind.columns;
  }
}

void plan_tiles(Wino *w, int64_t threads, bool halved) {
  const Q8ConvShape &s = w->s;
  w->channels = q8_channels(s.c);
  w->c_room = round_up(s.c, WINO_LANES);
  w->pairs = ceil_div(s.c, 4) * 2;
  w->o_blocks = ceil_div(s.o, 16);
  w->panel = WINO_FREQUENCIES * (w->pairs + 1) * 64;
  plan_kinds(w);
  const int64_t bytes = WINO_FREQUENCIES * w->c_room * 2 + MAX_BLOCKS * TILE_SUMS * 4;
  int64_t fit = L2_BYTES / bytes;
  if (fit < FEWEST_TILES) fit = FEWEST_TILES;
  w->blocks = ceil_div(w->tiles, fit);
  if (w->blocks > 1) w->blocks = round_up(w->blocks, threads);
  w->block = ceil_div(w->tiles, w->blocks);
  w->blocks = ceil_div(w->tiles, w->block);
  // Sums of few tiles stay in the first cache; many weights should pass it seldom.
  w->group = MAX_BLOCKS > 1 && s.c < MANY_CHANNELS ? GROUP / 2 : GROUP;
  w->halved = halved;
  if (w->halved && s.c < MANY_CHANNELS)
    w->group = ceil_div(w->block, ceil_div(w->block, HALVED_ROWS));
  w->v_row = w->c_room;
  // An odd number of cache lines, so that the frequencies of a tile lie in different sets.
  w->v_step = (ceil_div(w->block * w->v_row * 2, 64) | 1) * 32;
}

// Sums behind the transformed tiles, [frequency][tile].
TY_INLINE int32_t *squares_of(const Wino &w, const int16_t *v) {
  return static_cast<int32_t *>(
      const_cast<void *>(static_cast<const void *>(v + WINO_FREQUENCIES * w.v_step)));
}
TY_INLINE int64_t squares_bytes(const Wino &w) {
  return round_up(WINO_FREQUENCIES * w.block * 4, 64);
}

// Where a tile lies: its image, and its first row and column of outputs.
struct Place {
  int64_t image, y, x;
};
TY_INLINE Place place_of(const Kind &kind, int64_t tile) {
  const int64_t at = tile - kind.first;
  return {at / (kind.columns * kind.rows), (kind.y + at / kind.columns % kind.rows) * WINO_OUT,
          (kind.x + at % kind.columns) * WINO_OUT};
}

// The tiles that have a frequency.
struct Range {
  int64_t begin, end;
};
TY_INLINE Range range_of(const Wino &w, int i, int j) {
  const bool tall = i == 3 || i == 4, wide = j == 3 || j == 4;
  return {wide ? w.kinds[1].first : 0, w.kinds[tall ? 1 : wide ? 2 : 3].end};
}

// Calls body(kind, begin, end) for the tiles of each kind among those from `begin` on.
template <typename Body>
TY_INLINE void by_kind(const Wino &w, int64_t begin, int64_t end, const Body &body) {
  for (const Kind &kind : w.kinds) {
    const int64_t from = begin > kind.first ? begin : kind.first, to = lesser(end, kind.end);
    if (from < to) body(kind, from, to);
  }
}

// Transforms tiles of a kind, those of a row of the image together.
template <bool SIGNED, WinoLength HEIGHT, WinoLength WIDTH>
void transform_tiles(const Wino &w, const Kind &kind, int64_t begin, int64_t end, int16_t *v) {
  const Q8ConvShape &s = w.s;
  while (begin < end) {
    const Place place = place_of(kind, begin);
    const int64_t here = kind.x + kind.columns - place.x / WINO_OUT;
    const int64_t count = lesser(here, end - begin);
    WinoRows rows = {{}, {}, s.w, w.channels, true, w.line};
    for (int64_t i = 0; i < 6; ++i) {
      const int64_t y = place.y + i - s.top;
      const bool inside = y >= 0 && y < s.h;
      rows.start[i] = inside ? w.x + (place.image * s.h + y) * s.w * w.channels : w.line;
      rows.step[i] = inside ? w.channels : 0;
      if (i < wino_values<HEIGHT>) rows.inside = rows.inside && inside;
    }
    for (int64_t c = 0; c < w.channels; c += WINO_LANES) {
      const int64_t x = place.x - s.left, left = w.channels - c;
      const auto input = left < WINO_LANES ? wino_input<SIGNED, false, HEIGHT, WIDTH>
                                           : wino_input<SIGNED, true, HEIGHT, WIDTH>;
      input(rows, x, count, c, wino_mask(left), v + c, w.v_row, w.v_step);
    }
    begin += count;
    v += count * w.v_row;
  }
}

typedef void (*Transform)(const Wino &, const Kind &, int64_t, int64_t, int16_t *);
#define WINO_TRANSFORMS(is_signed)                          \
  {                                                         \
      {transform_tiles<is_signed, WINO_WHOLE, WINO_WHOLE>,  \
       transform_tiles<is_signed, WINO_WHOLE, WINO_SHORT>}, \
      {transform_tiles<is_signed, WINO_SHORT, WINO_WHOLE>,  \
       transform_tiles<is_signed, WINO_SHORT, WINO_SHORT>}, \
  }
const Transform transforms[2][2][2] = {WINO_TRANSFORMS(false), WINO_TRANSFORMS(true)};

TY_INLINE int32_t pair_at(const int16_t *from) {
  int32_t found;
  __builtin_memcpy(&found, from, 4);
  return found;
}

// Products of one frequency: MR tiles, NR blocks of 16 outputs. Tiles of m are [NR][6][16]. At each
// pair of channels, `fetched` bytes more of what lies `ahead` bytes behind the weights are fetched
// into the second-level cache.
template <int MR, int NR>
void products(const int16_t *v, int64_t v_row, const int8_t *u, int64_t panel, int64_t pairs,
              int64_t ahead, int64_t fetched, int32_t *m) {
  enum { N = NR * Q8_PARTS };
  vi sums[MR][N];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[r][n] = vi_set1(0);
  const int8_t *next = u + ahead;
  for (int64_t k = 0; k < pairs; ++k, u += 64, next += fetched) {
    vi weight[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      weight[n] = vi_load(static_cast<const int32_t *>(static_cast<const void *>(
          u + n / Q8_PARTS * panel + n % Q8_PARTS * static_cast<int>(sizeof(vi)))));
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n)
      _mm_prefetch(reinterpret_cast<const char *>(next + n * panel), _MM_HINT_T1);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const vi pair = vi_set1(pair_at(v + r * v_row + 2 * k));
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = w16_dot(sums[r][n], pair, weight[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      vi_store(m + (r * NR + n / Q8_PARTS) * ROW_SUMS + n % Q8_PARTS * TY_VF, sums[r][n]);
}

#if TY_VF == 16
// Products of one frequency by half of the multiplications: pairs a and b of an image's channels
// and pairs p and q of their weights add (a + q)(b + p) = ap + bq + ab + pq, of which the last two
// depend on a tile or on an output only (`squares`, and the row before the weights). The sums fit
// 16 bits: frequencies of images are at most 12800, those of weights 6272. MR tiles, two blocks.
template <int MR>
void halved_products(const int16_t *v, int64_t v_row, const int8_t *u, int64_t panel, int64_t pairs,
                     int64_t ahead, int64_t fetched, const int32_t *squares, int32_t *m,
                     int64_t m_row) {
  enum { NR = 2 };
  vi sums[MR][NR];
#pragma GCC unroll 2
  for (int n = 0; n < NR; ++n) {
    const vi weights =
        vi_sub(vi_set1(0),
               vi_load(static_cast<const int32_t *>(static_cast<const void *>(u + n * panel))));
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r) sums[r][n] = vi_sub(weights, vi_set1(squares[r]));
  }
  const int8_t *next = u + ahead;
  u += 64;
  for (int64_t k = 0; k < pairs; k += 2, u += 128, next += 2 * fetched) {
    vi p[NR], q[NR];
#pragma GCC unroll 2
    for (int n = 0; n < NR; ++n) {
      p[n] = vi_load(static_cast<const int32_t *>(static_cast<const void *>(u + n * panel)));
      q[n] = vi_load(static_cast<const int32_t *>(static_cast<const void *>(u + n * panel + 64)));
      _mm_prefetch(reinterpret_cast<const char *>(next + n * panel), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char *>(next + n * panel + fetched), _MM_HINT_T1);
    }
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r) {
      const vi a = vi_set1(pair_at(v + r * v_row + 2 * k));
      const vi b = vi_set1(pair_at(v + r * v_row + 2 * k + 2));
#pragma GCC unroll 2
      for (int n = 0; n < NR; ++n)
        sums[r][n] = w16_dot(sums[r][n], w16_add(a, q[n]), w16_add(b, p[n]));
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < NR; ++n) vi_store(m + r * m_row + n * ROW_SUMS, sums[r][n]);
}

typedef void (*Halved)(const int16_t *, int64_t, const int8_t *, int64_t, int64_t, int64_t, int64_t,
                       const int32_t *, int32_t *, int64_t);
const Halved halved_by_rows[HALVED_ROWS] = {
    halved_products<1>, halved_products<2>,  halved_products<3>,  halved_products<4>,
    halved_products<5>, halved_products<6>,  halved_products<7>,  halved_products<8>,
    halved_products<9>, halved_products<10>, halved_products<11>, halved_products<12>};

// Sums of the products of the pairs of a tile's channels with those next to them, for each
// frequency of the tiles [begin, end).
void square_tiles(const Wino &w, const int16_t *v, int64_t begin, int64_t end, int32_t *to) {
  for (int f = 0; f < WINO_FREQUENCIES; ++f)
    for (int64_t tile = begin; tile < end; tile += 4) {
      vi sums[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const int16_t *from = v + f * w.v_step + lesser(tile + r, end - 1) * w.v_row;
        sums[r] = vi_set1(0);
        for (int64_t c = 0; c < 2 * w.pairs; c += WINO_LANES) {
          const vi pairs = _mm512_maskz_loadu_epi16(wino_mask(2 * w.pairs - c), from + c);
          sums[r] = w16_dot(sums[r], pairs, _mm512_srli_epi64(pairs, 32));
        }
      }
      const vi low =
          vi_add(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
      const vi high =
          vi_add(_mm512_unpacklo_epi32(sums[2], sums[3]), _mm512_unpackhi_epi32(sums[2], sums[3]));
      const vi four = vi_add(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
      const __m256i two =
          _mm256_add_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
      const __m128i found =
          _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
      const __mmask8 there = static_cast<__mmask8>((1u << lesser(end - tile, 4)) - 1);
      _mm_mask_storeu_epi32(to + f * w.block + tile, there, found);
    }
}
#endif

typedef void (*Products)(const int16_t *, int64_t, const int8_t *, int64_t, int64_t, int64_t,
                         int64_t, int32_t *);
#if TY_VF == 16
const Products by_rows[3][MAX_ROWS] = {
    {products<1, 1>, products<2, 1>, products<3, 1>, products<4, 1>, products<5, 1>, products<6, 1>,
     products<7, 1>},
    {products<1, 2>, products<2, 2>, products<3, 2>, products<4, 2>, products<5, 2>, products<6, 2>,
     products<7, 2>},
    {products<1, 4>, products<2, 4>, products<3, 4>, products<4, 4>, products<5, 4>, products<6, 4>,
     products<7, 4>}};
#else
const Products by_rows[1][MAX_ROWS] = {{products<1, 1>, products<2, 1>, products<3, 1>,
                                        products<4, 1>, products<5, 1>, products<6, 1>}};
#endif

// Transforms the tiles [begin, end) of those from tile `first` on.
void transform(const Wino &w, int64_t first, int64_t begin, int64_t end, int16_t *v) {
  by_kind(w, first + begin, first + end, [&](const Kind &kind, int64_t from, int64_t to) {
    transforms[w.is_signed][kind.height][kind.width](w, kind, from, to,
                                                     v + (from - first) * w.v_row);
  });
#if TY_VF == 16
  if (w.halved) square_tiles(w, v, begin, end, squares_of(w, v));
#endif
}

// How many blocks of outputs are multiplied at once from block `from`.
TY_INLINE int64_t blocks_at(const Wino &w, int64_t from) {
  const int64_t rest = w.o_blocks - from;
  return rest >= 4 && MAX_BLOCKS == 4 ? 4 : rest >= 2 && MAX_BLOCKS == 4 ? 2 : 1;
}

// Sums of a row of frequencies, [tile and block][6][16], into those of its columns of outputs.
template <WinoLength WIDTH>
void columns_back(const int32_t *from, int64_t count, int32_t *to) {
  for (int64_t at = 0; at < count; ++at, from += ROW_SUMS, to += TILE_SUMS)
#pragma GCC unroll 2
    for (int part = 0; part < 16; part += TY_VF) {
      vi m[6], found[4];
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j)
        if (wino_has<WIDTH>(j)) m[j] = vi_load(from + j * 16 + part);
      wino_back<WIDTH>(m, found);
#pragma GCC unroll 4
      for (int x = 0; x < wino_outputs<WIDTH>; ++x) vi_store(to + x * 16 + part, found[x]);
    }
}

// Multiplies `tiles` transformed tiles from tile `first` with blocks of outputs, and transforms the
// rows of frequencies back. Tiles of m are [blocks][6 rows][4 columns][16].
void multiply(const Wino &w, const int16_t *v, int64_t first, int64_t tiles, int64_t o_block,
              int64_t blocks, int32_t *row, int32_t *m) {
  const int8_t *u = w.u + o_block * w.panel;
  const int64_t size = (w.pairs + 1) * 64;
  for (int i = 0; i < 6; ++i)
    for (int64_t group = 0; group < tiles; group += w.group) {
      const int64_t begin = first + group, end = first + lesser(group + w.group, tiles);
      for (int j = 0; j < 6; ++j) {
        const Range range = range_of(w, i, j);
        const int64_t from = range.begin > begin ? range.begin : begin;
        const int64_t count = lesser(range.end, end) - from, f = i * 6 + j;
        if (count <= 0) continue;
        const bool halves = w.halved && blocks > 1;
        const int64_t most = halves ? HALVED_ROWS : MAX_ROWS;
        const int64_t strips = ceil_div(count, most), rows = ceil_div(count, strips);
        // What comes next is fetched while a frequency is multiplied for the first time.
        const int64_t ahead = f < 35 ? size : blocks * w.panel - 35 * size;
        for (int64_t at = 0; at < count; at += rows) {
          const int64_t tile = from - first + at, many = lesser(rows, count - at);
          const int16_t *operands = v + f * w.v_step + tile * w.v_row;
          const int8_t *weights = u + f * size;
          const int64_t behind = group == 0 ? ahead + at / rows * size / strips : 0;
          const int64_t fetched = group == 0 ? 64 / strips : 64;
          int32_t *to = row + ((from - begin + at) * blocks * 6 + j) * 16;
#if TY_VF == 16
          for (int64_t n = 0; halves && n < blocks; n += 2)
            halved_by_rows[many - 1](operands, w.v_row, weights + n * w.panel, w.panel, w.pairs,
                                     behind, fetched, squares_of(w, v) + f * w.block + tile,
                                     to + n * ROW_SUMS, blocks * ROW_SUMS);
#endif
          if (!halves)
            by_rows[blocks / 2][many - 1](operands, w.v_row, weights + 64, w.panel, w.pairs, behind,
                                          fetched, to);
        }
      }
      const Range range = range_of(w, i, 0);
      by_kind(w, begin, lesser(range.end, end), [&](const Kind &kind, int64_t from, int64_t to) {
        const auto back =
            kind.width == WINO_SHORT ? columns_back<WINO_SHORT> : columns_back<WINO_WHOLE>;
        back(row + (from - begin) * blocks * ROW_SUMS, (to - from) * blocks,
             m + (from - first) * blocks * TILE_SUMS + i * WINO_OUT * 16);
      });
    }
}

// Stores 16 outputs of each block, of up to four pixels in a column; whole: [pixel][block].
template <int NR>
TY_INLINE void store_column(const Q8Narrow &narrow, const vi (&whole)[4][NR * Q8_PARTS],
                            uint8_t *to, int64_t step, int64_t count) {
#if TY_VF == 16
  const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  enum { PIXELS = 4 / NR };
#pragma GCC unroll 4
  for (int y = 0; y < 4; y += PIXELS) {
    vi some[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) some[i] = whole[y + i / NR][i % NR];
    const vi bytes = _mm512_permutexvar_epi32(order, q8_narrowed(some, narrow));
    uint8_t *at = to + y * step;
    if (NR == 4) {
      if (y < count) _mm512_storeu_si512(at, bytes);
    } else if (NR == 2) {
      if (y < count)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), _mm512_castsi512_si256(bytes));
      if (y + 1 < count)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at + step),
                            _mm512_extracti64x4_epi64(bytes, 1));
    } else {
      const __m128i pixels[4] = {_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1),
                                 _mm512_extracti32x4_epi32(bytes, 2),
                                 _mm512_extracti32x4_epi32(bytes, 3)};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        if (i < count) _mm_storeu_si128(reinterpret_cast<__m128i *>(at + i * step), pixels[i]);
    }
  }
#else
  const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 2
  for (int y = 0; y < 4; y += 2) {
    const vi some[4] = {whole[y][0], whole[y][1], whole[y + 1][0], whole[y + 1][1]};
    const vi bytes = _mm256_permutevar8x32_epi32(q8_narrowed(some, narrow), order);
    uint8_t *at = to + y * step;
    if (y < count) _mm_storeu_si128(reinterpret_cast<__m128i *>(at), _mm256_castsi256_si128(bytes));
    if (y + 1 < count)
      _mm_storeu_si128(reinterpret_cast<__m128i *>(at + step), _mm256_extracti128_si256(bytes, 1));
  }
#endif
}

// How results are stored: by way of 16 bits, without a residual or with one, or one by one.
enum Finishing { PLAINLY, WITH_RESIDUAL, WIDELY };

// Adds the scaled residual of 16 outputs.
TY_INLINE void add_residual(const Q8Residual &r, int64_t at, vf (&t)[Q8_PARTS]) {
  const Q8Lanes stored = q8_load16(r.data + at, 16, r.is_signed);
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i) {
    const vi centred = vi_sub(stored.part[i], vi_set1(r.zero_point));
    t[i] = vadd(t[i], vmul(vi_to_vf(centred), vset1(r.multiplier)));
  }
}

// Scaled sums of up to four pixels in column x of a tile, for 16 outputs.
template <WinoLength HEIGHT>
TY_INLINE void scaled_column(const int32_t *m, int power, const int32_t *bias,
                             const float *multiplier, vf (&t)[4][Q8_PARTS]) {
#pragma GCC unroll 2
  for (int part = 0; part < Q8_PARTS; ++part) {
    vi found[6], sums[4];
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i)
      if (wino_has<HEIGHT>(i)) found[i] = vi_load(m + i * WINO_OUT * 16 + part * TY_VF);
    wino_back<HEIGHT>(found, sums);
    const vi centre = vi_load(bias + part * TY_VF);
    const vf factor = vload(multiplier + part * TY_VF);
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y)
      t[y][part] =
          y < wino_outputs<HEIGHT>
              ? vmul(vi_to_vf(vi_add(wino_exact(sums[y], power + wino_power(y)), centre)), factor)
              : vset1(0.0f);
  }
}

// Transforms the columns of tiles of one height back, requantises and stores NR blocks of outputs.
template <int NR, WinoLength HEIGHT, Finishing MODE>
void finish_tiles(const Wino &w, const Kind &kind, int64_t begin, int64_t end, const int32_t *m,
                  int64_t o) {
  const int64_t step = w.s.ow * w.y_pixel;
  const int32_t *bias = w.bias + o;
  const float *multiplier = w.multiplier + o;
  const Q8Narrow narrow = w.narrow;
  const Q8Residual residual = w.residual;
  for (int64_t tile = begin; tile < end; ++tile, m += NR * TILE_SUMS) {
    const Place place = place_of(kind, tile);
    const int64_t rows = lesser(WINO_OUT, w.s.oh - place.y);
    const int64_t columns = lesser(WINO_OUT, w.s.ow - place.x);
    int64_t to = ((place.image * w.s.oh + place.y) * w.s.ow + place.x) * w.y_pixel + o;
    for (int x = 0; x < columns; ++x, to += w.y_pixel) {
      vi whole[4][NR * Q8_PARTS];
#pragma GCC unroll 4
      for (int n = 0; n < NR; ++n) {
        vf t[4][Q8_PARTS];
        scaled_column<HEIGHT>(m + n * TILE_SUMS + x * 16, wino_power(x), bias + n * 16,
                              multiplier + n * 16, t);
#pragma GCC unroll 4
        for (int y = 0; y < 4; ++y) {
          const int64_t at = to + y * step + n * 16;
          if (MODE != PLAINLY && y < rows && residual.data != nullptr)
            add_residual(residual, at, t[y]);
          if (MODE == WIDELY && y < rows) {
            Q8Lanes lanes;
#pragma GCC unroll 2
            for (int i = 0; i < Q8_PARTS; ++i) lanes.part[i] = q8_finish(t[y][i], w.store);
            q8_store16(w.y + at, lanes, 16);
          }
#pragma GCC unroll 2
          for (int i = 0; i < Q8_PARTS; ++i) whole[y][n * Q8_PARTS + i] = vf_to_vi(t[y][i]);
        }
      }
      if (MODE != WIDELY) store_column<NR>(narrow, whole, w.y + to, step, rows);
    }
  }
}

typedef void (*Finish)(const Wino &, const Kind &, int64_t, int64_t, const int32_t *, int64_t);
#define WINO_FINISH(NR, height)                                                \
  {finish_tiles<NR, height, PLAINLY>, finish_tiles<NR, height, WITH_RESIDUAL>, \
   finish_tiles<NR, height, WIDELY>}
#define WINO_FINISHES(NR) {WINO_FINISH(NR, WINO_WHOLE), WINO_FINISH(NR, WINO_SHORT)}
#if TY_VF == 16
const Finish finishes[3][2][3] = {WINO_FINISHES(1), WINO_FINISHES(2), WINO_FINISHES(4)};
#else
const Finish finishes[1][2][3] = {WINO_FINISHES(1)};
#endif

// Multiplies `tiles` transformed tiles from tile `first` with blocks of outputs, and finishes them.
void run_outputs(const Wino &w, const int16_t *v, int64_t first, int64_t tiles, int64_t o_block,
                 int64_t blocks, int32_t *m) {
  int32_t *row = m + w.block * MAX_BLOCKS * TILE_SUMS;
  multiply(w, v, first, tiles, o_block, blocks, row, m);
  const Finishing mode = !w.narrow.fits               ? WIDELY
                         : w.residual.data == nullptr ? PLAINLY
                                                      : WITH_RESIDUAL;
  by_kind(w, first, first + tiles, [&](const Kind &kind, int64_t begin, int64_t end) {
    finishes[blocks / 2][kind.height][mode](w, kind, begin, end,
                                            m + (begin - first) * blocks * TILE_SUMS, o_block * 16);
  });
}

// Sums of differences to the middle of a byte's range, which products are of, become those to the
// zero point with the bias; false where such a sum may not be known.
bool centre(const Wino &w, const int8_t *direct, const int32_t *magnitudes, int64_t x_zero,
            int32_t *bias) {
  const int64_t k4 = 9 * ceil_div(w.s.c, 4);
  const int64_t difference = (w.is_signed ? 0 : 128) - x_zero;
  for (int64_t o = 0; o < w.o_blocks * 16; ++o) {
    int32_t sum;
    __builtin_memcpy(&sum,
                     direct + o / 16 * q8_panel_bytes(k4) + q8_panel_rows(k4) * 64 + o % 16 * 4, 4);
    if (magnitudes[o] >= 1 << 18) return false;
    bias[o] = static_cast<int32_t>(
        static_cast<uint32_t>(bias[o] + static_cast<int64_t>(sum) * difference));
  }
  return true;
}

// Threads take blocks of tiles, or groups of outputs of each block, whose tiles each thread
// transforms for itself: that takes less than fetching what others transformed.
void run_blocks(const ty_ctx *ctx, const Wino &w, char *own, int64_t v_bytes, int64_t m_bytes) {
  const int64_t share = v_bytes + m_bytes;
  if (ctx->threads == 1 || w.blocks >= ctx->threads) {
    ty_parallel(ctx, w.blocks, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      int16_t *v = reinterpret_cast<int16_t *>(own + slot * share);
      int32_t *m = reinterpret_cast<int32_t *>(own + slot * share + v_bytes);
      for (int64_t at = begin; at < end; ++at) {
        const int64_t first = at * w.block, tiles = lesser(w.block, w.tiles - first);
        transform(w, first, 0, tiles, v);
        for (int64_t o = 0; o < w.o_blocks;) {
          const int64_t blocks = blocks_at(w, o);
          run_outputs(w, v, first, tiles, o, blocks, m);
          o += blocks;
        }
      }
    });
    return;
  }
  const int64_t groups = ceil_div(w.o_blocks, MAX_BLOCKS), parts = lesser(groups, ctx->threads);
  ty_parallel(ctx, w.blocks * parts, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    int16_t *v = reinterpret_cast<int16_t *>(own + slot * share);
    int32_t *m = reinterpret_cast<int32_t *>(own + slot * share + v_bytes);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t at = item % w.blocks, part = item / w.blocks;
      const int64_t first = at * w.block, tiles = lesser(w.block, w.tiles - first);
      transform(w, first, 0, tiles, v);
      int64_t o = part * groups / parts * MAX_BLOCKS;
      while (o < lesser((part + 1) * groups / parts * MAX_BLOCKS, w.o_blocks)) {
        const int64_t blocks = blocks_at(w, o);
        run_outputs(w, v, first, tiles, o, blocks, m);
        o += blocks;
      }
    }
  });
}

int run_as(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
           void *workspace, bool halved) {
  const auto &a = *reinterpret_cast<const ty_conv2d_quantized_attrs *>(attrs);
  Wino w = {};
  w.s = q8_conv_shape(a, inputs, outputs[0]);
  const Q8ConvShape &s = w.s;
  if (s.n * s.o * s.oh * s.ow == 0) return 0;
  plan_tiles(&w, ctx->threads, halved);
  w.is_signed = inputs[0].dtype == TY_INT8;
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Q8Columns columns = {static_cast<int32_t *>(scratch.take(q8_columns_bytes(s.o))), nullptr,
                       static_cast<float *>(scratch.take(q8_columns_bytes(s.o)))};
  q8_fill_columns(columns, {q8_bias_of(a, inputs), TY_FLOATS(&a, a.multipliers), nullptr,
                            a.multipliers.count, 0, s.o, 0});
  const int8_t *direct = static_cast<const int8_t *>(inputs[1].data);
  const int8_t *after = direct + q8_packed_bytes(s.o, 9 * ceil_div(s.c, 4));
  const auto *magnitudes = static_cast<const int32_t *>(static_cast<const void *>(after));
  if (!centre(w, direct, magnitudes, a.x_zero_point, columns.bias))
    return q8_conv_packed(ctx, inputs, outputs, attrs, workspace);
  w.u = after + w.o_blocks * 64;
  w.bias = columns.bias;
  w.multiplier = columns.multiplier;
  w.x = static_cast<const uint8_t *>(inputs[0].data);
  uint8_t *line = static_cast<uint8_t *>(scratch.take(w.channels));
  __builtin_memset(line, static_cast<int>(a.x_zero_point & 0xff), static_cast<size_t>(w.channels));
  w.line = line;
  w.store = q8_store_of(a);
  w.residual = q8_residual_of(a, inputs);
  // Below a quarter of 2^32 each, the two terms of a result add up to an int32.
  w.narrow = q8_narrow(w.store,
                       q8_largest(columns.multiplier, s.o) < 0.25f && w.residual.multiplier < 1e6f);
  w.y = static_cast<uint8_t *>(outputs[0].data);
  w.y_pixel = q8_channels(s.o);
  const int64_t v_bytes = WINO_FREQUENCIES * w.v_step * 2 + squares_bytes(w);
  const int64_t m_bytes = (w.block * TILE_SUMS + GROUP * ROW_SUMS) * 4 * MAX_BLOCKS;
  run_blocks(ctx, w, static_cast<char *>(scratch.take(0)), v_bytes, m_bytes);
  return 0;
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  return run_as(ctx, inputs, outputs, attrs, workspace, false);
}

#if TY_VF == 16
int run_halved(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  return run_as(ctx, inputs, outputs, attrs, workspace, true);
}
#define WINO_HALVED                                            \
  , TY_KERNEL(run_halved, "conv2d_q8", "winograd_halved_f43"), \
      TY_KERNEL(run_halved, "conv2d_q8", "winograd_halved_f43_unbiased")
#else
#define WINO_HALVED
#endif

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_winograd, TY_KERNEL(run, "conv2d_q8", "winograd_f43"),
                  TY_KERNEL(run, "conv2d_q8", "winograd_f43_unbiased") WINO_HALVED)
