// Builds programs for the executor, binds arrays to them, and calls out to Python kernels.
#include "program.hpp"

#include <exception>
#include <utility>

namespace tianyuan_x86 {

using tianyuan::runtime::Binding;
using tianyuan::runtime::Outcome;
using tianyuan::runtime::ProgramDesc;
using tianyuan::runtime::SlotDesc;
using tianyuan::runtime::StepDesc;

namespace {

// What a call-out raised, on its way through the executor to the run that it belongs to.
thread_local std::unique_ptr<py::error_already_set> raised;

std::vector<int64_t> integers(const py::handle &sequence) {
  std::vector<int64_t> result;
  for (const py::handle &item : sequence) result.push_back(item.cast<int64_t>());
  return result;
}

template <typename T>
const T *address_or_null(const py::handle &array) {
  if (array.is_none()) return nullptr;
  return static_cast<const T *>(py::reinterpret_borrow<py::array>(array).data());
}

std::string describe(const ty_tensor &tensor) {
  static constexpr const char *names[] = {"bool",     "int8",    "int16",  "int32",  "int64",
                                          "uint8",    "uint16",  "uint32", "uint64", "float16",
                                          "bfloat16", "float32", "float64"};
  std::string text = std::string(names[tensor.dtype]) + "(";
  for (int32_t axis = 0; axis < tensor.ndim; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(tensor.shape[axis]);
  }
  return text + ")";
}

// Keeps the vectors that step descriptions point to.
struct StepStorage {
  std::string kernel, op, origin, attrs;
  std::vector<int32_t> inputs, outputs;
};

std::vector<int32_t> slot_numbers(const py::handle &sequence) {
  std::vector<int32_t> result;
  for (const py::handle &item : sequence) result.push_back(item.cast<int32_t>());
  return result;
}

StepDesc describe_step(const py::tuple &step, StepStorage &storage) {
  storage = {step[2].cast<std::string>(), step[3].cast<std::string>(), step[4].cast<std::string>(),
             step[5].cast<std::string>(), slot_numbers(step[6]),       slot_numbers(step[7])};
  return {storage.kernel.c_str(),  storage.op.c_str(),
          storage.origin.c_str(),  reinterpret_cast<ty_run>(step[0].cast<uintptr_t>()),
          storage.attrs.data(),    static_cast<int64_t>(storage.attrs.size()),
          storage.inputs.data(),   static_cast<int64_t>(storage.inputs.size()),
          storage.outputs.data(),  static_cast<int64_t>(storage.outputs.size()),
          step[8].cast<int64_t>(), step[9].cast<int64_t>()};
}

}  // namespace

void Program::add_expected(int32_t kind, int64_t index, int32_t dtype,
                           const std::vector<int64_t> &extents) {
  std::vector<Expected> *list = kind == tianyuan::runtime::slot_input    ? &inputs_
                                : kind == tianyuan::runtime::slot_output ? &outputs_
                                : kind == tianyuan::runtime::slot_state  ? &states_
                                                                         : nullptr;
  if (list != nullptr && index >= 0 && static_cast<size_t>(index) < list->size()) {
    Expected &expected = (*list)[static_cast<size_t>(index)];
    expected.known = extents.size() <= TY_MAX_DIMS;
    expected.tensor.dtype = dtype;
    expected.tensor.ndim = static_cast<int32_t>(extents.size());
    for (size_t axis = 0; expected.known && axis < extents.size(); ++axis) {
      expected.tensor.shape[axis] = extents[axis];
    }
  }
}

void Program::add_slot(const py::tuple &slot, std::vector<SlotDesc> &descs) {
  SlotDesc desc = {};
  desc.kind = slot[0].cast<int32_t>();
  desc.index = slot[1].cast<int64_t>();
  desc.nbytes = slot[5].cast<int64_t>();
  ty_tensor &tensor = desc.tensor;
  tensor.abi_version = TY_ABI_VERSION;
  tensor.struct_size = sizeof(ty_tensor);
  tensor.dtype = slot[2].cast<int32_t>();
  const std::vector<int64_t> shape = integers(slot[3]);
  tensor.ndim = static_cast<int32_t>(shape.size());
  for (size_t axis = 0; axis < shape.size() && axis < TY_MAX_DIMS; ++axis) {
    tensor.shape[axis] = shape[axis];
  }
  tensor.data = reinterpret_cast<void *>(slot[6].cast<uintptr_t>());
  tensor.scales = address_or_null<float>(slot[7]);
  tensor.zero_points = address_or_null<int32_t>(slot[8]);
  tensor.quant_count = slot[7].is_none() ? 0 : static_cast<int32_t>(py::len(py::object(slot[7])));
  tensor.quant_axis = slot[9].cast<int32_t>();
  descs.push_back(desc);
  slot_extents_.push_back(integers(slot[4]));
  add_expected(desc.kind, desc.index, tensor.dtype, slot_extents_.back());
}

void Program::add_call_out(const py::tuple &step, const py::list &dtypes,
                           const std::vector<SlotDesc> &slots) {
  if (step[1].is_none()) {
    call_outs_.push_back(nullptr);
    return;
  }
  auto made = std::make_unique<CallOutStep>();
  made->function = step[1];
  made->workspace_size = step[9].cast<int64_t>();
  const std::vector<int32_t> inputs = slot_numbers(step[6]), outputs = slot_numbers(step[7]);
  made->n_inputs = inputs.size();
  for (const auto &numbers : {inputs, outputs}) {
    for (const int32_t number : numbers) {
      const auto slot = static_cast<size_t>(number);
      const SlotDesc &desc = slots.at(slot);
      made->dtypes.push_back(dtypes[static_cast<size_t>(desc.tensor.dtype)].cast<py::dtype>());
      made->extents.push_back(slot_extents_[slot]);
    }
  }
  call_outs_.push_back(std::move(made));
}

Program::Program(const py::list &slots, const py::list &steps, const py::tuple &counts,
                 int64_t arena_size, int32_t threads, py::object keep, const py::list &dtypes)
    : keep_(std::move(keep)) {
  inputs_.resize(counts[0].cast<size_t>());
  outputs_.resize(counts[1].cast<size_t>());
  states_.resize(counts[2].cast<size_t>());
  std::vector<SlotDesc> slot_descs;
  for (const py::handle &slot : slots) {
    add_slot(py::reinterpret_borrow<py::tuple>(slot), slot_descs);
  }
  std::vector<StepStorage> storage(steps.size());
  std::vector<StepDesc> step_descs;
  for (size_t index = 0; index < steps.size(); ++index) {
    const py::tuple step = steps[index];
    step_descs.push_back(describe_step(step, storage[index]));
    add_call_out(step, dtypes, slot_descs);
  }
  n_steps_ = static_cast<int64_t>(steps.size());
  const ProgramDesc desc = {slot_descs.data(),
                            static_cast<int64_t>(slot_descs.size()),
                            step_descs.data(),
                            n_steps_,
                            static_cast<int64_t>(inputs_.size()),
                            static_cast<int64_t>(outputs_.size()),
                            static_cast<int64_t>(states_.size()),
                            arena_size,
                            threads,
                            &Program::call_out,
                            this};
  char error[error_size] = "";
  executor_ = tianyuan_x86_api()->executor_create(&desc, error, error_size);
  if (executor_ == nullptr) throw py::value_error(error);
}

void Program::bind(const py::list &arrays, const char *role, bool written,
                   const std::vector<Expected> &expected, std::vector<void *> &pointers) const {
  if (arrays.size() != expected.size()) {
    throw py::value_error("executor: wrong number of " + std::string(role) + "s, got " +
                          std::to_string(arrays.size()) + ", expected " +
                          std::to_string(expected.size()));
  }
  for (size_t index = 0; index < expected.size(); ++index) {
    PyObject *array = PyList_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(index));
    const Expected &want = expected[index];
    ty_tensor tensor;
    if (!read_array(array, role, static_cast<Py_ssize_t>(index), written, tensor)) {
      throw py::error_already_set();
    }
    if (!want.fits(tensor)) {
      throw py::value_error("executor: " + std::string(role) + " " + std::to_string(index) +
                            " does not fit its slot, got " + describe(tensor) + ", expected " +
                            describe(want.tensor));
    }
    pointers.push_back(tensor.data);
  }
}

void Program::execute(const py::list &inputs, const py::list &states, const py::list &outputs,
                      int64_t *nanoseconds) {
  // Kept from run to run, so that binding does not allocate. The executor is done with them before
  // it runs a step, which might be a call-out that runs another program on this thread.
  static thread_local std::vector<void *> pointers;
  pointers.clear();
  pointers.reserve(inputs.size() + states.size() + outputs.size());
  bind(inputs, "input", false, inputs_, pointers);
  bind(states, "state", true, states_, pointers);
  bind(outputs, "output", true, outputs_, pointers);
  void **first = pointers.data();
  const Binding binding = {first, first + inputs.size(), first + inputs.size() + states.size(),
                           nanoseconds};
  char error[error_size] = "";
  Outcome outcome;
  {
    py::gil_scoped_release released;
    outcome = tianyuan_x86_api()->executor_run(executor_, &binding, error, error_size);
  }
  if (outcome.code != 0) raise(outcome, error);
}

void Program::raise(const Outcome &outcome, const char *error) const {
  if (raised) {
    const std::unique_ptr<py::error_already_set> failure = std::move(raised);
    throw py::error_already_set(*failure);
  }
  if (outcome.step < 0) {
    raise_kernel_error(TY_FAILED, ("executor: " + std::string(error)).c_str());
    throw py::error_already_set();
  }
  const StepNames names = tianyuan_x86_api()->executor_step(executor_, outcome.step);
  std::string message = error[0] != '\0' ? error : "failed without a reason";
  const std::string prefix = std::string(names.op) + ": ";
  if (message.compare(0, prefix.size(), prefix) != 0) message.insert(0, prefix);
  message += " (step " + std::to_string(outcome.step) + ", " + names.kernel;
  if (names.origin[0] != '\0') message += std::string(", from ") + names.origin;
  raise_kernel_error(outcome.code, (message + ")").c_str());
  throw py::error_already_set();
}

void Program::run(const py::list &inputs, const py::list &states, const py::list &outputs) {
  execute(inputs, states, outputs, nullptr);
}

py::list Program::profile(const py::list &inputs, const py::list &states, const py::list &outputs) {
  std::vector<int64_t> nanoseconds(static_cast<size_t>(n_steps_), 0);
  execute(inputs, states, outputs, nanoseconds.data());
  py::list seconds;
  for (const int64_t spent : nanoseconds) seconds.append(static_cast<double>(spent) * 1e-9);
  return seconds;
}

void Program::call_step(CallOutStep &step, const ty_tensor *inputs, ty_tensor *outputs,
                        void *workspace) const {
  // A base keeps numpy from copying; the arrays live for this call only.
  const py::capsule base(this, [](void *) {});
  py::list read, written;
  for (size_t index = 0; index < step.dtypes.size(); ++index) {
    const bool is_input = index < step.n_inputs;
    void *data = is_input ? inputs[index].data : outputs[index - step.n_inputs].data;
    py::array array(step.dtypes[index], step.extents[index], data, base);
    if (is_input) array.attr("flags").attr("writeable") = false;
    (is_input ? read : written).append(std::move(array));
  }
  py::object scratch = py::none();
  if (workspace != nullptr) {
    scratch = py::array(py::dtype::of<uint8_t>(), std::vector<int64_t>{step.workspace_size},
                        workspace, base);
  }
  step.function(read, written, scratch);
}

int Program::call_out(void *user, int64_t step, const ty_ctx *, const ty_tensor *inputs,
                      ty_tensor *outputs, void *workspace) {
  const auto *program = static_cast<const Program *>(user);
  py::gil_scoped_acquire acquired;
  try {
    program->call_step(*program->call_outs_[static_cast<size_t>(step)], inputs, outputs, workspace);
    return 0;
  } catch (const py::error_already_set &failure) {
    raised = std::make_unique<py::error_already_set>(failure);
  }
  return 1;
}

void define_program(py::module_ &module) {
  py::class_<Program>(module, "Program", "A program prepared for the native executor.")
      .def(py::init<const py::list &, const py::list &, const py::tuple &, int64_t, int32_t,
                    py::object, const py::list &>())
      .def("run", &Program::run, "Run once on lists of inputs, states and outputs.")
      .def("profile", &Program::profile, "Run once and return the seconds of each step.")
      .def_property_readonly("arenas", &Program::arenas);
}

}  // namespace tianyuan_x86
