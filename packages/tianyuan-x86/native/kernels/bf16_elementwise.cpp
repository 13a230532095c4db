// What goes over blocked images in bfloat16 vector by vector: elementwise ops, casts to and from
// blocks of float32.
#include "element.hpp"
#include "vmath.hpp"

namespace TY_ISA {
namespace {

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *

// Calls body(offset) for the vectors of an image.
template <typename Body>
int for_vectors(const ty_ctx *ctx, const ty_tensor &image, const Body &body) {
  const int64_t *s = image.shape;
  ty_parallel(ctx, s[0] * blocks_of(s[1]) * s[2] * s[3], 1024,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin * VF; i < end * VF; i += VF) body(i);
              });
  return 0;
}

#define TY_LAMBDA __attribute__((always_inline))
#define UNARY(name, expression)                                      \
  int name(ARGUMENTS) {                                              \
    const element *a = static_cast<const element *>(inputs[0].data); \
    element *y = static_cast<element *>(outputs[0].data);            \
    return for_vectors(ctx, outputs[0], [&](int64_t i) TY_LAMBDA {   \
      const vf x = vload_element(a + i);                             \
      vstore_element(y + i, expression);                             \
    });                                                              \
  }
#define BINARY(name, expression)                                     \
  int name(ARGUMENTS) {                                              \
    const element *a = static_cast<const element *>(inputs[0].data); \
    const element *b = static_cast<const element *>(inputs[1].data); \
    element *y = static_cast<element *>(outputs[0].data);            \
    return for_vectors(ctx, outputs[0], [&](int64_t i) TY_LAMBDA {   \
      const vf x = vload_element(a + i), z = vload_element(b + i);   \
      vstore_element(y + i, expression);                             \
    });                                                              \
  }

UNARY(relu, vrelu(x))
UNARY(relu6, vclip(x, 0.0f, 6.0f))
UNARY(hswish, vmul(x, vhsigmoid(x)))
UNARY(silu, vmul(x, vsigmoid(x)))
UNARY(tanh_, vtanh(x))
UNARY(gelu, vgelu(x))
BINARY(add, vadd(x, z))
BINARY(sub, vsub(x, z))
BINARY(mul, vmul(x, z))
BINARY(maximum, vmax(x, z))
BINARY(minimum, vmin(x, z))

// Blocks of float32 into blocks of bfloat16, and back.
int narrow(ARGUMENTS) {
  const float *x = static_cast<const float *>(inputs[0].data);
  element *y = static_cast<element *>(outputs[0].data);
  return for_vectors(ctx, inputs[0],
                     [&](int64_t i) TY_LAMBDA { vstore_element(y + i, vload(x + i)); });
}

int widen(ARGUMENTS) {
  const element *x = static_cast<const element *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  return for_vectors(ctx, inputs[0],
                     [&](int64_t i) TY_LAMBDA { vstore(y + i, vload_element(x + i)); });
}

}  // namespace
}  // namespace TY_ISA

#define BLOCKED(op) TY_KERNEL(op, #op "_bf16", "blocked")

TY_EXPORT_KERNELS(bf16_elementwise, BLOCKED(relu), BLOCKED(relu6), BLOCKED(hswish), BLOCKED(silu),
                  TY_KERNEL(tanh_, "tanh_bf16", "blocked"), BLOCKED(gelu), BLOCKED(add),
                  BLOCKED(sub), BLOCKED(mul), BLOCKED(maximum), BLOCKED(minimum),
                  TY_KERNEL(narrow, "relayout_bf16", "narrow"),
                  TY_KERNEL(widen, "relayout_bf16", "widen"))
