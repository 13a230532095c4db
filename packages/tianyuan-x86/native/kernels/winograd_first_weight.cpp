// relayout of plain 7 x 7 weights to the transformed layout of winograd_first.cpp.
#include "relayout.hpp"
#include "winograd_strided.hpp"

namespace TY_ISA {
namespace {

enum { TAPS = STRIDED_TAPS, SAMPLES = STRIDED_SAMPLES };

// One channel of VF outputs: 49 vectors to 169, whose rows of frequencies lie `row` floats apart.
void transform_channel(const float *from, float *to, int64_t row) {
  static constexpr KernelMatrix<SAMPLES, TAPS> g = strided_kernel();
  for (int64_t lane = 0; lane < VF; lane += Double::LANES) {
    Double::vector half[SAMPLES][TAPS];
#pragma GCC unroll 1
    for (int j = 0; j < TAPS; ++j) {
      Double::vector taps[TAPS], u[SAMPLES];
#pragma GCC unroll 7
      for (int i = 0; i < TAPS; ++i) taps[i] = Double::load(from + (i * TAPS + j) * VF * VF + lane);
      transform_kernel<Double>(g, taps, u);
#pragma GCC unroll 13
      for (int i = 0; i < SAMPLES; ++i) half[i][j] = u[i];
    }
#pragma GCC unroll 1
    for (int i = 0; i < SAMPLES; ++i) {
      const bool odd = i >= STRIDED_POINTS;
      float *out = to + (odd ? 2 * (i - STRIDED_POINTS) + 1 : 2 * i) * row + lane;
      Double::vector u[SAMPLES];
      transform_kernel<Double>(g, half[i], u);
#pragma GCC unroll 13
      for (int j = 0; j < SAMPLES; ++j) Double::store(out + j * VF, u[j]);
    }
  }
}

// The workspace holds the weight as matrices of VF x VF.
int pack(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
         void *workspace) {
  const int64_t *s = inputs[0].shape, kernel = TAPS * TAPS, c = s[1];
  const int64_t o_blocks = ceil_div(s[0], VF), c_blocks = ceil_div(c, VF);
  float *const packed = static_cast<float *>(workspace);
  float *const u = static_cast<float *>(outputs[0].data);
  pack_weight(ctx, packed, static_cast<const float *>(inputs[0].data),
              {s[0], c, kernel, c * kernel, kernel});
  ty_parallel(ctx, o_blocks * c, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t block = at / c, channel = at % c;
      const int64_t matrix = (block * c_blocks + channel / VF) * kernel * VF + channel % VF;
      transform_channel(packed + matrix * VF, u + (block * SAMPLES * c + channel) * SAMPLES * VF,
                        c * SAMPLES * VF);
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(winograd_first_weight, TY_KERNEL(pack, "relayout_f32", "pack_wino_first"))
