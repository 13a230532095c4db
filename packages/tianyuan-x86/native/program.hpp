// A program as Python sees it: built once from plain tuples, then run on lists of arrays.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api.hpp"
#include "arrays.hpp"
#include "eager.hpp"

namespace tianyuan_x86 {

class Program {
 public:
  // slots: (kind, index, dtype code, logical shape, extents, nbytes, address, scales or None,
  //         zero points or None, quantisation axis) each; steps: (address or 0, call-out or None,
  //         kernel, op, origin, attrs, inputs, outputs, workspace offset, workspace size) each.
  // `keep` holds what constants, quantisation parameters and C functions live in.
  Program(const py::list &slots, const py::list &steps, const py::tuple &counts, int64_t arena_size,
          int32_t threads, py::object keep, const py::list &dtypes);
  ~Program() { tianyuan_x86_api()->executor_destroy(executor_); }
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  void run(const py::list &inputs, const py::list &states, const py::list &outputs);
  py::list profile(const py::list &inputs, const py::list &states, const py::list &outputs);
  int64_t arenas() const { return tianyuan_x86_api()->executor_arenas(executor_); }

 private:
  // What an array that is bound to a slot must be.
  struct Expected {
    bool known = false;
    ty_tensor tensor = {};  // its shape is the physical extents

    bool fits(const ty_tensor &given) const {
      if (!known) return true;  // no slot names this array, so nothing reads it
      if (given.dtype != tensor.dtype || given.ndim != tensor.ndim) return false;
      for (int32_t axis = 0; axis < tensor.ndim; ++axis) {
        if (given.shape[axis] != tensor.shape[axis]) return false;
      }
      return true;
    }
  };

  // A step that runs in Python: its function, and dtype and extents of each of its arrays.
  struct CallOutStep {
    py::object function;
    std::vector<py::dtype> dtypes;
    std::vector<std::vector<int64_t>> extents;
    size_t n_inputs = 0;
    int64_t workspace_size = 0;
  };

  void add_slot(const py::tuple &slot, std::vector<tianyuan::runtime::SlotDesc> &descs);
  void add_expected(int32_t kind, int64_t index, int32_t dtype,
                    const std::vector<int64_t> &extents);
  void add_call_out(const py::tuple &step, const py::list &dtypes,
                    const std::vector<tianyuan::runtime::SlotDesc> &slots);
  void bind(const py::list &arrays, const char *role, bool written,
            const std::vector<Expected> &expected, std::vector<void *> &pointers) const;
  void execute(const py::list &inputs, const py::list &states, const py::list &outputs,
               int64_t *nanoseconds);
  [[noreturn]] void raise(const tianyuan::runtime::Outcome &outcome, const char *error) const;
  void call_step(CallOutStep &step, const ty_tensor *inputs, ty_tensor *outputs,
                 void *workspace) const;
  static int call_out(void *user, int64_t step, const ty_ctx *ctx, const ty_tensor *inputs,
                      ty_tensor *outputs, void *workspace);

  void *executor_ = nullptr;
  py::object keep_;
  std::vector<Expected> inputs_, outputs_, states_;
  std::vector<std::vector<int64_t>> slot_extents_;
  std::vector<std::unique_ptr<CallOutStep>> call_outs_;  // by step; null for C functions
  int64_t n_steps_ = 0;
};

void define_program(py::module_ &module);

}  // namespace tianyuan_x86
