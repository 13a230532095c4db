// Puts tiers, pool and executor behind the library's one exported function.
#include "api.hpp"

#include <atomic>
#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include "checksum.hpp"
#include "detect.hpp"
#include "tianyuan/runtime/executor.hpp"
#include "tianyuan/runtime/thread_pool.hpp"
#include "tiers.hpp"

#define TY_TIER(name) extern "C" const ty_x86_tier TY_TIER_SYMBOL(name);
#include "tiers.inc"
#undef TY_TIER

namespace tianyuan_x86 {
namespace {

using tianyuan::runtime::Binding;
using tianyuan::runtime::Executor;
using tianyuan::runtime::Outcome;
using tianyuan::runtime::ProgramDesc;
using tianyuan::runtime::ThreadPool;

void report(const char *what, char *error, int64_t error_size) {
  if (error_size > 0) std::snprintf(error, static_cast<size_t>(error_size), "%s", what);
}

std::vector<const ty_x86_tier *> find_tiers() {
  std::vector<const ty_x86_tier *> found;
#define TY_TIER(name) \
  if (has_tier(#name)) found.insert(found.begin(), &TY_TIER_SYMBOL(name));
#include "tiers.inc"
#undef TY_TIER
  return found;
}

const std::vector<const ty_x86_tier *> &tiers() {
  static const std::vector<const ty_x86_tier *> found = find_tiers();
  return found;
}

const char *tier(int64_t rank) {
  return static_cast<size_t>(rank) < tiers().size() ? tiers()[static_cast<size_t>(rank)]->name
                                                    : nullptr;
}

std::vector<ty_kernel> gather_kernels() {
  std::vector<ty_kernel> found;
  for (const ty_x86_tier *tier : tiers()) {
    for (int64_t file = 0; file < tier->count; ++file) {
      const ty_kernel_table &table = *tier->tables[file];
      found.insert(found.end(), table.kernels, table.kernels + table.count);
    }
  }
  return found;
}

const ty_kernel_table *kernels() {
  static const std::vector<ty_kernel> found = gather_kernels();
  static const ty_kernel_table table = {TY_ABI_VERSION, sizeof(ty_kernel_table),
                                        static_cast<int64_t>(found.size()), found.data()};
  return &table;
}

const ty_thread_pool *own_pool() {
  // Never destroyed: workers may still run while the process ends.
  static const ThreadPool *pool = new ThreadPool();
  return pool->table();
}

std::atomic<const ty_thread_pool *> adopted{nullptr};

const ty_thread_pool *pool() {
  const ty_thread_pool *found = adopted.load(std::memory_order_acquire);
  return found != nullptr ? found : own_pool();
}

void adopt_pool(const ty_thread_pool *pool) { adopted.store(pool, std::memory_order_release); }

void *executor_create(const ProgramDesc *program, char *error, int64_t error_size) {
  try {
    return new Executor(*program);
  } catch (const std::exception &failure) {
    report(failure.what(), error, error_size);
    return nullptr;
  }
}

void executor_destroy(void *executor) { delete static_cast<Executor *>(executor); }

Outcome executor_run(void *executor, const Binding *binding, char *error, int64_t error_size) {
  try {
    return static_cast<Executor *>(executor)->run(*pool(), *binding, error, error_size);
  } catch (const std::bad_alloc &) {
    report("out of memory for the arena", error, error_size);
    return {-1, -1};
  } catch (const std::exception &failure) {
    report(failure.what(), error, error_size);
    return {-1, -1};
  }
}

StepNames executor_step(void *executor, int64_t step) {
  const auto *found = static_cast<const Executor *>(executor);
  return {found->kernel(step).c_str(), found->op(step).c_str(), found->origin(step).c_str()};
}

int64_t executor_arenas(void *executor) {
  return static_cast<int64_t>(static_cast<Executor *>(executor)->arenas());
}

const Api api = {TY_ABI_VERSION,
                 sizeof(Api),
                 features,
                 tier,
                 kernels,
                 own_pool,
                 pool,
                 adopt_pool,
                 executor_create,
                 executor_destroy,
                 executor_run,
                 executor_step,
                 executor_arenas,
                 crc32};

}  // namespace
}  // namespace tianyuan_x86

const tianyuan_x86::Api *tianyuan_x86_api() { return &tianyuan_x86::api; }
