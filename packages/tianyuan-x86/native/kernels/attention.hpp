// What the kernels of attention and of its gradient share: the call, a batch item of it, the mask.
#pragma once

#include "batch.hpp"
#include "kernel.hpp"
#include "vmath.hpp"

namespace TY_ISA {

static constexpr float LOWEST = -1e30f;  // the score of a hidden key, as the op defines it

struct Attention {
  int64_t rows, keys, depth, width;  // extents of queries, keys, their vectors and the values
  float scale;
  bool causal;
  const float *query, *key, *value, *added;  // of batch item 0; `added` and `truth` may be NULL
  const uint8_t *truth;
  float *out;
  int64_t mask_row, mask_step;  // distances in the mask; 0 where it repeats
  int dims;
  int64_t batch, extents[TY_MAX_DIMS], strides[4][TY_MAX_DIMS];
};

// The largest lane; lanes must not be NaN.
TY_INLINE float largest(vf a) {
#if TY_VF == 16
  __m256 h = _mm256_max_ps(vf_low(a), vf_high(a));
#else
  __m256 h = a;
#endif
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline Attention attention_of(const ty_tensor *inputs, int count, const ty_tensor &out,
                                     const ty_attention_attrs *attrs) {
  const ty_tensor &q = inputs[0], &k = inputs[1];
  Attention a = {};
  a.rows = q.shape[q.ndim - 2];
  a.depth = q.shape[q.ndim - 1];
  a.keys = k.shape[k.ndim - 2];
  a.width = out.shape[out.ndim - 1];
  a.scale = static_cast<float>(attrs->scale);
  a.causal = attrs->causal != 0;
  a.query = static_cast<const float *>(q.data);
  a.key = static_cast<const float *>(k.data);
  a.value = static_cast<const float *>(inputs[2].data);
  a.out = static_cast<float *>(out.data);
  a.dims = out.ndim - 2;
  a.batch = 1;
  for (int axis = 0; axis < a.dims; ++axis) a.batch *= a.extents[axis] = out.shape[axis];
  for (int i = 0; i < count; ++i) batch_strides(inputs[i], out, a.strides[i]);
  if (count == 4) {
    const ty_tensor &mask = inputs[3];
    if (mask.dtype == TY_BOOL)
      a.truth = static_cast<const uint8_t *>(mask.data);
    else
      a.added = static_cast<const float *>(mask.data);
    const int64_t rows = mask.shape[mask.ndim - 2], keys = mask.shape[mask.ndim - 1];
    a.mask_row = rows == 1 ? 0 : keys;
    a.mask_step = keys == 1 ? 0 : 1;
  }
  return a;
}

static inline Attention item_of(const Attention &whole, int64_t item) {
  Attention a = whole;
  a.out += item * a.rows * a.width;
  a.query += batch_offset(a.dims, a.extents, a.strides[0], item);
  a.key += batch_offset(a.dims, a.extents, a.strides[1], item);
  a.value += batch_offset(a.dims, a.extents, a.strides[2], item);
  const int64_t mask = batch_offset(a.dims, a.extents, a.strides[3], item);
  if (a.added) a.added += mask;
  if (a.truth) a.truth += mask;
  return a;
}

// Adds the mask, or sets the scores of hidden keys, along a run of up to VF keys of one row.
TY_INLINE vf masked(const Attention &a, int64_t row, int64_t key, int64_t count, vf scores) {
  const vtail lanes = vtail_of(count);
  const int64_t at = row * a.mask_row + key * a.mask_step;
  if (a.added) {
    const vf more = a.mask_step ? vload_tail(a.added + at, lanes) : vset1(a.added[at]);
    scores = vadd(scores, more);
  }
  if (a.truth) {
    float seen[VF];
    for (int64_t i = 0; i < VF; ++i)
      seen[i] = i < count && a.truth[at + i * a.mask_step] ? 1.0f : 0.0f;
    scores = vselect(viszero(vload(seen)), vset1(LOWEST), scores);
  }
  if (a.causal && key + count - 1 > row)
    scores = vselect(vtail_mask(vtail_of(row < key ? 0 : row - key + 1)), scores, vset1(LOWEST));
  return scores;
}

}  // namespace TY_ISA
