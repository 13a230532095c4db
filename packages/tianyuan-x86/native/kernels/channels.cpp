// take, concat and slice along the channels of blocked images, in either element.
#include <string.h>

#include "bands.hpp"
#include "element.hpp"

namespace TY_ISA {
namespace {

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw, void *

// Where an output channel comes from.
struct Origin {
  int64_t input, channel;
};

// What one block of a source gives to one block of the result: lane i takes lane index[i] where
// chosen[i] is -1.
struct Part {
  const element *from;
  int32_t index[VF], chosen[VF];
};

// The elements of a block as they lie in memory, since moving rounds nothing.
#if defined(__AVX512BF16__)
typedef __m256i Lanes;
TY_INLINE Lanes load_lanes(const element *p) { return _mm256_loadu_si256((const __m256i *)p); }
TY_INLINE void store_lanes(element *p, Lanes x) { _mm256_storeu_si256((__m256i *)p, x); }
TY_INLINE Lanes no_lanes() { return _mm256_setzero_si256(); }
TY_INLINE Lanes pick(Lanes old, vm chosen, vi index, Lanes x) {
  return _mm256_mask_permutexvar_epi16(old, chosen, _mm512_cvtepi32_epi16(index), x);
}
#else
typedef vf Lanes;
TY_INLINE Lanes load_lanes(const element *p) { return vload(p); }
TY_INLINE void store_lanes(element *p, Lanes x) { vstore(p, x); }
TY_INLINE Lanes no_lanes() { return vzero(); }
TY_INLINE Lanes pick(Lanes old, vm chosen, vi index, Lanes x) {
#if TY_VF == 16
  return _mm512_mask_permutexvar_ps(old, chosen, index, x);
#else
  return vselect(chosen, _mm256_permutevar8x32_ps(x, index), old);
#endif
}
#endif

TY_INLINE vm chosen_lanes(const Part &part) {
#if TY_VF == 16
  return _mm512_movepi32_mask(vi_load(part.chosen));
#else
  return vi_as_vf(vi_load(part.chosen));
#endif
}

template <int COUNT>
void move_few(element *to, const Part *parts, int64_t pixels) {
  vm chosen[COUNT];
  vi index[COUNT];
  const element *from[COUNT];
#pragma GCC unroll 4
  for (int i = 0; i < COUNT; ++i) {
    chosen[i] = chosen_lanes(parts[i]);
    index[i] = vi_load(parts[i].index);
    from[i] = parts[i].from;
  }
  for (int64_t at = 0; at < pixels * VF; at += VF) {
    Lanes x = no_lanes();
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; ++i) x = pick(x, chosen[i], index[i], load_lanes(from[i] + at));
    store_lanes(to + at, x);
  }
}

void move_block(element *to, const Part *parts, int count, int64_t pixels) {
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
    Lanes x = no_lanes();
    for (int i = 0; i < count; ++i)
      x = pick(x, chosen_lanes(parts[i]), vi_load(parts[i].index), load_lanes(parts[i].from + at));
    store_lanes(to + at, x);
  }
}

// Adds the lane to the part of its source block, which it opens where there is none.
int add_lane(Part *parts, int count, const element *from, int64_t lane, int64_t source_lane) {
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
  element *const out = static_cast<element *>(y.data);
  if (pixels == 0) return;
  const Planes planes = {y.shape[0], blocks, pixels, pixels, VF};
  for_bands(ctx, planes, 8192, [&](int64_t plane, int64_t begin, int64_t end) {
    const int64_t image = plane / blocks, first = plane % blocks * VF;
    Part parts[VF];
    int count = 0;
    for (int64_t lane = 0; lane < VF && first + lane < channels; ++lane) {
      const Origin origin = origin_of(first + lane);
      const ty_tensor &x = inputs[origin.input];
      const int64_t block = image * blocks_of(x.shape[1]) + origin.channel / VF;
      const element *from = static_cast<const element *>(x.data) + block * pixels * VF;
      count = add_lane(parts, count, from + begin * VF, lane, origin.channel % VF);
    }
    move_block(out + (plane * pixels + begin) * VF, parts, count, end - begin);
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
      return ty_fail_as(TY_BAD_INDEX, ctx,
                        "take: index out of range, got %lld, expected %lld to %lld", (long long)at,
                        (long long)-size, (long long)(size - 1));
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

#if defined(__AVX512BF16__)
#define CHANNELS(op) TY_KERNEL(op, #op "_bf16", "blocked")
#else
#define CHANNELS(op) TY_KERNEL(op, #op "_f32", "channels")
#endif

TY_EXPORT_KERNELS(channels, CHANNELS(take), CHANNELS(concat), CHANNELS(slice))
