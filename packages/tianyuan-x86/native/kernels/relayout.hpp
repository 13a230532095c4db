// Packing into blocks, shared by relayout and by kernels that take plain weights.
#pragma once

#include "element.hpp"

namespace TY_ISA {

// Channels of `images` x `channels` x `pixels` into blocks of VF, zeros behind the last, or back.
void pack_channels(const ty_ctx *ctx, element *to, const float *from, int64_t images,
                   int64_t channels, int64_t pixels);
void unpack_channels(const ty_ctx *ctx, float *to, const element *from, int64_t images,
                     int64_t channels, int64_t pixels);

// A weight as o x c matrices, one per kernel element; distances of o and c in floats, kernel
// elements are contiguous. Swapped distances give the transposed matrices.
struct WeightForm {
  int64_t o, c, kernel, o_step, c_step;
};

// Writes [kernel][VF c][VF o] of the channels from (o0, c0), zeros behind the last ones.
void pack_block(float *to, const float *from, const WeightForm &form, int64_t o0, int64_t c0);

// Writes [block of o][block of c] of such blocks.
void pack_weight(const ty_ctx *ctx, float *to, const float *from, const WeightForm &form);

}  // namespace TY_ISA
