// Gathering the terms of a convolution's pixels into rows, as tiles read them.
#include "int8_conv.hpp"

namespace TY_ISA {
namespace {

// Whole vectors are stored, so what lies behind the last byte is written over afterwards.
TY_INLINE void copy_over(uint8_t *to, const uint8_t *from, int64_t count) {
  for (; count > 64; count -= 64, to += 64, from += 64)
    _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  if (count > 0) {
    const __mmask64 some = ~__mmask64{0} >> (64 - count);
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(some, from));
  }
}

TY_INLINE void fill_over(uint8_t *to, __m512i with, int64_t count) {
  for (; count > 0; count -= 64, to += 64) _mm512_storeu_si512(to, with);
}

TY_INLINE int64_t within(int64_t value, int64_t most) {
  return value < 0 ? 0 : lesser(value, most);
}

}  // namespace

void q8_gather(const Q8Gather &g, uint8_t *to, int64_t begin, int64_t end, int64_t row_bytes) {
  const Q8ConvShape &s = g.shape;
  const int64_t channels = q8_channels(s.c), group_c = s.c / s.groups, room = round_up(group_c, 4);
  const bool joined = s.groups == 1 && s.dw == 1 && room == channels;
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(g.zero));
  int64_t ox = begin % s.ow, oy = begin / s.ow % s.oh, image = begin / (s.ow * s.oh);
  for (int64_t at = begin; at < end; ++at, to += row_bytes) {
    const int64_t x0 = ox * s.sw - s.left, y0 = oy * s.sh - s.top;
    uint8_t *next = to;
    for (int64_t i = 0; i < s.kh; ++i) {
      const int64_t y = y0 + i * s.dh;
      if (y < 0 || y >= s.h) {
        fill_over(next, zero, s.kw * room);
        next += s.kw * room;
        continue;
      }
      const uint8_t *line = g.x + (image * s.h + y) * s.w * channels;
      if (joined) {
        const int64_t first = within(-x0, s.kw), last = within(s.w - x0, s.kw);
        if (last - first == s.kw) {
          copy_over(next, line + x0 * room, s.kw * room);
          next += s.kw * room;
          continue;
        }
        fill_over(next, zero, first * room);
        if (last > first)
          copy_over(next + first * room, line + (x0 + first) * room, (last - first) * room);
        const int64_t filled = last > first ? last : first;
        fill_over(next + filled * room, zero, (s.kw - filled) * room);
        next += s.kw * room;
        continue;
      }
      for (int64_t j = 0; j < s.kw; ++j, next += room) {
        const int64_t x = x0 + j * s.dw;
        if (x < 0 || x >= s.w)
          fill_over(next, zero, room);
        else
          copy_over(next, line + x * channels, group_c);
      }
    }
    if (++ox == s.ow) {
      ox = 0;
      if (++oy == s.oh) {
        oy = 0;
        ++image;
      }
    }
  }
}

}  // namespace TY_ISA
