// Direct convolution as tiles over pixels and output channels, for every layout and for the
// gradient with respect to the input, which is a convolution of each phase of the result.
#pragma once

#include "epilogue.hpp"
#include "kernel.hpp"
#include "tile.hpp"

namespace TY_ISA {

// Words of 32 bits that a pixel of a block of VF channels takes: a float each, or pairs in
// bfloat16.
#if defined(__AVX512BF16__)
enum { BLOCK_WORDS = VF / 2 };
#else
enum { BLOCK_WORDS = VF };
#endif
enum { TERMS = VF / BLOCK_WORDS };  // values that a word holds

// The attributes and extents of a convolution; c and o count channels over all groups.
struct ConvShape {
  int64_t n, c, h, w, o, oh, ow, kh, kw;
  int64_t sh, sw, dh, dw, top, left, groups;
};

// One element of the kernel: which source pixel it meets at output pixel 0, which may lie outside,
// and which of the weight's matrices it multiplies by.
struct ConvTap {
  int64_t y, x, weight;
};

// One convolution. Blocked values hold VF channels per pixel, zeros behind the last channel. The
// weight of a group is [block of o][block of c][n_weights][VF c][VF o]; pointers are those of the
// first group, channels are counted in one.
struct ConvPlan {
  int64_t groups, x_group, weight_group, y_group;  // distances between groups

  const float *x;
  bool x_blocked;
  int64_t n, c, h, w, x_image;

  const float *weight;
  int64_t n_weights;
  const ConvTap *taps;
  int64_t n_taps;
  int64_t sh, sw;

  float *y;
  bool y_blocked;
  int64_t o, oh, ow;
  int64_t y_image, y_channel, y_row, y_pixel;  // y_channel: of one channel, or of one block
  const float *bias;                           // o values, or NULL
  const float *residual;                       // in the form of y, or NULL
  Epilogue epilogue;
};

namespace {

// One group of a plan, as a plan of its own.
inline ConvPlan group_of(const ConvPlan &p, int64_t group) {
  ConvPlan own = p;
  own.groups = 1;
  own.x += group * p.x_group;
  own.weight += group * p.weight_group;
  own.y += group * p.y_group;
  if (p.residual) own.residual += group * p.y_group;
  if (p.bias) own.bias += group * p.o;
  return own;
}

}  // namespace

// Most floats that the padded copy of a band of rows takes, unless one row needs more.
enum { BAND_FLOATS = 96 * 1024 };

// Floats of workspace per call and per slot; the kernels' descriptions in Python know the same.
int64_t conv_table_floats(int64_t c, int64_t taps);
int64_t conv_band_floats(const ConvPlan &p);

// Runs the plan. `workspace` holds the table, then one band per slot.
void conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace);

}  // namespace TY_ISA
