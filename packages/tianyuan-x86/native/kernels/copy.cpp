// copy: any dtype, bound by memory.
#include <string.h>

#include "kernel.hpp"

namespace TY_ISA {

static int copy(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                void *) {
  const int64_t itemsize = ty_itemsize(inputs[0].dtype);
  const char *from = static_cast<const char *>(inputs[0].data);
  char *to = static_cast<char *>(outputs[0].data);
  ty_parallel(ctx, ty_count(inputs[0]), 65536 / itemsize, [&](int64_t begin, int64_t end, int32_t) {
    memcpy(to + begin * itemsize, from + begin * itemsize,
           static_cast<size_t>((end - begin) * itemsize));
  });
  return 0;
}

}  // namespace TY_ISA

TY_EXPORT_KERNELS(copy, TY_KERNEL(copy, "copy_any", "memcpy"))
