// What the runtime asks of the processor and the operating system; elsewhere it is portable C++17.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tianyuan::runtime {

// Tells the processor that this thread waits in a loop.
inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Lets another thread have the CPU.
inline void yield_cpu() { sched_yield(); }

// CPUs that the process may run on.
inline int32_t usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

// Has `handler` called in the child of every fork from now on.
inline void call_in_child_of_fork(void (*handler)()) { pthread_atfork(nullptr, nullptr, handler); }

// Threads that are started during its life get no signals: those are for the program's own threads.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals &) = delete;
  BlockSignals &operator=(const BlockSignals &) = delete;

 private:
  sigset_t before_;
};

constexpr size_t huge_page = size_t{1} << 21;

// Asks for huge pages, which save page faults at the first touch and look-ups after it.
inline void prefer_huge_pages(void *data, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  madvise(data, size, MADV_HUGEPAGE);  // a wish: where it fails, small pages serve
#else
  (void)data, (void)size;
#endif
}

}  // namespace tianyuan::runtime
