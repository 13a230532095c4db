// sgd_update and adam_update on float32; outputs may be the inputs that they replace.
#include "kernel.hpp"
#include "lanes.hpp"

extern "C" double pow(double, double);

namespace TY_ISA {
namespace {

static constexpr int64_t UPDATE_GRAIN = 16384;

TY_INLINE const float *input(const ty_tensor *inputs, int i) {
  return static_cast<const float *>(inputs[i].data);
}
TY_INLINE float *output(ty_tensor *outputs, int i) { return static_cast<float *>(outputs[i].data); }

// inputs: param, grad, lr, [velocity]; outputs: param, [velocity]
int sgd_update(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *) {
  const auto *attrs = reinterpret_cast<const ty_sgd_update_attrs *>(raw);
  const float *p = input(inputs, 0), *g = input(inputs, 1);
  const bool moving = attrs->head.n_inputs > 3;
  const float *velocity = moving ? input(inputs, 3) : nullptr;
  float *new_p = output(outputs, 0), *new_velocity = moving ? output(outputs, 1) : nullptr;
  // Without decay, a parameter that is not finite must stay out of the velocity.
  const bool nesterov = attrs->nesterov != 0, decays = attrs->weight_decay != 0;
  const vf lr = vset1(*input(inputs, 2)), decay = vset1((float)attrs->weight_decay);
  const vf momentum = vset1((float)attrs->momentum);
  ty_parallel(ctx, ty_count(inputs[0]), UPDATE_GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    for_lanes(begin, end, [&](int64_t i, auto lanes) {
      const vf param = lanes.load(p + i), given = lanes.load(g + i);
      const vf grad = decays ? vfma(decay, param, given) : given;
      vf step = grad;
      if (moving) {
        const vf v = vfma(momentum, lanes.load(velocity + i), grad);
        lanes.store(new_velocity + i, v);
        step = nesterov ? vfma(momentum, v, grad) : v;
      }
      lanes.store(new_p + i, vfnma(lr, step, param));
    });
  });
  return 0;
}

// inputs: param, grad, m, v, step, lr; outputs: param, m, v
int adam_update(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
                void *) {
  const auto *attrs = reinterpret_cast<const ty_adam_update_attrs *>(raw);
  const float *p = input(inputs, 0), *g = input(inputs, 1), *m = input(inputs, 2);
  const float *v = input(inputs, 3);
  const double step = *input(inputs, 4), rate = *input(inputs, 5);
  float *new_p = output(outputs, 0), *new_m = output(outputs, 1), *new_v = output(outputs, 2);
  const vf lr = vset1((float)rate), eps = vset1((float)attrs->eps);
  const vf keep = vset1(attrs->decoupled ? (float)(1.0 - rate * attrs->weight_decay) : 1.0f);
  const bool decays = !attrs->decoupled && attrs->weight_decay != 0;
  const vf decay = vset1((float)attrs->weight_decay);
  const vf beta1 = vset1((float)attrs->beta1), rest1 = vset1((float)(1.0 - attrs->beta1));
  const vf beta2 = vset1((float)attrs->beta2), rest2 = vset1((float)(1.0 - attrs->beta2));
  const vf correction1 = vset1((float)(1.0 - pow(attrs->beta1, step)));
  const vf correction2 = vset1((float)(1.0 - pow(attrs->beta2, step)));
  ty_parallel(ctx, ty_count(inputs[0]), UPDATE_GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    for_lanes(begin, end, [&](int64_t i, auto lanes) {
      const vf old = lanes.load(p + i), given = lanes.load(g + i);
      const vf grad = decays ? vfma(decay, old, given) : given;
      const vf first = vfma(rest1, grad, vmul(beta1, lanes.load(m + i)));
      const vf second = vfma(vmul(rest2, grad), grad, vmul(beta2, lanes.load(v + i)));
      const vf spread = vadd(vsqrt(vdiv(second, correction2)), eps);
      const vf change = vdiv(vdiv(first, correction1), spread);
      lanes.store(new_m + i, first);
      lanes.store(new_v + i, second);
      lanes.store(new_p + i, vfnma(lr, change, vmul(keep, old)));
    });
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(update, TY_KERNEL(sgd_update, "sgd_update_f32", "simd"),
                  TY_KERNEL(adam_update, "adam_update_f32", "simd"))
