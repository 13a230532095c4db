// sort and topk of float32 and int32, stable: keys in which unsigned order is the wanted order,
// packed with the position and sorted by radix.
#include <string.h>

#include "kernel.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t SORT_GRAIN = 4096;
static constexpr int64_t SMALL = 48;   // from here down insertion beats radix
static constexpr int64_t SELECT = 16;  // results up to which selection beats sorting

// NaN is the largest key and both zeros are one.
inline uint32_t key_of(float x) {
  if (x != x) return 0xffffffffu;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (bits == 0x80000000u) bits = 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline uint32_t key_of(int32_t x) { return (uint32_t)x ^ 0x80000000u; }

void insertion_sort(uint64_t *items, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const uint64_t item = items[i];
    int64_t at = i;
    for (; at > 0 && items[at - 1] > item; --at) items[at] = items[at - 1];
    items[at] = item;
  }
}

// Sorts by the upper 32 bits; the lower ones are positions in order, which a stable sort keeps.
void radix_sort(uint64_t *items, uint64_t *spare, int64_t n) {
  int64_t counts[4][256] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int digit = 0; digit < 4; ++digit) ++counts[digit][items[i] >> (32 + 8 * digit) & 255];
  uint64_t *from = items, *to = spare;
  for (int digit = 0; digit < 4; ++digit) {
    int64_t *count = counts[digit], start = 0;
    if (count[from[0] >> (32 + 8 * digit) & 255] == n) continue;
    for (int i = 0; i < 256; ++i) {
      const int64_t size = count[i];
      count[i] = start;
      start += size;
    }
    for (int64_t i = 0; i < n; ++i) to[count[from[i] >> (32 + 8 * digit) & 255]++] = from[i];
    uint64_t *const swap = from;
    from = to;
    to = swap;
  }
  if (from != items) memcpy(items, from, (size_t)n * sizeof(uint64_t));
}

// Keeps the first `keep` items in order at the front of `items`, of which few replace a kept one.
void select_first(uint64_t *items, int64_t n, int64_t keep) {
  insertion_sort(items, keep);
  for (int64_t i = keep; i < n; ++i) {
    const uint64_t item = items[i];
    if (item > items[keep - 1]) continue;
    int64_t at = keep - 1;
    for (; at > 0 && items[at - 1] > item; --at) items[at] = items[at - 1];
    items[at] = item;
  }
}

// Orders one lane whose elements are `stride` apart and writes the first `keep`.
template <class T>
void order_lane(const T *x, T *values, int32_t *indices, int64_t n, int64_t keep, int64_t stride,
                bool descending, uint64_t *items) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = key_of(x[i * stride]);
    items[i] = (uint64_t)(descending ? ~key : key) << 32 | (uint32_t)i;
  }
  if (n <= SMALL) {
    insertion_sort(items, n);
  } else if (keep > 0 && keep <= SELECT) {
    select_first(items, n, keep);
  } else {
    radix_sort(items, items + n, n);
  }
  for (int64_t i = 0; i < keep; ++i) {
    const uint32_t at = (uint32_t)items[i];
    values[i * stride] = x[at * stride];
    indices[i * stride] = (int32_t)at;
  }
}

template <class T>
int order(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, int64_t axis,
          bool descending, void *workspace) {
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < inputs[0].ndim; ++d) {
    if (d < axis) outer *= inputs[0].shape[d];
    if (d > axis) inner *= inputs[0].shape[d];
  }
  const int64_t n = inputs[0].shape[axis], keep = outputs[0].shape[axis];
  const T *x = static_cast<const T *>(inputs[0].data);
  T *values = static_cast<T *>(outputs[0].data);
  int32_t *indices = static_cast<int32_t *>(outputs[1].data);
  ty_parallel(ctx, outer * inner, SORT_GRAIN / (n + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t slot) {
                uint64_t *items = static_cast<uint64_t *>(workspace) + slot * 2 * n;
                for (int64_t lane = begin; lane < end; ++lane) {
                  const int64_t o = lane / inner, i = lane % inner;
                  const int64_t to = o * keep * inner + i;
                  order_lane(x + o * n * inner + i, values + to, indices + to, n, keep, inner,
                             descending, items);
                }
              });
  return 0;
}

template <class T>
int sort(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
         void *workspace) {
  const auto *attrs = reinterpret_cast<const ty_sort_attrs *>(raw);
  return order<T>(ctx, inputs, outputs, attrs->axis, attrs->descending != 0, workspace);
}

template <class T>
int topk(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
         void *workspace) {
  const auto *attrs = reinterpret_cast<const ty_topk_attrs *>(raw);
  return order<T>(ctx, inputs, outputs, attrs->axis, attrs->descending != 0, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(sorting, TY_KERNEL(sort<float>, "sort_f32", "radix"),
                  TY_KERNEL(sort<int32_t>, "sort_i32", "radix"),
                  TY_KERNEL(topk<float>, "topk_f32", "radix"),
                  TY_KERNEL(topk<int32_t>, "topk_i32", "radix"))
