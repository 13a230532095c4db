// The eager call: one kernel on the caller's arrays, with as little around it as possible.
#pragma once

#include <memory>

#include "api.hpp"
#include "arrays.hpp"

namespace tianyuan_x86 {

constexpr int64_t error_size = 512;

// The class of a failure with this code.
inline PyObject *kernel_error(int code) {
  static const char *const names[] = {"KernelError", "IndexRangeError", "DataError"};
  static PyObject *types[3] = {};
  const int which = code == TY_BAD_INDEX ? 1 : code == TY_BAD_DATA ? 2 : 0;
  if (types[which] == nullptr) {
    PyObject *errors = PyImport_ImportModule("tianyuan.errors");
    if (errors == nullptr) return nullptr;
    types[which] = PyObject_GetAttrString(errors, names[which]);
    Py_DECREF(errors);
  }
  return types[which];
}

inline PyObject *raise_kernel_error(int code, const char *message) {
  PyObject *type = kernel_error(code);
  if (type != nullptr) PyErr_SetString(type, message);
  return nullptr;
}

// The arrays of one call as tensors: on the stack unless there are many.
class Tensors {
 public:
  bool read(PyObject *sequence, const char *role, bool written) {
    PyObject *fast = PySequence_Fast(sequence, "kernel: arrays must come as a sequence");
    if (fast == nullptr) return false;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    if (count > stack_size) heap_.reset(new ty_tensor[static_cast<size_t>(count)]);
    PyObject **items = PySequence_Fast_ITEMS(fast);
    bool fine = true;
    for (Py_ssize_t index = 0; fine && index < count; ++index) {
      fine = read_array(items[index], role, index, written, data()[index]);
      if (fine) items_ += count_items(data()[index]);
    }
    Py_DECREF(fast);
    return fine;
  }

  ty_tensor *data() { return heap_ ? heap_.get() : stack_; }
  int64_t items() const { return items_; }

 private:
  static constexpr Py_ssize_t stack_size = 8;
  ty_tensor stack_[stack_size];
  std::unique_ptr<ty_tensor[]> heap_;
  int64_t items_ = 0;
};

// Below this many elements a kernel is over sooner than another thread would get the GIL.
constexpr int64_t keep_gil_below = 16384;

// Runs a kernel on the pool with at most so many threads (0: as many as the pool has).
inline int run_kernel(ty_run run, const char *attrs, int32_t most, ty_tensor *inputs,
                      ty_tensor *outputs, int64_t items, void *workspace, char *error) {
  const ty_thread_pool *pool = tianyuan_x86_api()->pool();
  int32_t threads = pool->size(pool->self);
  if (most > 0 && most < threads) threads = most;
  error[0] = '\0';
  const ty_ctx ctx = {TY_ABI_VERSION, sizeof(ty_ctx), threads,    0,      pool->parallel_for,
                      pool->self,     error,          error_size, nullptr};
  const auto *head = reinterpret_cast<const ty_attrs *>(attrs);
  if (items < keep_gil_below) return run(&ctx, inputs, outputs, head, workspace);
  PyThreadState *state = PyEval_SaveThread();
  const int code = run(&ctx, inputs, outputs, head, workspace);
  PyEval_RestoreThread(state);
  return code;
}

inline bool read_workspace(PyObject *object, void *&workspace) {
  if (object == Py_None) return true;
  ty_tensor tensor;
  if (!read_array(object, "workspace", 0, true, tensor)) return false;
  workspace = tensor.data;
  return true;
}

inline PyObject *call(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count < 4 || count > 6 || !PyBytes_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError,
                    "call: expected (address, attrs: bytes, inputs, outputs, workspace=None, "
                    "threads=0)");
    return nullptr;
  }
  const auto run = reinterpret_cast<ty_run>(PyLong_AsVoidPtr(args[0]));
  if (run == nullptr) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "call: the address is 0");
    return nullptr;
  }
  Tensors inputs, outputs;
  void *workspace = nullptr;
  if (!inputs.read(args[2], "input", false) || !outputs.read(args[3], "output", true)) {
    return nullptr;
  }
  if (count > 4 && !read_workspace(args[4], workspace)) return nullptr;
  long threads = 0;
  if (count > 5) {
    threads = PyLong_AsLong(args[5]);
    if (threads == -1 && PyErr_Occurred()) return nullptr;
  }
  char error[error_size];
  const int code =
      run_kernel(run, PyBytes_AS_STRING(args[1]), static_cast<int32_t>(threads), inputs.data(),
                 outputs.data(), inputs.items() + outputs.items(), workspace, error);
  if (code != 0) {
    return raise_kernel_error(code, error[0] != '\0' ? error : "kernel: failed without a reason");
  }
  Py_RETURN_NONE;
}

}  // namespace tianyuan_x86
