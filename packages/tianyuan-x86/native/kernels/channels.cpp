// take, concat and slice along the channels of blocked images in float32.
#include <string.h>

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {
namespace {

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw, void *

TY_INLINE int64_t blocks_of(int64_t channels) { return (channels + VF - 1) / VF; }

// Where an output channel comes from.
struct Origin {
  int64_t input, channel;
};

// What one block of a source gives to one block of the result: lane i takes lane index[i] where
// chosen[i] is -1.
struct Part {
  const float *from;
  int32_t index[VF], chosen[VF];
};

#if TY_VF == 16
TY_INLINE vm chosen_lanes(const Part &part) { return _mm512_movepi32_mask(vi_load(part.chosen)); }
TY_INLINE vf pick(vf old, vm chosen, vi index, vf x) {
  return _mm512_mask_permutexvar_ps(old, chosen, index, x);
}
#else
TY_INLINE vm chosen_lanes(const Part &part) { return vi_as_vf(vi_load(part.chosen)); }
TY_INLINE vf pick(vf old, vm chosen, vi index, vf x) {
  return vselect(chosen, _mm256_permutevar8x32_ps(x, index), old);
}
#endif

template <int COUNT>
void move_few(float *to, const Part *parts, int64_t pixels) {
  vm chosen[COUNT];
  vi index[COUNT];
  const float *from[COUNT];
#pragma GCC unroll 4
  for (int i = 0; i < COUNT; ++i) {
    chosen[i] = chosen_lanes(parts[i]);
    index[i] = vi_load(parts[i].index);
    from[i] = parts[i].from;
  }
  for (int64_t at = 0; at < pixels * VF; at += VF) {
    vf x = vzero();
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; ++i) x = pick(x, chosen[i], index[i], vload(from[i] + at));
    vstore(to + at, x);
  }
}

void move_block(float *to, const Part *parts, int count, int64_t pixels) {
  switch (count) {
    case 1:
      return move_few<1>(to, parts, pixels);
    case 2:
      return move_few<2>(to, parts, pixels);
    case 3:
      return move_few<3>(to, parts, pixels);
    case 4:
      return move_few<4>(to, parts, pixels);
    default:
      break;
  }
  for (int64_t at = 0; at < pixels * VF; at += VF) {
    vf x = vzero();
    for (int i = 0; i < count; ++i)
      x = pick(x, chosen_lanes(parts[i]), vi_load(parts[i].index), vload(parts[i].from + at));
    vstore(to + at, x);
  }
}

// Adds the lane to the part of its source block, which it opens where there is none.
int add_lane(Part *parts, int count, const float *from, int64_t lane, int64_t source_lane) {
  int at = 0;
  while (at < count && parts[at].from != from) ++at;
  if (at == count) {
    parts[at].from = from;
    memset(parts[at].index, 0, sizeof parts[at].index);
    memset(parts[at].chosen, 0, sizeof parts[at].chosen);
    ++count;
  }
  parts[at].index[lane] = static_cast<int32_t>(source_lane);
  parts[at].chosen[lane] = -1;
  return count;
}

// Fills y channel by channel; origin_of(c) is where output channel c comes from.
template <class OriginOf>
void move_channels(const ty_ctx *ctx, const ty_tensor *inputs, const ty_tensor &y,
                   const OriginOf &origin_of) {
  const int64_t channels = y.shape[1], pixels = y.shape[2] * y.shape[3];
  const int64_t blocks = blocks_of(channels);
  float *const out = static_cast<float *>(y.data);
  if (pixels == 0) return;
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
            count = add_lane(parts, count, static_cast<const float *>(x.data) + block * pixels * VF,
                             lane, origin.channel % VF);
          }
          move_block(out + at * pixels * VF, parts, count, pixels);
        }
      });
}

int64_t index_at(const ty_tensor &indices, int64_t i) {
  return indices.dtype == TY_INT32 ? static_cast<const int32_t *>(indices.data)[i]
                                   : static_cast<const int64_t *>(indices.data)[i];
}

// inputs: x, indices
int take(ARGUMENTS) {
  (void)raw;
  const ty_tensor &indices = inputs[1];
  const int64_t size = inputs[0].shape[1];
  for (int64_t i = 0; i < indices.shape[0]; ++i) {
    const int64_t at = index_at(indices, i);
    if (at < -size || at >= size)
      return ty_fail(ctx, "take: index out of range, got %lld, expected %lld to %lld",
                     (long long)at, (long long)-size, (long long)(size - 1));
  }
  move_channels(ctx, inputs, outputs[0], [&](int64_t channel) {
    const int64_t at = index_at(indices, channel);
    return Origin{0, at < 0 ? at + size : at};
  });
  return 0;
}

int concat(ARGUMENTS) {
  const int count = raw->n_inputs;
  move_channels(ctx, inputs, outputs[0], [&](int64_t channel) {
    int input = 0;
    for (; input < count - 1 && channel >= inputs[input].shape[1]; ++input)
      channel -= inputs[input].shape[1];
    return Origin{input, channel};
  });
  return 0;
}

int slice(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_slice_attrs *>(raw);
  const int64_t start = TY_INTS(attrs, attrs->starts)[1], step = TY_INTS(attrs, attrs->steps)[1];
  move_channels(ctx, inputs, outputs[0],
                [&](int64_t channel) { return Origin{0, start + channel * step}; });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(channels, TY_KERNEL(take, "take_f32", "channels"),
                  TY_KERNEL(concat, "concat_f32", "channels"),
                  TY_KERNEL(slice, "slice_f32", "channels"))
