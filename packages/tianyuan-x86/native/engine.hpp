// The eager engine: calls met before run from here, without a line of Python in between.
//
// A plan is found by identity of op, attributes, specs and what narrows the choice of kernels;
// whatever is unusual (a trace, an interceptor, a new call, a tensor off the host) goes to core.
#pragma once

#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "eager.hpp"

namespace tianyuan_x86 {

// Owns one reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject *stolen) : object_(stolen) {}
  static Ref of(PyObject *borrowed) { return Ref(Py_NewRef(borrowed)); }
  Ref(Ref &&other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Ref &operator=(Ref &&other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject *get() const { return object_; }
  PyObject *release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject *object_ = nullptr;
};

constexpr Py_ssize_t most_operands = 6, most_outputs = 4, most_choices = 8;

// What a plan is known by. All that it points to is kept alive by the plan.
struct PlanKey {
  const void *op = nullptr, *attrs = nullptr;
  const void *choices[most_choices] = {};
  const void *specs[most_operands] = {};

  bool operator==(const PlanKey &other) const {
    return std::memcmp(this, &other, sizeof *this) == 0;
  }
};

struct PlanKeyHash {
  size_t operator()(const PlanKey &key) const {
    // What differs between calls; the choices hardly ever do.
    size_t hash = reinterpret_cast<size_t>(key.op) ^ reinterpret_cast<size_t>(key.attrs) << 1;
    for (const void *spec : key.specs) {
      hash = (hash ^ reinterpret_cast<size_t>(spec)) * 0x9e3779b97f4a7c15u;
    }
    return hash ^ hash >> 29;
  }
};

// The tensors of one call: what they hold stays alive whatever other threads do to the handles.
struct Operands {
  Py_ssize_t count = 0;
  Ref data[most_operands], spec[most_operands];
  ty_tensor tensors[most_operands];
  int64_t items = 0;
};

struct PlannedOutput {
  Ref spec, shape, dtype;
  int64_t bytes = 0;
  std::vector<Py_intptr_t> extents;
};

struct Plan {
  Ref kept, encoded, title;  // `kept`: what the key points to, and the kernel's owner
  std::vector<PlannedOutput> outputs;
  ty_run run = nullptr;
  size_t workspace = 0;
  int32_t threads = 0;
  bool differentiable = false;
};

// As core's: below this many bytes numpy's own alignment costs less than a better one saves.
constexpr int64_t align_from = 4096;
constexpr size_t alignment = 64;

class Engine {
 public:
  bool setup(PyObject *const *args, Py_ssize_t count);
  PyObject *apply(PyObject *const *args, Py_ssize_t count);
  PyObject *wrap(PyObject *const *args, Py_ssize_t count) const;
  bool add(PyObject *const *args, Py_ssize_t count);
  void clear() {
    plans_.clear();
    if (known_attrs_) PyDict_Clear(known_attrs_.get());
  }

 private:
  static constexpr size_t most_plans = 8192;

  // The open tapes where this thread runs ops plainly; null, with or without an error, where not.
  PyObject *plain_tapes() const;

  static PyObject *&slot(PyObject *tensor, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(tensor) + offset);
  }

  bool is_tensor(PyObject *object) const {
    return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject *>(tensor_.get())) != 0;
  }

  // Fills in the canonical attributes; null where they were never met.
  bool find_attrs(PlanKey &key, PyObject *attrs) const {
    if (attrs == no_attrs_.get()) {
      key.attrs = attrs;
      return true;
    }
    key.attrs = PyDict_GetItemWithError(known_attrs_.get(), attrs);
    return key.attrs != nullptr || PyErr_Occurred() == nullptr;
  }

  // Fills in what narrows the choice of kernels at this moment.
  bool find_choices(PlanKey &key) const;

  PyObject *slow(PyObject *const *args) const {
    return PyObject_Vectorcall(slow_.get(), args, 3, nullptr);
  }

  bool read(PyObject *operands, Operands &found) const;
  Ref allocate(const PlannedOutput &output) const;
  Ref make_tensor(Ref data, PyObject *spec) const;
  Ref run(const Plan &plan, Operands &operands) const;
  bool tell_tapes(PyObject *tapes, PyObject *op, PyObject *attrs, const Operands &operands,
                  PyObject *outputs) const;

  Ref tensor_, state_, choices_, no_attrs_, slow_, known_attrs_;
  Ref dict_name_, recorder_, interceptor_, precision_, tapes_, entries_, tracked_, no_name_;
  Py_ssize_t data_at_ = 0, spec_at_ = 0, grad_at_ = 0, name_at_ = 0;
  std::unordered_map<PlanKey, std::shared_ptr<const Plan>, PlanKeyHash> plans_;
};

}  // namespace tianyuan_x86
