// What every kernel file includes: the ABI, the tier's name and the macros that export kernels.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "tianyuan/abi.h"
#include "tianyuan/attrs.h"

#ifndef TY_ISA
#error "kernel files are compiled once per ISA tier, with -DTY_ISA=avx2 and so on"
#endif

#define TY_QUOTE_(x) #x
#define TY_QUOTE(x) TY_QUOTE_(x)
#define TY_TIER_NAME TY_QUOTE(TY_ISA)

// One entry: TY_KERNEL(conv2d_direct, "conv2d_f32", "direct") is conv2d_f32__avx512_direct in the
// avx512 tier.
#define TY_KERNEL(function, family, variant) \
  {TY_ABI_VERSION, sizeof(ty_kernel), family "__" TY_TIER_NAME "_" variant, function}

// Last line of NAME.cpp: TY_EXPORT_KERNELS(NAME, entries...). It lies outside of any namespace.
#define TY_EXPORT_KERNELS(file, ...)                                                        \
  namespace TY_ISA {                                                                        \
  static const ty_kernel file##_kernels[] = {__VA_ARGS__};                                  \
  extern const ty_kernel_table file##_table;                                                \
  const ty_kernel_table file##_table = {TY_ABI_VERSION, sizeof(ty_kernel_table),            \
                                        sizeof(file##_kernels) / sizeof(file##_kernels[0]), \
                                        file##_kernels};                                    \
  }

namespace TY_ISA {

// Writes the reason of a failure and returns the code with which the kernel then returns.
__attribute__((format(printf, 2, 3), unused, cold)) static int ty_fail(const ty_ctx *ctx,
                                                                       const char *format, ...) {
  if (ctx->error != nullptr && ctx->error_size > 0) {
    va_list args;
    va_start(args, format);
    vsnprintf(ctx->error, static_cast<size_t>(ctx->error_size), format, args);
    va_end(args);
  }
  return TY_FAILED;
}

// The same where the data is at fault: TY_BAD_INDEX or TY_BAD_DATA.
#define ty_fail_as(code, ...) (ty_fail(__VA_ARGS__), (code))

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }
static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t ty_count(const ty_tensor &tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor.ndim; ++axis) count *= tensor.shape[axis];
  return count;
}

static inline int64_t ty_itemsize(int32_t dtype) {
  switch (dtype) {
    case TY_BOOL:
    case TY_INT8:
    case TY_UINT8:
      return 1;
    case TY_INT16:
    case TY_UINT16:
    case TY_FLOAT16:
    case TY_BFLOAT16:
      return 2;
    case TY_INT32:
    case TY_UINT32:
    case TY_FLOAT32:
      return 4;
    default:
      return 8;
  }
}

namespace {

template <typename Body>
void ty_run_piece(void *body, int64_t begin, int64_t end, int32_t slot) {
  (*static_cast<const Body *>(body))(begin, end, slot);
}

// Runs body(begin, end, slot) over pieces of [0, n) on the thread pool. The body is a lambda that
// may capture by reference; it lives in the caller's frame for the whole loop.
template <typename Body>
inline void ty_parallel(const ty_ctx *ctx, int64_t n, int64_t grain, const Body &body) {
  ctx->parallel_for(ctx, n, grain, ty_run_piece<Body>,
                    const_cast<void *>(static_cast<const void *>(&body)));
}

enum { AHEAD_LINE = 16 };  // floats of a cache line

// What a later step reads, or NULL.
inline ty_ahead *ahead_of(const ty_ctx *ctx) {
  return ctx->struct_size < sizeof(ty_ctx) ? nullptr : ctx->ahead;
}

// Takes the next `lines` cache lines of it, which the caller then fetches; NULL where nothing is
// left.
inline const float *take_ahead(ty_ahead *ahead, int64_t lines) {
  const uintptr_t bytes = static_cast<uintptr_t>(lines) * AHEAD_LINE * sizeof(float);
  if (__atomic_load_n(&ahead->next, __ATOMIC_RELAXED) >= ahead->end) return nullptr;
  const uintptr_t at = __atomic_fetch_add(&ahead->next, bytes, __ATOMIC_RELAXED);
  const bool whole = at < ahead->end && ahead->end - at >= bytes;
  return whole ? reinterpret_cast<const float *>(at) : nullptr;
}

// A grain of about `least` items or more with which threads get equal shares of n items.
inline int64_t even_grain(const ty_ctx *ctx, int64_t n, int64_t least) {
  const int64_t worth = ceil_div(n, least);
  const int64_t threads = lesser(worth, ctx->threads);
  if (threads <= 1) return least;
  const int64_t share = ceil_div(n, threads);
  int64_t pieces = share / least;
  while (pieces > 1 && share % pieces != 0) --pieces;
  return pieces > 1 ? share / pieces : share;
}

}  // namespace
}  // namespace TY_ISA
