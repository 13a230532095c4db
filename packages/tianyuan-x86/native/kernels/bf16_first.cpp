// conv2d and conv2d_fused in bfloat16 on plain float32 images of few channels.
#include "bf16_pixels.hpp"
#include "conv_call.hpp"

namespace TY_ISA {
namespace {

// A plain image of float32, whose rows of a kernel are contiguous runs of pairs once
// the channels of a pixel lie next to each other, which a padded copy does. The weight is
// [block of o][kh][ceil(kw c / 2)][16 o] words, where the last pair of an odd run begins with the
// term that ends the pair before: each of them has half of its weight.
struct PairFirst {
  ConvPlan plan;
  const float *x;
  int64_t kh, kw, top, left;
};

// Pixels of one row next to each other, channels within a pixel, zeros to both sides.
void interleave(uint16_t *to, const float *from, int64_t c, int64_t plane, int64_t w) {
  for (int64_t channel = 0; channel < c; ++channel) {
    const float *row = from + channel * plane;
    uint16_t *out = to + channel;
    for (int64_t x = 0; x < w; x += VF) {
      const int64_t some = lesser(VF, w - x);
      alignas(32) uint16_t lanes[VF];
      vstore_element(lanes, vload_tail(row + x, vtail_of(some)));
      if (c == 1) {
        memcpy(out + x, lanes, static_cast<size_t>(some) * 2);
        continue;
      }
      for (int64_t i = 0; i < some; ++i) out[(x + i) * c] = lanes[i];
    }
  }
}

// 16 pixels of three channels at once.
TY_INLINE void interleave_three(uint16_t *to, const float *from, int64_t plane) {
  const __m256i r = (__m256i)_mm512_cvtneps_pbh(vload(from));
  const __m256i g = (__m256i)_mm512_cvtneps_pbh(vload(from + plane));
  const __m256i b = (__m256i)_mm512_cvtneps_pbh(vload(from + 2 * plane));
  const __m512i rg = _mm512_inserti64x4(_mm512_castsi256_si512(r), g, 1);
  alignas(64) static const uint16_t index[48] = {
      0, 16, 32, 1, 17, 33, 2,  18, 34, 3,  19, 35, 4,  20, 36, 5,  21, 37, 6,  22, 38, 7,  23, 39,
      8, 24, 40, 9, 25, 41, 10, 26, 42, 11, 27, 43, 12, 28, 44, 13, 29, 45, 14, 30, 46, 15, 31, 47};
  const __m512i wide = _mm512_castsi256_si512(b);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(rg, _mm512_load_si512(index), wide));
  const __m512i last = _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)(index + 32)));
  _mm256_storeu_si256((__m256i *)(to + 32),
                      _mm512_castsi512_si256(_mm512_permutex2var_epi16(rg, last, wide)));
}

// Extents of the padded copy: pixels of a row, rows, and values of a row.
struct Copy {
  int64_t width, height, row;
};

Copy copy_of(const PairFirst &f) {
  const ConvPlan &p = f.plan;
  const int64_t width = greater((p.ow - 1) * p.sw + f.kw, f.left + p.w);
  const int64_t height = (p.oh - 1) * p.sh + f.kh;
  return {width, height, ceil_div(width * p.c, 32) * 32};
}

void copy_images(const ty_ctx *ctx, uint16_t *to, const PairFirst &f, const Copy &copy) {
  const ConvPlan &p = f.plan;
  const int64_t plane = p.h * p.w;
  ty_parallel(ctx, p.n * copy.height, 1 + 16384 / copy.row,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  uint16_t *row = to + at * copy.row;
                  const int64_t y = at % copy.height - f.top;
                  if (y < 0 || y >= p.h) {
                    memset(row, 0, static_cast<size_t>(copy.row) * 2);
                    continue;
                  }
                  uint16_t *inside = row + f.left * p.c;
                  const float *from = f.x + at / copy.height * p.c * plane + y * p.w;
                  int64_t x = 0;
                  if (p.c == 3)
                    for (; x + VF <= p.w; x += VF)
                      interleave_three(inside + x * 3, from + x, plane);
                  interleave(inside + x * p.c, from + x, p.c, plane, p.w - x);
                  memset(row, 0, static_cast<size_t>(f.left * p.c) * 2);
                  uint16_t *behind = inside + p.w * p.c;
                  memset(behind, 0, static_cast<size_t>(row + copy.row - behind) * 2);
                }
              });
}

void first_run(const ty_ctx *ctx, const PairFirst &f, char *workspace) {
  const ConvPlan &p = f.plan;
  if (p.n == 0 || p.o == 0 || p.oh <= 0 || p.ow <= 0) return;
  const Copy copy = copy_of(f);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace), *next = table;
  const int64_t run = f.kw * p.c, words = ceil_div(run, 2);
  for (int64_t i = 0; i < f.kh; ++i) {
    *next++ = {2 * i * copy.row, i * words * VF, run / 2};
    if (run % 2) *next++ = {2 * (i * copy.row + run - 2), (i * words + run / 2) * VF, 1};
  }
  const int64_t table_bytes = ceil_div(2 * f.kh * static_cast<int64_t>(sizeof(TileSegment)), 64);
  uint16_t *const images = reinterpret_cast<uint16_t *>(workspace + table_bytes * 64);
  copy_images(ctx, images, f, copy);
  const int64_t blocks = ceil_div(p.o, VF), panel = f.kh * words * VF;
  // Rows whose source stays in the first cache while the outputs pass by.
  const int64_t rows = lesser(p.oh, greater(1, 16384 / (copy.row * p.sh)));
  const int64_t bands = ceil_div(p.oh, rows);
  ty_parallel(ctx, p.n * bands, 1, [&](int64_t begin, int64_t end, int32_t) {
    PairTile tile = {};
    tile.segments = table;
    tile.n_segments = next - table;
    tile.a_row = 2 * p.sw * p.c;
    tile.b_step = VF;
    tile.b_next = panel;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t image = at / bands, y0 = at % bands * rows, y1 = lesser(p.oh, y0 + rows);
      const uint16_t *from = images + image * copy.height * copy.row;
      for (int64_t block = 0; block < blocks; block += TILE_VECTORS) {
        const int vectors = static_cast<int>(lesser(TILE_VECTORS, blocks - block));
        begin_block(p, block, vectors, &tile);
        tile.b = p.weight + block * panel;
        for_pixels(y0, y1, 0, p.ow, false, [&](const Pixels &s) {
          tile.a = reinterpret_cast<const char *>(from + s.y * p.sh * copy.row + s.x * p.sw * p.c);
          run_pixels(p, PAIR_IMAGE, image, block, vectors, s, &tile);
        });
      }
    }
  });
}

int run_first(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
              const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  PairFirst f = {plan_of(call, false, true, nullptr), call.x, s.kh, s.kw, s.top, s.left};
  f.plan.weight = call.weight;
  first_run(ctx, f, static_cast<char *>(workspace));
  return 0;
}

CONV_KERNEL(conv2d_first, run_first, read_plain)
CONV_KERNEL(conv2d_fused_first, run_first, read_fused)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_first, TY_KERNEL(conv2d_first, "conv2d_bf16", "first"),
                  TY_KERNEL(conv2d_fused_first, "conv2d_fused_bf16", "first"),
                  TY_KERNEL(conv2d_fused_first, "conv2d_fused_bf16", "first_unbiased"))
