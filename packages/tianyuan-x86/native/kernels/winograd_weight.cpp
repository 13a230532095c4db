// relayout of plain 3 x 3 weights to the transformed layouts of winograd.cpp, for weights that
// change from run to run.
#include "relayout.hpp"
#include "winograd_parity.hpp"

namespace TY_ISA {
namespace {

// A channel of a block: nine vectors of output channels to one for each transformed weight.
template <class Axis>
void transform_channel(const float *from, int64_t from_step, float *to, int64_t to_step) {
  enum { N = Axis::WEIGHTS };
  vf half[N][3];
  TY_UNROLLED for (int j = 0; j < 3; ++j) {
    vf g[3], u[N];
    TY_UNROLLED for (int i = 0; i < 3; ++i) g[i] = vload(from + (i * 3 + j) * from_step);
    Axis::kernel(g, u);
    TY_UNROLLED for (int i = 0; i < N; ++i) half[i][j] = u[i];
  }
  TY_UNROLLED for (int i = 0; i < N; ++i) {
    vf u[N];
    Axis::kernel(half[i], u);
    TY_UNROLLED for (int j = 0; j < N; ++j) vstore(to + (i * N + j) * to_step, u[j]);
  }
}

// The workspace holds the weight as matrices of VF x VF. For the input's gradient channels change
// places, and kernels are read from their last element to their first.
template <class Axis>
int pack(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, bool gradient,
         void *workspace) {
  const int64_t weights = Axis::WEIGHTS * Axis::WEIGHTS, kernel = 9, matrix = VF * VF;
  const int64_t *s = inputs[0].shape;
  const WeightForm form = gradient ? WeightForm{s[1], s[0], kernel, kernel, s[1] * kernel}
                                   : WeightForm{s[0], s[1], kernel, s[1] * kernel, kernel};
  const int64_t o_blocks = (form.o + VF - 1) / VF, c_blocks = (form.c + VF - 1) / VF;
  const int64_t first = gradient ? (kernel - 1) * matrix : 0, step = gradient ? -matrix : matrix;
  float *const packed = static_cast<float *>(workspace);
  float *const u = static_cast<float *>(outputs[0].data);
  pack_weight(ctx, packed, static_cast<const float *>(inputs[0].data), form);
  ty_parallel(ctx, o_blocks * c_blocks, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const float *from = packed + at * kernel * matrix + first;
      float *to = u + (at / c_blocks * weights * c_blocks + at % c_blocks) * matrix;
      for (int64_t c = 0; c < VF; ++c)
        transform_channel<Axis>(from + c * VF, step, to + c * VF, c_blocks * matrix);
    }
  });
  return 0;
}

template <class Axis>
int pack_forward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *workspace) {
  return pack<Axis>(ctx, inputs, outputs, false, workspace);
}

template <class Axis>
int pack_gradient(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                  void *workspace) {
  return pack<Axis>(ctx, inputs, outputs, true, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(winograd_weight,
                  TY_KERNEL(pack_forward<UnitStride<2>>, "relayout_f32", "pack_wino_f23"),
                  TY_KERNEL(pack_forward<UnitStride<4>>, "relayout_f32", "pack_wino_f43"),
                  TY_KERNEL(pack_forward<UnitStride<6>>, "relayout_f32", "pack_wino_f63"),
                  TY_KERNEL(pack_gradient<UnitStride<2>>, "relayout_f32", "pack_wino_f23_gradient"),
                  TY_KERNEL(pack_gradient<UnitStride<4>>, "relayout_f32", "pack_wino_f43_gradient"),
                  TY_KERNEL(pack_gradient<UnitStride<6>>, "relayout_f32", "pack_wino_f63_gradient"),
                  TY_KERNEL(pack_forward<StrideTwo<2>>, "relayout_f32", "pack_wino_f22s2"),
                  TY_KERNEL(pack_forward<StrideTwo<4>>, "relayout_f32", "pack_wino_f42s2"))
