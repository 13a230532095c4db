// Asks CPUID what the CPU has and XCR0 what the operating system saves on a context switch.
#include "detect.hpp"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tianyuan_x86 {
namespace {

#if defined(__x86_64__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers found;
  __get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}

uint64_t xcr0() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Whether palette 1 has the tiles that kernels are written for: 8 of 16 rows of 64 bytes.
bool has_whole_tiles() {
  if (__get_cpuid_max(0, nullptr) < 0x1d || cpuid(0x1d, 0).eax < 1) return false;
  const Registers palette = cpuid(0x1d, 1);
  return palette.ebx >> 16 >= 8 && (palette.ebx & 0xffff) >= 64 && (palette.ecx & 0xffff) >= 16;
}

// Linux hands out the tile state only to a process that asked for it. The permission holds for all
// threads and for children of fork; without it the first ldtilecfg would end the process.
bool permit_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

uint32_t bit(uint32_t word, int position, uint32_t feature) {
  return (word >> position) & 1u ? feature : 0u;
}

uint32_t os_features(uint32_t leaf1_ecx, bool has_tiles) {
  if (!((leaf1_ecx >> 27) & 1u)) return 0;  // OSXSAVE: xgetbv may be executed
  const uint64_t saved = xcr0();
  uint32_t found = 0;
  if ((saved & 0x6) == 0x6) found |= TY_X86_OS_YMM;
  if ((saved & 0xe6) == 0xe6) found |= TY_X86_OS_ZMM;
  if (has_tiles && (saved & 0x60000) == 0x60000 && has_whole_tiles() && permit_tiles())
    found |= TY_X86_OS_TILE;
  return found;
}

uint32_t maker() {
  const Registers name = cpuid(0, 0);
  return name.ebx == signature_AMD_ebx && name.ecx == signature_AMD_ecx ? TY_X86_AMD : 0u;
}

uint32_t detect() {
  const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf71 = cpuid(7, 1);
  uint32_t found = bit(leaf1.ecx, 1, TY_X86_PCLMUL) | bit(leaf1.ecx, 12, TY_X86_FMA) |
                   bit(leaf1.ecx, 29, TY_X86_F16C) | bit(leaf7.ebx, 5, TY_X86_AVX2) |
                   bit(leaf7.ebx, 8, TY_X86_BMI2) | bit(leaf7.ebx, 16, TY_X86_AVX512F) |
                   bit(leaf7.ebx, 17, TY_X86_AVX512DQ) | bit(leaf7.ebx, 30, TY_X86_AVX512BW) |
                   bit(leaf7.ebx, 31, TY_X86_AVX512VL) | bit(leaf7.ecx, 11, TY_X86_AVX512_VNNI) |
                   bit(leaf7.edx, 22, TY_X86_AMX_BF16) | bit(leaf7.edx, 24, TY_X86_AMX_TILE) |
                   bit(leaf7.edx, 25, TY_X86_AMX_INT8) | bit(leaf71.eax, 4, TY_X86_AVX_VNNI) |
                   bit(leaf71.eax, 5, TY_X86_AVX512_BF16);
  return found | maker() | os_features(leaf1.ecx, (found & TY_X86_AMX_TILE) != 0);
}

#else

uint32_t detect() { return 0; }

#endif

constexpr uint32_t needs_avx2 =
    TY_X86_AVX2 | TY_X86_FMA | TY_X86_F16C | TY_X86_BMI2 | TY_X86_OS_YMM;
constexpr uint32_t needs_avx512 = needs_avx2 | TY_X86_AVX512F | TY_X86_AVX512BW | TY_X86_AVX512DQ |
                                  TY_X86_AVX512VL | TY_X86_OS_ZMM;
constexpr uint32_t needs_vnni = needs_avx512 | TY_X86_AVX512_VNNI;
constexpr uint32_t needs_bf16 = needs_vnni | TY_X86_AVX512_BF16;
#if defined(TY_EMULATE_TILES)
constexpr uint32_t needs_amx = needs_bf16;
#else
constexpr uint32_t needs_amx =
    needs_bf16 | TY_X86_AMX_TILE | TY_X86_AMX_INT8 | TY_X86_AMX_BF16 | TY_X86_OS_TILE;
#endif

}  // namespace

uint32_t features() {
  static const uint32_t found = detect();
  return found;
}

bool has_tier(const char *name) {
  uint32_t needed;
  if (strcmp(name, "avx2") == 0) {
    needed = needs_avx2;
  } else if (strcmp(name, "avx512") == 0) {
    needed = needs_avx512;
  } else if (strcmp(name, "vnni") == 0) {
    needed = needs_vnni;
  } else if (strcmp(name, "bf16") == 0) {
    needed = needs_bf16;
  } else if (strcmp(name, "amx") == 0) {
    needed = needs_amx;
  } else {
    return false;
  }
  return (features() & needed) == needed;
}

}  // namespace tianyuan_x86
