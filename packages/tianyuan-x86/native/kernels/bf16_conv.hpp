// Direct convolutions of blocked images in bfloat16.
#pragma once

#include "bf16.hpp"
#include "conv.hpp"

namespace TY_ISA {

// Runs a plan whose x, weight, residual and y are words of pairs, x and y in blocks. `workspace`
// holds the table, then one band per slot, as for conv_run.
void pair_conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace);

}  // namespace TY_ISA
