// What stands between convolutions of images in bfloat16: pooling, moving of channels, elementwise.
#include <string.h>

#include "bf16.hpp"
#include "windows.hpp"

namespace TY_ISA {
namespace {

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw, void *

static constexpr int64_t BLOCK_GRAIN = 2048;  // pixels worth a thread

TY_INLINE int64_t blocks_of(int64_t channels) { return (channels + VF - 1) / VF; }

TY_INLINE vf window_max(const uint16_t *x, int64_t width, Span rows, Span columns) {
  vf best = vset1(-__builtin_inff());
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t c = columns.begin; c < columns.end; ++c)
      best = vmax(best, vload_bf16(x + (r * width + c) * VF));
  return best;
}

TY_INLINE vf window_sum(const uint16_t *x, int64_t width, Span rows, Span columns) {
  vf total = vzero();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    vf even = vzero(), odd = vzero();
    int64_t c = columns.begin;
    for (; c + 2 <= columns.end; c += 2) {
      even = vadd(even, vload_bf16(x + (r * width + c) * VF));
      odd = vadd(odd, vload_bf16(x + (r * width + c + 1) * VF));
    }
    if (c < columns.end) even = vadd(even, vload_bf16(x + (r * width + c) * VF));
    total = vadd(total, vadd(even, odd));
  }
  return total;
}

// Fills y by what window(first pixel of a plane, rows, columns) gives.
template <typename Window>
int pool(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, Pooling p,
         const Window &window) {
  const uint16_t *x = static_cast<const uint16_t *>(inputs[0].data);
  uint16_t *y = static_cast<uint16_t *>(outputs[0].data);
  p.planes = inputs[0].shape[0] * blocks_of(inputs[0].shape[1]);
  const int64_t weight = (p.inputs() + p.outputs()) / (p.h.outputs + 1) + 1;
  ty_parallel(ctx, p.planes * p.h.outputs, BLOCK_GRAIN / weight + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t block = i / p.h.outputs, oh = i % p.h.outputs;
                  const uint16_t *from = x + block * p.inputs() * VF;
                  uint16_t *to = y + (block * p.outputs() + oh * p.w.outputs) * VF;
                  const Span rows = p.h.at(oh);
                  for (int64_t ow = 0; ow < p.w.outputs; ++ow)
                    vstore_pairs(to + ow * VF, window(from, rows, p.w.at(ow)));
                }
              });
  return 0;
}

int average(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const Pooling &p) {
  return pool(ctx, inputs, outputs, p, [&](const uint16_t *x, Span rows, Span columns) {
    return vmul(window_sum(x, p.w.size, rows, columns), vset1(p.scale(rows, columns)));
  });
}

int max_pool2d(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_max_pool2d_attrs *>(raw);
  const Pooling p = TY_FIXED_POOLING(attrs, inputs[0], outputs[0]);
  return pool(ctx, inputs, outputs, p, [&](const uint16_t *x, Span rows, Span columns) {
    return window_max(x, p.w.size, rows, columns);
  });
}

int avg_pool2d(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_avg_pool2d_attrs *>(raw);
  Pooling p = TY_FIXED_POOLING(attrs, inputs[0], outputs[0]);
  p.whole_divisor = attrs->count_include_pad != 0;
  return average(ctx, inputs, outputs, p);
}

int adaptive_avg_pool2d(ARGUMENTS) {
  (void)raw;
  return average(ctx, inputs, outputs, pooling_of(inputs[0], outputs[0]));
}

// Averages whole images into plain float32 (N, C).
int global_average(ARGUMENTS) {
  (void)raw;
  const int64_t *shape = inputs[0].shape;
  const int64_t channels = shape[1], blocks = blocks_of(channels), pixels = shape[2] * shape[3];
  const uint16_t *x = static_cast<const uint16_t *>(inputs[0].data);
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

// What one block of a source gives to one block of the result: lane i takes lane index[i] where
// bit i of chosen is set.
struct Part {
  const uint16_t *from;
  __mmask16 chosen;
  uint16_t index[VF];
};

void move_block(uint16_t *to, const Part *parts, int count, int64_t pixels) {
  for (int64_t at = 0; at < pixels * VF; at += VF) {
    __m256i x = _mm256_setzero_si256();
    for (int i = 0; i < count; ++i) {
      const __m256i index = _mm256_loadu_si256((const __m256i *)parts[i].index);
      const __m256i from = _mm256_loadu_si256((const __m256i *)(parts[i].from + at));
      x = _mm256_mask_permutexvar_epi16(x, parts[i].chosen, index, from);
    }
    _mm256_storeu_si256((__m256i *)(to + at), x);
  }
}

// Where an output channel comes from.
struct Origin {
  int64_t input, channel;
};

// Fills y channel by channel; origin_of(c) is where output channel c comes from.
template <class OriginOf>
int move_channels(const ty_ctx *ctx, const ty_tensor *inputs, const ty_tensor &y,
                  const OriginOf &origin_of) {
  const int64_t channels = y.shape[1], pixels = y.shape[2] * y.shape[3];
  const int64_t blocks = blocks_of(channels);
  if (pixels == 0) return 0;
  ty_parallel(
      ctx, y.shape[0] * blocks, 1 + 8192 / (pixels * VF), [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t at = begin; at < end; ++at) {
          const int64_t image = at / blocks, first = at % blocks * VF;
          Part parts[VF];
          int count = 0;
          for (int64_t lane = 0; lane < VF && first + lane < channels; ++lane) {
            const Origin origin = origin_of(first + lane);
            const ty_tensor &x = inputs[origin.input];
            const int64_t block = image * blocks_of(x.shape[1]) + origin.channel / VF;
            const uint16_t *from = static_cast<const uint16_t *>(x.data) + block * pixels * VF;
            int i = 0;
            while (i < count && parts[i].from != from) ++i;
            if (i == count) {
              parts[count++] = {from, 0, {}};
            }
            parts[i].index[lane] = static_cast<uint16_t>(origin.channel % VF);
            parts[i].chosen = static_cast<__mmask16>(parts[i].chosen | 1u << lane);
          }
          move_block(static_cast<uint16_t *>(y.data) + at * pixels * VF, parts, count, pixels);
        }
      });
  return 0;
}

int take(ARGUMENTS) {
  (void)raw;
  const ty_tensor &indices = inputs[1];
  const int64_t size = inputs[0].shape[1];
  const auto index_at = [&](int64_t i) {
    return indices.dtype == TY_INT32 ? static_cast<const int32_t *>(indices.data)[i]
                                     : static_cast<const int64_t *>(indices.data)[i];
  };
  for (int64_t i = 0; i < indices.shape[0]; ++i) {
    const int64_t at = index_at(i);
    if (at < -size || at >= size)
      return ty_fail(ctx, "take: index out of range, got %lld, expected %lld to %lld",
                     (long long)at, (long long)-size, (long long)(size - 1));
  }
  return move_channels(ctx, inputs, outputs[0], [&](int64_t channel) {
    const int64_t at = index_at(channel);
    return Origin{0, at < 0 ? at + size : at};
  });
}

int concat(ARGUMENTS) {
  const int count = raw->n_inputs;
  return move_channels(ctx, inputs, outputs[0], [&](int64_t channel) {
    int input = 0;
    for (; input < count - 1 && channel >= inputs[input].shape[1]; ++input)
      channel -= inputs[input].shape[1];
    return Origin{input, channel};
  });
}

int slice(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_slice_attrs *>(raw);
  const int64_t start = TY_INTS(attrs, attrs->starts)[1], step = TY_INTS(attrs, attrs->steps)[1];
  return move_channels(ctx, inputs, outputs[0],
                       [&](int64_t channel) { return Origin{0, start + channel * step}; });
}

template <typename Function>
int elementwise(const ty_ctx *ctx, const ty_tensor &y, const Function &function) {
  const int64_t vectors = y.shape[0] * blocks_of(y.shape[1]) * y.shape[2] * y.shape[3];
  ty_parallel(ctx, vectors, 1024, [&](int64_t begin, int64_t end, int32_t) {
    uint16_t *to = static_cast<uint16_t *>(y.data);
    for (int64_t i = begin * VF; i < end * VF; i += VF) vstore_pairs(to + i, function(i));
  });
  return 0;
}

#define UNARY(name, expression)                                        \
  int name(ARGUMENTS) {                                                \
    (void)raw;                                                         \
    const uint16_t *a = static_cast<const uint16_t *>(inputs[0].data); \
    return elementwise(ctx, outputs[0], [&](int64_t i) TY_LAMBDA {     \
      const vf x = vload_bf16(a + i);                                  \
      return expression;                                               \
    });                                                                \
  }
#define BINARY(name, expression)                                       \
  int name(ARGUMENTS) {                                                \
    (void)raw;                                                         \
    const uint16_t *a = static_cast<const uint16_t *>(inputs[0].data); \
    const uint16_t *b = static_cast<const uint16_t *>(inputs[1].data); \
    return elementwise(ctx, outputs[0], [&](int64_t i) TY_LAMBDA {     \
      const vf x = vload_bf16(a + i), z = vload_bf16(b + i);           \
      return expression;                                               \
    });                                                                \
  }
#define TY_LAMBDA __attribute__((always_inline))

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

}  // namespace
}  // namespace TY_ISA

#define BLOCKED(op) TY_KERNEL(op, #op "_bf16", "blocked")

TY_EXPORT_KERNELS(bf16_image, BLOCKED(max_pool2d), BLOCKED(avg_pool2d),
                  BLOCKED(adaptive_avg_pool2d),
                  TY_KERNEL(global_average, "mean_bf16", "blocked_images"),
                  TY_KERNEL(global_average, "adaptive_avg_pool2d_bf16", "blocked_to_plain"),
                  BLOCKED(take), BLOCKED(concat), BLOCKED(slice), BLOCKED(relu), BLOCKED(relu6),
                  BLOCKED(hswish), BLOCKED(silu), TY_KERNEL(tanh_, "tanh_bf16", "blocked"),
                  BLOCKED(gelu), BLOCKED(add), BLOCKED(sub), BLOCKED(mul), BLOCKED(maximum),
                  BLOCKED(minimum))
