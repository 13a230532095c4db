// conv2d_quantized with one channel per group: 64 channels of a pixel side by side, four taps at a
// time, whose bytes are interleaved so that a dot product sums them.
//
// Interleaving by unpacking leaves channel 16 l + 4 q + i of 64 in lane 4 l + i of vector q; the
// packed weight and the tables by output are ordered so too.
#include "int8_conv.hpp"

namespace TY_ISA {
namespace {

struct Depthwise {
  const uint8_t *x;
  const int64_t *offsets;  // of the taps, column by column, each filled up to whole fours
  const int8_t *weight;
  const int32_t *bias;
  const float *multiplier;
  Q8Residual residual;
  Q8Store store;
  Q8Narrow narrow;
  uint8_t *y;
  int64_t kh, column;  // column: distance of two columns of the kernel in bytes
  bool slides;         // a column of the kernel is the next one's of the pixel before
  int64_t fours, channels, pixel, row, ow;
};

#if defined(__AVX512VNNI__)

enum { WIDTH = 64 };
TY_INLINE vi load_bytes(const uint8_t *from, __mmask64 mask) {
  return _mm512_maskz_loadu_epi8(mask, from);
}
#else

enum { WIDTH = 16 };
#endif

// Multiplier, residual, rounding and clamping of the lanes of one vector of sums.
TY_INLINE vi finish(const Depthwise &d, vi sum, vf multiplier, vi residual) {
  vf t = vmul(vi_to_vf(sum), multiplier);
  if (d.residual.data != nullptr) {
    const vi centred = vi_sub(residual, vi_set1(d.residual.zero_point));
    t = vadd(t, vmul(vi_to_vf(centred), vset1(d.residual.multiplier)));
  }
  return vi_and(q8_finish(t, d.store), vi_set1(0xff));
}

#if defined(__AVX512VNNI__)

// What is the same for all pixels of an output row, for 64 channels from c0 on.
struct Row {
  const uint8_t *x, *residual;
  uint8_t *y;
  const int8_t *weight;
  __mmask64 mask;
  vi bias[4];
  vf multiplier[4];
};

// Four taps of 64 channels, interleaved.
struct Four {
  vi part[4];
};

TY_INLINE Four interleave(vi a, vi b, vi c, vi e) {
  const vi ab0 = _mm512_unpacklo_epi8(a, b), ab1 = _mm512_unpackhi_epi8(a, b);
  const vi ce0 = _mm512_unpacklo_epi8(c, e), ce1 = _mm512_unpackhi_epi8(c, e);
  return {{_mm512_unpacklo_epi16(ab0, ce0), _mm512_unpackhi_epi16(ab0, ce0),
           _mm512_unpacklo_epi16(ab1, ce1), _mm512_unpackhi_epi16(ab1, ce1)}};
}

TY_INLINE void add_four(vi (&sums)[4], const Four &x, const int8_t *weight) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q)
    sums[q] = _mm512_dpbusd_epi32(sums[q], x.part[q], _mm512_loadu_si512(weight + 64 * q));
}

TY_INLINE void finish_pixel(const Depthwise &d, const Row &r, vi (&sums)[4], int64_t ox) {
  if (d.narrow.fits) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) sums[q] = vf_to_vi(vmul(vi_to_vf(sums[q]), r.multiplier[q]));
    _mm512_mask_storeu_epi8(r.y + ox * d.channels, r.mask, q8_narrowed(sums, d.narrow));
    return;
  }
  const vi none = _mm512_setzero_si512();
  Four wide = {{none, none, none, none}};
  if (r.residual != nullptr) {
    const vi flip = _mm512_set1_epi8(d.residual.is_signed ? -128 : 0);
    const vi stored = vi_xor(load_bytes(r.residual + ox * d.channels, r.mask), flip);
    const vi low = _mm512_unpacklo_epi8(stored, none), high = _mm512_unpackhi_epi8(stored, none);
    wide = {{_mm512_unpacklo_epi16(low, none), _mm512_unpackhi_epi16(low, none),
             _mm512_unpacklo_epi16(high, none), _mm512_unpackhi_epi16(high, none)}};
  }
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) sums[q] = finish(d, sums[q], r.multiplier[q], wide.part[q]);
  const vi bytes = _mm512_packus_epi16(_mm512_packus_epi32(sums[0], sums[1]),
                                       _mm512_packus_epi32(sums[2], sums[3]));
  _mm512_mask_storeu_epi8(r.y + ox * d.channels, r.mask, bytes);
}

void run_any(const Depthwise &d, const Row &r) {
  for (int64_t ox = 0; ox < d.ow; ++ox) {
    const uint8_t *at = r.x + ox * d.pixel;
    vi sums[4] = {r.bias[0], r.bias[1], r.bias[2], r.bias[3]};
    for (int64_t four = 0; four < d.fours; ++four) {
      const int64_t *offsets = d.offsets + 4 * four;
      add_four(sums,
               interleave(load_bytes(at + offsets[0], r.mask), load_bytes(at + offsets[1], r.mask),
                          load_bytes(at + offsets[2], r.mask), load_bytes(at + offsets[3], r.mask)),
               r.weight + four * 256);
    }
    finish_pixel(d, r, sums, ox);
  }
}

// Kernels of 3 x 3 at stride 1 in x: a column, once interleaved, serves three pixels.
void run_sliding(const Depthwise &d, const Row &r) {
  const int64_t *offsets = d.offsets;
  const auto column = [&](const uint8_t *at) {
    return interleave(load_bytes(at, r.mask), load_bytes(at + offsets[1], r.mask),
                      load_bytes(at + offsets[2], r.mask), _mm512_setzero_si512());
  };
  Four left = column(r.x), middle = column(r.x + d.column);
  for (int64_t ox = 0; ox < d.ow; ++ox) {
    const Four right = column(r.x + (ox + 2) * d.column);
    vi sums[4] = {r.bias[0], r.bias[1], r.bias[2], r.bias[3]};
    add_four(sums, left, r.weight);
    add_four(sums, middle, r.weight + 256);
    add_four(sums, right, r.weight + 512);
    finish_pixel(d, r, sums, ox);
    left = middle;
    middle = right;
  }
}

void run_row(const Depthwise &d, const uint8_t *x, uint8_t *y, const uint8_t *residual,
             int64_t c0) {
  const int64_t some = lesser(64, d.channels - c0);
  Row r = {x + c0,
           residual != nullptr ? residual + c0 : nullptr,
           y + c0,
           d.weight + c0 / 64 * (d.fours + 1) * 256,
           some >= 64 ? ~__mmask64{0} : (__mmask64{1} << some) - 1,
           {},
           {}};
  for (int q = 0; q < 4; ++q) {
    r.bias[q] = vi_load(d.bias + c0 + 16 * q);
    r.multiplier[q] = vload(d.multiplier + c0 + 16 * q);
  }
  if (d.slides)
    run_sliding(d, r);
  else
    run_any(d, r);
}

#else

TY_INLINE vi load_words(const uint8_t *from) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}

// Two groups of four lanes, of vectors q and q + 2.
template <typename T>
TY_INLINE vi pair_of(const T *from, int64_t apart) {
  return _mm256_loadu2_m128i(reinterpret_cast<const __m128i *>(from + apart),
                             reinterpret_cast<const __m128i *>(from));
}

// What is the same for all pixels of an output row, for 16 channels from c0 on. Interleaving leaves
// channels 0..3 and 8..11 in one vector, 4..7 and 12..15 in the other.
struct Row {
  const uint8_t *x, *residual;
  uint8_t *y;
  const int8_t *weight;
  vi bias[2];
  vf multiplier[2];
};

TY_INLINE void finish_pixel(const Depthwise &d, const Row &r, const vi (&sums)[2], int64_t ox) {
  if (d.narrow.fits) {
    // The upper two vectors are not looked at.
    const vi low = vf_to_vi(vmul(vi_to_vf(sums[0]), r.multiplier[0]));
    const vi high = vf_to_vi(vmul(vi_to_vf(sums[1]), r.multiplier[1]));
    const vi whole[4] = {low, high, low, high};
    const vi bytes = q8_narrowed(whole, d.narrow);
    _mm_storeu_si128(
        reinterpret_cast<__m128i *>(r.y + ox * d.channels),
        _mm_unpacklo_epi64(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
    return;
  }
  const vi none = vi_set1(0);
  vi wide[2] = {none, none};
  if (r.residual != nullptr) {
    const vi flip = _mm256_set1_epi16(d.residual.is_signed ? 0x80 : 0);
    const vi stored = vi_xor(load_words(r.residual + ox * d.channels), flip);
    wide[0] = _mm256_unpacklo_epi16(stored, none);
    wide[1] = _mm256_unpackhi_epi16(stored, none);
  }
  const vi words = _mm256_packus_epi32(finish(d, sums[0], r.multiplier[0], wide[0]),
                                       finish(d, sums[1], r.multiplier[1], wide[1]));
  _mm_storeu_si128(
      reinterpret_cast<__m128i *>(r.y + ox * d.channels),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// PX pixels from ox on. Where columns have three taps, the fourth is not read.
template <int PX, bool THREE>
TY_INLINE void run_pixels(const Depthwise &d, const Row &r, int64_t ox) {
  vi sums[PX][2];
#pragma GCC unroll 4
  for (int p = 0; p < PX; ++p)
    for (int i = 0; i < 2; ++i) sums[p][i] = r.bias[i];
  for (int64_t four = 0; four < d.fours; ++four) {
    const int64_t *offsets = d.offsets + 4 * four;
    vi even[2], odd[2];  // taps 0 and 2, taps 1 and 3
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const vi w = pair_of(r.weight + four * 256 + 64 * i, 128);
      even[i] = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
      odd[i] = _mm256_srai_epi16(w, 8);
    }
#pragma GCC unroll 4
    for (int p = 0; p < PX; ++p) {
      const uint8_t *at = r.x + (ox + p) * d.pixel;
      const vi a = load_words(at + offsets[0]), b = load_words(at + offsets[1]);
      const vi c = load_words(at + offsets[2]);
      const vi e = THREE ? vi_set1(0) : load_words(at + offsets[3]);
      sums[p][0] = vi_add(sums[p][0], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, c), even[0]));
      sums[p][1] = vi_add(sums[p][1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, c), even[1]));
      sums[p][0] = vi_add(sums[p][0], _mm256_madd_epi16(_mm256_unpacklo_epi16(b, e), odd[0]));
      sums[p][1] = vi_add(sums[p][1], _mm256_madd_epi16(_mm256_unpackhi_epi16(b, e), odd[1]));
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < PX; ++p) finish_pixel(d, r, sums[p], ox + p);
}

template <bool THREE>
void run_pixels_of(const Depthwise &d, const Row &r) {
  int64_t ox = 0;
  for (; ox + 4 <= d.ow; ox += 4) run_pixels<4, THREE>(d, r, ox);
  for (; ox < d.ow; ++ox) run_pixels<1, THREE>(d, r, ox);
}

void run_row(const Depthwise &d, const uint8_t *x, uint8_t *y, const uint8_t *residual,
             int64_t c0) {
  const int64_t block = c0 / 64 * 64, lane = c0 % 64 / 16, at = block + lane * 4;
  Row r = {x + c0, residual != nullptr ? residual + c0 : nullptr,
           y + c0, d.weight + c0 / 64 * (d.fours + 1) * 256 + lane * 16,
           {},     {}};
  for (int i = 0; i < 2; ++i) {
    r.bias[i] = pair_of(d.bias + at + 16 * i, 32);
    r.multiplier[i] = _mm256_castsi256_ps(pair_of(d.multiplier + at + 16 * i, 32));
  }
  if (d.kh == 3)
    run_pixels_of<true>(d, r);
  else
    run_pixels_of<false>(d, r);
}

#endif

// Biases, with what the zero point adds, and multipliers in the order of the packed weight, by
// fours that stay together.
void fill_tables(const Depthwise &d, int64_t channels, const int32_t *given,
                 const ty_conv2d_quantized_attrs &a, int32_t zero, int32_t *bias,
                 float *multiplier) {
  const double *factors = TY_FLOATS(&a, a.multipliers);
  const bool each = a.multipliers.count > 1;
  for (int64_t c0 = 0; c0 < channels; c0 += 64) {
    const int8_t *sums = d.weight + (c0 / 64 * (d.fours + 1) + d.fours) * 256;
    for (int64_t at = 0; at < 64; at += 4) {
      const int64_t c = c0 + at / 4 % 4 * 16 + at / 16 * 4, some = lesser(4, channels - c);
      __m128i own = _mm_setzero_si128();
      __m256d factor = _mm256_set1_pd(some > 0 && !each ? factors[0] : 0.0);
      if (some == 4) {
        if (given != nullptr) own = _mm_loadu_si128(reinterpret_cast<const __m128i *>(given + c));
        if (each) factor = _mm256_loadu_pd(factors + c);
      } else if (some > 0) {
        alignas(16) int32_t few[4] = {};
        alignas(32) double few_factors[4] = {};
        for (int64_t i = 0; i < some; ++i) {
          few[i] = given != nullptr ? given[c + i] : 0;
          few_factors[i] = factors[each ? c + i : 0];
        }
        own = _mm_load_si128(reinterpret_cast<const __m128i *>(few));
        factor = _mm256_load_pd(few_factors);
      }
      const __m128i moved = _mm_mullo_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i *>(sums + 4 * at)), _mm_set1_epi32(zero));
      _mm_storeu_si128(reinterpret_cast<__m128i *>(bias + c0 + at), _mm_sub_epi32(own, moved));
      _mm_storeu_ps(multiplier + c0 + at, _mm256_cvtpd_ps(factor));
    }
  }
}

// Weights less their zero points as sums of bytes, so that each tap is there `copies` times: twice,
// or three times where a zero point is -128.
void centre_weights(const Q8ConvShape &s, const int64_t *zeros, bool several, const int8_t *from,
                    int64_t fours, int64_t copies, int8_t *to) {
  const int64_t per_column = round_up(s.kh, 4);
  for (int64_t c0 = 0; c0 < s.c; c0 += 64) {
    int32_t sums[64] = {};
    for (int64_t at = 0; at < fours * 256; ++at) {
      const int64_t lane = at / 4 % 16, c = c0 + lane / 4 * 16 + at / 64 % 4 * 4 + lane % 4;
      const int64_t tap = at / 256 * 4 + at % 4;
      int32_t value = 0;
      if (c < s.c && tap % per_column < s.kh)
        value = from[at] - static_cast<int32_t>(zeros[several ? c : 0]);
      sums[at / 4 % 64] += value;
      for (int64_t copy = 0; copy < copies; ++copy) {
        const int32_t part = value < -128 ? -128 : value > 127 ? 127 : value;
        to[copy * fours * 256 + at] = static_cast<int8_t>(part);
        value -= part;
      }
    }
    from += (fours + 1) * 256;
    to += copies * fours * 256;
    __builtin_memcpy(to, sums, 256);
    to += 256;
  }
}

// The images of a call, and how they are read.
struct Image {
  Q8ConvShape shape;
  int64_t zero_point;
  bool is_signed;
};

// Bytes of images that one thread copies as a whole; of larger ones, and where there are several,
// each thread copies bands of rows, which stay in its second cache.
enum { BAND = 128 << 10 };

// One output row, which starts at x, and row `line` of all outputs.
void run_line(const Depthwise &d, const uint8_t *x, int64_t line, int64_t c0) {
  const int64_t target = line * d.ow * d.channels;
  run_row(d, x, d.y + target, d.residual.data != nullptr ? d.residual.data + target : nullptr, c0);
}

// Images that lie at d.x with their padding, or need none: an image takes `bytes`.
void run_rows(const ty_ctx *ctx, const Depthwise &d, const Image &image, int64_t bytes) {
  const Q8ConvShape &s = image.shape;
  const int64_t blocks = ceil_div(d.channels, WIDTH), work = d.ow * WIDTH * d.fours * 4;
  const int64_t items = s.n * s.oh * blocks;
  ty_parallel(ctx, items, even_grain(ctx, items, 1 + 100000 / (work + 1)),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t item = begin; item < end; ++item) {
                  const int64_t line = item / blocks;
                  run_line(d, d.x + line / s.oh * bytes + line % s.oh * d.row, line,
                           item % blocks * WIDTH);
                }
              });
}

// Copies a band of rows at a time, with its padding, and computes what it serves (the workspace of
// each thread is _band_bytes of int8_conv.py).
void run_bands(const ty_ctx *ctx, const Depthwise &d, const Image &image, uint8_t *copies) {
  const Q8ConvShape &s = image.shape;
  const int64_t row = d.row / s.sh, reach = (s.kh - 1) * s.dh + 1, lines = s.n * s.oh;
  const int64_t fit = lesser((BAND / row - reach) / s.sh + 1, ceil_div(lines, ctx->threads));
  const int64_t rows = lesser(fit < reach ? reach : fit, s.oh), bands = ceil_div(s.oh, rows);
  const int64_t bytes = round_up(((rows - 1) * s.sh + reach) * row + 64, 64);
  ty_parallel(ctx, s.n * bands, even_grain(ctx, s.n * bands, 1),
              [&](int64_t begin, int64_t end, int32_t slot) {
                uint8_t *copy = copies + slot * bytes;
                for (int64_t item = begin; item < end; ++item) {
                  const int64_t first = item % bands * rows, last = lesser(first + rows, s.oh);
                  const uint8_t *from = d.x + item / bands * s.h * s.w * d.channels;
                  for (int64_t y = 0; y < (last - first - 1) * s.sh + reach; ++y)
                    q8_copy_row(copy + y * row, from, first * s.sh + y - s.top, s, image.zero_point,
                                image.is_signed);
                  for (int64_t line = first; line < last; ++line)
                    for (int64_t c0 = 0; c0 < d.channels; c0 += WIDTH)
                      run_line(d, copy + (line - first) * d.row, item / bands * s.oh + line, c0);
                }
              });
}

// As how many bytes each weight has to be there, given the zero points.
int64_t copies_of(const ty_conv2d_quantized_attrs &a) {
  int64_t copies = 1;
  for (int64_t i = 0; i < a.w_zero_points.count; ++i) {
    const int64_t zero = TY_INTS(&a, a.w_zero_points)[i];
    copies = greater(copies, zero == -128 ? 3 : zero != 0 ? 2 : 1);
  }
  return copies;
}

// Offsets of the taps in images of rows of `width` pixels.
void fill_offsets(const Depthwise &d, const Q8ConvShape &s, int64_t width, int64_t *offsets) {
  const int64_t per_column = round_up(s.kh, 4);
  for (int64_t tap = 0; tap < d.fours * 4; ++tap) {
    const int64_t i = tap % per_column < s.kh ? tap % per_column * s.dh : 0;
    offsets[tap] = (i * width + tap / per_column % s.kw * s.dw) * d.channels;
  }
}

// Takes room for offsets, weights and tables, and fills them.
void prepare(const ty_conv2d_quantized_attrs &a, const ty_tensor *inputs, const Image &image,
             Q8Scratch *scratch, Depthwise *d) {
  const Q8ConvShape &s = image.shape;
  const int64_t copies = copies_of(a), all = round_up(s.c, 64);
  d->fours = copies * s.kw * round_up(s.kh, 4) / 4;
  d->channels = q8_channels(s.c);
  int64_t *offsets = static_cast<int64_t *>(scratch->take(d->fours * 4 * 8));
  int32_t *bias = static_cast<int32_t *>(scratch->take(q8_columns_bytes(all)));
  float *multiplier = static_cast<float *>(scratch->take(q8_columns_bytes(all)));
  d->weight = static_cast<const int8_t *>(inputs[1].data);
  if (copies > 1) {
    int8_t *own = static_cast<int8_t *>(scratch->take(all / 64 * (d->fours + 1) * 256));
    centre_weights(s, TY_INTS(&a, a.w_zero_points), a.w_zero_points.count > 1, d->weight,
                   d->fours / copies, copies, own);
    d->weight = own;
  }
  const int32_t zero = q8_zero(uint8_t(), a.x_zero_point, image.is_signed);
  fill_tables(*d, s.c, q8_bias_of(a, inputs), a, zero, bias, multiplier);
  fill_offsets(*d, s, s.w + s.left + s.right, offsets);
  d->offsets = offsets;
  d->bias = bias;
  d->multiplier = multiplier;
  d->slides = s.kh == 3 && s.kw == 3 && copies == 1 && s.sw == s.dw;
  // Below a half, any sum times its multiplier is an int32.
  d->narrow = q8_narrow(d->store, q8_largest(multiplier, all) < 0.5f && !a.has_residual);
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  const auto &a = *reinterpret_cast<const ty_conv2d_quantized_attrs *>(attrs);
  const Q8ConvShape s = q8_conv_shape(a, inputs, outputs[0]);
  if (s.n * s.o * s.oh * s.ow == 0) return 0;
  const Image image = {s, a.x_zero_point, inputs[0].dtype == TY_INT8};
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Depthwise d = {};
  d.store = q8_store_of(a);
  prepare(a, inputs, image, &scratch, &d);
  d.x = static_cast<const uint8_t *>(inputs[0].data);
  d.y = static_cast<uint8_t *>(outputs[0].data);
  d.residual = q8_residual_of(a, inputs);
  d.residual.zero_point = q8_zero(uint8_t(), a.residual_zero_point, d.residual.is_signed);
  const int64_t row = (s.w + s.left + s.right) * d.channels, height = s.h + s.top + s.bottom;
  d.kh = s.kh;
  d.column = s.dw * d.channels;
  d.pixel = s.sw * d.channels;
  d.row = s.sh * row;
  d.ow = s.ow;
  const bool copies_image = image.is_signed || s.top + s.left + s.bottom + s.right > 0;
  uint8_t *copy = static_cast<uint8_t *>(scratch.take(0));
  if (copies_image && (ctx->threads > 1 || s.n * height * row > BAND)) {
    run_bands(ctx, d, image, copy);
    return 0;
  }
  if (copies_image) {
    q8_copy_padded(ctx, copy, d.x, s, a.x_zero_point, image.is_signed);
    d.x = copy;
  }
  run_rows(ctx, d, image, height * row);
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_depthwise, TY_KERNEL(run, "conv2d_q8", "depthwise"),
                  TY_KERNEL(run, "conv2d_q8", "depthwise_unbiased"))
