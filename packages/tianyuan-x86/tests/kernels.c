/* Small kernels for the executor's tests, which know nothing of the library under test. */
#include <stdio.h>

#include "tianyuan/abi.h"

static int64_t count(const ty_tensor *tensor) {
  int64_t result = 1;
  for (int32_t axis = 0; axis < tensor->ndim; ++axis) result *= tensor->shape[axis];
  return result;
}

struct loop {
  const float *x;
  float *y;
  int32_t *slots;
};

static void square_piece(void *arg, int64_t begin, int64_t end, int32_t slot) {
  struct loop *loop = arg;
  for (int64_t i = begin; i < end; ++i) loop->y[i] = loop->x[i] * loop->x[i];
  if (loop->slots) loop->slots[slot] = 1;
}

/* y = x * x; the workspace holds one flag per slot. */
int test_square(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                const ty_attrs *attrs, void *workspace) {
  (void)attrs;
  struct loop loop = {inputs[0].data, outputs[0].data, workspace};
  ctx->parallel_for(ctx, count(&inputs[0]), 1, square_piece, &loop);
  return 0;
}

int test_add(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
             void *workspace) {
  (void)ctx, (void)attrs, (void)workspace;
  const float *a = inputs[0].data, *b = inputs[1].data;
  float *y = outputs[0].data;
  for (int64_t i = 0; i < count(&inputs[0]); ++i) y[i] = a[i] + b[i];
  return 0;
}

int test_fail(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
              void *workspace) {
  (void)inputs, (void)outputs, (void)attrs, (void)workspace;
  snprintf(ctx->error, (size_t)ctx->error_size, "it is broken, got %d, expected 0", 3);
  return 1;
}

/* Tells what the ABI said: dtype, rank, first extent, threads, counts of the attrs, quantisation.
 */
int test_describe(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                  const ty_attrs *attrs, void *workspace) {
  (void)workspace;
  int64_t *y = outputs[0].data;
  y[0] = inputs[0].dtype;
  y[1] = inputs[0].ndim;
  y[2] = inputs[0].ndim ? inputs[0].shape[0] : 0;
  y[3] = ctx->threads;
  y[4] = attrs->n_inputs * 10 + attrs->n_outputs;
  y[5] = inputs[0].quant_count;
  y[6] = inputs[0].quant_count ? inputs[0].zero_points[inputs[0].quant_count - 1] : 0;
  y[7] = inputs[0].quant_count ? (int64_t)(inputs[0].scales[0] * 1000) : 0;
  return 0;
}

/* A pool of another plugin: it runs every loop in one piece and counts the loops. */
static int64_t loops;

static void one_piece(const ty_ctx *ctx, int64_t n, int64_t grain, ty_task task, void *arg) {
  (void)ctx, (void)grain;
  ++loops;
  if (n > 0) task(arg, 0, n, 0);
}

static int32_t pool_size(void *self) {
  (void)self;
  return 7;
}

static void pool_resize(void *self, int32_t threads) { (void)self, (void)threads; }

int64_t test_loops(void) { return loops; }

ty_thread_pool test_pool = {TY_ABI_VERSION, sizeof(ty_thread_pool), 0, one_piece, pool_size,
                            pool_resize};
