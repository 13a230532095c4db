// relayout of bytes between plain images and channels-last ones.
#include "int8.hpp"

namespace TY_ISA {
namespace {

TY_INLINE __m128i load16(const uint8_t *from, int64_t count) {
  if (count >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  alignas(16) uint8_t some[16] = {};
  __builtin_memcpy(some, from, static_cast<size_t>(count));
  return _mm_load_si128(reinterpret_cast<const __m128i *>(some));
}

TY_INLINE void store16(uint8_t *to, __m128i x, int64_t count) {
  if (count >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), x);
  } else {
    alignas(16) uint8_t some[16];
    _mm_store_si128(reinterpret_cast<__m128i *>(some), x);
    __builtin_memcpy(to, some, static_cast<size_t>(count));
  }
}

// Rows become columns: each of four steps shuffles the rows and their bytes perfectly.
TY_INLINE void transpose(__m128i (&x)[16]) {
  for (int step = 0; step < 4; ++step) {
    __m128i y[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
      y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = y[i];
  }
}

// A matrix of bytes, `rows` x `columns`, into its transpose; what lies behind the last row is
// written as zeros up to `room`, a multiple of 16 or less than 16.
void turn(uint8_t *to, int64_t to_row, const uint8_t *from, int64_t from_row, int64_t rows,
          int64_t room, int64_t columns) {
  for (int64_t r0 = 0; r0 < room; r0 += 16)
    for (int64_t c0 = 0; c0 < columns; c0 += 16) {
      const int64_t some = lesser(16, columns - c0);
      __m128i block[16];
      for (int64_t r = 0; r < 16; ++r)
        block[r] =
            r0 + r < rows ? load16(from + (r0 + r) * from_row + c0, some) : _mm_setzero_si128();
      transpose(block);
      for (int64_t c = 0; c < some; ++c) store16(to + (c0 + c) * to_row + r0, block[c], room - r0);
    }
}

// Up to four planes of `pixels` values into pixels of four.
void interleave(uint8_t *to, const uint8_t *from, int64_t plane, int64_t planes, int64_t pixels) {
  for (int64_t i = 0; i < pixels; i += 16) {
    const int64_t some = pixels - i;
    __m128i x[4];
    for (int64_t c = 0; c < 4; ++c)
      x[c] = c < planes ? load16(from + c * plane + i, some) : _mm_setzero_si128();
    const __m128i ab0 = _mm_unpacklo_epi8(x[0], x[1]), ab1 = _mm_unpackhi_epi8(x[0], x[1]);
    const __m128i cd0 = _mm_unpacklo_epi8(x[2], x[3]), cd1 = _mm_unpackhi_epi8(x[2], x[3]);
    const __m128i four[4] = {_mm_unpacklo_epi16(ab0, cd0), _mm_unpackhi_epi16(ab0, cd0),
                             _mm_unpacklo_epi16(ab1, cd1), _mm_unpackhi_epi16(ab1, cd1)};
    for (int64_t q = 0; q < 4 && 4 * q < some; ++q)
      store16(to + 4 * i + 16 * q, four[q], 4 * (some - 4 * q));
  }
}

int pack(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *) {
  const int64_t *s = inputs[0].shape, pixels = s[2] * s[3], channels = q8_channels(s[1]);
  const uint8_t *from = static_cast<const uint8_t *>(inputs[0].data);
  uint8_t *to = static_cast<uint8_t *>(outputs[0].data);
  const int64_t chunk = channels == 4 ? 4096 : 64, blocks = ceil_div(pixels, chunk);
  ty_parallel(ctx, s[0] * blocks, 1 + 16384 / (chunk * channels),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t image = at / blocks, first = at % blocks * chunk;
                  const int64_t some = lesser(chunk, pixels - first);
                  uint8_t *target = to + (image * pixels + first) * channels;
                  const uint8_t *source = from + image * s[1] * pixels + first;
                  if (channels == 4)
                    interleave(target, source, pixels, s[1], some);
                  else
                    turn(target, channels, source, pixels, s[1], channels, some);
                }
              });
  return 0;
}

int unpack(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
           void *) {
  const int64_t *s = outputs[0].shape, pixels = s[2] * s[3], channels = q8_channels(s[1]);
  const uint8_t *from = static_cast<const uint8_t *>(inputs[0].data);
  uint8_t *to = static_cast<uint8_t *>(outputs[0].data);
  const int64_t blocks = ceil_div(s[1], 16);
  ty_parallel(
      ctx, s[0] * blocks, 1 + 1024 / (pixels + 1), [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t at = begin; at < end; ++at) {
          const int64_t image = at / blocks, c0 = at % blocks * 16;
          turn(to + (image * s[1] + c0) * pixels, pixels, from + image * pixels * channels + c0,
               channels, pixels, pixels, lesser(16, s[1] - c0));
        }
      });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_relayout, TY_KERNEL(pack, "relayout_q8", "pack_nhwc"),
                  TY_KERNEL(unpack, "relayout_q8", "unpack_nhwc"))
