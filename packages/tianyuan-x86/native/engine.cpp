// Runs known eager calls: looks the plan up, makes outputs, runs the kernel, tells the tapes.
#include "engine.hpp"

#include <structmember.h>

#include <cstdlib>
#include <string>

namespace tianyuan_x86 {
namespace {

struct Free {
  void operator()(void *memory) const { std::free(memory); }
};

// Where a member that `__slots__` declares lies in its objects; -1 with an error set.
Py_ssize_t offset_of(PyObject *type, const char *name) {
  Ref member(PyObject_GetAttrString(type, name));
  if (!member) return -1;
  if (!Py_IS_TYPE(member.get(), &PyMemberDescr_Type)) {
    PyErr_Format(PyExc_TypeError, "engine: %s is not a slot of the tensor's class", name);
    return -1;
  }
  return reinterpret_cast<PyMemberDescrObject *>(member.get())->d_member->offset;
}

bool expect_count(const char *name, Py_ssize_t got, Py_ssize_t expected) {
  if (got == expected) return true;
  PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", name, expected, got);
  return false;
}

bool read_output(PyObject *spec, PlannedOutput &output) {
  output.spec = Ref::of(spec);
  output.shape = Ref(PyObject_GetAttrString(spec, "shape"));
  output.dtype = Ref(PyObject_GetAttrString(spec, "dtype"));
  Ref bytes(PyObject_GetAttrString(spec, "nbytes"));
  if (!output.shape || !output.dtype || !bytes) return false;
  output.bytes = PyLong_AsLongLong(bytes.get());
  const Py_ssize_t ndim = PyTuple_Size(output.shape.get());
  for (Py_ssize_t axis = 0; axis < ndim; ++axis) {
    output.extents.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(output.shape.get(), axis)));
  }
  return PyErr_Occurred() == nullptr;
}

// Returns 1 where a tape tracks any of the operands, 0 where none, -1 with an error set; says of
// each operand whether it is tracked.
int find_needs(PyObject *tracked, const Operands &operands, bool *needs) {
  int any = 0;
  for (Py_ssize_t index = 0; index < operands.count; ++index) {
    Ref id(PyLong_FromVoidPtr(operands.data[index].get()));
    const int found = id ? PyDict_Contains(tracked, id.get()) : -1;
    if (found < 0) return -1;
    needs[index] = found == 1;
    any |= found;
  }
  return any;
}

// Returns a new tuple of what `item` gives, borrowed, for each position.
template <typename Item>
Ref tuple_of(Py_ssize_t count, const Item &item) {
  Ref tuple(PyTuple_New(count));
  for (Py_ssize_t index = 0; tuple && index < count; ++index) {
    PyTuple_SET_ITEM(tuple.get(), index, Py_NewRef(item(index)));
  }
  return tuple;
}

// Says which op failed, once, and in which kernel; a title reads "op: kernel".
std::string failure_text(const std::string &title, std::string reason) {
  const size_t split = title.find(": ") + 2;
  if (reason.compare(0, split, title, 0, split) != 0) reason.insert(0, title, 0, split);
  return reason + " (" + title.substr(split) + ")";
}

}  // namespace

bool Engine::setup(PyObject *const *args, Py_ssize_t count) {
  // (tensor's class, state, choices, the attributes of ops without any, slow)
  if (!expect_count("engine_setup", count, 5)) return false;
  Ref *objects[] = {&tensor_, &state_, &choices_, &no_attrs_, &slow_};
  for (int index = 0; index < 5; ++index) *objects[index] = Ref::of(args[index]);
  struct {
    Ref *ref;
    const char *text;
  } const names[] = {
      {&dict_name_, "__dict__"},  {&recorder_, "recorder"}, {&interceptor_, "interceptor"},
      {&precision_, "precision"}, {&tapes_, "tapes"},       {&entries_, "entries"},
      {&tracked_, "tracked"},     {&no_name_, ""}};
  for (const auto &name : names) *name.ref = Ref(PyUnicode_InternFromString(name.text));
  known_attrs_ = Ref(PyDict_New());
  data_at_ = offset_of(args[0], "_data");
  spec_at_ = offset_of(args[0], "_spec");
  grad_at_ = offset_of(args[0], "_grad");
  name_at_ = offset_of(args[0], "name");
  plans_.clear();
  if (PyTuple_Size(args[2]) > most_choices) {
    PyErr_SetString(PyExc_ValueError, "engine_setup: too many choices");
  }
  return PyErr_Occurred() == nullptr;
}

PyObject *Engine::plain_tapes() const {
  // Attributes that a thread never set are None, and are not in its dictionary.
  Ref set(PyObject_GetAttr(state_.get(), dict_name_.get()));
  if (!set) return nullptr;
  for (const Ref *name : {&recorder_, &interceptor_, &precision_}) {
    PyObject *found = PyDict_GetItemWithError(set.get(), name->get());
    if (found == nullptr ? PyErr_Occurred() != nullptr : found != Py_None) return nullptr;
  }
  return Py_XNewRef(PyDict_GetItemWithError(set.get(), tapes_.get()));
}

// A choice is read from a context variable, or from a module's dictionary as (dictionary, name).
bool Engine::find_choices(PlanKey &key) const {
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(choices_.get()); ++index) {
    PyObject *source = PyTuple_GET_ITEM(choices_.get(), index), *value = nullptr;
    if (PyContextVar_CheckExact(source)) {
      if (PyContextVar_Get(source, nullptr, &value) != 0) return false;
      key.choices[index] = value;
      Py_XDECREF(value);  // only compared; a plan's own choices are kept by the plan
    } else {
      value = PyDict_GetItemWithError(PyTuple_GET_ITEM(source, 0), PyTuple_GET_ITEM(source, 1));
      if (value == nullptr && PyErr_Occurred()) return false;
      key.choices[index] = value;
    }
  }
  return true;
}

bool Engine::add(PyObject *const *args, Py_ssize_t count) {
  // (op, attrs, specs, chosen, made, address, encoded attrs, workspace, threads, title, owner)
  if (!expect_count("engine_add", count, 11)) return false;
  const Py_ssize_t operands = PyTuple_Size(args[2]), made = PyTuple_Size(args[4]);
  const Py_ssize_t chosen = PyTuple_Size(args[3]);
  if (operands < 0 || made < 0 || chosen < 0) return false;
  if (operands > most_operands || made > most_outputs || chosen > most_choices) return true;
  PlanKey key;
  key.op = args[0];
  if (!find_attrs(key, args[1])) return false;
  if (key.attrs == nullptr) {
    if (PyDict_SetItem(known_attrs_.get(), args[1], args[1]) != 0) return false;
    key.attrs = args[1];
  }
  for (Py_ssize_t at = 0; at < chosen; ++at) key.choices[at] = PyTuple_GET_ITEM(args[3], at);
  for (Py_ssize_t at = 0; at < operands; ++at) key.specs[at] = PyTuple_GET_ITEM(args[2], at);
  if (plans_.count(key) != 0) return true;  // offered by a call that had to go to core again
  auto plan = std::make_shared<Plan>();
  plan->kept = Ref(PyTuple_Pack(5, args[0], key.attrs, args[2], args[3], args[10]));
  plan->encoded = Ref::of(args[6]);
  plan->title = Ref::of(args[9]);
  plan->run = reinterpret_cast<ty_run>(PyLong_AsVoidPtr(args[5]));
  plan->workspace = PyLong_AsSize_t(args[7]);
  plan->threads = static_cast<int32_t>(PyLong_AsLong(args[8]));
  Ref differentiable(PyObject_GetAttrString(args[0], "differentiable"));
  if (!plan->kept || !differentiable || PyErr_Occurred() != nullptr) return false;
  plan->differentiable = differentiable.get() == Py_True;
  for (Py_ssize_t index = 0; index < made; ++index) {
    plan->outputs.emplace_back();
    if (!read_output(PyTuple_GET_ITEM(args[4], index), plan->outputs.back())) return false;
  }
  if (plans_.size() >= most_plans) clear();
  plans_[key] = std::move(plan);
  return true;
}

// Takes hold of the operands; false, without an error, where core must see to them.
bool Engine::read(PyObject *operands, Operands &found) const {
  found.count = PyTuple_GET_SIZE(operands);
  for (Py_ssize_t index = 0; index < found.count; ++index) {
    PyObject *tensor = PyTuple_GET_ITEM(operands, index);
    if (!is_tensor(tensor)) return false;
    PyObject *data = slot(tensor, data_at_), *spec = slot(tensor, spec_at_);
    if (data == nullptr || !Py_IS_TYPE(data, py::detail::npy_api::get().PyArray_Type_) ||
        !read_array(data, "input", index, false, found.tensors[index])) {
      PyErr_Clear();
      return false;
    }
    found.data[index] = Ref::of(data);
    found.spec[index] = Ref::of(spec);
    found.items += count_items(found.tensors[index]);
  }
  return true;
}

PyObject *Engine::apply(PyObject *const *args, Py_ssize_t count) {
  if (!expect_count("apply", count, 3)) return nullptr;
  if (!PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) > most_operands) return slow(args);
  Ref tapes(plain_tapes());
  if (!tapes && PyErr_Occurred() != nullptr) return nullptr;
  Operands operands;
  if (!tapes || !read(args[1], operands)) return slow(args);
  PlanKey key;
  key.op = args[0];
  if (!find_attrs(key, args[2]) || !find_choices(key)) return nullptr;
  if (key.attrs == nullptr) return slow(args);
  for (Py_ssize_t at = 0; at < operands.count; ++at) key.specs[at] = operands.spec[at].get();
  const auto found = plans_.find(key);
  if (found == plans_.end()) return slow(args);
  const std::shared_ptr<const Plan> plan = found->second;  // outlives a clear() while it runs
  Ref outputs = run(*plan, operands);
  if (!outputs) return nullptr;
  if (plan->differentiable && !tell_tapes(tapes.get(), args[0], args[2], operands, outputs.get())) {
    return nullptr;
  }
  if (plan->outputs.size() != 1) return outputs.release();
  return Py_NewRef(PyTuple_GET_ITEM(outputs.get(), 0));
}

Ref Engine::allocate(const PlannedOutput &output) const {
  const auto &numpy = py::detail::npy_api::get();
  const auto make = [&numpy](PyObject *dtype, int ndim, const Py_intptr_t *extents, void *data) {
    return Ref(numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, Py_NewRef(dtype), ndim, extents,
                                           nullptr, data, data ? npy_writeable : 0, nullptr));
  };
  const int ndim = static_cast<int>(output.extents.size());
  if (output.bytes < align_from) {
    return make(output.dtype.get(), ndim, output.extents.data(), nullptr);
  }
  Ref byte(numpy.PyArray_DescrFromType_(py::detail::npy_api::NPY_UBYTE_));
  const Py_intptr_t size = output.bytes + alignment;
  Ref memory = byte ? make(byte.get(), 1, &size, nullptr) : Ref();
  if (!memory) return memory;
  const auto start = reinterpret_cast<uintptr_t>(py::detail::array_proxy(memory.get())->data);
  Ref array = make(output.dtype.get(), ndim, output.extents.data(),
                   reinterpret_cast<void *>((start + alignment - 1) / alignment * alignment));
  if (!array || numpy.PyArray_SetBaseObject_(array.get(), memory.release()) != 0) return Ref();
  return array;
}

Ref Engine::make_tensor(Ref data, PyObject *spec) const {
  auto *type = reinterpret_cast<PyTypeObject *>(tensor_.get());
  Ref tensor(type->tp_alloc(type, 0));
  if (!tensor) return tensor;
  slot(tensor.get(), data_at_) = data.release();
  slot(tensor.get(), spec_at_) = Py_NewRef(spec);
  slot(tensor.get(), grad_at_) = Py_NewRef(Py_None);
  slot(tensor.get(), name_at_) = Py_NewRef(no_name_.get());
  return tensor;
}

PyObject *Engine::wrap(PyObject *const *args, Py_ssize_t count) const {
  if (!expect_count("wrap", count, 2)) return nullptr;
  return make_tensor(Ref::of(args[0]), args[1]).release();
}

// Runs a plan on new arrays; returns all outputs as a tuple of tensors.
Ref Engine::run(const Plan &plan, Operands &operands) const {
  const size_t count = plan.outputs.size();
  ty_tensor made[most_outputs];
  Ref arrays[most_outputs];
  int64_t items = operands.items;
  for (size_t index = 0; index < count; ++index) {
    arrays[index] = allocate(plan.outputs[index]);
    const auto position = static_cast<Py_ssize_t>(index);
    if (!arrays[index] || !read_array(arrays[index].get(), "output", position, true, made[index])) {
      return Ref();
    }
    items += count_items(made[index]);
  }
  std::unique_ptr<void, Free> workspace;
  if (plan.workspace > 0) {
    workspace.reset(
        std::aligned_alloc(alignment, (plan.workspace + alignment - 1) / alignment * alignment));
    if (!workspace) return Ref(PyErr_NoMemory());
  }
  char error[error_size];
  const int code = run_kernel(plan.run, PyBytes_AS_STRING(plan.encoded.get()), plan.threads,
                              operands.tensors, made, items, workspace.get(), error);
  if (code != 0) {
    PyObject *type = kernel_error(code);
    const char *reason = error[0] != '\0' ? error : "failed without a reason";
    const char *title = PyUnicode_AsUTF8(plan.title.get());
    if (type != nullptr && title != nullptr) {
      PyErr_SetString(type, failure_text(title, reason).c_str());
    }
    return Ref();
  }
  Ref outputs(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t index = 0; outputs && index < count; ++index) {
    Ref tensor = make_tensor(std::move(arrays[index]), plan.outputs[index].spec.get());
    if (!tensor) return tensor;
    PyTuple_SET_ITEM(outputs.get(), static_cast<Py_ssize_t>(index), tensor.release());
  }
  return outputs;
}

// Appends the call to every tape that tracks an operand, in the form of core's Tape.record.
bool Engine::tell_tapes(PyObject *tapes, PyObject *op, PyObject *attrs, const Operands &operands,
                        PyObject *outputs) const {
  for (Py_ssize_t at = 0; at < PyList_Size(tapes); ++at) {
    Ref tape = Ref::of(PyList_GET_ITEM(tapes, at));
    Ref tracked(PyObject_GetAttr(tape.get(), tracked_.get()));
    if (!tracked) return false;
    bool needs[most_operands];
    const int flows = find_needs(tracked.get(), operands, needs);
    if (flows < 0) return false;
    if (flows == 0) continue;
    const Py_ssize_t made = PyTuple_GET_SIZE(outputs);
    const auto output = [&](Py_ssize_t index) { return PyTuple_GET_ITEM(outputs, index); };
    const Ref parts[] = {
        tuple_of(operands.count, [&](Py_ssize_t index) { return operands.data[index].get(); }),
        tuple_of(operands.count, [&](Py_ssize_t index) { return operands.spec[index].get(); }),
        tuple_of(made, [&](Py_ssize_t index) { return slot(output(index), data_at_); }),
        tuple_of(made, [&](Py_ssize_t index) { return slot(output(index), spec_at_); }),
        tuple_of(operands.count,
                 [&](Py_ssize_t index) { return needs[index] ? Py_True : Py_False; }),
    };
    for (const Ref &part : parts) {
      if (!part) return false;
    }
    Ref entry(PyTuple_Pack(7, op, attrs, parts[0].get(), parts[1].get(), parts[2].get(),
                           parts[3].get(), parts[4].get()));
    Ref entries(PyObject_GetAttr(tape.get(), entries_.get()));
    if (!entry || !entries || PyList_Append(entries.get(), entry.get()) != 0) return false;
    for (Py_ssize_t index = 0; index < made; ++index) {
      PyObject *data = slot(output(index), data_at_);
      Ref id(PyLong_FromVoidPtr(data));
      if (!id || PyDict_SetItem(tracked.get(), id.get(), data) != 0) return false;
    }
  }
  return PyErr_Occurred() == nullptr;
}

}  // namespace tianyuan_x86
