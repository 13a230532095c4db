// What follows the sums of a fused product while they are at hand: bias, residual, activation.
#pragma once

#include <string.h>

#include "vmath.hpp"

namespace TY_ISA {

enum Activation {
  ACT_IDENTITY,
  ACT_RELU,
  ACT_RELU6,
  ACT_SIGMOID,
  ACT_TANH,
  ACT_SILU,
  ACT_HSWISH,
  ACT_GELU,
  ACT_CLIP,
  ACT_UNKNOWN
};

struct Epilogue {
  Activation activation;
  float lower, upper;
};

static inline Activation activation_of(const char *name) {
  static const char *const names[] = {"identity", "relu",   "relu6", "sigmoid", "tanh",
                                      "silu",     "hswish", "gelu",  "clip"};
  for (int i = 0; i < ACT_UNKNOWN; ++i)
    if (strcmp(name, names[i]) == 0) return static_cast<Activation>(i);
  return ACT_UNKNOWN;
}

// What only bounds values, as a clip: loops over results then need one branch-free form.
static inline Epilogue as_clip(const Epilogue &e) {
  const float infinity = __builtin_inff();
  switch (e.activation) {
    case ACT_IDENTITY:
      return {ACT_CLIP, -infinity, infinity};
    case ACT_RELU:
      return {ACT_CLIP, 0.0f, infinity};
    case ACT_RELU6:
      return {ACT_CLIP, 0.0f, 6.0f};
    default:
      return e;
  }
}

// Kept out of line, so that tiles that end in a rectifier stay short.
__attribute__((noinline, unused)) static vf activate_smooth(vf x, Activation activation) {
  switch (activation) {
    case ACT_SIGMOID:
      return vsigmoid(x);
    case ACT_TANH:
      return vtanh(x);
    case ACT_SILU:
      return vmul(x, vsigmoid(x));
    case ACT_HSWISH:
      return vmul(x, vhsigmoid(x));
    default:
      return vgelu(x);
  }
}

TY_INLINE vf activate(vf x, const Epilogue &e) {
  switch (e.activation) {
    case ACT_IDENTITY:
      return x;
    case ACT_RELU:
      return vrelu(x);
    case ACT_RELU6:
      return vclip(x, 0.0f, 6.0f);
    case ACT_CLIP:
      return vclip(x, e.lower, e.upper);
    default:
      return activate_smooth(x, e.activation);
  }
}

}  // namespace TY_ISA
