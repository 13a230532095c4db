// What the CPU has and the operating system lets us use.
#pragma once

#include <stdint.h>

enum ty_x86_feature : uint32_t {
  TY_X86_AVX2 = 1u << 0,
  TY_X86_FMA = 1u << 1,
  TY_X86_F16C = 1u << 2,
  TY_X86_BMI2 = 1u << 3,
  TY_X86_AVX512F = 1u << 4,
  TY_X86_AVX512BW = 1u << 5,
  TY_X86_AVX512DQ = 1u << 6,
  TY_X86_AVX512VL = 1u << 7,
  TY_X86_AVX512_VNNI = 1u << 8,
  TY_X86_AVX512_BF16 = 1u << 9,
  TY_X86_AVX_VNNI = 1u << 10,
  TY_X86_AMX_TILE = 1u << 11,
  TY_X86_AMX_INT8 = 1u << 12,
  TY_X86_AMX_BF16 = 1u << 13,
  TY_X86_OS_YMM = 1u << 14,
  TY_X86_OS_ZMM = 1u << 15,
  TY_X86_OS_TILE = 1u << 16,  // XCR0 has the tile state, the kernel permits it to this process
  TY_X86_PCLMUL = 1u << 17,
  TY_X86_AMD = 1u << 18,  // who made it, which says what its vector units do at once
};

namespace tianyuan_x86 {

// Features as a set of bits. The first call asks the kernel for permission to use AMX tiles where
// the CPU has them; later calls return what was found.
uint32_t features();

// Whether this machine runs the objects of a tier ("avx2", "avx512", "vnni", "amx").
bool has_tier(const char *name);

}  // namespace tianyuan_x86
