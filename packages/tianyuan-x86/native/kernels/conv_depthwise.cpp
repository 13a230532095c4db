// Depthwise convolution (one input and one output channel per group) of plain images in float32,
// and its gradients.
#include "conv_band.hpp"
#include "depthwise.hpp"

namespace TY_ISA {
namespace {

// A tap of a copied plane: where its pixels begin, and which weight it has.
struct PlaneTap {
  int64_t offset, weight;
};

void fill_offsets(const ConvPlan &p, const Band &b, PlaneTap *table) {
  for (int64_t t = 0; t < p.n_taps; ++t)
    table[t] = {tap_offset(p, b, p.taps[t], pixel_floats(p)), p.taps[t].weight};
}

// Vectors of neighbouring output pixels, row by row.
struct PixelVector {
  const float *from;
  int64_t y, x;
  vtail tail;
};

enum { GROUP = 4 };  // vectors whose sums run side by side

TY_INLINE PixelVector vector_at(const ConvPlan &p, const Band &b, const float *band, int64_t y,
                                int64_t x) {
  return {band + y * p.sh * b.row + x, y, x, vtail_of(p.ow - x)};
}

void store_vector(const ConvPlan &p, const PixelVector &v, int64_t plane, vf sum, vf bias) {
  const int64_t at = plane + v.y * p.y_row + v.x * p.y_pixel;
  sum = vadd(sum, bias);
  if (p.y_pixel == 1) {
    if (p.residual) sum = vadd(sum, vload_tail(p.residual + at, v.tail));
    vstore_tail(p.y + at, activate(sum, p.epilogue), v.tail);
    return;
  }
  float lanes[VF];
  vstore(lanes, activate(sum, p.epilogue));
  for (int64_t i = 0; i < VF && v.x + i < p.ow; ++i) p.y[at + i * p.y_pixel] = lanes[i];
}

// One plane of a plain depthwise convolution on the copied band: lanes run along the row.
void run_plane(const ConvPlan &p, const Band &b, const PlaneTap *taps, const float *band,
               const float *weight, int64_t plane, vf bias) {
  int64_t y = 0, x = 0;
  while (y < p.oh) {
    PixelVector at[GROUP];
    int some = 0;
    for (; some < GROUP && y < p.oh; ++some) {
      at[some] = vector_at(p, b, band, y, x);
      x += VF;
      if (x >= p.ow) {
        x = 0;
        ++y;
      }
    }
    for (int i = some; i < GROUP; ++i) at[i] = at[0];
    vf sums[GROUP];
#pragma GCC unroll 4
    for (int i = 0; i < GROUP; ++i) sums[i] = vzero();
    for (int64_t t = 0; t < p.n_taps; ++t) {
      const vf w = vset1(weight[taps[t].weight]);
#pragma GCC unroll 4
      for (int i = 0; i < GROUP; ++i)
        sums[i] = vfma(w, vload_tail(at[i].from + taps[t].offset, at[i].tail), sums[i]);
    }
    for (int i = 0; i < some; ++i) store_vector(p, at[i], plane, sums[i], bias);
  }
}

// All planes of one plan with a single channel: image i of the plan is plane i.
void run_planes(const ty_ctx *ctx, ConvPlan p, const float *weight, int64_t channels,
                float *workspace) {
  if (p.oh <= 0 || p.ow <= 0) return;
  Band b = {};
  find_spans(p, &b);
  b.copied = true;
  b.phase_width = p.ow + b.span_x / p.sw;
  b.row = p.sw * b.phase_width;
  b.plane = copied_rows(p, b, p.oh) * b.row;
  const int64_t per_slot = ceil_div(b.plane, 16) * 16;
  const int64_t work = p.oh * p.ow * (p.n_taps + 1) + 1;
  PlaneTap *taps = reinterpret_cast<PlaneTap *>(workspace);
  fill_offsets(p, b, taps);
  const int64_t table_bytes = p.n_weights * static_cast<int64_t>(sizeof(ConvTap));
  float *const bands = workspace + ceil_div(table_bytes, 64) * 16;
  ty_parallel(ctx, p.n, 1 + 32768 / work, [&](int64_t begin, int64_t end, int32_t slot) {
    float *band = bands + slot * per_slot;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t channel = at % channels;
      if (p.n_taps) copy_band(band, p, b, at, 0, p.oh);
      run_plane(p, b, taps, band, weight + channel * p.n_weights, at * p.y_image,
                p.bias ? vset1(p.bias[channel]) : vzero());
    }
  });
}

int run_plain(const ty_ctx *ctx, const Depthwise &d, void *workspace) {
  const ConvShape &s = d.shape;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  ConvPlan p = {};
  p.x = d.x;
  p.n = s.n * s.c;
  p.c = p.o = 1;
  p.h = s.h;
  p.w = s.w;
  p.x_image = s.h * s.w;
  p.n_weights = p.n_taps = s.kh * s.kw;
  p.taps = taps;
  p.sh = s.sh;
  p.sw = s.sw;
  p.y = d.y;
  p.oh = s.oh;
  p.ow = s.ow;
  p.y_image = s.oh * s.ow;
  p.y_row = s.ow;
  p.y_pixel = 1;
  p.bias = d.bias;
  p.residual = d.residual;
  p.epilogue = d.epilogue;
  run_planes(ctx, p, d.weight, s.c, static_cast<float *>(workspace) + taps_floats(s));
  return 0;
}

int conv2d_plain_depthwise(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                           const ty_attrs *attrs, void *workspace) {
  const ty_conv2d_attrs &a = *reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  return run_plain(ctx, depthwise_of(a, inputs, outputs[0]), workspace);
}

int conv2d_fused_plain_depthwise(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                                 const ty_attrs *attrs, void *workspace) {
  Depthwise d;
  if (depthwise_fused_of(ctx, inputs, outputs[0], attrs, &d)) return 1;
  return run_plain(ctx, d, workspace);
}

// The gradient of the input, phase by phase of the stride.
int backward_data_depthwise(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                            const ty_attrs *attrs, void *workspace) {
  const ty_conv2d_backward_data_attrs &a =
      *reinterpret_cast<const ty_conv2d_backward_data_attrs *>(attrs);
  const ConvShape s = conv_shape(a, outputs[0].shape, inputs[1].shape, inputs[0].shape);
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  ConvPlan p = {};
  p.x = static_cast<const float *>(inputs[0].data);
  p.n = s.n * s.c;
  p.c = p.o = 1;
  p.h = s.oh;
  p.w = s.ow;
  p.x_image = s.oh * s.ow;
  p.n_weights = s.kh * s.kw;
  p.taps = taps;
  p.sh = p.sw = 1;
  p.y_image = s.h * s.w;
  p.y_row = s.sh * s.w;
  p.y_pixel = s.sw;
  for (int64_t py = 0; py < s.sh; ++py) {
    for (int64_t px = 0; px < s.sw; ++px) {
      p.n_taps = phase_taps(s, py, px, taps);
      p.oh = ceil_div(s.h - py, s.sh);
      p.ow = ceil_div(s.w - px, s.sw);
      p.y = static_cast<float *>(outputs[0].data) + py * s.w + px;
      run_planes(ctx, p, static_cast<const float *>(inputs[1].data), s.c,
                 static_cast<float *>(workspace) + taps_floats(s));
    }
  }
  return 0;
}

// Adds the products of a gradient plane with the source pixels that TAPS taps meet.
template <int TAPS>
void dot_taps(const ConvPlan &p, const Band &b, const PlaneTap *taps, const float *band,
              const float *g, float *sums) {
  vf sum[TAPS];
#pragma GCC unroll 9
  for (int t = 0; t < TAPS; ++t) sum[t] = vload(sums + t * VF);
  for (int64_t y = 0; y < p.oh; ++y) {
    for (int64_t x = 0; x < p.ow; x += VF) {
      const vtail tail = vtail_of(p.ow - x);
      const vf gradient = vload_tail(g + y * p.ow + x, tail);
      const float *from = band + y * p.sh * b.row + x;
#pragma GCC unroll 9
      for (int t = 0; t < TAPS; ++t)
        sum[t] = vfma(vload_tail(from + taps[t].offset, tail), gradient, sum[t]);
    }
  }
#pragma GCC unroll 9
  for (int t = 0; t < TAPS; ++t) vstore(sums + t * VF, sum[t]);
}

void dot_plane(const ConvPlan &p, const Band &b, const PlaneTap *taps, const float *band,
               const float *g, float *sums) {
  int64_t t = 0;
  for (; t + 9 <= p.n_taps; t += 9) dot_taps<9>(p, b, taps + t, band, g, sums + t * VF);
  for (; t + 3 <= p.n_taps; t += 3) dot_taps<3>(p, b, taps + t, band, g, sums + t * VF);
  for (; t < p.n_taps; ++t) dot_taps<1>(p, b, taps + t, band, g, sums + t * VF);
}

enum { ROW_OUTPUTS = 8 };  // output channels whose sums meet one copied plane

// The gradient of the weight with lanes along the row: where each output channel has one input
// channel, or there are few. `per_output` is how many planes an output channel meets. Images come
// in order, so that sums never depend on the number of threads.
void sum_rows(const ty_ctx *ctx, const ConvShape &s, const float *x, const float *g, float *out,
              int64_t per_output, void *workspace) {
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  ConvPlan p = {};
  p.x = x;
  p.c = 1;
  p.h = s.h;
  p.w = s.w;
  p.x_image = s.h * s.w;
  p.n_taps = s.kh * s.kw;
  p.taps = taps;
  p.sh = s.sh;
  p.sw = s.sw;
  p.oh = s.oh;
  p.ow = s.ow;
  Band b = {};
  find_spans(p, &b);
  b.copied = true;
  b.phase_width = p.ow + b.span_x / p.sw;
  b.row = p.sw * b.phase_width;
  b.plane = copied_rows(p, b, p.oh) * b.row;
  const bool own = s.groups > 1;  // an output channel's only plane is its own
  const int64_t outputs = own ? 1 : ROW_OUTPUTS, sum = p.n_taps * VF;
  const int64_t sums_floats = outputs * per_output * sum;
  const int64_t per_slot = ceil_div(b.plane, 16) * 16 + sums_floats;
  float *const rest = static_cast<float *>(workspace) + 2 * taps_floats(s);
  PlaneTap *table = reinterpret_cast<PlaneTap *>(rest - taps_floats(s));
  fill_offsets(p, b, table);
  ty_parallel(ctx, ceil_div(s.o, outputs), 1, [&](int64_t begin, int64_t end, int32_t slot) {
    float *sums = rest + slot * per_slot, *band = sums + sums_floats;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t o0 = at * outputs, o1 = lesser(o0 + outputs, s.o);
      memset(sums, 0, static_cast<size_t>(sums_floats) * sizeof(float));
      for (int64_t n = 0; n < s.n; ++n) {
        for (int64_t c = 0; c < per_output; ++c) {
          copy_band(band, p, b, n * s.c + (own ? o0 : c), 0, p.oh);
          for (int64_t o = o0; o < o1; ++o)
            dot_plane(p, b, table, band, g + (n * s.o + o) * s.oh * s.ow,
                      sums + ((o - o0) * per_output + c) * sum);
        }
      }
      for (int64_t i = 0; i < (o1 - o0) * per_output * p.n_taps; ++i)
        out[o0 * per_output * p.n_taps + i] = vhsum(vload(sums + i * VF));
    }
  });
}

int backward_weight_rows(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                         const ty_attrs *attrs, void *workspace) {
  const ty_conv2d_backward_weight_attrs &a =
      *reinterpret_cast<const ty_conv2d_backward_weight_attrs *>(attrs);
  const ConvShape s = conv_shape(a, inputs[0].shape, outputs[0].shape, inputs[1].shape);
  sum_rows(ctx, s, static_cast<const float *>(inputs[0].data),
           static_cast<const float *>(inputs[1].data), static_cast<float *>(outputs[0].data),
           outputs[0].shape[1], workspace);
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(conv_depthwise,
                  TY_KERNEL(conv2d_plain_depthwise, "conv2d_f32", "plain_depthwise"),
                  TY_KERNEL(conv2d_fused_plain_depthwise, "conv2d_fused_f32", "plain_depthwise"),
                  TY_KERNEL(backward_data_depthwise, "conv2d_backward_data_f32", "depthwise"),
                  TY_KERNEL(backward_weight_rows, "conv2d_backward_weight_f32", "rows"))
