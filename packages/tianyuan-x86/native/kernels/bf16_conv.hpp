// Direct convolutions of blocked images in bfloat16.
#pragma once

#include "bf16.hpp"
#include "conv.hpp"

namespace TY_ISA {

// Runs a plan whose x, weight, residual and y are words of pairs, x and y in blocks. `workspace`
// holds the table, then one band per slot, as for conv_run.
//
// The weight is [block of o][plane of c][tap][pairs of the plane][16 o] words, where a plane is one
// block of channels, or two in tiles.
void pair_conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace);

// Words of the weight of one block of o.
int64_t pair_weight_words(const ConvPlan &p);

}  // namespace TY_ISA
