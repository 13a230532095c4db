// take, gather, scatter, index and their relatives. Every index is checked before anything is
// written; sums run in row-major order whatever the number of threads.
#include "fill.hpp"

namespace TY_ISA {
namespace {

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw, void *

static constexpr int64_t STRIP = 256;  // elements of a row that one piece adds up

struct Indices {
  const void *data;
  bool wide;
  int64_t count, size;  // size of the axis that they address

  int64_t raw(int64_t i) const {
    return wide ? static_cast<const int64_t *>(data)[i] : static_cast<const int32_t *>(data)[i];
  }
  int64_t operator[](int64_t i) const {
    const int64_t at = raw(i);
    return at < 0 ? at + size : at;
  }
};

Indices indices_of(const ty_tensor &t, int64_t size) {
  return {t.data, t.dtype == TY_INT64, ty_count(t), size};
}

int check(const ty_ctx *ctx, const char *op, const Indices &idx) {
  for (int64_t i = 0; i < idx.count; ++i) {
    const int64_t at = idx.raw(i);
    if (at >= -idx.size && at < idx.size) continue;
    if (idx.size == 0) {
      return ty_fail_as(TY_BAD_INDEX, ctx,
                        "%s: index out of range, got %lld, expected none on an empty axis", op,
                        (long long)at);
    }
    return ty_fail_as(TY_BAD_INDEX, ctx, "%s: index out of range, got %lld, expected %lld to %lld",
                      op, (long long)at, (long long)-idx.size, (long long)(idx.size - 1));
  }
  return 0;
}

int64_t volume_of(const int64_t *shape, int begin, int end) {
  int64_t size = 1;
  for (int d = begin; d < end; ++d) size *= shape[d];
  return size;
}

TY_INLINE void copy_row(char *to, const char *from, int64_t bytes) {
  if (bytes == 4) {
    memcpy(to, from, 4);
  } else if (bytes == 8) {
    memcpy(to, from, 8);
  } else {
    memcpy(to, from, (size_t)bytes);
  }
}

// inputs: x, indices
int take(ARGUMENTS) {
  const int axis = (int)reinterpret_cast<const ty_take_attrs *>(raw)->axis;
  const ty_tensor &x = inputs[0];
  const Indices idx = indices_of(inputs[1], x.shape[axis]);
  const int failed = check(ctx, "take", idx);
  if (failed) return failed;
  const int64_t outer = volume_of(x.shape, 0, axis);
  const int64_t bytes = volume_of(x.shape, axis + 1, x.ndim) * ty_itemsize(x.dtype);
  const char *from = static_cast<const char *>(x.data);
  char *to = static_cast<char *>(outputs[0].data);
  ty_parallel(ctx, outer * idx.count, 4 * COPY_GRAIN / (bytes + 16) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t o = i / idx.count, at = idx[i % idx.count];
                  copy_row(to + i * bytes, from + (o * idx.size + at) * bytes, bytes);
                }
              });
  return 0;
}

template <class T>
void add_row(T *to, const T *from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = (T)(to[i] + from[i]);
}

// inputs: g, indices
int take_backward(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_take_backward_attrs *>(raw);
  const int axis = (int)attrs->axis, end_axis = axis + inputs[1].ndim;
  const Indices idx = indices_of(inputs[1], attrs->size);
  const int failed = check(ctx, "take_backward", idx);
  if (failed) return failed;
  clear(ctx, outputs[0]);
  const int64_t outer = volume_of(inputs[0].shape, 0, axis);
  const int64_t inner = volume_of(inputs[0].shape, end_axis, inputs[0].ndim);
  const int64_t strips = (inner + STRIP - 1) / STRIP;
  const float *g = static_cast<const float *>(inputs[0].data);
  float *dx = static_cast<float *>(outputs[0].data);
  const int64_t weight = idx.count * (inner < STRIP ? inner : STRIP) + 1;
  ty_parallel(ctx, outer * strips, COPY_GRAIN / weight + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t o = i / strips, at = i % strips * STRIP;
                  const int64_t n = inner - at < STRIP ? inner - at : STRIP;
                  for (int64_t k = 0; k < idx.count; ++k) {
                    add_row(dx + (o * idx.size + idx[k]) * inner + at,
                            g + (o * idx.count + k) * inner + at, n);
                  }
                }
              });
  return 0;
}

// What gather and scatter share: rows along the last axis of the indices, whose extents may be
// smaller than the value's.
struct Places {
  Indices idx;
  int ndim, axis;
  int64_t shape[TY_MAX_DIMS], stride[TY_MAX_DIMS];  // of the indices; of the value
  int64_t rows, run;
};

Places places_of(const ty_tensor &x, const ty_tensor &indices, int64_t axis) {
  Places p;
  p.idx = indices_of(indices, x.shape[axis]);
  p.ndim = x.ndim;
  p.axis = (int)axis;
  row_major(x.shape, x.ndim, p.stride);
  for (int d = 0; d < x.ndim; ++d) p.shape[d] = indices.shape[d];
  p.run = p.shape[p.ndim - 1];
  p.rows = p.run ? p.idx.count / p.run : 0;
  return p;
}

// Runs body(number of the index, offset of its place in the value) over rows [begin, end).
template <class Body>
TY_INLINE void for_places(const Places &p, int64_t begin, int64_t end, const Body &body) {
  const int64_t step = p.axis == p.ndim - 1 ? 0 : 1, along = p.stride[p.axis];
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, offset = 0;
    for (int d = p.ndim - 2; d >= 0; --d) {
      if (d != p.axis) offset += rest % p.shape[d] * p.stride[d];
      rest /= p.shape[d];
    }
    for (int64_t i = 0; i < p.run; ++i) {
      const int64_t number = row * p.run + i;
      body(number, offset + i * step + p.idx[number] * along);
    }
  }
}

template <class T>
void gather_items(const ty_ctx *ctx, const Places &p, const void *x, void *y) {
  const T *from = static_cast<const T *>(x);
  T *to = static_cast<T *>(y);
  ty_parallel(ctx, p.rows, COPY_GRAIN / (p.run + 1) + 1, [&](int64_t begin, int64_t end, int32_t) {
    for_places(p, begin, end, [&](int64_t i, int64_t at) { to[i] = from[at]; });
  });
}

// inputs: x, indices
int gather(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_gather_attrs *>(raw);
  const Places p = places_of(inputs[0], inputs[1], attrs->axis);
  const int failed = check(ctx, "gather", p.idx);
  if (failed) return failed;
  switch (ty_itemsize(inputs[0].dtype)) {
    case 1:
      gather_items<uint8_t>(ctx, p, inputs[0].data, outputs[0].data);
      break;
    case 2:
      gather_items<uint16_t>(ctx, p, inputs[0].data, outputs[0].data);
      break;
    case 4:
      gather_items<uint32_t>(ctx, p, inputs[0].data, outputs[0].data);
      break;
    default:
      gather_items<uint64_t>(ctx, p, inputs[0].data, outputs[0].data);
  }
  return 0;
}

void copy_value(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y) {
  if (x.data == y.data) return;
  Strided s = {1, {ty_count(x)}, {1}, {1}};
  copy_strided(ctx, s, ty_itemsize(x.dtype), x.data, y.data);
}

// Axes before the scattered one are independent; within them order counts.
template <class T, bool Add>
void scatter_items(const ty_ctx *ctx, const Places &p, const void *source, void *y) {
  const T *from = static_cast<const T *>(source);
  T *to = static_cast<T *>(y);
  int64_t groups = p.rows ? 1 : 0;
  for (int d = 0; d < p.axis && d < p.ndim - 1; ++d) groups *= p.shape[d];
  const int64_t rows = groups ? p.rows / groups : 0;
  ty_parallel(
      ctx, groups, COPY_GRAIN / (rows * p.run + 1) + 1, [&](int64_t begin, int64_t end, int32_t) {
        for_places(p, begin * rows, end * rows,
                   [&](int64_t i, int64_t at) { to[at] = Add ? (T)(to[at] + from[i]) : from[i]; });
      });
}

// inputs: x, indices, source
int scatter(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_scatter_attrs *>(raw);
  const Places p = places_of(inputs[0], inputs[1], attrs->axis);
  const int failed = check(ctx, "scatter", p.idx);
  if (failed) return failed;
  copy_value(ctx, inputs[0], outputs[0]);
  switch (ty_itemsize(inputs[0].dtype)) {
    case 1:
      scatter_items<uint8_t, false>(ctx, p, inputs[2].data, outputs[0].data);
      break;
    case 2:
      scatter_items<uint16_t, false>(ctx, p, inputs[2].data, outputs[0].data);
      break;
    case 4:
      scatter_items<uint32_t, false>(ctx, p, inputs[2].data, outputs[0].data);
      break;
    default:
      scatter_items<uint64_t, false>(ctx, p, inputs[2].data, outputs[0].data);
  }
  return 0;
}

template <class T>
int scatter_add(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_scatter_add_attrs *>(raw);
  const Places p = places_of(inputs[0], inputs[1], attrs->axis);
  const int failed = check(ctx, "scatter_add", p.idx);
  if (failed) return failed;
  copy_value(ctx, inputs[0], outputs[0]);
  scatter_items<T, true>(ctx, p, inputs[2].data, outputs[0].data);
  return 0;
}

// Leading axes addressed by one index array each.
struct Address {
  Indices idx[TY_MAX_DIMS];
  int count;
  int64_t inner;  // elements behind the addressed axes

  int64_t row(int64_t i) const {
    int64_t at = 0;
    for (int d = 0; d < count; ++d) at = at * idx[d].size + idx[d][i];
    return at;
  }
};

int address_of(const ty_ctx *ctx, const char *op, const ty_tensor &x, const ty_tensor *indices,
               int64_t count, Address *a) {
  a->count = (int)count;
  a->inner = volume_of(x.shape, (int)count, x.ndim);
  for (int d = 0; d < a->count; ++d) {
    a->idx[d] = indices_of(indices[d], x.shape[d]);
    const int failed = check(ctx, op, a->idx[d]);
    if (failed) return failed;
  }
  return 0;
}

// inputs: x, indices...
int index(ARGUMENTS) {
  Address a;
  const auto *attrs = reinterpret_cast<const ty_index_attrs *>(raw);
  const int failed = address_of(ctx, "index", inputs[0], inputs + 1, attrs->count, &a);
  if (failed) return failed;
  const int64_t bytes = a.inner * ty_itemsize(inputs[0].dtype);
  const char *from = static_cast<const char *>(inputs[0].data);
  char *to = static_cast<char *>(outputs[0].data);
  ty_parallel(ctx, a.idx[0].count, 4 * COPY_GRAIN / (bytes + 16) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i)
                  copy_row(to + i * bytes, from + a.row(i) * bytes, bytes);
              });
  return 0;
}

// inputs: x, value, indices...
int index_set(ARGUMENTS) {
  Address a;
  const auto *attrs = reinterpret_cast<const ty_index_set_attrs *>(raw);
  const int failed = address_of(ctx, "index_set", inputs[0], inputs + 2, attrs->count, &a);
  if (failed) return failed;
  copy_value(ctx, inputs[0], outputs[0]);
  const int64_t bytes = a.inner * ty_itemsize(inputs[0].dtype);
  const char *from = static_cast<const char *>(inputs[1].data);
  char *to = static_cast<char *>(outputs[0].data);
  for (int64_t i = 0; i < a.idx[0].count; ++i)
    copy_row(to + a.row(i) * bytes, from + i * bytes, bytes);
  return 0;
}

template <class T>
int index_add(ARGUMENTS) {
  Address a;
  const auto *attrs = reinterpret_cast<const ty_index_add_attrs *>(raw);
  const int failed = address_of(ctx, "index_add", inputs[0], inputs + 2, attrs->count, &a);
  if (failed) return failed;
  copy_value(ctx, inputs[0], outputs[0]);
  const T *from = static_cast<const T *>(inputs[1].data);
  T *to = static_cast<T *>(outputs[0].data);
  for (int64_t i = 0; i < a.idx[0].count; ++i)
    add_row(to + a.row(i) * a.inner, from + i * a.inner, a.inner);
  return 0;
}

}  // namespace
}  // namespace TY_ISA

#define INDEXING(op) TY_KERNEL(op, #op "_any", "rows")
#define ADDING(op)                                                                       \
  TY_KERNEL(op<float>, #op "_f32", "rows"), TY_KERNEL(op<uint32_t>, #op "_i32", "rows"), \
      TY_KERNEL(op<uint64_t>, #op "_i64", "rows"), TY_KERNEL(op<double>, #op "_f64", "rows")

TY_EXPORT_KERNELS(indexing, INDEXING(take), TY_KERNEL(take_backward, "take_backward_f32", "rows"),
                  INDEXING(gather), INDEXING(scatter), INDEXING(index), INDEXING(index_set),
                  ADDING(scatter_add), ADDING(index_add))
