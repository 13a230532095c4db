// CRC-32 as zlib computes it, by carry-less products.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tianyuan_x86 {

// The CRC-32 of `size` bytes; only where the CPU has TY_X86_PCLMUL.
uint32_t crc32(const void *data, size_t size);

}  // namespace tianyuan_x86
