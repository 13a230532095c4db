// What libtianyuan_x86.so exports: one function that returns one table of functions.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tianyuan/abi.h"
#include "tianyuan/runtime/executor.hpp"

namespace tianyuan_x86 {

struct StepNames {
  const char *kernel;
  const char *op;
  const char *origin;
};

struct Api {
  uint32_t abi_version;
  uint32_t struct_size;
  // Bits of ty_x86_feature.
  uint32_t (*features)();
  // Name of the tier of a rank among those that this machine runs, best first; NULL past the last.
  const char *(*tier)(int64_t rank);
  // Kernels of all tiers that this machine runs, best tier first.
  const ty_kernel_table *(*kernels)();
  // The library's own pool, made at the first call.
  const ty_thread_pool *(*own_pool)();
  // The pool in use: the library's own until another plugin's is adopted.
  const ty_thread_pool *(*pool)();
  void (*adopt_pool)(const ty_thread_pool *pool);
  // Returns NULL after writing the reason to `error`.
  void *(*executor_create)(const tianyuan::runtime::ProgramDesc *program, char *error,
                           int64_t error_size);
  void (*executor_destroy)(void *executor);
  tianyuan::runtime::Outcome (*executor_run)(void *executor,
                                             const tianyuan::runtime::Binding *binding, char *error,
                                             int64_t error_size);
  StepNames (*executor_step)(void *executor, int64_t step);
  int64_t (*executor_arenas)(void *executor);
  // CRC-32 of bytes; only where the CPU has TY_X86_PCLMUL.
  uint32_t (*crc32)(const void *data, size_t size);
};

}  // namespace tianyuan_x86

extern "C" __attribute__((visibility("default"))) const tianyuan_x86::Api *tianyuan_x86_api();
