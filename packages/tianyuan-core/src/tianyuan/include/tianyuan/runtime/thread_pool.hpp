// A fork-join thread pool: one parallel loop at a time, low latency, pieces that do not depend on
// the number of threads.
//
// The thread that calls parallel_for takes part itself and calls as many workers as the loop can
// use; the others sleep on. Each has a share of neighbouring pieces and helps others from the end
// of theirs once it is through, so that a thread finds in its own cache what it wrote in the loop
// before. Workers spin for a moment after a loop, so that the next kernel finds them awake, then
// park. A caller that finds the pool busy with another thread's loop runs its own pieces itself,
// and so does a call from inside a piece. After fork() the child has no workers; it starts new ones
// at its next loop.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tianyuan/abi.h"
#include "tianyuan/runtime/platform.hpp"

namespace tianyuan::runtime {

class ThreadPool {
 public:
  // Most pieces that one loop is cut into.
  static constexpr int64_t max_pieces = 256;

  explicit ThreadPool(int32_t threads = usable_cpus())
      : table_{TY_ABI_VERSION, sizeof(ty_thread_pool), this, run_loop, get_size, set_size},
        threads_(std::max(1, threads)) {
    static const bool registered = (call_in_child_of_fork(count_fork), true);
    (void)registered;
    state_.store(new State(fork_count().load(std::memory_order_acquire)));
  }

  ~ThreadPool() {
    State *state = state_.load();
    if (state->born == fork_count().load()) {
      stop(*state);
      delete state;
    }  // otherwise its threads exist in the parent only, and its locks may be held for ever
  }

  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  // What other plugins see of this pool; valid as long as the pool.
  const ty_thread_pool *table() const { return &table_; }
  int32_t size() const { return threads_.load(std::memory_order_relaxed); }

  // Waits for the running loop; at least one thread remains.
  void resize(int32_t threads) {
    State &state = current();
    std::lock_guard<std::mutex> hold(state.owner);
    threads = std::max(1, threads);
    if (threads == threads_.load()) return;
    stop(state);
    threads_.store(threads);
  }

  // Items per piece: at least grain, and such that there are at most max_pieces pieces.
  static int64_t piece_size(int64_t n, int64_t grain) {
    return std::max({int64_t{1}, grain, (n + max_pieces - 1) / max_pieces});
  }

  void parallel_for(int32_t threads, int64_t n, int64_t grain, ty_task task, void *arg) {
    if (n <= 0) return;
    const int64_t piece = piece_size(n, grain);
    int32_t &slot = current_slot();
    if (slot >= 0 || piece >= n || threads <= 1 || size() <= 1) {
      // A nested loop keeps the slot of the piece around it, which is what makes it unique.
      run_alone(n, piece, slot > 0 && slot < threads ? slot : 0, task, arg);
      return;
    }
    State &state = current();
    std::unique_lock<std::mutex> hold(state.owner, std::try_to_lock);
    if (!hold.owns_lock()) {
      run_alone(n, piece, 0, task, arg);
      return;
    }
    start(state);
    fork_join(state, threads, n, piece, task, arg);
  }

 private:
  struct Job {
    ty_task task = nullptr;
    void *arg = nullptr;
    int64_t n = 0;
    int64_t piece = 1;
    int32_t limit = 1;  // threads that take part
  };

  // Pieces that nobody has taken: the next one, and in the upper half the end.
  class Share {
   public:
    void fill(int64_t begin, int64_t end) {
      range_.store(static_cast<uint64_t>(begin) | static_cast<uint64_t>(end) << 32,
                   std::memory_order_relaxed);
    }

    // A piece from the front, or from the back for those who help, -1 where none is left.
    int64_t take(bool front) {
      uint64_t range = range_.load(std::memory_order_relaxed);
      for (;;) {
        const uint64_t next = range & UINT32_MAX, end = range >> 32;
        if (next >= end) return -1;
        const uint64_t rest = front ? range + 1 : range - (uint64_t{1} << 32);
        if (range_.compare_exchange_weak(range, rest, std::memory_order_relaxed)) {
          return static_cast<int64_t>(front ? next : end - 1);
        }
      }
    }

   private:
    std::atomic<uint64_t> range_{0};
  };

  enum Order : int32_t {
    idle,     // nothing to do; the caller may write the job
    called,   // the job is there; the worker may begin or the caller withdraw
    running,  // the worker is at it
  };

  // A thread of the pool. What a call has to say lies in the one cache line that it waits for.
  struct alignas(64) Worker {
    std::atomic<int32_t> order{idle};
    std::atomic<bool> parked{false};
    Share share;
    Job job;
    std::mutex park;
    std::condition_variable wake;
    std::thread thread;

    void notify() {
      if (!parked.load()) return;
      std::lock_guard<std::mutex> hold(park);
      wake.notify_one();
    }
  };

  // Everything that fork() leaves unusable in the child.
  struct State {
    explicit State(uint64_t forks) : born(forks) {}
    const uint64_t born;
    std::mutex owner;  // held by the thread whose loop runs
    std::vector<std::unique_ptr<Worker>> workers;
    alignas(64) Share share;  // of the caller
    alignas(64) std::atomic<bool> stopping{false};

    Share &share_of(int32_t slot) {
      return slot == 0 ? share : workers[static_cast<size_t>(slot) - 1]->share;
    }
  };

  static constexpr int spins = 2000;

  static std::atomic<uint64_t> &fork_count() {
    static std::atomic<uint64_t> count{0};
    return count;
  }
  static void count_fork() { fork_count().fetch_add(1, std::memory_order_acq_rel); }

  // Slot of the piece that this thread runs now, -1 outside of any.
  static int32_t &current_slot() {
    static thread_local int32_t slot = -1;
    return slot;
  }

  State &current() {
    State *state = state_.load(std::memory_order_acquire);
    const uint64_t forks = fork_count().load(std::memory_order_acquire);
    if (state->born == forks) return *state;
    State *fresh = new State(forks);
    if (state_.compare_exchange_strong(state, fresh)) return *fresh;
    delete fresh;
    return *state;
  }

  static void run_alone(int64_t n, int64_t piece, int32_t slot, ty_task task, void *arg) {
    int32_t &current = current_slot();
    const int32_t before = current;
    current = slot;
    for (int64_t begin = 0; begin < n; begin += piece) {
      task(arg, begin, std::min(n, begin + piece), slot);
    }
    current = before;
  }

  static void run_pieces(State &state, const Job &job, int32_t slot) {
    int32_t &current = current_slot();
    current = slot;
    for (int32_t at = 0; at < job.limit; ++at) {
      Share &share = state.share_of((slot + at) % job.limit);
      for (int64_t piece; (piece = share.take(at == 0)) >= 0;) {
        const int64_t begin = piece * job.piece;
        job.task(job.arg, begin, std::min(job.n, begin + job.piece), slot);
      }
    }
    current = -1;
  }

  void fork_join(State &state, int32_t threads, int64_t n, int64_t piece, ty_task task, void *arg) {
    const int64_t pieces = (n + piece - 1) / piece;
    const int64_t limit = std::min<int64_t>(std::min(threads, size()), pieces);
    const Job job = {task, arg, n, piece, static_cast<int32_t>(limit)};
    // Whoever is there may help anybody, so all shares come first.
    for (int32_t slot = 0; slot < job.limit; ++slot) {
      state.share_of(slot).fill(slot * pieces / limit, (slot + 1) * pieces / limit);
    }
    for (int32_t slot = 1; slot < job.limit; ++slot) {
      Worker &worker = *state.workers[static_cast<size_t>(slot) - 1];
      worker.job = job;
      worker.order.store(called);
      worker.notify();
    }
    run_pieces(state, job, 0);
    // Every piece has been taken: who has not begun need not, the others are waited for.
    for (int32_t slot = 1; slot < job.limit; ++slot) {
      Worker &worker = *state.workers[static_cast<size_t>(slot) - 1];
      int32_t order = called;
      if (worker.order.load(std::memory_order_acquire) == called &&
          worker.order.compare_exchange_strong(order, idle)) {
        continue;
      }
      for (int spin = 0; worker.order.load(std::memory_order_acquire) != idle; ++spin) {
        if (spin < spins) {
          pause_cpu();
        } else {
          yield_cpu();
        }
      }
    }
  }

  static void wait(const State &state, Worker &worker) {
    const auto wanted = [&] { return worker.order.load() == called || state.stopping.load(); };
    for (int spin = 0; spin < spins; ++spin) {
      if (wanted()) return;
      pause_cpu();
    }
    std::unique_lock<std::mutex> hold(worker.park);
    worker.parked.store(true);
    worker.wake.wait(hold, wanted);
    worker.parked.store(false);
  }

  static void work(State &state, Worker &worker, int32_t slot) {
    for (;;) {
      wait(state, worker);
      if (state.stopping.load()) return;
      int32_t order = called;
      if (!worker.order.compare_exchange_strong(order, running)) continue;
      run_pieces(state, worker.job, slot);
      worker.order.store(idle, std::memory_order_release);
    }
  }

  // Starts the missing workers; with fewer than wanted (a limit of the system) loops still run.
  void start(State &state) {
    const auto wanted = static_cast<size_t>(size() - 1);
    if (state.workers.size() == wanted) return;
    const BlockSignals blocked;
    try {
      while (state.workers.size() < wanted) {
        auto worker = std::make_unique<Worker>();
        const auto slot = static_cast<int32_t>(state.workers.size()) + 1;
        state.workers.reserve(wanted);
        worker->thread = std::thread([&state, &me = *worker, slot] { work(state, me, slot); });
        state.workers.push_back(std::move(worker));
      }
    } catch (const std::system_error &) {
      threads_.store(static_cast<int32_t>(state.workers.size()) + 1);
    }
  }

  static void stop(State &state) {
    state.stopping.store(true);
    for (const auto &worker : state.workers) worker->notify();
    for (const auto &worker : state.workers) worker->thread.join();
    state.workers.clear();
    state.stopping.store(false);
  }

  static void run_loop(const ty_ctx *ctx, int64_t n, int64_t grain, ty_task task, void *arg) {
    static_cast<ThreadPool *>(ctx->pool)->parallel_for(ctx->threads, n, grain, task, arg);
  }
  static int32_t get_size(void *self) { return static_cast<ThreadPool *>(self)->size(); }
  static void set_size(void *self, int32_t threads) {
    static_cast<ThreadPool *>(self)->resize(threads);
  }

  const ty_thread_pool table_;
  std::atomic<int32_t> threads_;
  std::atomic<State *> state_{nullptr};
};

}  // namespace tianyuan::runtime
