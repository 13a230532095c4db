// conv2d_quantized on channels-last images: packed weights, or plain ones that are packed first.
#include "int8_conv.hpp"

namespace TY_ISA {
namespace {

// Whether the image itself can be read in place of a padded copy.
bool reads_in_place(const Q8ConvShape &s, bool is_signed) {
#if defined(__AVX512VNNI__)
  const bool whole = s.groups == 1 || s.c / s.groups % 4 == 0;
  return !(Q8_FLIPS && is_signed) && whole && s.top + s.left + s.bottom + s.right == 0;
#else
  (void)s;
  (void)is_signed;
  return false;
#endif
}

// Writes the runs of terms of one group's rows; taps that follow each other are joined.
int64_t write_runs(const Q8ConvShape &s, int64_t row, Q8Run *runs) {
  const int64_t channels = q8_channels(s.c), c4 = ceil_div(s.c / s.groups, 4);
  const bool joins = s.dw == 1 && c4 * 4 == channels;
  int64_t count = 0;
  for (int64_t i = 0; i < s.kh; ++i)
    for (int64_t j = 0; j < s.kw; ++j) {
      if (joins && j > 0)
        runs[count - 1].k4 += c4;
      else
        runs[count++] = {i * s.dh * row + j * s.dw * channels, c4};
    }
  return count;
}

// Where zeros of the padding may be left out.
Q8Border border_of(const Q8ConvShape &s, int64_t n_runs) {
  const bool rows = n_runs == s.kh && s.kw > 1;
  const bool right = (s.ow - 1) * s.sw + s.kw - 1 - s.left >= s.w;
  return {rows && s.top + s.left + s.bottom + s.right > 0,
          s.left > 0,
          right,
          ceil_div(s.c / s.groups, 4),
          s.top,
          s.h,
          s.sh,
          s.dh};
}

// What zero points of weights are multiplied by: sums of the terms under each window of one group,
// by way of those of each pixel.
struct WindowSums {
  int32_t *pixels, *windows;
};

void sum_windows(const ty_ctx *ctx, const WindowSums &to, const Q8Plan &p, const Q8ConvShape &s,
                 int64_t height, int64_t width) {
  const int64_t channels = q8_channels(s.c), group_c = s.c / s.groups, size = s.oh * s.ow;
  ty_parallel(ctx, s.n * height * width, 1 + 16384 / (group_c + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  int32_t sum = 0;
                  for (int64_t c = 0; c < group_c; ++c) sum += p.x[at * channels + c];
                  to.pixels[at] = sum;
                }
              });
  ty_parallel(
      ctx, s.n * size, 1 + 16384 / (s.kh * s.kw + 1), [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t at = begin; at < end; ++at) {
          const int64_t oy = at % size / s.ow, ox = at % s.ow;
          const int32_t *from = to.pixels + (at / size * height + oy * s.sh) * width + ox * s.sw;
          int32_t sum = 0;
          for (int64_t i = 0; i < s.kh; ++i)
            for (int64_t j = 0; j < s.kw; ++j) sum += from[i * s.dh * width + j * s.dw];
          to.windows[at] = sum;
        }
      });
}

#if Q8_TILES
// How tiles walk over pixels: by all at equal distances, multiplying what lies between the rows of
// an image too; row by row; or by terms that were gathered for each pixel.
enum Walk { WHOLE, BY_ROWS, GATHERED };

// The walk that takes the fewest cycles. In one, tiles take a row of 64 terms by 16 outputs, where
// there are enough rows to do so without waiting for sums; copies are a run of terms in 8 and a
// line in 2 more.
Walk walk_of(const Q8ConvShape &s, const Q8Run *runs, int64_t n_runs, bool in_place) {
  constexpr int64_t enough = 26;
  const int64_t width = s.w + s.left + s.right, run = runs[0].k4, step = q8_even_step(run);
  const double blocks = static_cast<double>(ceil_div(s.o / s.groups, 16) * s.groups);
  const double steps = static_cast<double>(step > 0 ? n_runs * (run / step) : 0);
  const double gathered_steps = static_cast<double>(ceil_div(n_runs * run, 16));
  const double lines = static_cast<double>(n_runs * (8 + 2 * ceil_div(run, 16)) * s.groups);
  const double copied =
      in_place
          ? 0.0
          : static_cast<double>(s.n * (s.h + s.top + s.bottom) * width * q8_channels(s.c)) / 16;
  const int64_t parts = ceil_div(s.ow, 32), tall = ceil_div(s.ow, parts);
  const double by_rows = static_cast<double>(s.n * s.oh * parts * (tall > enough ? tall : enough));
  const double pixels = static_cast<double>(s.n * s.oh * s.ow);
  const double cost[3] = {
      static_cast<double>(s.n * ((s.oh - 1) * (s.sh * width / s.sw) + s.ow)) * blocks * steps +
          copied,
      by_rows * blocks * steps + copied, pixels * (blocks * gathered_steps + lines)};
  Walk best = s.sh * width % s.sw == 0 && cost[WHOLE] <= cost[BY_ROWS] ? WHOLE : BY_ROWS;
  return cost[GATHERED] < cost[best] ? GATHERED : best;
}
#endif

// A call, and its plan but for what differs between groups.
struct Conv {
  Q8ConvShape s;
  int64_t height, width;  // of what is read: the image or a padded copy of it
  bool in_place, packed, has_zeros;
  Q8Columns columns;
  WindowSums sums;  // where weights have zero points
  int32_t zero;     // of the operands
  const int8_t *weight;
  int8_t *own;  // where the weight of a group is packed, if it is not
  Q8Gather gather;
  Q8Run *runs;
  Q8Plan plan;
};

// Reads a call; tables and terms are found later.
Conv conv_of(const ty_conv2d_quantized_attrs &a, const ty_tensor *inputs, const ty_tensor &y,
             bool packed) {
  Conv c = {};
  c.s = q8_conv_shape(a, inputs, y);
  const Q8ConvShape &s = c.s;
  c.packed = packed;
  c.weight = static_cast<const int8_t *>(inputs[1].data);
  c.zero = q8_zero(Operand(), a.x_zero_point, inputs[0].dtype == TY_INT8);
  for (int64_t i = 0; i < a.w_zero_points.count; ++i)
    c.has_zeros |= TY_INTS(&a, a.w_zero_points)[i] != 0;
  Q8Plan &p = c.plan;
  p.x = static_cast<const Operand *>(inputs[0].data);
  p.is_signed = inputs[0].dtype == TY_INT8;
  c.in_place = reads_in_place(s, p.is_signed);
  c.height = s.h + (c.in_place ? 0 : s.top + s.bottom);
  c.width = s.w + (c.in_place ? 0 : s.left + s.right);
  const int64_t channels = q8_channels(s.c);
  p.pixel = s.sw * channels;
  p.row = s.sh * c.width * channels;
  p.image = c.height * c.width * channels;
  p.n = s.n;
  p.oh = s.oh;
  p.ow = s.ow;
  p.o = s.o / s.groups;
  p.k4 = s.kh * s.kw * ceil_div(s.c / s.groups, 4);
  p.y = static_cast<uint8_t *>(y.data);
  p.y_pixel = q8_channels(s.o);
  p.store = q8_store_of(a);
  p.residual = q8_residual_of(a, inputs);
  return c;
}

// Takes room for the tables and fills them.
void fill_tables(const ty_conv2d_quantized_attrs &a, const ty_tensor *inputs, Q8Scratch *scratch,
                 Conv *c) {
  const Q8ConvShape &s = c->s;
  c->runs = static_cast<Q8Run *>(scratch->take(s.kh * s.kw * 16));
  c->columns = {static_cast<int32_t *>(scratch->take(q8_columns_bytes(s.o))), nullptr,
                static_cast<float *>(scratch->take(q8_columns_bytes(s.o)))};
  if (c->has_zeros) {
    c->columns.w_zero = static_cast<int32_t *>(scratch->take(q8_columns_bytes(s.o)));
    c->sums.pixels = static_cast<int32_t *>(scratch->take(4 * s.n * c->height * c->width));
    c->sums.windows = static_cast<int32_t *>(scratch->take(4 * s.n * s.oh * s.ow));
  }
  q8_fill_columns(c->columns, {q8_bias_of(a, inputs), TY_FLOATS(&a, a.multipliers),
                               TY_INTS(&a, a.w_zero_points), a.multipliers.count,
                               a.w_zero_points.count, s.o, 0});
  c->plan.runs = c->runs;
  c->plan.n_runs = write_runs(s, c->width * q8_channels(s.c), c->runs);
}

// Lets the plan read the image in place, a padded copy of it, or, in tiles, gathered terms.
void find_terms(const ty_ctx *ctx, const ty_conv2d_quantized_attrs &a, Q8Scratch *scratch,
                Conv *c) {
  const Q8ConvShape &s = c->s;
  Q8Plan &p = c->plan;
#if Q8_TILES
  const Walk walk = walk_of(s, c->runs, p.n_runs, c->in_place);
  p.by_rows = walk == BY_ROWS;
  if (walk == GATHERED) {
    c->gather = {s, nullptr, static_cast<uint8_t>(a.x_zero_point),
                 static_cast<uint8_t *>(
                     scratch->take(ctx->threads * q8_stage_bytes(p.k4, s.n * s.oh * s.ow)))};
    p.gather = &c->gather;
    p.n_runs = 1;
    c->runs[0] = {0, q8_panel_rows(p.k4)};
    return;
  }
#endif
  if (c->in_place) return;
  const auto *image = static_cast<const uint8_t *>(static_cast<const void *>(p.x));
  Operand *copy = static_cast<Operand *>(scratch->take((s.n * p.image + 64) * sizeof(Operand)));
  q8_copy_padded(ctx, copy, image, s, a.x_zero_point, p.is_signed);
  p.x = copy;
  if (c->zero == 0) p.border = border_of(s, p.n_runs);
}

void run_group(const ty_ctx *ctx, const Conv &c, int64_t group) {
  const Q8ConvShape &s = c.s;
  Q8Plan p = c.plan;
  const int64_t taps = s.kh * s.kw, inputs = s.c / s.groups, first = group * p.o;
  if (c.packed) {
    p.weight = c.weight + group * q8_packed_bytes(p.o, p.k4);
  } else {
    q8_pack(ctx, c.own, c.weight + first * inputs * taps,
            {p.o, inputs, taps, inputs * taps, taps, false});
    p.weight = c.own;
  }
  p.x += group * inputs;
  Q8Gather gather = c.gather;
  if (p.gather != nullptr) {
    gather.x = static_cast<const uint8_t *>(static_cast<const void *>(p.x));
    p.gather = &gather;
  }
  if (c.has_zeros) {
    p.w_zero = c.columns.w_zero + first;
    p.row_sums = c.sums.windows;
    sum_windows(ctx, c.sums, p, s, c.height, c.width);
  }
  p.bias = c.columns.bias + first;
  p.multiplier = c.columns.multiplier + first;
  q8_fold_zero(c.columns.bias + first, p.w_zero, p.weight, p.o, p.k4, inputs * taps, c.zero);
  p.o_room = p.y_pixel - first;  // later groups write over what is too much
  p.y += first;
  if (p.residual.data != nullptr) p.residual.data += first;
  q8_run(ctx, p);
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace, bool packed) {
  const auto &a = *reinterpret_cast<const ty_conv2d_quantized_attrs *>(attrs);
  if (ty_count(outputs[0]) == 0) return 0;
  Conv c = conv_of(a, inputs, outputs[0], packed);
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  fill_tables(a, inputs, &scratch, &c);
  find_terms(ctx, a, &scratch, &c);
  if (!packed) c.own = static_cast<int8_t *>(scratch.take(q8_packed_bytes(c.plan.o, c.plan.k4)));
  for (int64_t group = 0; group < c.s.groups; ++group) run_group(ctx, c, group);
  return 0;
}

int conv_unpacked(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                  const ty_attrs *attrs, void *workspace) {
  return run(ctx, inputs, outputs, attrs, workspace, false);
}

}  // namespace

int q8_conv_packed(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                   const ty_attrs *attrs, void *workspace) {
  return run(ctx, inputs, outputs, attrs, workspace, true);
}

}  // namespace TY_ISA

#define Q8_DIRECT(variant)                                  \
  TY_KERNEL(q8_conv_packed, "conv2d_q8", "direct" variant), \
      TY_KERNEL(q8_conv_packed, "conv2d_q8", "direct" variant "_unbiased")
TY_EXPORT_KERNELS(int8_conv, Q8_DIRECT(""), Q8_DIRECT("_g2"), Q8_DIRECT("_g3"), Q8_DIRECT("_g4"),
                  Q8_DIRECT("_g8"), TY_KERNEL(conv_unpacked, "conv2d_q8", "unpacked"),
                  TY_KERNEL(conv_unpacked, "conv2d_q8", "unpacked_unbiased"))
