// Pooling of images whose channels lie in blocks of one vector, in either element.
#include "bands.hpp"
#include "element.hpp"
#include "vmath.hpp"
#include "windows.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t BLOCK_GRAIN = 2048;  // pixels worth a thread

TY_INLINE vf window_max(const element *x, int64_t width, Span rows, Span columns) {
  vf best = vset1(-__builtin_inff());
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t c = columns.begin; c < columns.end; ++c)
      best = vmax(best, vload_element(x + (r * width + c) * VF));
  return best;
}

// Row sums are added to the total, so that the error grows with height plus width.
TY_INLINE vf window_sum(const element *x, int64_t width, Span rows, Span columns) {
  vf total = vzero();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    vf even = vzero(), odd = vzero();
    int64_t c = columns.begin;
    for (; c + 2 <= columns.end; c += 2) {
      even = vadd(even, vload_element(x + (r * width + c) * VF));
      odd = vadd(odd, vload_element(x + (r * width + c + 1) * VF));
    }
    if (c < columns.end) even = vadd(even, vload_element(x + (r * width + c) * VF));
    total = vadd(total, vadd(even, odd));
  }
  return total;
}

// Fills y by what window(first pixel of a plane, rows, columns) gives.
template <typename Window>
int pool(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const Pooling &p,
         const Window &window) {
  const element *x = static_cast<const element *>(inputs[0].data);
  element *y = static_cast<element *>(outputs[0].data);
  const int64_t blocks = blocks_of(inputs[0].shape[1]);
  const int64_t weight = (p.inputs() + p.outputs()) / (p.h.outputs + 1) + 1;
  for_bands(ctx, {inputs[0].shape[0], blocks, p.h.outputs, p.outputs(), weight}, BLOCK_GRAIN,
            [&](int64_t plane, int64_t begin, int64_t end) {
              const element *from = x + plane * p.inputs() * VF;
              for (int64_t oh = begin; oh < end; ++oh) {
                element *to = y + (plane * p.outputs() + oh * p.w.outputs) * VF;
                const Span rows = p.h.at(oh);
                for (int64_t ow = 0; ow < p.w.outputs; ++ow)
                  vstore_element(to + ow * VF, window(from, rows, p.w.at(ow)));
              }
            });
  return 0;
}

int average(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const Pooling &p) {
  return pool(ctx, inputs, outputs, p, [&](const element *x, Span rows, Span columns) {
    return vmul(window_sum(x, p.w.size, rows, columns), vset1(p.scale(rows, columns)));
  });
}

int max_pool2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *) {
  const auto *attrs = reinterpret_cast<const ty_max_pool2d_attrs *>(raw);
  const Pooling p = TY_FIXED_POOLING(attrs, inputs[0], outputs[0]);
  return pool(ctx, inputs, outputs, p, [&](const element *x, Span rows, Span columns) {
    return window_max(x, p.w.size, rows, columns);
  });
}

int avg_pool2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *) {
  const auto *attrs = reinterpret_cast<const ty_avg_pool2d_attrs *>(raw);
  Pooling p = TY_FIXED_POOLING(attrs, inputs[0], outputs[0]);
  p.whole_divisor = attrs->count_include_pad != 0;
  return average(ctx, inputs, outputs, p);
}

int adaptive_avg_pool2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                        const ty_attrs *, void *) {
  return average(ctx, inputs, outputs, pooling_of(inputs[0], outputs[0]));
}

// Averages whole images into plain float32 (N, C): mean over (2, 3), and adaptive pooling to one
// pixel.
int global_average(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                   void *) {
  const int64_t *shape = inputs[0].shape;
  const int64_t channels = shape[1], blocks = blocks_of(channels), pixels = shape[2] * shape[3];
  const element *x = static_cast<const element *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  const vf scale = vset1((float)(1.0 / (double)pixels));
  ty_parallel(
      ctx, shape[0] * blocks, BLOCK_GRAIN / (pixels + 1) + 1,
      [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t image = i / blocks, first = i % blocks * VF;
          const vf sum = window_sum(x + i * pixels * VF, shape[3], {0, shape[2]}, {0, shape[3]});
          vstore_tail(y + image * channels + first, vmul(sum, scale), vtail_of(channels - first));
        }
      });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

#define POOL(op) TY_KERNEL(op, #op "_" TY_ELEMENT, "blocked")

TY_EXPORT_KERNELS(pool_blocked, POOL(max_pool2d), POOL(avg_pool2d), POOL(adaptive_avg_pool2d),
                  TY_KERNEL(global_average, "mean_" TY_ELEMENT, "blocked_images"),
                  TY_KERNEL(global_average, "adaptive_avg_pool2d_" TY_ELEMENT, "blocked_to_plain"))
