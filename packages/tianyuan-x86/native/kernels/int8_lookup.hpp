// Bytes replaced by entries of a table: any function of one 8-bit value.
#pragma once

#include "int8_values.hpp"

namespace TY_ISA {

// Indexed by the stored bits.
struct Q8Table {
  alignas(64) uint8_t entries[256];
};

void q8_look_up(const Q8Table &table, uint8_t *to, const uint8_t *from, int64_t count);

// What `scaled` and `store` make of each byte.
TY_INLINE void q8_fill_table(Q8Table *table, bool is_signed, int32_t zero, float factor,
                             const Q8Store &form) {
  alignas(64) uint8_t bytes[256];
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 256; i += 16)
    store(table->entries + i, scaled(bytes + i, 16, is_signed, zero, factor), 16, form);
}

}  // namespace TY_ISA
