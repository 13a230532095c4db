/* The C ABI through which kernels of different distributions meet.
 *
 * Plain C, no ownership: the caller owns every pointer and keeps it alive for the call. Every
 * struct starts with the ABI version and its own size, so that a reader can refuse what is newer
 * and ignore fields that an older writer did not have.
 */
#ifndef TIANYUAN_ABI_H
#define TIANYUAN_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TY_ABI_VERSION 1u
#define TY_MAX_DIMS 8

typedef enum ty_dtype {
  TY_BOOL = 0,
  TY_INT8 = 1,
  TY_INT16 = 2,
  TY_INT32 = 3,
  TY_INT64 = 4,
  TY_UINT8 = 5,
  TY_UINT16 = 6,
  TY_UINT32 = 7,
  TY_UINT64 = 8,
  TY_FLOAT16 = 9,
  TY_BFLOAT16 = 10,
  TY_FLOAT32 = 11,
  TY_FLOAT64 = 12
} ty_dtype;

/* A dense value. `shape` is the logical shape; in the plain layout data is C-contiguous over it, in
 * any other layout the kernel that was registered for that layout knows the physical extents. */
typedef struct ty_tensor {
  uint32_t abi_version;
  uint32_t struct_size;
  void *data;
  int32_t dtype;
  int32_t ndim;
  int64_t shape[TY_MAX_DIMS];
  /* Quantised types only, otherwise NULL and 0: one scale and zero point, or one per channel along
   * `quant_axis`. */
  const float *scales;
  const int32_t *zero_points;
  int32_t quant_count;
  int32_t quant_axis;
} ty_tensor;

/* A piece of a parallel loop: items [begin, end). `slot` is unique among the pieces that run at the
 * same time and lies in [0, ctx->threads): use it to pick a private part of the workspace. */
typedef void (*ty_task)(void *arg, int64_t begin, int64_t end, int32_t slot);

/* Memory that a later step of a program reads once, so that it would wait for it: kernels whose
 * time goes into arithmetic may fetch it into the caches meanwhile. They take bytes from `next` on
 * by adding to it atomically; what lies at `end` or behind it must not be touched. */
typedef struct ty_ahead {
  uintptr_t next, end;
} ty_ahead;

typedef struct ty_ctx ty_ctx;
struct ty_ctx {
  uint32_t abi_version;
  uint32_t struct_size;
  int32_t threads; /* most threads that take part in one parallel loop, at least 1 */
  int32_t reserved;
  /* Splits [0, n) into pieces of at least `grain` items and returns when all have run. */
  void (*parallel_for)(const ty_ctx *ctx, int64_t n, int64_t grain, ty_task task, void *arg);
  void *pool;
  char *error; /* a kernel that fails writes its reason here, NUL-terminated */
  int64_t error_size;
  ty_ahead *ahead; /* or NULL; not there where struct_size ends before it */
};

/* Every attrs struct (attrs.h, generated from the ops) starts with this. */
typedef struct ty_attrs {
  uint32_t abi_version;
  uint32_t struct_size; /* of the fixed part; lists follow it */
  uint32_t op_version;
  uint16_t n_inputs;
  uint16_t n_outputs;
} ty_attrs;

/* A list in an attrs struct: `count` items at `offset` bytes from the start of the struct. Lists of
 * integers hold int64_t, lists of floats double, strings are char and NUL-terminated. */
typedef struct ty_list {
  int64_t count;
  int64_t offset;
} ty_list;

#define TY_INTS(attrs, list) ((const int64_t *)((const char *)(attrs) + (list).offset))
#define TY_FLOATS(attrs, list) ((const double *)((const char *)(attrs) + (list).offset))
#define TY_STRING(attrs, list) ((const char *)(attrs) + (list).offset)

/* What a kernel returns that fails, after writing a reason to ctx->error. Python raises
 * KernelError, and the last two as IndexError and ValueError too; any other value counts as
 * TY_FAILED. */
#define TY_FAILED 1
#define TY_BAD_INDEX 2 /* an index points outside */
#define TY_BAD_DATA 3  /* only the data shows that the op cannot take it */

/* Runs one op. Returns 0, or one of the values above. Inputs are never written; an output may share
 * its data with an input only where the kernel allows it in place. */
typedef int (*ty_run)(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                      const ty_attrs *attrs, void *workspace);

typedef struct ty_kernel {
  uint32_t abi_version;
  uint32_t struct_size;
  const char *name; /* family_types__isa_variant */
  ty_run run;
} ty_kernel;

/* What a library of kernels exports, best first. */
typedef struct ty_kernel_table {
  uint32_t abi_version;
  uint32_t struct_size;
  int64_t count;
  const ty_kernel *kernels;
} ty_kernel_table;

/* Name of the PyCapsules that carry a ty_kernel_table, and of those that carry the thread pool. */
#define TY_KERNEL_TABLE_CAPSULE "tianyuan.kernel_table.v1"
#define TY_THREAD_POOL_CAPSULE "tianyuan.thread_pool.v1"

/* The one thread pool of the process, published by the first native plugin. */
typedef struct ty_thread_pool {
  uint32_t abi_version;
  uint32_t struct_size;
  void *self;
  void (*parallel_for)(const ty_ctx *ctx, int64_t n, int64_t grain, ty_task task, void *arg);
  int32_t (*size)(void *self);
  void (*resize)(void *self, int32_t threads);
} ty_thread_pool;

#ifdef __cplusplus
}
#endif
#endif
