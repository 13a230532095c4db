// relayout of 8-bit weights into the forms that products read, as models are loaded.
#include "int8.hpp"

namespace TY_ISA {
namespace {

const int8_t *weight_of(const ty_tensor *inputs) {
  return static_cast<const int8_t *>(inputs[0].data);
}

int8_t *packed_of(ty_tensor *outputs) { return static_cast<int8_t *>(outputs[0].data); }

int pack_conv(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
              void *) {
  const int64_t *s = inputs[0].shape, taps = s[2] * s[3];
  q8_pack(ctx, packed_of(outputs), weight_of(inputs), {s[0], s[1], taps, s[1] * taps, taps, false});
  return 0;
}

int pack_matrix(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                void *) {
  const int64_t k = inputs[0].shape[0], n = inputs[0].shape[1];
  q8_pack(ctx, packed_of(outputs), weight_of(inputs), {n, k, 1, 1, n, false});
  return 0;
}

int pack_transposed(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                    const ty_attrs *, void *) {
  const int64_t n = inputs[0].shape[0], k = inputs[0].shape[1];
  q8_pack(ctx, packed_of(outputs), weight_of(inputs), {n, k, 1, k, 1, false});
  return 0;
}

// Terms in the order of columns, rows and channels, in the workspace, and packed from there.
int pack_columns(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *workspace) {
  const int64_t *s = inputs[0].shape, terms = s[1] * s[2] * s[3];
  int8_t *to = static_cast<int8_t *>(workspace);
  for (int64_t o = 0; o < s[0]; ++o) {
    const int8_t *from = weight_of(inputs) + o * terms;
    for (int64_t x = 0; x < s[3]; ++x)
      for (int64_t y = 0; y < s[2]; ++y)
        for (int64_t i = 0; i < s[1]; ++i) *to++ = from[(i * s[2] + y) * s[3] + x];
  }
  q8_pack(ctx, packed_of(outputs), static_cast<const int8_t *>(workspace),
          {s[0], terms, 1, terms, 1, false});
  return 0;
}

// Fours of taps by column, of 64 channels in the order that interleaving leaves them in
// (int8_depthwise.cpp), and the sums of each channel behind them.
int pack_depthwise(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                   void *) {
  const int64_t *s = inputs[0].shape, taps = s[1] * s[2] * s[3], per_column = round_up(s[2], 4);
  const int64_t size = s[1] * s[3] * per_column / 4 * 256;  // behind which sums take 256 more
  ty_parallel(ctx, ceil_div(s[0], 64), 1 + 4096 / (size + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t block = begin; block < end; ++block) {
                  int8_t *to = packed_of(outputs) + block * (size + 256);
                  __builtin_memset(to, 0, static_cast<size_t>(size + 256));
                  for (int64_t at = 0; at < lesser(64, s[0] - 64 * block); ++at) {
                    const int8_t *from = weight_of(inputs) + (64 * block + at) * taps;
                    int8_t *lane = to + at % 16 / 4 * 64 + at / 16 * 16 + at % 4 * 4;
                    int32_t sum = 0;
                    for (int64_t tap = 0; tap < taps; ++tap) {
                      const int64_t column = tap / (s[2] * s[3]) * s[3] + tap % s[3];
                      const int64_t y = column * per_column + tap / s[3] % s[2];
                      lane[y / 4 * 256 + y % 4] = from[tap];
                      sum += from[tap];
                    }
                    __builtin_memcpy(lane + size, &sum, 4);
                  }
                }
              });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_relayout_weight, TY_KERNEL(pack_conv, "relayout_q8", "pack_oihw16o4i"),
                  TY_KERNEL(pack_depthwise, "relayout_q8", "pack_goihw64g4i"),
                  TY_KERNEL(pack_columns, "relayout_q8", "pack_owhi16o4i"),
                  TY_KERNEL(pack_matrix, "relayout_q8", "pack_kn16n4k"),
                  TY_KERNEL(pack_transposed, "relayout_q8", "pack_nk16n4k"))
