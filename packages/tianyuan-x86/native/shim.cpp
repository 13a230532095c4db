// The thin extension module: capsules, the eager call, and programs, over libtianyuan_x86.so.
#include <pybind11/pybind11.h>

#include "api.hpp"
#include "detect.hpp"
#include "eager.hpp"
#include "engine.hpp"
#include "program.hpp"

namespace tianyuan_x86 {
namespace {

py::capsule capsule_of(const void *table, const char *name) { return py::capsule(table, name); }

py::dict feature_dict() {
  static constexpr struct {
    const char *name;
    uint32_t bit;
  } names[] = {
      {"avx2", TY_X86_AVX2},
      {"fma", TY_X86_FMA},
      {"f16c", TY_X86_F16C},
      {"bmi2", TY_X86_BMI2},
      {"avx512f", TY_X86_AVX512F},
      {"avx512bw", TY_X86_AVX512BW},
      {"avx512dq", TY_X86_AVX512DQ},
      {"avx512vl", TY_X86_AVX512VL},
      {"avx512_vnni", TY_X86_AVX512_VNNI},
      {"avx512_bf16", TY_X86_AVX512_BF16},
      {"avx_vnni", TY_X86_AVX_VNNI},
      {"amx_tile", TY_X86_AMX_TILE},
      {"amx_int8", TY_X86_AMX_INT8},
      {"amx_bf16", TY_X86_AMX_BF16},
      {"os_ymm", TY_X86_OS_YMM},
      {"os_zmm", TY_X86_OS_ZMM},
      {"os_tile", TY_X86_OS_TILE},
      {"pclmulqdq", TY_X86_PCLMUL},
      {"amd", TY_X86_AMD},
  };
  const uint32_t found = tianyuan_x86_api()->features();
  py::dict result;
  for (const auto &feature : names) result[feature.name] = (found & feature.bit) != 0;
  return result;
}

py::list tier_list() {
  py::list result;
  for (int64_t rank = 0;; ++rank) {
    const char *name = tianyuan_x86_api()->tier(rank);
    if (name == nullptr) return result;
    result.append(name);
  }
}

void adopt_pool(const py::capsule &capsule) {
  const auto *pool = static_cast<const ty_thread_pool *>(
      PyCapsule_GetPointer(capsule.ptr(), TY_THREAD_POOL_CAPSULE));
  if (pool == nullptr) throw py::error_already_set();
  capsule.inc_ref();  // the library keeps the pointer for the life of the process
  tianyuan_x86_api()->adopt_pool(pool);
}

uint32_t crc32(const py::buffer &data) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  uint32_t found;
  {
    py::gil_scoped_release others;
    found = tianyuan_x86_api()->crc32(view.buf, static_cast<size_t>(view.len));
  }
  PyBuffer_Release(&view);
  return found;
}

// One for the process: core's tensors are one class, and its lock guards every call.
Engine &engine() {
  static auto *const only = new Engine;  // never destroyed: its objects may outlive Python
  return *only;
}

PyObject *apply(PyObject *, PyObject *const *args, Py_ssize_t count) {
  return engine().apply(args, count);
}

PyObject *wrap(PyObject *, PyObject *const *args, Py_ssize_t count) {
  return engine().wrap(args, count);
}

PyObject *engine_setup(PyObject *, PyObject *const *args, Py_ssize_t count) {
  return engine().setup(args, count) ? Py_NewRef(Py_None) : nullptr;
}

PyObject *engine_add(PyObject *, PyObject *const *args, Py_ssize_t count) {
  return engine().add(args, count) ? Py_NewRef(Py_None) : nullptr;
}

PyObject *engine_clear(PyObject *, PyObject *) {
  engine().clear();
  Py_RETURN_NONE;
}

PyCFunction fast(PyObject *(*function)(PyObject *, PyObject *const *, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef eager_methods[] = {
    {"call", fast(call), METH_FASTCALL,
     "call(address, attrs, inputs, outputs, workspace=None, threads=0)\n--\n\n"
     "Run a C kernel on C-contiguous arrays; raise KernelError where it reports failure."},
    {"apply", fast(apply), METH_FASTCALL,
     "apply(op, operands, attrs)\n--\n\n"
     "Apply an op to tensors as core's apply does, which sees to every call that has no plan."},
    {"wrap", fast(wrap), METH_FASTCALL,
     "wrap(data, spec)\n--\n\nMake a tensor of data that is already in its final form."},
    {"engine_setup", fast(engine_setup), METH_FASTCALL,
     "engine_setup(tensor, state, choices, no_attrs, slow)\n--\n\n"
     "Say what tensors are, where threads keep their state and who sees to unusual calls."},
    {"engine_add", fast(engine_add), METH_FASTCALL,
     "engine_add(op, attrs, specs, chosen, made, address, encoded, workspace, threads, title, "
     "owner)\n--\n\nRun such calls with this kernel from now on."},
    {"engine_clear", engine_clear, METH_NOARGS,
     "engine_clear()\n--\n\nForget every plan: what they were chosen by has changed."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace tianyuan_x86

PYBIND11_MODULE(_native, module) {
  using namespace tianyuan_x86;
  module.def("features", &feature_dict, "Return what the CPU has and the system permits.");
  module.def("tiers", &tier_list, "Return the ISA tiers that this machine runs, best first.");
  module.def(
      "kernel_table",
      [] { return capsule_of(tianyuan_x86_api()->kernels(), TY_KERNEL_TABLE_CAPSULE); },
      "Return the capsule of all kernels that this machine runs.");
  module.def(
      "thread_pool",
      [] { return capsule_of(tianyuan_x86_api()->own_pool(), TY_THREAD_POOL_CAPSULE); },
      "Return the capsule of the library's own thread pool.");
  module.def("adopt_thread_pool", &adopt_pool, "Run loops on another plugin's pool from now on.");
  module.def("crc32", &crc32, "Return the CRC-32 of bytes; only on CPUs with pclmulqdq.");
  define_program(module);
  if (PyModule_AddFunctions(module.ptr(), eager_methods) != 0) throw py::error_already_set();
}
