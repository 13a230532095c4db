// The one exported table of an ISA tier: the tables of all kernel files.
#include "kernel.hpp"
#include "tiers.hpp"

namespace TY_ISA {
#define TY_FILE(name) extern const ty_kernel_table name##_table;
#include "files.inc"
#undef TY_FILE

static const ty_kernel_table *const tables[] = {
#define TY_FILE(name) &name##_table,
#include "files.inc"
#undef TY_FILE
};
}  // namespace TY_ISA

extern "C" {
extern const ty_x86_tier TY_TIER_SYMBOL(TY_ISA);
const ty_x86_tier TY_TIER_SYMBOL(TY_ISA) = {
    TY_TIER_NAME, sizeof(TY_ISA::tables) / sizeof(TY_ISA::tables[0]), TY_ISA::tables};
}
