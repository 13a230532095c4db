// relayout of plain 3 x 3 weights to the transformed layouts of winograd.cpp.
#include "relayout.hpp"
#include "winograd_parity.hpp"

namespace TY_ISA {
namespace {

// A channel of a block: nine vectors of output channels to one for each transformed weight.
template <class Axis, class In>
void transform_channel(const float *from, int64_t from_step, float *to, int64_t to_step) {
  enum { N = Axis::WEIGHTS };
  static constexpr KernelMatrix<N, 3> g = Axis::kernel();
  for (int64_t lane = 0; lane < VF; lane += In::LANES) {
    typename In::vector half[N][3];
    TY_UNROLLED for (int j = 0; j < 3; ++j) {
      typename In::vector taps[3], u[N];
      TY_UNROLLED for (int i = 0; i < 3; ++i) taps[i] =
          In::load(from + (i * 3 + j) * from_step + lane);
      transform_kernel<In>(g, taps, u);
      TY_UNROLLED for (int i = 0; i < N; ++i) half[i][j] = u[i];
    }
    TY_UNROLLED for (int i = 0; i < N; ++i) {
      typename In::vector u[N];
      transform_kernel<In>(g, half[i], u);
      TY_UNROLLED for (int j = 0; j < N; ++j) In::store(to + (i * N + j) * to_step + lane, u[j]);
    }
  }
}

// For the input's gradient channels change places, and kernels are read from their last element to
// their first.
template <class Axis, class In>
int pack(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, bool gradient) {
  enum { KERNEL = 9, MATRIX = VF * VF };
  const int64_t weights = Axis::WEIGHTS * Axis::WEIGHTS, *s = inputs[0].shape;
  const WeightForm form = gradient ? WeightForm{s[1], s[0], KERNEL, KERNEL, s[1] * KERNEL}
                                   : WeightForm{s[0], s[1], KERNEL, s[1] * KERNEL, KERNEL};
  const int64_t o_blocks = blocks_of(form.o), c_blocks = blocks_of(form.c);
  const int64_t first = gradient ? (KERNEL - 1) * MATRIX : 0, step = gradient ? -MATRIX : MATRIX;
  const float *const w = static_cast<const float *>(inputs[0].data);
  float *const u = static_cast<float *>(outputs[0].data);
  ty_parallel(ctx, o_blocks * c_blocks, 1, [&](int64_t begin, int64_t end, int32_t) {
    alignas(64) float block[KERNEL * MATRIX];
    for (int64_t at = begin; at < end; ++at) {
      const int64_t o = at / c_blocks, c = at % c_blocks;
      pack_block(block, w, form, o * VF, c * VF);
      float *const to = u + (o * weights * c_blocks + c) * MATRIX;
      for (int64_t i = 0; i < VF; ++i)
        transform_channel<Axis, In>(block + first + i * VF, step, to + i * VF, c_blocks * MATRIX);
    }
  });
  return 0;
}

template <class Axis, class In>
int pack_forward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *) {
  return pack<Axis, In>(ctx, inputs, outputs, false);
}

template <class Axis, class In>
int pack_gradient(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                  void *) {
  return pack<Axis, In>(ctx, inputs, outputs, true);
}

}  // namespace
}  // namespace TY_ISA

// Each transform in float and in double.
#define TY_TRANSFORM(run, axis, name)                                \
  TY_KERNEL((run<axis, Single>), "relayout_f32", "pack_wino_" name), \
      TY_KERNEL((run<axis, Double>), "relayout_f32", "pack_wino_" name "_in_double")

TY_EXPORT_KERNELS(winograd_weight, TY_TRANSFORM(pack_forward, UnitStride<2>, "f23"),
                  TY_TRANSFORM(pack_forward, UnitStride<4>, "f43"),
                  TY_TRANSFORM(pack_forward, UnitStride<6>, "f63"),
                  TY_TRANSFORM(pack_gradient, UnitStride<2>, "f23_gradient"),
                  TY_TRANSFORM(pack_gradient, UnitStride<4>, "f43_gradient"),
                  TY_TRANSFORM(pack_gradient, UnitStride<6>, "f63_gradient"),
                  TY_TRANSFORM(pack_forward, StrideTwo<2>, "f22s2"),
                  TY_TRANSFORM(pack_forward, StrideTwo<4>, "f42s2"))
