// Reads numpy arrays into the ABI's tensors without going through numpy's own calls.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>

#include "tianyuan/abi.h"

namespace tianyuan_x86 {

namespace py = pybind11;

constexpr int npy_c_contiguous = 0x1, npy_aligned = 0x100, npy_writeable = 0x400;

// Number that numpy gave to bfloat16, which ml_dtypes registers; -1 until it was met.
inline int bfloat16_number = -1;

// The ABI's code of a numpy type number, -1 for what it does not have.
inline int32_t code_of_number(int number) {
  // By NPY_TYPES: bool, byte, ubyte, short, ushort, int, uint, long, ulong, longlong, ulonglong,
  // float, double. `long` has 64 bits on every system that the library supports.
  static constexpr int8_t codes[] = {TY_BOOL,   TY_INT8,    TY_UINT8,  TY_INT16,  TY_UINT16,
                                     TY_INT32,  TY_UINT32,  TY_INT64,  TY_UINT64, TY_INT64,
                                     TY_UINT64, TY_FLOAT32, TY_FLOAT64};
  if (number >= 0 && number < static_cast<int>(sizeof codes)) return codes[number];
  if (number == 23) return TY_FLOAT16;  // NPY_HALF
  return number == bfloat16_number ? TY_BFLOAT16 : -1;
}

// Asks an unknown dtype for its name once; a dtype stays unknown unless it is bfloat16.
inline int32_t code_of_name(PyObject *descr, int number) {
  PyObject *name = PyObject_GetAttrString(descr, "name");
  if (name == nullptr) return -1;
  const bool found =
      PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;
  Py_DECREF(name);
  if (!found) return -1;
  bfloat16_number = number;
  return TY_BFLOAT16;
}

inline bool refuse_array(const char *what, const char *role, Py_ssize_t index, PyObject *got) {
  PyErr_Format(PyExc_TypeError, "kernel: %s %zd %s, got %R", role, index, what, got);
  return false;
}

// Fills in a tensor; returns false with a Python error set where the array cannot be passed.
inline bool read_array(PyObject *object, const char *role, Py_ssize_t index, bool written,
                       ty_tensor &tensor) {
  if (!py::detail::npy_api::get().PyArray_Check_(object)) {
    return refuse_array("is not an array", role, index,
                        reinterpret_cast<PyObject *>(Py_TYPE(object)));
  }
  const auto *array = py::detail::array_proxy(object);
  const auto *descr = py::detail::array_descriptor1_proxy(array->descr);
  int32_t code = code_of_number(descr->type_num);
  if (code < 0) code = code_of_name(array->descr, descr->type_num);
  if (code < 0 || descr->byteorder == '>') {
    if (PyErr_Occurred()) return false;
    return refuse_array("has an unsupported dtype", role, index, array->descr);
  }
  if ((array->flags & npy_c_contiguous) == 0) {
    return refuse_array("is not C-contiguous", role, index, array->descr);
  }
  if ((array->flags & npy_aligned) == 0) {
    return refuse_array("is not aligned to its items", role, index, array->descr);
  }
  if (written && (array->flags & npy_writeable) == 0) {
    return refuse_array("is read-only", role, index, array->descr);
  }
  if (array->nd > TY_MAX_DIMS) {
    return refuse_array("has more than 8 dimensions", role, index, array->descr);
  }
  tensor.abi_version = TY_ABI_VERSION;
  tensor.struct_size = sizeof(ty_tensor);
  tensor.data = array->data;
  tensor.dtype = code;
  tensor.ndim = array->nd;
  for (int axis = 0; axis < array->nd; ++axis) tensor.shape[axis] = array->dimensions[axis];
  tensor.scales = nullptr;
  tensor.zero_points = nullptr;
  tensor.quant_count = 0;
  tensor.quant_axis = -1;
  return true;
}

inline int64_t count_items(const ty_tensor &tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor.ndim; ++axis) count *= tensor.shape[axis];
  return count;
}

}  // namespace tianyuan_x86
