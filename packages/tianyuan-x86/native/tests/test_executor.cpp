// The executor: programs built by hand, aliases, states, failures, call-outs, concurrent runs.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tianyuan/runtime/executor.hpp"
#include "tianyuan/runtime/thread_pool.hpp"

namespace {

namespace rt = tianyuan::runtime;

struct ScaleAttrs {
  ty_attrs head;
  double factor;
};

int64_t count(const ty_tensor &tensor) {
  int64_t result = 1;
  for (int32_t axis = 0; axis < tensor.ndim; ++axis) result *= tensor.shape[axis];
  return result;
}

// out = factor * x, in parallel, through the workspace where there is one.
int scale(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
          void *workspace) {
  struct Body {
    const float *x;
    float *y;
    double factor;
  } body = {static_cast<const float *>(inputs[0].data), static_cast<float *>(outputs[0].data),
            reinterpret_cast<const ScaleAttrs *>(attrs)->factor};
  if (workspace != nullptr) std::memset(workspace, 0xff, 64);
  ctx->parallel_for(
      ctx, count(inputs[0]), 16,
      [](void *arg, int64_t begin, int64_t end, int32_t) {
        const Body &loop = *static_cast<Body *>(arg);
        for (int64_t i = begin; i < end; ++i) {
          loop.y[i] = static_cast<float>(loop.factor * loop.x[i]);
        }
      },
      &body);
  return 0;
}

int add(const ty_ctx *, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *) {
  const auto *a = static_cast<const float *>(inputs[0].data);
  const auto *b = static_cast<const float *>(inputs[1].data);
  auto *y = static_cast<float *>(outputs[0].data);
  for (int64_t i = 0; i < count(inputs[0]); ++i) y[i] = a[i] + b[i];
  return 0;
}

int fail(const ty_ctx *ctx, const ty_tensor *, ty_tensor *, const ty_attrs *, void *) {
  std::snprintf(ctx->error, static_cast<size_t>(ctx->error_size), "the reason");
  return 7;
}

rt::SlotDesc slot(int32_t kind, int64_t index, int64_t n, void *data = nullptr) {
  rt::SlotDesc desc = {};
  desc.kind = kind;
  desc.index = index;
  desc.nbytes = n * 4;
  desc.tensor.abi_version = TY_ABI_VERSION;
  desc.tensor.struct_size = sizeof(ty_tensor);
  desc.tensor.dtype = TY_FLOAT32;
  desc.tensor.ndim = 1;
  desc.tensor.shape[0] = n;
  desc.tensor.data = data;
  return desc;
}

// Collects what a ProgramDesc points to.
struct Builder {
  std::vector<rt::SlotDesc> slots;
  std::vector<rt::StepDesc> steps;
  std::vector<std::vector<int32_t>> lists;
  int64_t n_inputs = 1, n_outputs = 1, n_states = 0, arena_size = 0;
  rt::CallOut call_out = nullptr;
  void *user = nullptr;
  ScaleAttrs two = {{TY_ABI_VERSION, sizeof(ScaleAttrs), 1, 1, 1}, 2.0};

  Builder() { lists.reserve(64); }

  void step(ty_run run, std::vector<int32_t> inputs, std::vector<int32_t> outputs,
            int64_t workspace_offset = 0, int64_t workspace_size = 0) {
    lists.push_back(std::move(inputs));
    const auto &in = lists.back();
    lists.push_back(std::move(outputs));
    const auto &out = lists.back();
    steps.push_back({"kernel", "op", "model.py:3", run, &two, sizeof two, in.data(),
                     static_cast<int64_t>(in.size()), out.data(), static_cast<int64_t>(out.size()),
                     workspace_offset, workspace_size});
  }

  rt::ProgramDesc desc() const {
    return {slots.data(),
            static_cast<int64_t>(slots.size()),
            steps.data(),
            static_cast<int64_t>(steps.size()),
            n_inputs,
            n_outputs,
            n_states,
            arena_size,
            4,
            call_out,
            user};
  }

  std::string refusal() const {
    try {
      rt::Executor made(desc());
    } catch (const std::invalid_argument &error) {
      return error.what();
    }
    return "";
  }
};

constexpr int64_t n = 1000;

// y = 2 * (2 * x) + c, with the middle value in the arena and an alias of it.
Builder chain(std::vector<float> &constant) {
  Builder builder;
  builder.slots = {slot(rt::slot_input, 0, n), slot(rt::slot_arena, 64, n),
                   slot(rt::slot_alias, 1, n), slot(rt::slot_constant, 0, n, constant.data()),
                   slot(rt::slot_output, 0, n)};
  builder.arena_size = 64 + n * 4 + 64;
  builder.step(scale, {0}, {1}, 0, 64);
  builder.step(scale, {2}, {2});
  builder.step(add, {1, 3}, {4});
  return builder;
}

void run_chain(rt::Executor &executor, rt::ThreadPool &pool, float start) {
  std::vector<float> x(n), y(n, -1.0f);
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = start + static_cast<float>(i);
  void *inputs[] = {x.data()}, *outputs[] = {y.data()};
  char error[64];
  const rt::Outcome outcome =
      executor.run(*pool.table(), {inputs, nullptr, outputs, nullptr}, error, sizeof error);
  CHECK(outcome.code == 0 && outcome.step == -1);
  for (int64_t i = 0; i < n; ++i) {
    CHECK(y[static_cast<size_t>(i)] == 4 * (start + static_cast<float>(i)) + 5);
  }
}

void chain_runs_and_reuses_its_arena() {
  rt::ThreadPool pool(3);
  std::vector<float> constant(n, 5.0f);
  rt::Executor executor(chain(constant).desc());
  CHECK(!executor.mutates());
  for (int round = 0; round < 10; ++round) run_chain(executor, pool, static_cast<float>(round));
  CHECK(executor.arenas() == 1);
}

void concurrent_runs_have_their_own_arenas() {
  rt::ThreadPool pool(2);
  std::vector<float> constant(n, 5.0f);
  rt::Executor executor(chain(constant).desc());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 100; ++round) {
        run_chain(executor, pool, static_cast<float>(caller * 1000 + round));
      }
    });
  }
  for (auto &caller : callers) caller.join();
  CHECK(executor.arenas() >= 1 && executor.arenas() <= 4);
}

void runs_that_write_states_take_turns() {
  rt::ThreadPool pool(2);
  Builder builder;
  builder.slots = {slot(rt::slot_input, 0, n), slot(rt::slot_state, 0, n),
                   slot(rt::slot_alias, 1, n)};
  builder.n_outputs = 0;
  builder.n_states = 1;
  builder.step(add, {1, 0}, {2});
  rt::Executor executor(builder.desc());
  CHECK(executor.mutates());
  std::vector<float> one(n, 1.0f), total(n, 0.0f);
  void *inputs[] = {one.data()}, *states[] = {total.data()};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      char error[64];
      for (int round = 0; round < 50; ++round) {
        CHECK(executor.run(*pool.table(), {inputs, states, nullptr, nullptr}, error, sizeof error)
                  .code == 0);
      }
    });
  }
  for (auto &caller : callers) caller.join();
  for (const float value : total) CHECK(value == 200.0f);
}

void failure_names_its_step() {
  rt::ThreadPool pool(1);
  Builder builder;
  builder.slots = {slot(rt::slot_input, 0, n), slot(rt::slot_output, 0, n)};
  builder.step(scale, {0}, {1});
  builder.step(fail, {0}, {1});
  builder.step(scale, {1}, {1});
  rt::Executor executor(builder.desc());
  std::vector<float> x(n, 1.0f), y(n);
  void *inputs[] = {x.data()}, *outputs[] = {y.data()};
  char error[64];
  const rt::Outcome outcome =
      executor.run(*pool.table(), {inputs, nullptr, outputs, nullptr}, error, sizeof error);
  CHECK(outcome.step == 1 && outcome.code == 7);
  CHECK(std::string(error) == "the reason");
  CHECK(executor.origin(1) == "model.py:3");
  CHECK(y[0] == 2.0f);
}

void call_outs_get_their_step() {
  rt::ThreadPool pool(1);
  std::vector<int64_t> seen;
  Builder builder;
  builder.slots = {slot(rt::slot_input, 0, n), slot(rt::slot_arena, 0, n),
                   slot(rt::slot_output, 0, n)};
  builder.arena_size = n * 4;
  builder.user = &seen;
  builder.call_out = [](void *user, int64_t step, const ty_ctx *ctx, const ty_tensor *inputs,
                        ty_tensor *outputs, void *workspace) {
    static_cast<std::vector<int64_t> *>(user)->push_back(step);
    const ScaleAttrs three = {{TY_ABI_VERSION, sizeof(ScaleAttrs), 1, 1, 1}, 3.0};
    return scale(ctx, inputs, outputs, &three.head, workspace);
  };
  builder.step(scale, {0}, {1});
  builder.step(nullptr, {1}, {2});
  rt::Executor executor(builder.desc());
  std::vector<float> x(n, 1.0f), y(n);
  std::vector<int64_t> spent(2, -1);
  void *inputs[] = {x.data()}, *outputs[] = {y.data()};
  char error[64];
  CHECK(executor.run(*pool.table(), {inputs, nullptr, outputs, spent.data()}, error, sizeof error)
            .code == 0);
  CHECK(seen == std::vector<int64_t>{1});
  CHECK(y[0] == 6.0f && y[n - 1] == 6.0f);
  CHECK(spent[0] >= 0 && spent[1] >= 0);
}

std::vector<ty_ahead> seen_ahead;

// Notes what may be fetched, and takes a page of it.
int look(const ty_ctx *ctx, const ty_tensor *, ty_tensor *, const ty_attrs *, void *) {
  seen_ahead.push_back(ctx->ahead ? *ctx->ahead : ty_ahead{0, 0});
  if (ctx->ahead) ctx->ahead->next += 4096;
  return 0;
}

// Three steps before one that multiplies `rows` rows of 1024 terms by a matrix of 4 MiB.
std::vector<ty_ahead> ahead_of(int64_t rows, int64_t own_bytes, std::vector<float> &matrix) {
  constexpr int64_t terms = 1024;
  std::vector<float> own(static_cast<size_t>(own_bytes / 4)), x(static_cast<size_t>(rows * terms));
  matrix.resize(terms * terms);
  Builder builder;
  builder.slots = {slot(rt::slot_input, 0, rows * terms), slot(rt::slot_output, 0, rows * terms),
                   slot(rt::slot_constant, 0, own_bytes / 4, own.data()),
                   slot(rt::slot_constant, 0, terms * terms, matrix.data())};
  // What comes in so often belongs to many rows.
  for (int step = 0; step < 3; ++step) builder.step(look, {0, 0, 0, 0, 0, 0, 0, 0, 2}, {1});
  builder.step(look, {0, 3}, {1});
  rt::Executor executor(builder.desc());
  rt::ThreadPool pool(1);
  void *inputs[] = {x.data()}, *outputs[] = {x.data()};
  char error[64];
  for (int run = 0; run < 2; ++run) {  // each run starts anew
    seen_ahead.clear();
    const rt::Binding binding = {inputs, nullptr, outputs, nullptr};
    CHECK(executor.run(*pool.table(), binding, error, sizeof error).code == 0);
  }
  CHECK(seen_ahead.size() == 4);
  return seen_ahead;
}

void steps_may_fetch_what_a_later_one_reads_for_few_rows() {
  std::vector<float> matrix;
  for (const int64_t rows : {1, 3}) {
    const std::vector<ty_ahead> seen = ahead_of(rows, 3 << 20, matrix);
    const auto begin = reinterpret_cast<uintptr_t>(matrix.data());
    CHECK(seen[0].end == 0);  // two steps read as much as is fetched
    CHECK(seen[1].next == begin && seen[1].end == begin + (4 << 20));
    CHECK(seen[2].next == begin + 4096 && seen[2].end == seen[1].end);
    CHECK(seen[3].end == 0);
  }
  for (const ty_ahead &seen : ahead_of(4, 3 << 20, matrix)) CHECK(seen.end == 0);
  CHECK(ahead_of(1, 1 << 10, matrix)[0].end != 0);
}

void arenas_are_aligned_and_lent_once() {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{5} << 20}) {
    const rt::Arena arena(size);
    CHECK(arena.size() == size);
    CHECK((arena.data() == nullptr) == (size == 0));
    CHECK(reinterpret_cast<uintptr_t>(arena.data()) % rt::arena_alignment == 0);
    if (size > 0) std::memset(arena.data(), 1, size);
  }
  rt::Pool<int> pool;
  const auto make = [] { return std::make_unique<int>(0); };
  {
    const auto first = pool.take(make);
    const auto second = pool.take(make);
    CHECK(&*first != &*second);
  }
  const auto third = pool.take(make);
  CHECK(pool.made() == 2);
}

void contradictions_are_refused() {
  std::vector<float> constant(n, 5.0f);
  CHECK(chain(constant).refusal().empty());
  Builder far = chain(constant);
  far.slots[1].index = 192;
  CHECK(far.refusal().find("slot 1 points outside") != std::string::npos);
  Builder crooked = chain(constant);
  crooked.slots[1].index = 4;
  CHECK(crooked.refusal().find("not aligned") != std::string::npos);
  Builder circle = chain(constant);
  circle.slots[1] = slot(rt::slot_alias, 2, n);
  CHECK(circle.refusal().find("circle") != std::string::npos);
  Builder large = chain(constant);
  large.slots[2].nbytes += 4;
  CHECK(large.refusal().find("slot 2 is larger") != std::string::npos);
  Builder written = chain(constant);
  written.step(scale, {1}, {3});
  CHECK(written.refusal().find("is an input or a constant") != std::string::npos);
  Builder workspace = chain(constant);
  workspace.steps[0].workspace_size = 1 << 20;
  CHECK(workspace.refusal().find("workspace") != std::string::npos);
  Builder unknown = chain(constant);
  unknown.step(scale, {99}, {4});
  CHECK(unknown.refusal().find("names slot 99") != std::string::npos);
  Builder python = chain(constant);
  python.step(nullptr, {1}, {4});
  CHECK(python.refusal().find("has no C function") != std::string::npos);
}

}  // namespace

int main() {
  RUN(chain_runs_and_reuses_its_arena);
  RUN(concurrent_runs_have_their_own_arenas);
  RUN(runs_that_write_states_take_turns);
  RUN(failure_names_its_step);
  RUN(call_outs_get_their_step);
  RUN(steps_may_fetch_what_a_later_one_reads_for_few_rows);
  RUN(arenas_are_aligned_and_lent_once);
  RUN(contradictions_are_refused);
  return 0;
}
