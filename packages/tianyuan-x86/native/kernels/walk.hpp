// Walks operands that broadcast together: collapses axes, and hands out blocks of each operand as
// one contiguous run or one repeated element.
#pragma once

#include <string.h>

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {

enum { WALK_INPUTS = 24 };
static constexpr int64_t BLOCK = 1024;   // elements of a block: a few of them fill half of L1
static constexpr int64_t ROW_MIN = 256;  // rows from here on are walked without copying
static constexpr int64_t GRAIN = 16384;  // least elements worth a thread

struct Walk {
  int ndim;
  int64_t size;
  int64_t shape[TY_MAX_DIMS];
  int64_t stride[WALK_INPUTS][TY_MAX_DIMS];  // in elements; 0 where the input repeats
  bool flat[WALK_INPUTS];                    // has the full shape
  bool scalar[WALK_INPUTS];                  // has one element
};

// Numbers n repeated by a block: base + i * step for step 0 or 1.
template <class T>
struct View {
  const T *data;
  int step;
};

static inline bool can_merge(const Walk &w, int count, int outer, int inner) {
  for (int k = 0; k < count; ++k)
    if (w.stride[k][outer] != w.stride[k][inner] * w.shape[inner]) return false;
  return true;
}

__attribute__((unused)) static void walk_init(Walk *w, const ty_tensor &out,
                                              const ty_tensor *inputs, int count) {
  w->ndim = 0;
  w->size = ty_count(out);
  int64_t running[WALK_INPUTS];
  int64_t full[WALK_INPUTS][TY_MAX_DIMS];
  for (int k = 0; k < count; ++k) running[k] = 1;
  for (int d = out.ndim - 1; d >= 0; --d) {
    for (int k = 0; k < count; ++k) {
      const int own = d - (out.ndim - inputs[k].ndim);
      const int64_t extent = own >= 0 ? inputs[k].shape[own] : 1;
      full[k][d] = extent == 1 ? 0 : running[k];
      running[k] *= extent;
    }
  }
  for (int d = 0; d < out.ndim; ++d) {
    if (out.shape[d] == 1) continue;
    const int at = w->ndim;
    w->shape[at] = out.shape[d];
    for (int k = 0; k < count; ++k) w->stride[k][at] = full[k][d];
    if (at > 0 && can_merge(*w, count, at - 1, at)) {
      w->shape[at - 1] *= w->shape[at];
      for (int k = 0; k < count; ++k) w->stride[k][at - 1] = w->stride[k][at];
    } else {
      w->ndim = at + 1;
    }
  }
  for (int k = 0; k < count; ++k) {
    w->scalar[k] = running[k] == 1;
    w->flat[k] = running[k] == w->size;
  }
}

// Copies elements [begin, begin + n) of a broadcast input into dst.
template <class T>
static void walk_fill(const Walk &w, int k, const T *src, int64_t begin, int64_t n, T *dst) {
  int64_t index[TY_MAX_DIMS], offset = 0, rest = begin;
  for (int d = w.ndim - 1; d >= 0; --d) {
    index[d] = rest % w.shape[d];
    rest /= w.shape[d];
    offset += index[d] * w.stride[k][d];
  }
  const int last = w.ndim - 1;
  const int64_t step = w.stride[k][last];
  for (int64_t done = 0; done < n;) {
    int64_t run = w.shape[last] - index[last];
    if (run > n - done) run = n - done;
    const T *from = src + offset;
    if (step == 0) {
      for (int64_t i = 0; i < run; ++i) dst[done + i] = *from;
    } else {
      for (int64_t i = 0; i < run; ++i) dst[done + i] = from[i];
    }
    done += run;
    index[last] += run;
    offset += run * step;
    for (int d = last; d > 0 && index[d] == w.shape[d]; --d) {
      offset += w.stride[k][d - 1] - index[d] * w.stride[k][d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

static inline int64_t walk_offset(const Walk &w, int k, int64_t begin) {
  int64_t offset = 0;
  for (int d = w.ndim - 1; d >= 0; --d) {
    offset += (begin % w.shape[d]) * w.stride[k][d];
    begin /= w.shape[d];
  }
  return offset;
}

static inline bool walk_direct(const Walk &w, int count) {
  for (int k = 0; k < count; ++k)
    if (!w.flat[k] && !w.scalar[k]) return false;
  return true;
}

// How many elements from begin on one block takes: a whole row where rows are long, so that most
// operands need no copy.
static inline int64_t walk_block(const Walk &w, int64_t begin, int64_t end, int64_t most) {
  int64_t n = end - begin;
  const int64_t inner = w.ndim > 0 ? w.shape[w.ndim - 1] : 1;
  if (inner >= ROW_MIN) {
    const int64_t row = inner - begin % inner;
    if (n > row) n = row;
  }
  return n > most ? most : n;
}

// Elements [begin, begin + n) of input k; scratch holds n elements for where they must be copied.
template <class T>
static inline View<T> walk_view(const Walk &w, int k, const T *src, int64_t begin, int64_t n,
                                T *scratch) {
  if (w.flat[k]) return {src + begin, 1};
  if (w.scalar[k]) return {src, 0};
  const int64_t inner = w.shape[w.ndim - 1];
  if (begin % inner + n <= inner) {
    return {src + walk_offset(w, k, begin), w.stride[k][w.ndim - 1] ? 1 : 0};
  }
  walk_fill(w, k, src, begin, n, scratch);
  return {scratch, 1};
}

// An image in blocks of VF channels as one flat run, padding lanes included.
static inline ty_tensor flat_blocks(const ty_tensor &image) {
  ty_tensor flat = image;
  flat.ndim = 1;
  flat.shape[0] =
      image.shape[0] * ((image.shape[1] + VF - 1) / VF * VF) * image.shape[2] * image.shape[3];
  return flat;
}

}  // namespace TY_ISA
