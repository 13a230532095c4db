// The pool: every item once, pieces that ignore the thread count, shares, nesting, many callers,
// fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "tianyuan/runtime/thread_pool.hpp"

namespace {

using tianyuan::runtime::ThreadPool;

template <typename Body>
void loop(ThreadPool &pool, int32_t threads, int64_t n, int64_t grain, const Body &body) {
  pool.parallel_for(
      threads, n, grain,
      [](void *arg, int64_t begin, int64_t end, int32_t slot) {
        (*static_cast<const Body *>(arg))(begin, end, slot);
      },
      const_cast<Body *>(&body));
}

void every_item_runs_once() {
  ThreadPool pool(4);
  for (const int64_t n : {0, 1, 2, 63, 64, 65, 1000, 100003}) {
    for (const int64_t grain : {0, 1, 7, 1000000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      for (auto &hit : hits) hit.store(0);
      loop(pool, 4, n, grain, [&](int64_t begin, int64_t end, int32_t slot) {
        CHECK(slot >= 0 && slot < 4);
        for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)].fetch_add(1);
      });
      for (auto &hit : hits) CHECK(hit.load() == 1);
    }
  }
}

std::set<std::pair<int64_t, int64_t>> pieces(int32_t threads, int64_t n, int64_t grain) {
  ThreadPool pool(threads);
  std::mutex lock;
  std::set<std::pair<int64_t, int64_t>> found;
  loop(pool, threads, n, grain, [&](int64_t begin, int64_t end, int32_t) {
    std::lock_guard<std::mutex> hold(lock);
    found.insert({begin, end});
  });
  return found;
}

void pieces_do_not_depend_on_threads() {
  for (const int64_t n : {1, 10, 1000, 12345}) {
    for (const int64_t grain : {1, 3, 100}) {
      const auto alone = pieces(1, n, grain);
      CHECK(alone == pieces(2, n, grain));
      CHECK(alone == pieces(5, n, grain));
      CHECK(static_cast<int64_t>(alone.size()) <= ThreadPool::max_pieces);
      for (const auto &piece : alone) {
        CHECK(piece.second - piece.first >= grain || piece.second == n);
      }
    }
  }
}

void slots_are_unique_at_any_time() {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(3);
  for (auto &flag : busy) flag.store(0);
  for (int round = 0; round < 200; ++round) {
    loop(pool, 3, 64, 1, [&](int64_t, int64_t, int32_t slot) {
      CHECK(slot >= 0 && slot < 3);
      CHECK(busy[static_cast<size_t>(slot)].exchange(1) == 0);
      std::this_thread::yield();
      busy[static_cast<size_t>(slot)].store(0);
    });
  }
}

void workers_take_part() {
  ThreadPool pool(2);
  std::mutex lock;
  std::set<std::thread::id> seen;
  // Each piece waits for the other, so that neither thread can take both.
  std::atomic<int> arrived{0};
  loop(pool, 2, 2, 1, [&](int64_t, int64_t, int32_t) {
    {
      std::lock_guard<std::mutex> hold(lock);
      seen.insert(std::this_thread::get_id());
    }
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  CHECK(seen.size() == 2);
}

// Two threads in lockstep each run their own half, from its front.
void shares_are_neighbouring_pieces() {
  ThreadPool pool(2);
  std::vector<int64_t> order[2];
  std::atomic<int> begun[2] = {{0}, {0}};
  loop(pool, 2, 10, 1, [&](int64_t begin, int64_t, int32_t slot) {
    order[slot].push_back(begin);
    const int step = begun[slot].fetch_add(1) + 1;
    while (begun[1 - slot].load() < step) std::this_thread::yield();
  });
  CHECK((order[0] == std::vector<int64_t>{0, 1, 2, 3, 4}));
  CHECK((order[1] == std::vector<int64_t>{5, 6, 7, 8, 9}));
}

// A thread that is held up in its first piece is helped from the end of its share.
void helpers_take_from_the_end() {
  ThreadPool pool(2);
  std::vector<int64_t> order;
  std::atomic<bool> held{false};
  std::atomic<int> others{0};
  loop(pool, 2, 8, 1, [&](int64_t begin, int64_t, int32_t slot) {
    if (slot == 1) {
      CHECK(begin == 4);
      held.store(true);
      while (others.load() < 7) std::this_thread::yield();
      return;
    }
    while (!held.load()) std::this_thread::yield();
    order.push_back(begin);
    others.fetch_add(1);
  });
  CHECK((order == std::vector<int64_t>{0, 1, 2, 3, 7, 6, 5}));
}

void parked_workers_wake() {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int64_t> sum{0};
    loop(pool, 3, 1000, 1, [&](int64_t begin, int64_t end, int32_t) { sum += end - begin; });
    CHECK(sum.load() == 1000);
  }
}

void nested_loops_run_inline() {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  loop(pool, 4, 16, 1, [&](int64_t, int64_t, int32_t outer) {
    const std::thread::id here = std::this_thread::get_id();
    loop(pool, 4, 10, 1, [&](int64_t begin, int64_t end, int32_t inner) {
      CHECK(std::this_thread::get_id() == here);
      CHECK(inner == outer);
      sum += end - begin;
    });
  });
  CHECK(sum.load() == 160);
}

void many_callers_at_once() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        std::atomic<int64_t> sum{0};
        loop(pool, 3, 500, 1, [&](int64_t begin, int64_t end, int32_t) { sum += end - begin; });
        total += sum.load();
      }
    });
  }
  for (auto &caller : callers) caller.join();
  CHECK(total.load() == 6 * 300 * 500);
}

void resize_while_others_call() {
  ThreadPool pool(2);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop.load()) {
      std::atomic<int64_t> sum{0};
      loop(pool, 8, 300, 1, [&](int64_t begin, int64_t end, int32_t) { sum += end - begin; });
      CHECK(sum.load() == 300);
    }
  });
  for (int round = 0; round < 50; ++round) {
    pool.resize(1 + round % 4);
    std::this_thread::yield();
  }
  stop.store(true);
  caller.join();
  pool.resize(0);
  CHECK(pool.size() == 1);
}

void table_reaches_the_pool() {
  ThreadPool pool(3);
  const ty_thread_pool *table = pool.table();
  CHECK(table->abi_version == TY_ABI_VERSION);
  CHECK(table->struct_size == sizeof(ty_thread_pool));
  CHECK(table->size(table->self) == 3);
  table->resize(table->self, 2);
  CHECK(pool.size() == 2);
  const ty_ctx ctx = {TY_ABI_VERSION,      sizeof(ty_ctx), 2,       0,
                      table->parallel_for, table->self,    nullptr, 0};
  std::atomic<int64_t> sum{0};
  ctx.parallel_for(
      &ctx, 77, 1,
      [](void *arg, int64_t begin, int64_t end, int32_t) {
        *static_cast<std::atomic<int64_t> *>(arg) += end - begin;
      },
      &sum);
  CHECK(sum.load() == 77);
}

// ThreadSanitizer does not follow threads that are started after a fork with several threads.
void child_of_fork_has_a_pool() {
#if !defined(__SANITIZE_THREAD__)
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  const auto count = [&](int64_t begin, int64_t end, int32_t) { sum += end - begin; };
  loop(pool, 3, 1000, 1, count);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    std::atomic<int> arrived{0};  // two pieces that wait for each other need two threads
    loop(pool, 3, 2, 1, [&](int64_t, int64_t, int32_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    loop(pool, 3, 1000, 1, count);
    _exit(sum.load() == 2000 && arrived.load() == 2 ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  loop(pool, 3, 1000, 1, count);
  CHECK(sum.load() == 2000);
#endif
}

}  // namespace

int main() {
  RUN(every_item_runs_once);
  RUN(pieces_do_not_depend_on_threads);
  RUN(slots_are_unique_at_any_time);
  RUN(workers_take_part);
  RUN(shares_are_neighbouring_pieces);
  RUN(helpers_take_from_the_end);
  RUN(parked_workers_wake);
  RUN(nested_loops_run_inline);
  RUN(many_callers_at_once);
  RUN(resize_while_others_call);
  RUN(table_reaches_the_pool);
  RUN(child_of_fork_has_a_pool);
  return 0;
}
