// How a loop body loads and stores its vectors: whole ones, and the masked one at the end, whose
// stores are slow on some AVX2 machines.
#pragma once

#include "simd.hpp"

#define TY_MEMBER inline __attribute__((always_inline))

namespace TY_ISA {

struct Whole {
  TY_MEMBER vf load(const float *p) const { return vload(p); }
  TY_MEMBER void store(float *p, vf x) const { vstore(p, x); }
};

struct Tail {
  vtail live;
  TY_MEMBER vf load(const float *p) const { return vload_tail(p, live); }
  TY_MEMBER void store(float *p, vf x) const { vstore_tail(p, x, live); }
};

namespace {

// Runs body(offset, lanes) over the vectors of [begin, end).
template <class Body>
TY_INLINE void for_lanes(int64_t begin, int64_t end, const Body &body) {
  int64_t i = begin;
  for (; i + VF <= end; i += VF) body(i, Whole());
  if (i < end) body(i, Tail{vtail_of(end - i)});
}

}  // namespace
}  // namespace TY_ISA
