// reshape, transpose, broadcast_to, concat, pad, slice and their gradients, for items of any dtype.
#include "fill.hpp"
#include "strided.hpp"

namespace TY_ISA {
namespace {

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw, void *

char *item(void *data, int64_t offset, int64_t itemsize) {
  return static_cast<char *>(data) + offset * itemsize;
}

void copy_flat(const ty_ctx *ctx, const ty_tensor &x, void *to) {
  Strided s = {1, {ty_count(x)}, {1}, {1}};
  copy_strided(ctx, s, ty_itemsize(x.dtype), x.data, to);
}

int reshape(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
            void *) {
  if (inputs[0].data != outputs[0].data) copy_flat(ctx, inputs[0], outputs[0].data);
  return 0;
}

int transpose(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_transpose_attrs *>(raw);
  const int64_t *perm = TY_INTS(attrs, attrs->perm);
  int64_t stride[TY_MAX_DIMS];
  row_major(inputs[0].shape, inputs[0].ndim, stride);
  Strided s;
  s.ndim = outputs[0].ndim;
  for (int d = 0; d < s.ndim; ++d) {
    s.shape[d] = outputs[0].shape[d];
    s.from[d] = stride[perm[d]];
  }
  row_major(s.shape, s.ndim, s.to);
  copy_strided(ctx, s, ty_itemsize(inputs[0].dtype), inputs[0].data, outputs[0].data);
  return 0;
}

int broadcast_to(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *) {
  int64_t stride[TY_MAX_DIMS];
  row_major(inputs[0].shape, inputs[0].ndim, stride);
  Strided s;
  s.ndim = outputs[0].ndim;
  const int lead = s.ndim - inputs[0].ndim;
  for (int d = 0; d < s.ndim; ++d) {
    s.shape[d] = outputs[0].shape[d];
    s.from[d] = d < lead || inputs[0].shape[d - lead] == 1 ? 0 : stride[d - lead];
  }
  row_major(s.shape, s.ndim, s.to);
  copy_strided(ctx, s, ty_itemsize(inputs[0].dtype), inputs[0].data, outputs[0].data);
  return 0;
}

int concat(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_concat_attrs *>(raw);
  const int64_t itemsize = ty_itemsize(outputs[0].dtype);
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < outputs[0].ndim; ++d) {
    if (d < attrs->axis) outer *= outputs[0].shape[d];
    if (d > attrs->axis) inner *= outputs[0].shape[d];
  }
  const int64_t whole = outputs[0].shape[attrs->axis] * inner;
  int64_t at = 0;
  for (int i = 0; i < attrs->head.n_inputs; ++i) {
    const int64_t run = inputs[i].shape[attrs->axis] * inner;
    Strided s = {2, {outer, run}, {run, 1}, {whole, 1}};
    copy_strided(ctx, s, itemsize, inputs[i].data, item(outputs[0].data, at, itemsize));
    at += run;
  }
  return 0;
}

// The region of `whole` that starts at `starts` and steps by `steps`; returns its first item.
int64_t region_of(const ty_tensor &whole, const int64_t *starts, const int64_t *steps,
                  int64_t *stride) {
  int64_t first = 0;
  row_major(whole.shape, whole.ndim, stride);
  for (int d = 0; d < whole.ndim; ++d) {
    first += starts[d] * stride[d];
    if (steps != nullptr) stride[d] *= steps[d];
  }
  return first;
}

// Copies a region of x into the dense y.
void take_region(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y, const int64_t *starts,
                 const int64_t *steps) {
  Strided s;
  s.ndim = x.ndim;
  for (int d = 0; d < s.ndim; ++d) s.shape[d] = y.shape[d];
  const int64_t first = region_of(x, starts, steps, s.from);
  row_major(s.shape, s.ndim, s.to);
  const int64_t itemsize = ty_itemsize(x.dtype);
  if (volume(s) > 0) copy_strided(ctx, s, itemsize, item(x.data, first, itemsize), y.data);
}

// Copies the dense v into a region of y.
void put_region(const ty_ctx *ctx, const ty_tensor &v, const ty_tensor &y, const int64_t *starts,
                const int64_t *steps) {
  Strided s;
  s.ndim = y.ndim;
  for (int d = 0; d < s.ndim; ++d) s.shape[d] = v.shape[d];
  const int64_t first = region_of(y, starts, steps, s.to);
  row_major(s.shape, s.ndim, s.from);
  const int64_t itemsize = ty_itemsize(y.dtype);
  if (volume(s) > 0) copy_strided(ctx, s, itemsize, v.data, item(y.data, first, itemsize));
}

int slice(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_slice_attrs *>(raw);
  take_region(ctx, inputs[0], outputs[0], TY_INTS(attrs, attrs->starts),
              TY_INTS(attrs, attrs->steps));
  return 0;
}

int slice_backward(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_slice_backward_attrs *>(raw);
  clear(ctx, outputs[0]);
  put_region(ctx, inputs[0], outputs[0], TY_INTS(attrs, attrs->starts),
             TY_INTS(attrs, attrs->steps));
  return 0;
}

int slice_set(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_slice_set_attrs *>(raw);
  if (inputs[0].data != outputs[0].data) copy_flat(ctx, inputs[0], outputs[0].data);
  put_region(ctx, inputs[1], outputs[0], TY_INTS(attrs, attrs->starts),
             TY_INTS(attrs, attrs->steps));
  return 0;
}

// Which index of the unpadded axis an index of the padded one shows.
int64_t shown(int64_t at, int64_t before, int64_t size, bool reflect) {
  at -= before;
  if (!reflect) return at < 0 ? 0 : at >= size ? size - 1 : at;
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1);
  at = (at % period + period) % period;
  return at < size ? at : period - at;
}

// Walks rows of the padded value: body(row of the padded value, offset of the row that it shows).
template <class Body>
void for_padded_rows(const ty_tensor &padded, const ty_tensor &inner, const int64_t *before,
                     bool reflect, int64_t begin, int64_t end, const Body &body) {
  int64_t stride[TY_MAX_DIMS];
  row_major(inner.shape, inner.ndim, stride);
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, offset = 0;
    for (int d = padded.ndim - 2; d >= 0; --d) {
      offset += shown(rest % padded.shape[d], before[d], inner.shape[d], reflect) * stride[d];
      rest /= padded.shape[d];
    }
    body(row, offset);
  }
}

template <class T>
void pad_by_copies(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y, const int64_t *before,
                   bool reflect) {
  const int last = y.ndim - 1;
  const int64_t width = y.shape[last], size = x.shape[last], left = before[last];
  const T *from = static_cast<const T *>(x.data);
  T *to = static_cast<T *>(y.data);
  ty_parallel(ctx, ty_count(y) / width, COPY_GRAIN / (width + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for_padded_rows(y, x, before, reflect, begin, end, [&](int64_t row, int64_t at) {
                  const T *line = from + at;
                  T *out = to + row * width;
                  for (int64_t i = 0; i < left; ++i) out[i] = line[shown(i, left, size, reflect)];
                  memcpy(out + left, line, (size_t)size * sizeof(T));
                  for (int64_t i = left + size; i < width; ++i)
                    out[i] = line[shown(i, left, size, reflect)];
                });
              });
}

int pad(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_pad_attrs *>(raw);
  const int64_t *before = TY_INTS(attrs, attrs->before);
  const char *mode = TY_STRING(attrs, attrs->mode);
  if (mode[0] == 'c') {
    fill(ctx, outputs[0], attrs->value);
    put_region(ctx, inputs[0], outputs[0], before, nullptr);
    return 0;
  }
  const bool reflect = mode[0] == 'r';
  if (ty_count(outputs[0]) == 0) return 0;
  switch (ty_itemsize(inputs[0].dtype)) {
    case 1:
      pad_by_copies<uint8_t>(ctx, inputs[0], outputs[0], before, reflect);
      break;
    case 2:
      pad_by_copies<uint16_t>(ctx, inputs[0], outputs[0], before, reflect);
      break;
    case 4:
      pad_by_copies<uint32_t>(ctx, inputs[0], outputs[0], before, reflect);
      break;
    default:
      pad_by_copies<uint64_t>(ctx, inputs[0], outputs[0], before, reflect);
  }
  return 0;
}

// Adds every row of g to the row that it shows; leading axes without padding are independent.
void add_padded(const ty_ctx *ctx, const ty_tensor &g, const ty_tensor &dx, const int64_t *before,
                bool reflect) {
  const int last = g.ndim - 1;
  const int64_t width = g.shape[last], size = dx.shape[last];
  const float *from = static_cast<const float *>(g.data);
  float *to = static_cast<float *>(dx.data);
  int64_t groups = 1;
  for (int d = 0; d < last && g.shape[d] == dx.shape[d]; ++d) groups *= g.shape[d];
  const int64_t rows = ty_count(g) / width / groups;
  ty_parallel(ctx, groups, COPY_GRAIN / (rows * width + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for_padded_rows(
                    g, dx, before, reflect, begin * rows, end * rows, [&](int64_t row, int64_t at) {
                      for (int64_t i = 0; i < width; ++i) {
                        to[at + shown(i, before[last], size, reflect)] += from[row * width + i];
                      }
                    });
              });
}

int pad_backward(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_pad_backward_attrs *>(raw);
  const int64_t *before = TY_INTS(attrs, attrs->before);
  const char *mode = TY_STRING(attrs, attrs->mode);
  if (mode[0] == 'c') {
    take_region(ctx, inputs[0], outputs[0], before, nullptr);
    return 0;
  }
  clear(ctx, outputs[0]);
  if (ty_count(inputs[0]) > 0) add_padded(ctx, inputs[0], outputs[0], before, mode[0] == 'r');
  return 0;
}

}  // namespace
}  // namespace TY_ISA

#define MOVE(op) TY_KERNEL(op, #op "_any", "strided")

TY_EXPORT_KERNELS(movement, MOVE(reshape), MOVE(transpose), MOVE(broadcast_to), MOVE(concat),
                  MOVE(pad), MOVE(pad_backward), MOVE(slice), MOVE(slice_backward), MOVE(slice_set))
