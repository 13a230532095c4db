// fused_elementwise on float32: interprets a chain of ops over blocks whose registers stay in L1.
#include "rows.hpp"
#include "walk.hpp"

namespace TY_ISA {
namespace {

// kernels/fused.py refuses what exceeds these, and sizes the workspace by the same numbers.
enum { MAX_CONSTANTS = 64, MAX_INSTRUCTIONS = 128 };
enum { MAX_REGISTERS = WALK_INPUTS + MAX_CONSTANTS + MAX_INSTRUCTIONS };
static constexpr int64_t FUSED_BLOCK = 512;

struct Plan {
  int n_inputs, n_constants, n_instructions, n_outputs;
  const int64_t *code, *results;
  float constants[MAX_CONSTANTS];
  int last_use[MAX_REGISTERS];
  int scratch[MAX_REGISTERS];  // index of the register's block in the workspace
  int blocks;
};

int first_result(const Plan &p) { return p.n_inputs + p.n_constants; }

// How many operands an opcode reads.
int arity_of(int64_t opcode) {
  return opcode == TY_EW_WHERE ? 3 : unary_row(opcode) != nullptr ? 1 : 2;
}

// Registers of results reuse the blocks of registers that are read no more; inputs that need a copy
// have their own.
void assign_blocks(Plan *p) {
  const int first = first_result(*p), count = first + p->n_instructions;
  for (int r = 0; r < count; ++r) p->last_use[r] = -1;
  for (int i = 0; i < p->n_instructions; ++i) {
    const int64_t *word = p->code + 4 * i;
    for (int k = 1; k <= arity_of(word[0]); ++k) p->last_use[word[k]] = i;
  }
  for (int o = 0; o < p->n_outputs; ++o) p->last_use[p->results[o]] = p->n_instructions;
  int free_blocks[MAX_REGISTERS], n_free = 0;
  p->blocks = p->n_inputs;
  for (int r = 0; r < p->n_inputs; ++r) p->scratch[r] = r;
  for (int i = 0; i < p->n_instructions; ++i) {
    p->scratch[first + i] = n_free > 0 ? free_blocks[--n_free] : p->blocks++;
    for (int r = first; r <= first + i; ++r)
      if (p->last_use[r] == i) free_blocks[n_free++] = p->scratch[r];
  }
}

int plan_init(const ty_ctx *ctx, Plan *p, const ty_fused_elementwise_attrs *attrs) {
  p->n_inputs = attrs->head.n_inputs;
  p->n_constants = (int)attrs->constants.count;
  p->n_instructions = (int)(attrs->code.count / 4);
  p->n_outputs = (int)attrs->outputs.count;
  p->code = TY_INTS(attrs, attrs->code);
  p->results = TY_INTS(attrs, attrs->outputs);
  if (p->n_inputs > WALK_INPUTS || p->n_constants > MAX_CONSTANTS ||
      p->n_instructions > MAX_INSTRUCTIONS || p->n_instructions < 1) {
    return ty_fail(ctx, "fused_elementwise: program is too long, got %d instructions",
                   p->n_instructions);
  }
  for (int i = 0; i < p->n_instructions; ++i) {
    const int64_t *word = p->code + 4 * i;
    if (word[0] != TY_EW_WHERE && !unary_row(word[0]) && !binary_row(word[0])) {
      return ty_fail(ctx, "fused_elementwise: opcode is not served, got %lld", (long long)word[0]);
    }
    for (int k = 1; k <= arity_of(word[0]); ++k) {
      if (word[k] < 0 || word[k] >= first_result(*p) + i) {
        return ty_fail(ctx, "fused_elementwise: register is not written yet, got %lld",
                       (long long)word[k]);
      }
    }
  }
  for (int o = 0; o < p->n_outputs; ++o) {
    if (p->results[o] < first_result(*p) || p->results[o] >= first_result(*p) + p->n_instructions) {
      return ty_fail(ctx, "fused_elementwise: output is no result, got register %lld",
                     (long long)p->results[o]);
    }
  }
  const double *constants = TY_FLOATS(attrs, attrs->constants);
  for (int i = 0; i < p->n_constants; ++i) p->constants[i] = (float)constants[i];
  assign_blocks(p);
  return 0;
}

void widen_truth(float *out, const uint8_t *truth, int64_t n) {
  int64_t i = 0;
  for (; i + VF <= n; i += VF) vstore(out + i, load_truth(truth + i));
  for (; i < n; ++i) out[i] = truth[i];
}

void narrow_truth(uint8_t *out, View<float> truth, int64_t n) {
  if (truth.step == 0) {
    memset(out, *truth.data != 0.0f, (size_t)n);
    return;
  }
  int64_t i = 0;
  for (; i + VF <= n; i += VF) store_truth(out + i, vneq(vload(truth.data + i), vzero()));
  for (; i < n; ++i) out[i] = truth.data[i] != 0.0f;
}

View<float> load_input(const Walk &w, int k, const ty_tensor &x, int64_t at, int64_t n,
                       float *scratch) {
  if (x.dtype != TY_BOOL) {
    return walk_view(w, k, static_cast<const float *>(x.data), at, n, scratch);
  }
  uint8_t bytes[FUSED_BLOCK];
  const View<uint8_t> truth = walk_view(w, k, static_cast<const uint8_t *>(x.data), at, n, bytes);
  widen_truth(scratch, truth.data, truth.step ? n : 1);
  return {scratch, truth.step};
}

void execute(const int64_t *word, View<float> *registers, int result, float *out, int64_t n) {
  const View<float> a = registers[word[1]], b = registers[word[2]], c = registers[word[3]];
  const int arity = arity_of(word[0]);
  const int step = a.step | (arity > 1 ? b.step : 0) | (arity > 2 ? c.step : 0);
  const int64_t count = step ? n : 1;
  if (arity == 3) {
    where_row(out, a.data, b.data, c.data, count, a.step, b.step, c.step);
  } else if (arity == 2) {
    binary_row(word[0])(out, a.data, b.data, count, a.step, b.step);
  } else {
    unary_row(word[0])(out, a.data, count);
  }
  registers[result] = {out, step};
}

void store_output(const ty_tensor &out, View<float> from, int64_t at, int64_t n) {
  if (out.dtype == TY_BOOL) {
    narrow_truth(static_cast<uint8_t *>(out.data) + at, from, n);
    return;
  }
  float *to = static_cast<float *>(out.data) + at;
  if (from.step == 0) {
    const float value = *from.data;
    for (int64_t i = 0; i < n; ++i) to[i] = value;
  } else if (to != from.data) {
    memcpy(to, from.data, (size_t)n * sizeof(float));
  }
}

// The last instruction may write straight into an output: all operands have been read by then, so
// that an output may share memory with an input.
void run_block(const Plan &p, const Walk &w, const ty_tensor *inputs, ty_tensor *outputs,
               float *scratch, int64_t at, int64_t n) {
  View<float> registers[MAX_REGISTERS];
  for (int k = 0; k < p.n_inputs; ++k) {
    registers[k] = load_input(w, k, inputs[k], at, n, scratch + k * FUSED_BLOCK);
  }
  for (int i = 0; i < p.n_constants; ++i) registers[p.n_inputs + i] = {p.constants + i, 0};
  const int first = first_result(p);
  for (int i = 0; i < p.n_instructions; ++i) {
    float *out = scratch + p.scratch[first + i] * FUSED_BLOCK;
    if (i == p.n_instructions - 1) {
      for (int o = 0; o < p.n_outputs; ++o) {
        if (p.results[o] == first + i && outputs[o].dtype != TY_BOOL) {
          out = static_cast<float *>(outputs[o].data) + at;
        }
      }
    }
    execute(p.code + 4 * i, registers, first + i, out, n);
  }
  for (int o = 0; o < p.n_outputs; ++o) store_output(outputs[o], registers[p.results[o]], at, n);
}

int fused_elementwise(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                      const ty_attrs *attrs, void *workspace) {
  Plan p;
  const int failed =
      plan_init(ctx, &p, reinterpret_cast<const ty_fused_elementwise_attrs *>(attrs));
  if (failed) return failed;
  Walk w;
  walk_init(&w, outputs[0], inputs, p.n_inputs);
  const int64_t room = (p.n_inputs + p.n_instructions) * FUSED_BLOCK;
  const int64_t grain = p.n_instructions > 8 ? GRAIN / 4 : GRAIN / 2;
  ty_parallel(ctx, w.size, grain, [&](int64_t begin, int64_t end, int32_t slot) {
    float *scratch = static_cast<float *>(workspace) + slot * room;
    for (int64_t at = begin; at < end;) {
      const int64_t n = walk_block(w, at, end, FUSED_BLOCK);
      run_block(p, w, inputs, outputs, scratch, at, n);
      at += n;
    }
  });
  return 0;
}

// For images in padded blocks of channels, and programs that map zeros to zeros.
int fused_padded(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  ty_tensor flat_inputs[WALK_INPUTS], flat_outputs[WALK_INPUTS];
  if (attrs->n_inputs > WALK_INPUTS || attrs->n_outputs > WALK_INPUTS) {
    return ty_fail(ctx, "fused_elementwise: too many values, got %d inputs and %d outputs",
                   (int)attrs->n_inputs, (int)attrs->n_outputs);
  }
  for (int i = 0; i < attrs->n_inputs; ++i) flat_inputs[i] = flat_blocks(inputs[i]);
  for (int i = 0; i < attrs->n_outputs; ++i) flat_outputs[i] = flat_blocks(outputs[i]);
  return fused_elementwise(ctx, flat_inputs, flat_outputs, attrs, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(fused, TY_KERNEL(fused_elementwise, "fused_elementwise_f32", "blocks"),
                  TY_KERNEL(fused_padded, "fused_elementwise_f32", "padded"))
