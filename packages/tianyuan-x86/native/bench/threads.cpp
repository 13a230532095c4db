// Records what each thread does in each step: stands before the steps' kernels and between them and
// the thread pool. `threads.py` compiles it and reads the records.
#include <x86intrin.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tianyuan/abi.h"

namespace {

constexpr int most_steps = 512, most_threads = 16;

// One step's quickest run, in ticks of the time stamp counter.
struct Record {
  int64_t wall;    // from entry to return
  int64_t loops;   // parallel loops
  int64_t inside;  // time in them
  int64_t wake;    // from a loop's start to a worker's first piece
  int64_t join;    // from the last piece's end to the loop's
  int64_t busy[most_threads];
};

struct Slot {
  alignas(64) int64_t busy, first, last;
};

ty_run kernels[most_steps];
Record best[most_steps], now;
Slot slots[most_threads];

struct Wrapped {
  ty_task task;
  void *arg;
};

int64_t ticks() { return static_cast<int64_t>(__rdtsc()); }

void timed_piece(void *arg, int64_t begin, int64_t end, int32_t slot) {
  const auto *wrapped = static_cast<const Wrapped *>(arg);
  const int64_t start = ticks();
  wrapped->task(wrapped->arg, begin, end, slot);
  const int64_t stop = ticks();
  Slot &own = slots[slot];
  if (own.first == 0) own.first = start;
  own.last = stop;
  own.busy += stop - start;
}

// What kernels are given, before what the pool needs.
struct Context {
  ty_ctx seen;
  const ty_ctx *real;
};

void timed_loop(const ty_ctx *ctx, int64_t n, int64_t grain, ty_task task, void *arg) {
  const ty_ctx *real = reinterpret_cast<const Context *>(ctx)->real;
  for (Slot &slot : slots) slot = {};
  Wrapped wrapped = {task, arg};
  const int64_t start = ticks();
  real->parallel_for(real, n, grain, timed_piece, &wrapped);
  const int64_t stop = ticks();
  int64_t last = start;
  ++now.loops;
  now.inside += stop - start;
  for (int thread = 0; thread < most_threads; ++thread) {
    const Slot &slot = slots[thread];
    now.busy[thread] += slot.busy;
    last = std::max(last, slot.last);
    if (thread > 0 && slot.first != 0) now.wake += slot.first - start;
  }
  now.join += stop - last;
}

template <int step>
int timed_step(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  Context context = {*ctx, ctx};
  context.seen.parallel_for = timed_loop;
  now = {};
  const int64_t start = ticks();
  const int code = kernels[step](&context.seen, inputs, outputs, attrs, workspace);
  now.wall = ticks() - start;
  if (best[step].wall == 0 || now.wall < best[step].wall) best[step] = now;
  return code;
}

template <int... steps>
ty_run timed(int step, std::integer_sequence<int, steps...>) {
  static constexpr ty_run all[] = {timed_step<steps>...};
  return all[step];
}

}  // namespace

extern "C" {

// The function that runs `kernel` as step `step` and records it, or NULL where there are too many.
ty_run threads_wrap(int step, ty_run kernel) {
  if (step >= most_steps) return nullptr;
  kernels[step] = kernel;
  return timed(step, std::make_integer_sequence<int, most_steps>());
}

const Record *threads_record(int step) { return &best[step]; }

int64_t threads_ticks() { return ticks(); }
}
