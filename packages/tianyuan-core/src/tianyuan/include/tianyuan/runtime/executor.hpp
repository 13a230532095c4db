// Runs a program: kernels one after the other on prepared tensors, without Python and without
// allocating.
//
// A program is described in plain C structs, which the caller may drop after construction, except
// for what constants, scales and zero points point to. Each run takes a frame (an arena and the
// steps' tensors, already pointing into it), fills in what the caller bound, and calls the steps.
// Runs of a program that writes states take turns; others run side by side.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tianyuan/abi.h"
#include "tianyuan/runtime/arena.hpp"

namespace tianyuan::runtime {

enum SlotKind : int32_t {
  slot_input = 0,
  slot_output = 1,
  slot_constant = 2,
  slot_state = 3,
  slot_arena = 4,
  slot_alias = 5,
};

struct SlotDesc {
  int32_t kind;
  int64_t index;     // what it means depends on the kind, see graph/program.py
  int64_t nbytes;    // of the physical extents, which a blocked layout rounds up
  ty_tensor tensor;  // `data` is set for constants only
};

// Runs a step that is no C function; returns 0, or another value after writing to ctx->error.
using CallOut = int (*)(void *user, int64_t step, const ty_ctx *ctx, const ty_tensor *inputs,
                        ty_tensor *outputs, void *workspace);

struct StepDesc {
  const char *kernel;
  const char *op;
  const char *origin;
  ty_run run;  // NULL: a call-out
  const void *attrs;
  int64_t attrs_size;
  const int32_t *inputs;
  int64_t n_inputs;
  const int32_t *outputs;
  int64_t n_outputs;
  int64_t workspace_offset;
  int64_t workspace_size;
};

struct ProgramDesc {
  const SlotDesc *slots;
  int64_t n_slots;
  const StepDesc *steps;
  int64_t n_steps;
  int64_t n_inputs;
  int64_t n_outputs;
  int64_t n_states;
  int64_t arena_size;
  int32_t threads;
  CallOut call_out;
  void *user;
};

// What one run is given: as many pointers as the program has inputs, states and outputs.
struct Binding {
  void *const *inputs;
  void *const *states;
  void *const *outputs;
  int64_t *nanoseconds;  // per step, or NULL
};

// How a run ended: code 0 where all went well, otherwise with the step that failed.
struct Outcome {
  int64_t step = -1;
  int code = 0;
};

class Executor {
 public:
  // Throws std::invalid_argument where the description contradicts itself.
  explicit Executor(const ProgramDesc &program)
      : arena_size_(program.arena_size),
        threads_(std::max(1, program.threads)),
        call_out_(program.call_out),
        user_(program.user) {
    slots_.assign(program.slots, program.slots + program.n_slots);
    for (int64_t slot = 0; slot < program.n_slots; ++slot) check_slot(program, slot);
    steps_.reserve(static_cast<size_t>(program.n_steps));
    for (int64_t step = 0; step < program.n_steps; ++step) add_step(program, step);
    for (size_t step = 0; step < steps_.size(); ++step) find_ahead(program, step);
  }

  // Runs the steps in order; a failing kernel's reason is in `error`.
  Outcome run(const ty_thread_pool &pool, const Binding &binding, char *error, int64_t error_size) {
    std::unique_lock<std::mutex> turn(turns_, std::defer_lock);
    if (mutates_) turn.lock();
    auto frame = frames_.take([this] { return std::make_unique<Frame>(*this); });
    bind(*frame, binding);
    ty_ctx ctx = {TY_ABI_VERSION,
                  sizeof(ty_ctx),
                  std::max(1, std::min(threads_, pool.size(pool.self))),
                  0,
                  pool.parallel_for,
                  pool.self,
                  error,
                  error_size,
                  nullptr};
    frame->ahead = ahead_;
    if (error_size > 0) error[0] = '\0';
    return binding.nanoseconds == nullptr ? run_steps<false>(*frame, ctx, nullptr)
                                          : run_steps<true>(*frame, ctx, binding.nanoseconds);
  }

  bool mutates() const { return mutates_; }
  int64_t steps() const { return static_cast<int64_t>(steps_.size()); }
  const std::string &kernel(int64_t step) const { return at(step).kernel; }
  const std::string &op(int64_t step) const { return at(step).op; }
  const std::string &origin(int64_t step) const { return at(step).origin; }
  // Arenas made so far: as many as there were runs at the same time.
  size_t arenas() { return frames_.made(); }

 private:
  // Bytes of a constant that steps before fetch: fewer stay in the caches anyway, more would not.
  static constexpr int64_t least_ahead = int64_t{1} << 20, most_ahead = int64_t{8} << 20;
  static constexpr double few_rows = 3.0;

  struct Step {
    std::string kernel, op, origin;
    ty_run run;
    size_t attrs;    // where the struct starts in attrs_, in 8-byte words
    size_t tensors;  // first of the step's tensors in a frame: inputs, then outputs
    size_t n_inputs, n_outputs;
    int64_t workspace;  // offset in the arena, -1 for none
    int64_t ahead;      // which of ahead_ it may fetch, -1 for none
  };

  // A tensor whose pointer comes from outside at each run.
  struct Patch {
    size_t tensor;
    int64_t index;
  };

  struct Frame {
    explicit Frame(const Executor &owner)
        : arena(static_cast<size_t>(owner.arena_size_)),
          tensors(owner.tensors_),
          ahead(owner.ahead_) {
      for (const Patch &patch : owner.in_arena_) {
        tensors[patch.tensor].data = arena.data() + patch.index;
      }
    }
    Arena arena;
    std::vector<ty_tensor> tensors;
    std::vector<ty_ahead> ahead;  // what is left of it in this run
  };

  const Step &at(int64_t step) const { return steps_[static_cast<size_t>(step)]; }

  [[noreturn]] static void refuse(const std::string &what) {
    throw std::invalid_argument("executor: " + what);
  }

  void check_slot(const ProgramDesc &program, int64_t slot) const {
    const SlotDesc &desc = slots_[static_cast<size_t>(slot)];
    const std::string name = "slot " + std::to_string(slot);
    if (desc.tensor.ndim < 0 || desc.tensor.ndim > TY_MAX_DIMS) {
      refuse(name + " has too many dimensions, got " + std::to_string(desc.tensor.ndim) +
             ", expected at most " + std::to_string(TY_MAX_DIMS));
    }
    if (desc.tensor.dtype < 0 || desc.tensor.dtype > TY_FLOAT64) {
      refuse(name + " has an unknown dtype, got code " + std::to_string(desc.tensor.dtype));
    }
    const int64_t limits[] = {program.n_inputs, program.n_outputs,  INT64_MAX,
                              program.n_states, program.arena_size, program.n_slots};
    if (desc.kind < slot_input || desc.kind > slot_alias) {
      refuse(name + " is of an unknown kind, got " + std::to_string(desc.kind));
    }
    const int64_t room = desc.kind == slot_arena ? desc.nbytes : 1;
    if (desc.index < 0 || desc.nbytes < 0 || room > limits[desc.kind] ||
        desc.index > limits[desc.kind] - room) {
      refuse(name + " points outside, got index " + std::to_string(desc.index) +
             ", expected below " + std::to_string(limits[desc.kind]));
    }
    if (desc.kind == slot_alias && desc.index == slot) refuse(name + " is an alias of itself");
    if (desc.kind == slot_arena && desc.index % static_cast<int64_t>(arena_alignment) != 0) {
      refuse(name + " is not aligned, got offset " + std::to_string(desc.index));
    }
  }

  // The slot that owns the memory of a slot.
  const SlotDesc &root(int64_t slot) const {
    int64_t left = static_cast<int64_t>(slots_.size());
    const SlotDesc *desc = &slots_[static_cast<size_t>(slot)];
    while (desc->kind == slot_alias) {
      if (--left < 0) refuse("aliases form a circle at slot " + std::to_string(slot));
      desc = &slots_[static_cast<size_t>(desc->index)];
    }
    return *desc;
  }

  void add_step(const ProgramDesc &program, int64_t index) {
    const StepDesc &desc = program.steps[index];
    if (desc.run == nullptr && call_out_ == nullptr) {
      refuse("step " + std::to_string(index) + " (" + desc.kernel + ") has no C function");
    }
    if (desc.workspace_size > 0 &&
        (desc.workspace_offset < 0 || desc.workspace_size > program.arena_size ||
         desc.workspace_offset > program.arena_size - desc.workspace_size)) {
      refuse("step " + std::to_string(index) + " has its workspace outside of the arena");
    }
    Step step{desc.kernel,
              desc.op,
              desc.origin,
              desc.run,
              attrs_.size(),
              tensors_.size(),
              static_cast<size_t>(desc.n_inputs),
              static_cast<size_t>(desc.n_outputs),
              desc.workspace_size > 0 ? desc.workspace_offset : -1,
              -1};
    attrs_.resize(attrs_.size() + (static_cast<size_t>(desc.attrs_size) + 7) / 8);
    if (desc.attrs_size > 0) {
      std::memcpy(&attrs_[step.attrs], desc.attrs, static_cast<size_t>(desc.attrs_size));
    }
    for (int64_t i = 0; i < desc.n_inputs; ++i) add_tensor(index, desc.inputs[i], false);
    for (int64_t i = 0; i < desc.n_outputs; ++i) add_tensor(index, desc.outputs[i], true);
    steps_.push_back(std::move(step));
  }

  void add_tensor(int64_t step, int32_t slot, bool written) {
    if (slot < 0 || static_cast<size_t>(slot) >= slots_.size()) {
      refuse("step " + std::to_string(step) + " names slot " + std::to_string(slot) +
             ", expected below " + std::to_string(slots_.size()));
    }
    ty_tensor tensor = slots_[static_cast<size_t>(slot)].tensor;
    const SlotDesc &owner = root(slot);
    if (slots_[static_cast<size_t>(slot)].nbytes > owner.nbytes) {
      refuse("slot " + std::to_string(slot) + " is larger than the slot whose memory it shares");
    }
    const Patch patch{tensors_.size(), owner.index};
    switch (owner.kind) {
      case slot_input:
        from_inputs_.push_back(patch);
        break;
      case slot_output:
        from_outputs_.push_back(patch);
        break;
      case slot_state:
        from_states_.push_back(patch);
        mutates_ = mutates_ || written;
        break;
      case slot_arena:
        in_arena_.push_back(patch);
        break;
      default:
        tensor.data = owner.tensor.data;
    }
    if (written && (owner.kind == slot_input || owner.kind == slot_constant)) {
      refuse("step " + std::to_string(step) + " writes slot " + std::to_string(slot) +
             ", which is an input or a constant");
    }
    tensors_.push_back(tensor);
  }

  static int64_t elements_of(const ty_tensor &tensor) {
    int64_t count = 1;
    for (int32_t axis = 0; axis < tensor.ndim; ++axis) count *= tensor.shape[axis];
    return count;
  }

  // Bytes of an input that is a constant, 0 of any other.
  int64_t constant_bytes(const ProgramDesc &program, size_t index, int64_t input) const {
    const int32_t slot = program.steps[index].inputs[input];
    return root(slot).kind == slot_constant ? slots_[static_cast<size_t>(slot)].nbytes : 0;
  }

  // Where a step reads a large constant for few rows only, and so waits for memory, the steps
  // before it may fetch it: as many as read so much themselves. For a product, items that come in
  // times items that go out over those of the constant are the square of its rows.
  void find_ahead(const ProgramDesc &program, size_t index) {
    const Step &step = steps_[index];
    double coming = 0.0, going = 0.0;
    int64_t largest = -1, bytes = 0;
    for (size_t i = 0; i < step.n_inputs; ++i) {
      const int64_t constant = constant_bytes(program, index, static_cast<int64_t>(i));
      if (constant == 0) coming += static_cast<double>(elements_of(tensors_[step.tensors + i]));
      if (constant > bytes) largest = static_cast<int64_t>(i);
      bytes = std::max(bytes, constant);
    }
    if (bytes < least_ahead) return;
    for (size_t i = 0; i < step.n_outputs; ++i) {
      going += static_cast<double>(elements_of(tensors_[step.tensors + step.n_inputs + i]));
    }
    const ty_tensor &constant = tensors_[step.tensors + static_cast<size_t>(largest)];
    const double items = static_cast<double>(elements_of(constant));
    if (coming * going < items || coming * going > few_rows * few_rows * items) return;
    bytes = std::min(bytes, most_ahead);
    const auto at = reinterpret_cast<uintptr_t>(constant.data);
    int64_t read = 0;
    for (size_t before = index; before-- > 0 && read < bytes && steps_[before].ahead < 0;) {
      steps_[before].ahead = static_cast<int64_t>(ahead_.size());
      for (int64_t i = 0; i < program.steps[before].n_inputs; ++i) {
        read += constant_bytes(program, before, i);
      }
    }
    ahead_.push_back({at, at + static_cast<uintptr_t>(bytes)});
  }

  void bind(Frame &frame, const Binding &binding) const {
    ty_tensor *tensors = frame.tensors.data();
    for (const Patch &patch : from_inputs_)
      tensors[patch.tensor].data = binding.inputs[patch.index];
    for (const Patch &patch : from_states_)
      tensors[patch.tensor].data = binding.states[patch.index];
    for (const Patch &patch : from_outputs_) {
      tensors[patch.tensor].data = binding.outputs[patch.index];
    }
  }

  int run_step(Frame &frame, const ty_ctx &ctx, size_t index) const {
    const Step &step = steps_[index];
    ty_tensor *inputs = frame.tensors.data() + step.tensors;
    ty_tensor *outputs = inputs + step.n_inputs;
    void *workspace = step.workspace < 0 ? nullptr : frame.arena.data() + step.workspace;
    if (step.run == nullptr) {
      return call_out_(user_, static_cast<int64_t>(index), &ctx, inputs, outputs, workspace);
    }
    return step.run(&ctx, inputs, outputs,
                    reinterpret_cast<const ty_attrs *>(attrs_.data() + step.attrs), workspace);
  }

  template <bool timed>
  Outcome run_steps(Frame &frame, ty_ctx &ctx, int64_t *nanoseconds) const {
    using Clock = std::chrono::steady_clock;
    for (size_t index = 0; index < steps_.size(); ++index) {
      Clock::time_point before;
      if constexpr (timed) before = Clock::now();
      const int64_t ahead = steps_[index].ahead;
      ctx.ahead = ahead < 0 ? nullptr : &frame.ahead[static_cast<size_t>(ahead)];
      const int code = run_step(frame, ctx, index);
      if constexpr (timed) {
        nanoseconds[index] =
            std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - before).count();
      }
      if (code != 0) return {static_cast<int64_t>(index), code};
    }
    return {};
  }

  std::vector<SlotDesc> slots_;
  std::vector<Step> steps_;
  std::vector<uint64_t> attrs_;     // the attrs structs of all steps
  std::vector<ty_tensor> tensors_;  // what a new frame starts from
  std::vector<ty_ahead> ahead_;
  std::vector<Patch> from_inputs_, from_states_, from_outputs_, in_arena_;
  int64_t arena_size_;
  int32_t threads_;
  CallOut call_out_;
  void *user_;
  bool mutates_ = false;
  std::mutex turns_;
  Pool<Frame> frames_;
};

}  // namespace tianyuan::runtime
