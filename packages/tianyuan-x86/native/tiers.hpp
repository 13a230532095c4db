// What a tier's objects show to the rest of the library, in C only.
#pragma once

#include "tianyuan/abi.h"

typedef struct ty_x86_tier {
  const char *name;
  int64_t count;
  const ty_kernel_table *const *tables;
} ty_x86_tier;

#define TY_TIER_SYMBOL__(isa) ty_x86_tier_##isa
#define TY_TIER_SYMBOL_(isa) TY_TIER_SYMBOL__(isa)
#define TY_TIER_SYMBOL(isa) TY_TIER_SYMBOL_(isa)
