// Direct convolutions in bfloat16: of blocked images, and of plain float32 images of few channels.
#pragma once

#include "bf16.hpp"
#include "conv.hpp"

namespace TY_ISA {

// Runs a plan whose x, weight, residual and y are words of pairs, x and y in blocks. `workspace`
// holds the table, then one band per slot, as for conv_run.
void pair_conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace);

// The same on a plain image of float32: whose rows of a kernel are contiguous runs of pairs once
// the channels of a pixel lie next to each other, which a padded copy does. The weight is
// [block of o][kh][ceil(kw c / 2)][16 o] words, where the last pair of an odd run repeats its first
// term with a zero.
struct PairFirst {
  ConvPlan plan;
  const float *x;
  int64_t kh, kw, top, left;
};
void pair_first_run(const ty_ctx *ctx, const PairFirst &f, char *workspace);

}  // namespace TY_ISA
