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
  int64_t query_row, key_row, value_row, out_row;  // distances of rows
  int64_t mask_row, mask_step;                     // distances in the mask; 0 where it repeats
  int dims;
  int64_t batch, extents[TY_MAX_DIMS], strides[5][TY_MAX_DIMS];  // of the inputs and of `out`
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

// Where a mask lies, and how it repeats.
static inline void add_mask(Attention *a, const ty_tensor &mask) {
  if (mask.dtype == TY_BOOL)
    a->truth = static_cast<const uint8_t *>(mask.data);
  else
    a->added = static_cast<const float *>(mask.data);
  const int64_t rows = mask.shape[mask.ndim - 2], keys = mask.shape[mask.ndim - 1];
  a->mask_row = rows == 1 ? 0 : keys;
  a->mask_step = keys == 1 ? 0 : 1;
}

static inline Attention attention_of(const ty_tensor *inputs, int count, const ty_tensor &out,
                                     const ty_attention_attrs *attrs) {
  const ty_tensor &q = inputs[0], &k = inputs[1];
  Attention a = {};
  a.rows = q.shape[q.ndim - 2];
  a.depth = a.query_row = a.key_row = q.shape[q.ndim - 1];
  a.keys = k.shape[k.ndim - 2];
  a.width = a.value_row = a.out_row = out.shape[out.ndim - 1];
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
  batch_strides(out, out, a.strides[4]);
  if (count == 4) add_mask(&a, inputs[3]);
  return a;
}

// The same where heads are columns: one more axis of the batch.
static inline Attention attention_of(const ty_tensor *inputs, int count, const ty_tensor &out,
                                     const ty_attention_heads_attrs *attrs) {
  const ty_attention_attrs plain = {{}, attrs->scale, attrs->causal};
  const int64_t *starts = TY_INTS(attrs, attrs->starts), *steps = TY_INTS(attrs, attrs->steps);
  Attention a = attention_of(inputs, 3, out, &plain);
  a.query_row = inputs[0].shape[inputs[0].ndim - 1];
  a.key_row = inputs[1].shape[inputs[1].ndim - 1];
  a.value_row = inputs[2].shape[inputs[2].ndim - 1];
  a.depth = attrs->depth;
  a.width = attrs->width;
  a.query += starts[0];
  a.key += starts[1];
  a.value += starts[2];
  for (int i = 0; i < 3; ++i) a.strides[i][a.dims] = steps[i];
  a.strides[4][a.dims] = a.width;
  a.extents[a.dims++] = attrs->heads;
  a.batch *= attrs->heads;
  if (count == 4) {
    ty_tensor scores = out;  // what the mask broadcasts to, as far as its batch is concerned
    scores.ndim = a.dims + 2;
    for (int axis = 0; axis < a.dims; ++axis) scores.shape[axis] = a.extents[axis];
    batch_strides(inputs[3], scores, a.strides[3]);
    add_mask(&a, inputs[3]);
  }
  return a;
}

// A kernel of the op with these attributes, from what runs an attention.
template <typename Attrs, int (*RUN)(const ty_ctx *, const Attention &, void *)>
int attention_kernel(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                     const ty_attrs *attrs, void *workspace) {
  const auto *own = reinterpret_cast<const Attrs *>(attrs);
  return RUN(ctx, attention_of(inputs, attrs->n_inputs, outputs[0], own), workspace);
}

static inline Attention item_of(const Attention &whole, int64_t item) {
  Attention a = whole;
  const auto offset = [&](int i) { return batch_offset(a.dims, a.extents, a.strides[i], item); };
  a.query += offset(0);
  a.key += offset(1);
  a.value += offset(2);
  a.out += offset(4);
  if (a.added) a.added += offset(3);
  if (a.truth) a.truth += offset(3);
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
