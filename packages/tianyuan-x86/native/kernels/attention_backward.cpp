// The gradient of attention in float32 without the matrix of scores, after Dao 2023
// (FlashAttention-2): a first pass finds every row's largest score and its weights' sum, a second
// one makes the weights of a block of rows and keys again and adds up five products. The order of
// sums depends on extents alone.
#include <string.h>

#include "attention.hpp"
#include "matmul.hpp"

namespace TY_ISA {
namespace {

// Keys and rows of a block, as in src/tianyuan_x86/kernels/attention.py: two blocks of scores and
// what they meet stay in the second-level cache.
enum { KEYS = 256, ROWS = 168 };

struct Backward {
  Attention a;  // its `out` is the result
  const float *out, *grad;
  float *of_query, *of_key, *of_value;
};

// One thread's memory: scores and their gradients, ROWS x KEYS each; for every row its largest
// score, what its weights are multiplied by, and the product of result and gradient.
struct Scratch {
  float *scores, *slopes, *best, *factor, *inner, *packed;
};

int64_t floats_of(const Attention &a) {
  const int64_t sizes[][3] = {{ROWS, KEYS, a.depth},
                              {ROWS, KEYS, a.width},
                              {KEYS, a.width, ROWS},
                              {ROWS, a.depth, KEYS},
                              {KEYS, a.depth, ROWS}};
  int64_t packed = 0;
  for (const auto &size : sizes) {
    const int64_t floats = gemm_workspace(size[0], size[1], size[2]);
    packed = floats > packed ? floats : packed;
  }
  return 2 * ROWS * KEYS + 3 * round_up(a.rows, 16) + round_up(packed, 16);
}

Scratch scratch_of(const Attention &a, float *memory) {
  const int64_t rows = round_up(a.rows, 16);
  Scratch s;
  s.scores = memory;
  s.slopes = s.scores + ROWS * KEYS;
  s.best = s.slopes + ROWS * KEYS;
  s.factor = s.best + rows;
  s.inner = s.factor + rows;
  s.packed = s.inner + rows;
  return s;
}

struct Block {
  int64_t row, rows, key, keys;
};

// c = a b, or c + a b.
void multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
              const float *b, int64_t b_step, int64_t b_column, float *c, int64_t c_row, bool adds,
              float *packed) {
  Gemm g = {};
  g.m = m;
  g.n = n;
  g.k = k;
  g.a = a;
  g.a_row = a_row;
  g.a_step = a_step;
  g.b = b;
  g.b_step = b_step;
  g.b_column = b_column;
  g.c = c;
  g.c_row = c_row;
  g.residual = adds ? c : nullptr;  // k is one block, so that c is read before it is written
  g.epilogue.activation = ACT_IDENTITY;
  gemm(g, packed);
}

// Scaled and masked scores of a block; lanes behind the keys are -inf.
void score(const Attention &a, const Block &b, const Scratch &s) {
  multiply(b.rows, b.keys, a.depth, a.query + b.row * a.depth, a.depth, 1, a.key + b.key * a.depth,
           1, a.depth, s.scores, KEYS, false, s.packed);
  const bool masks = a.causal || a.truth || a.added;
  const vf scale = vset1(a.scale), lowest = vneg(vinf());
  for (int64_t r = 0; r < b.rows; ++r)
    for (int64_t j = 0; j < b.keys; j += VF) {
      float *at = s.scores + r * KEYS + j;
      const int64_t some = lesser(VF, b.keys - j);
      vf x = vmul(vload(at), scale);
      if (masks) x = masked(a, b.row + r, b.key + j, some, x);
      vstore(at, some < VF ? vselect(vtail_mask(vtail_of(some)), x, lowest) : x);
    }
}

// Takes a block into its rows' largest scores and sums, which `factor` holds meanwhile.
void count_block(const Block &b, const Scratch &s) {
  for (int64_t r = 0; r < b.rows; ++r) {
    const float *row = s.scores + r * KEYS;
    vf most = vset1(s.best[b.row + r]);
    for (int64_t j = 0; j < b.keys; j += VF) most = vmax_fast(vload(row + j), most);
    const float before = s.best[b.row + r], best = largest(most);
    // Where every score so far is -inf, weights are relative to 0, and are 0.
    const vf by = best == -__builtin_inff() ? vzero() : vset1(best);
    vf sum = vzero();
    for (int64_t j = 0; j < b.keys; j += VF) sum = vadd(sum, vexp(vsub(vload(row + j), by)));
    float kept[VF];
    vstore(kept, vexp(vsub(vset1(before), by)));
    s.factor[b.row + r] = s.factor[b.row + r] * kept[0] + vhsum(sum);
    s.best[b.row + r] = best;
  }
}

// Turns scores into weights, and gradients of weights into those of unscaled scores.
void weigh(const Attention &a, const Block &b, const Scratch &s) {
  const bool hides = a.causal || a.truth;
  const vf scale = vset1(a.scale), low = vset1(LOWEST);
  for (int64_t r = 0; r < b.rows; ++r) {
    const float best = s.best[b.row + r];
    const vf by = best == -__builtin_inff() ? vzero() : vset1(best);
    const vf factor = vset1(s.factor[b.row + r]), inner = vset1(s.inner[b.row + r]);
    for (int64_t j = 0; j < b.keys; j += VF) {
      float *at = s.scores + r * KEYS + j, *slope = s.slopes + r * KEYS + j;
      const vf x = vload(at);
      vf weight = vmul(vexp(vsub(x, by)), factor);
      if (hides) weight = vselect(veq(x, low), vzero(), weight);
      vstore(at, weight);
      vstore(slope, vmul(vmul(weight, vsub(vload(slope), inner)), scale));
    }
  }
}

void add_block(const Backward &w, const Block &b, const Scratch &s) {
  const Attention &a = w.a;
  const float *grad = w.grad + b.row * a.width;
  multiply(b.rows, b.keys, a.width, grad, a.width, 1, a.value + b.key * a.width, 1, a.width,
           s.slopes, KEYS, false, s.packed);
  weigh(a, b, s);
  multiply(b.keys, a.width, b.rows, s.scores, 1, KEYS, grad, a.width, 1,
           w.of_value + b.key * a.width, a.width, true, s.packed);
  multiply(b.rows, a.depth, b.keys, s.slopes, KEYS, 1, a.key + b.key * a.depth, a.depth, 1,
           w.of_query + b.row * a.depth, a.depth, true, s.packed);
  multiply(b.keys, a.depth, b.rows, s.slopes, 1, KEYS, a.query + b.row * a.depth, a.depth, 1,
           w.of_key + b.key * a.depth, a.depth, true, s.packed);
}

void start_rows(const Backward &w, int64_t row, int64_t rows, const Scratch &s) {
  const int64_t width = w.a.width;
  for (int64_t r = row; r < row + rows; ++r) {
    vf sum = vzero();
    for (int64_t j = 0; j < width; j += VF) {
      const vtail tail = vtail_of(width - j);
      sum = vfma(vload_tail(w.out + r * width + j, tail), vload_tail(w.grad + r * width + j, tail),
                 sum);
    }
    s.inner[r] = vhsum(sum);
    s.best[r] = -__builtin_inff();
    s.factor[r] = 0;
  }
}

void run_item(const Backward &w, const Scratch &s) {
  const Attention &a = w.a;
  memset(w.of_query, 0, static_cast<size_t>(a.rows * a.depth) * sizeof(float));
  memset(w.of_key, 0, static_cast<size_t>(a.keys * a.depth) * sizeof(float));
  memset(w.of_value, 0, static_cast<size_t>(a.keys * a.width) * sizeof(float));
  for (int64_t row = 0; row < a.rows; row += ROWS) {
    const int64_t rows = lesser(ROWS, a.rows - row);
    const int64_t keys = a.causal ? lesser(a.keys, row + rows) : a.keys;
    start_rows(w, row, rows, s);
    for (int64_t key = 0; key < keys; key += KEYS) {
      const Block b = {row, rows, key, lesser(KEYS, keys - key)};
      score(a, b, s);
      count_block(b, s);
    }
    for (int64_t r = row; r < row + rows; ++r) s.factor[r] = 1.0f / s.factor[r];
    for (int64_t key = 0; key < keys; key += KEYS) {
      const Block b = {row, rows, key, lesser(KEYS, keys - key)};
      if (keys > KEYS) score(a, b, s);
      add_block(w, b, s);
    }
  }
}

// inputs: query, key, value, the result, its gradient, [mask]
int attention_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                       const ty_attrs *raw, void *workspace) {
  // The attributes are those of attention, which has the same form but for the tensors in between.
  const auto *own = reinterpret_cast<const ty_attention_backward_attrs *>(raw);
  ty_attention_attrs attrs = {};
  attrs.scale = own->scale;
  attrs.causal = own->causal;
  const bool masked = raw->n_inputs == 6;
  const ty_tensor given[] = {inputs[0], inputs[1], inputs[2], inputs[masked ? 5 : 2]};
  Backward whole = {};
  whole.a = attention_of(given, masked ? 4 : 3, inputs[3], &attrs);
  const int64_t per_slot = round_up(floats_of(whole.a), 16);
  const double work = 1e1 * static_cast<double>(whole.a.rows + 1) *
                      static_cast<double>(whole.a.keys + 1) *
                      static_cast<double>(whole.a.depth + whole.a.width + 1);
  const int64_t grain = work > 2e5 ? 1 : static_cast<int64_t>(2e5 / work) + 1;
  ty_parallel(ctx, whole.a.batch, grain, [&](int64_t begin, int64_t end, int32_t slot) {
    const Scratch s = scratch_of(whole.a, static_cast<float *>(workspace) + slot * per_slot);
    for (int64_t at = begin; at < end; ++at) {
      Backward w = {};
      w.a = item_of(whole.a, at);
      w.out = w.a.out;
      w.grad = static_cast<const float *>(inputs[4].data) + at * w.a.rows * w.a.width;
      w.of_query = static_cast<float *>(outputs[0].data) + at * w.a.rows * w.a.depth;
      w.of_key = static_cast<float *>(outputs[1].data) + at * w.a.keys * w.a.depth;
      w.of_value = static_cast<float *>(outputs[2].data) + at * w.a.keys * w.a.width;
      run_item(w, s);
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(attention_backward,
                  TY_KERNEL(attention_backward, "attention_backward_f32", "streaming"))
