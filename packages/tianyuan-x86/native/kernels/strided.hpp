// Copies between two strided views of one shape, for items of 1, 2, 4 and 8 bytes.
#pragma once

#include <string.h>

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t COPY_GRAIN = 16384;
static constexpr int64_t TRANSPOSE_TILE = 32;

// Strides are in items and may be zero or negative.
struct Strided {
  int ndim;
  int64_t shape[TY_MAX_DIMS], from[TY_MAX_DIMS], to[TY_MAX_DIMS];
};

inline void row_major(const int64_t *shape, int ndim, int64_t *stride) {
  int64_t running = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    stride[d] = running;
    running *= shape[d];
  }
}

// Drops axes of extent 1 and merges neighbours that both views walk as one.
inline void simplify(Strided *s) {
  int n = 0;
  for (int d = 0; d < s->ndim; ++d) {
    if (s->shape[d] == 1) continue;
    if (n > 0 && s->from[n - 1] == s->from[d] * s->shape[d] &&
        s->to[n - 1] == s->to[d] * s->shape[d]) {
      s->shape[n - 1] *= s->shape[d];
      s->from[n - 1] = s->from[d];
      s->to[n - 1] = s->to[d];
    } else {
      s->shape[n] = s->shape[d];
      s->from[n] = s->from[d];
      s->to[n++] = s->to[d];
    }
  }
  if (n == 0) {
    s->shape[0] = 1;
    s->from[0] = s->to[0] = 1;
    n = 1;
  }
  s->ndim = n;
}

inline int64_t volume(const Strided &s) {
  int64_t size = 1;
  for (int d = 0; d < s.ndim; ++d) size *= s.shape[d];
  return size;
}

// Where the item `index` of all axes but `a` and `b` starts in both views.
inline void offsets_of(const Strided &s, int64_t index, int a, int b, int64_t *from, int64_t *to) {
  *from = *to = 0;
  for (int d = s.ndim - 1; d >= 0; --d) {
    if (d == a || d == b) continue;
    const int64_t at = index % s.shape[d];
    index /= s.shape[d];
    *from += at * s.from[d];
    *to += at * s.to[d];
  }
}

template <class T>
inline void copy_line(const T *from, int64_t from_step, T *to, int64_t to_step, int64_t n) {
  if (from_step == 1 && to_step == 1) {
    memcpy(to, from, (size_t)n * sizeof(T));
  } else if (from_step == 0 && to_step == 1) {
    const T value = *from;
    for (int64_t i = 0; i < n; ++i) to[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
  }
}

// The next row of the axes before the last one: offsets move by steps, without a division.
inline void advance(const Strided &s, int64_t *index, int64_t *from, int64_t *to) {
  for (int d = s.ndim - 2; d >= 0; --d) {
    *from += s.from[d];
    *to += s.to[d];
    if (++index[d] < s.shape[d]) return;
    *from -= s.from[d] * s.shape[d];
    *to -= s.to[d] * s.shape[d];
    index[d] = 0;
  }
}

// Short rows of equal length: a fixed size lets the copy be a few moves.
template <class T>
inline void copy_short(const T *from, T *to, int64_t n) {
  const int64_t bytes = n * (int64_t)sizeof(T);
  const char *a = reinterpret_cast<const char *>(from);
  char *b = reinterpret_cast<char *>(to);
  int64_t i = 0;
  for (; i + 32 <= bytes; i += 32)
    _mm256_storeu_si256((__m256i *)(b + i), _mm256_loadu_si256((const __m256i *)(a + i)));
  for (i /= (int64_t)sizeof(T); i < n; ++i) to[i] = from[i];
}

template <class T>
inline void copy_rows(const Strided &s, const T *from, T *to, int64_t begin, int64_t end) {
  const int last = s.ndim - 1;
  const int64_t run = s.shape[last];
  const bool dense = s.from[last] == 1 && s.to[last] == 1 && run * sizeof(T) <= 512;
  int64_t index[TY_MAX_DIMS], a, b, rest = begin;
  offsets_of(s, begin, last, last, &a, &b);
  for (int d = last - 1; d >= 0; --d) {
    index[d] = rest % s.shape[d];
    rest /= s.shape[d];
  }
  for (int64_t row = begin; row < end; ++row) {
    if (dense) {
      copy_short(from + a, to + b, run);
    } else {
      copy_line(from + a, s.from[last], to + b, s.to[last], run);
    }
    advance(s, index, &a, &b);
  }
}

template <class T>
inline void copy_lines(const ty_ctx *ctx, const Strided &s, const T *from, T *to) {
  const int last = s.ndim - 1;
  const int64_t run = s.shape[last], outer = volume(s) / run;
  if (run < COPY_GRAIN) {
    ty_parallel(ctx, outer, COPY_GRAIN / run,
                [&](int64_t begin, int64_t end, int32_t) { copy_rows(s, from, to, begin, end); });
    return;
  }
  const int64_t chunks = (run + COPY_GRAIN - 1) / COPY_GRAIN;
  ty_parallel(ctx, outer * chunks, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i % chunks * COPY_GRAIN;
      int64_t a, b;
      offsets_of(s, i / chunks, last, last, &a, &b);
      copy_line(from + a + at * s.from[last], s.from[last], to + b + at * s.to[last], s.to[last],
                run - at < COPY_GRAIN ? run - at : COPY_GRAIN);
    }
  });
}

// to[r * to_step + c] = from[c * from_step + r] for r < rows, c < columns.
template <class T>
inline void transpose_tile(const T *from, int64_t from_step, T *to, int64_t to_step, int64_t rows,
                           int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[r * to_step + c] = from[c * from_step + r];
}

inline void transpose_8x8(const float *from, int64_t from_step, float *to, int64_t to_step) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_step);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 2; ++i) {
      const __m256 low = t[4 * half + i], high = t[4 * half + 2 + i];
      r[4 * half + 2 * i] = _mm256_shuffle_ps(low, high, 0x44);
      r[4 * half + 2 * i + 1] = _mm256_shuffle_ps(low, high, 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

template <>
inline void transpose_tile(const uint32_t *from, int64_t from_step, uint32_t *to, int64_t to_step,
                           int64_t rows, int64_t columns) {
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    int64_t c = 0;
    for (; c + 8 <= columns; c += 8) {
      transpose_8x8(reinterpret_cast<const float *>(from + c * from_step + r), from_step,
                    reinterpret_cast<float *>(to + r * to_step + c), to_step);
    }
    for (int64_t k = 0; k < 8; ++k)
      for (int64_t rest = c; rest < columns; ++rest)
        to[(r + k) * to_step + rest] = from[rest * from_step + r + k];
  }
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[r * to_step + c] = from[c * from_step + r];
}

// `row` is the axis along which the source is contiguous; the last axis is where the target is.
template <class T>
inline void copy_transposed(const ty_ctx *ctx, const Strided &s, int row, const T *from, T *to) {
  const int last = s.ndim - 1;
  const int64_t rows = s.shape[row], columns = s.shape[last];
  const int64_t bands = (rows + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
  const int64_t outer = volume(s) / (rows * columns);
  const int64_t weight = columns * (rows < TRANSPOSE_TILE ? rows : TRANSPOSE_TILE);
  ty_parallel(
      ctx, outer * bands, COPY_GRAIN / weight + 1, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t r = i % bands * TRANSPOSE_TILE;
          const int64_t high = rows - r < TRANSPOSE_TILE ? rows - r : TRANSPOSE_TILE;
          int64_t a, b;
          offsets_of(s, i / bands, row, last, &a, &b);
          for (int64_t c = 0; c < columns; c += TRANSPOSE_TILE) {
            const int64_t wide = columns - c < TRANSPOSE_TILE ? columns - c : TRANSPOSE_TILE;
            transpose_tile(from + a + r + c * s.from[last], s.from[last],
                           to + b + r * s.to[row] + c, s.to[row], high, wide);
          }
        }
      });
}

template <class T>
inline void copy_items(const ty_ctx *ctx, const Strided &s, const void *from, void *to) {
  const int last = s.ndim - 1;
  if (s.to[last] == 1 && s.from[last] != 1 && s.from[last] != 0) {
    for (int d = 0; d < last; ++d) {
      if (s.from[d] == 1) {
        copy_transposed(ctx, s, d, static_cast<const T *>(from), static_cast<T *>(to));
        return;
      }
    }
  }
  copy_lines(ctx, s, static_cast<const T *>(from), static_cast<T *>(to));
}

// Copies every item of the shape; from and to point at the items with all indices 0.
__attribute__((unused)) void copy_strided(const ty_ctx *ctx, Strided s, int64_t itemsize,
                                          const void *from, void *to) {
  if (volume(s) == 0) return;
  simplify(&s);
  switch (itemsize) {
    case 1:
      return copy_items<uint8_t>(ctx, s, from, to);
    case 2:
      return copy_items<uint16_t>(ctx, s, from, to);
    case 4:
      return copy_items<uint32_t>(ctx, s, from, to);
    default:
      return copy_items<uint64_t>(ctx, s, from, to);
  }
}

}  // namespace
}  // namespace TY_ISA
