// Bands of source rows: read in place, or copied once with their padding, split so that
// neighbouring output pixels have neighbouring source pixels whatever the stride.
#pragma once

#include "conv.hpp"

namespace TY_ISA {
namespace {

// Where the pixels of a band lie: in a padded copy whose columns are split into sw phases, so that
// neighbouring output pixels always have neighbouring source pixels, or in x itself.
struct Band {
  bool copied, flat;
  int64_t min_y, min_x, span_y, span_x;
  int64_t phase_width, row, plane;  // floats between rows, between channels or channel blocks
  int64_t rows, cols;               // output pixels of one band
  int64_t oh, ow;                   // extents of the iteration, 1 x all pixels where flat
  uint64_t used;                    // bit (row % sh) * sw + phase: some tap reads it
};

inline int64_t pixel_floats(const ConvPlan &p) { return p.x_blocked ? BLOCK_WORDS : 1; }
inline int64_t source_planes(const ConvPlan &p) { return p.x_blocked ? ceil_div(p.c, VF) : p.c; }

inline void find_spans(const ConvPlan &p, Band *b) {
  int64_t max_y = 0, max_x = 0;
  b->min_y = b->min_x = 0;
  for (int64_t t = 0; t < p.n_taps; ++t) {
    const ConvTap &tap = p.taps[t];
    b->min_y = t ? lesser(b->min_y, tap.y) : tap.y;
    b->min_x = t ? lesser(b->min_x, tap.x) : tap.x;
    max_y = t ? greater(max_y, tap.y) : tap.y;
    max_x = t ? greater(max_x, tap.x) : tap.x;
  }
  b->span_y = max_y - b->min_y;
  b->span_x = max_x - b->min_x;
  b->used = p.sh * p.sw > 64 ? ~uint64_t{0} : 0;
  for (int64_t t = 0; t < p.n_taps && p.sh * p.sw <= 64; ++t) {
    const int64_t y = p.taps[t].y - b->min_y, x = p.taps[t].x - b->min_x;
    b->used |= uint64_t{1} << (y % p.sh * p.sw + x % p.sw);
  }
}

// Floats from the copied pixel of tap (min_y, min_x) to that of another, in a channel's plane whose
// pixels take `pixel` floats.
inline int64_t tap_offset(const ConvPlan &p, const Band &b, const ConvTap &tap, int64_t pixel) {
  const int64_t y = tap.y - b.min_y, x = tap.x - b.min_x;
  const int64_t column = b.copied ? (x % p.sw) * b.phase_width + x / p.sw : x;
  return y * b.row + column * pixel;
}

inline int64_t copied_rows(const ConvPlan &p, const Band &b, int64_t rows) {
  return (rows - 1) * p.sh + b.span_y + 1;
}

// `copies` asks for a copy whether or not the source could be read in place.
inline Band band_of(const ConvPlan &p, bool copies = false) {
  Band b = {};
  find_spans(p, &b);
  const int64_t pixel = pixel_floats(p);
  b.oh = p.oh;
  b.ow = p.ow;
  const bool inside = b.min_y >= 0 && b.min_x >= 0 &&
                      b.min_y + b.span_y + (p.oh - 1) * p.sh < p.h &&
                      b.min_x + b.span_x + p.ow - 1 < p.w;
  b.copied = copies || p.sw != 1 || !inside;
  if (!b.copied) {
    b.row = p.w * pixel;
    b.plane = p.h * b.row;
    const bool pointwise = b.span_y == 0 && b.span_x == 0 && b.min_y == 0 && b.min_x == 0;
    b.flat = pointwise && p.sh == 1 && p.ow == p.w && p.y_row == p.ow * p.y_pixel;
    const int64_t fit = greater(BAND_FLOATS / (pixel * source_planes(p) + 1), TILE_ROWS);
    if (b.flat) {
      b.oh = 1;
      b.ow = p.oh * p.ow;
      b.cols = lesser(b.ow, fit / TILE_ROWS * TILE_ROWS);
      b.rows = 1;
    } else {
      b.cols = p.ow;
      b.rows = lesser(p.oh, greater(1, fit / p.ow));
    }
    return b;
  }
  b.phase_width = p.ow + b.span_x / p.sw;
  b.row = p.sw * b.phase_width * pixel;
  b.cols = p.ow;
  b.rows = 1;
  const int64_t per_row = b.row * source_planes(p);
  while (b.rows < p.oh && copied_rows(p, b, b.rows + 1) * per_row <= BAND_FLOATS) ++b.rows;
  b.rows = ceil_div(p.oh, ceil_div(p.oh, b.rows));
  b.plane = copied_rows(p, b, b.rows) * b.row;
  return b;
}

// The even elements of two neighbouring vectors.
TY_INLINE vf vevens(vf low, vf high) {
#if TY_VF == 16
  const __m512i index =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(low, index, high);
#else
  const __m256 mixed = _mm256_shuffle_ps(low, high, 0x88);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
#endif
}

// One phase of one row: to[i] = from[first + i * step] where that lies in [0, w), else zero.
inline void copy_row_plain(float *to, const float *from, int64_t w, int64_t first, int64_t step,
                           int64_t count) {
  int64_t i = 0;
  for (; i < count && first + i * step < 0; ++i) to[i] = 0.0f;
  const int64_t reach = w - first;
  const int64_t end = reach <= 0 ? i : greater(i, lesser(count, ceil_div(reach, step)));
  if (step == 1) {
    memcpy(to + i, from + first + i, static_cast<size_t>(end - i) * sizeof(float));
    i = end;
  } else {
    // The last vector overlaps the one before it. Nothing is read behind the last pixel.
    const int64_t last = lesser(end, (w - first) / 2) - VF;
    for (int64_t at = i; step == 2 && at <= last;) {
      vstore(to + at, vevens(vload(from + first + at * 2), vload(from + first + at * 2 + VF)));
      i = at + VF;
      at = at < last ? lesser(i, last) : i;
    }
    for (; i < end; ++i) to[i] = from[first + i * step];
  }
  for (; i < count; ++i) to[i] = 0.0f;
}

TY_INLINE void copy_pixel(float *to, const float *from) {
#if defined(__AVX512BF16__)
  _mm256_storeu_ps(to, from ? _mm256_loadu_ps(from) : _mm256_setzero_ps());
#else
  vstore(to, from ? vload(from) : vzero());
#endif
}

inline void copy_row_blocked(float *to, const float *from, int64_t w, int64_t first, int64_t step,
                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i * step;
    copy_pixel(to + i * BLOCK_WORDS, at >= 0 && at < w ? from + at * BLOCK_WORDS : nullptr);
  }
}

inline void copy_band(float *to, const ConvPlan &p, const Band &b, int64_t image, int64_t y0,
                      int64_t rows) {
  const int64_t pixel = pixel_floats(p), planes = source_planes(p);
  const int64_t needed = copied_rows(p, b, rows);
  const int64_t width = b.phase_width * pixel;
  for (int64_t row = 0; row < needed; ++row) {
    const int64_t y = y0 * p.sh + b.min_y + row;
    for (int64_t phase = 0; phase < p.sw; ++phase) {
      const int64_t bit = row % p.sh * p.sw + phase;
      if (bit < 64 && !(b.used >> bit & 1)) continue;
      for (int64_t plane = 0; plane < planes; ++plane) {
        float *out = to + plane * b.plane + row * b.row + phase * width;
        if (y < 0 || y >= p.h) {
          memset(out, 0, static_cast<size_t>(width) * sizeof(float));
          continue;
        }
        const float *from = p.x + image * p.x_image + (plane * p.h + y) * p.w * pixel;
        if (p.x_blocked)
          copy_row_blocked(out, from, p.w, phase + b.min_x, p.sw, b.phase_width);
        else
          copy_row_plain(out, from, p.w, phase + b.min_x, p.sw, b.phase_width);
      }
    }
  }
}

}  // namespace
}  // namespace TY_ISA
