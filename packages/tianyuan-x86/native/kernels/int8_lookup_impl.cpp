// The lookup itself: two permutations of half a table each where the CPU has VBMI, otherwise 16
// shuffles of 16 entries.
#include "int8_lookup.hpp"

#if TY_VF == 16
#include <cpuid.h>
#endif

namespace TY_ISA {
namespace {

void look_up_shuffled(const uint8_t *table, uint8_t *to, const uint8_t *from, int64_t count) {
  int64_t at = 0;
  for (; at + 32 <= count; at += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + at));
    __m256i found = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m256i part = _mm256_broadcastsi128_si256(
          _mm_load_si128(reinterpret_cast<const __m128i *>(table + 16 * i)));
      // What lies outside of this part gets its highest bit, which a shuffle turns into zero.
      const __m256i place = _mm256_adds_epu8(
          _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(16 * i))), _mm256_set1_epi8(0x70));
      found = _mm256_or_si256(found, _mm256_shuffle_epi8(part, place));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + at), found);
  }
  for (; at < count; ++at) to[at] = table[from[at]];
}

#if TY_VF == 16
// Asked once: virtual machines take microseconds to answer.
bool has_vbmi() {
  static int known = 0;
  int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (found == 0) {
    unsigned eax, ebx, ecx = 0, edx;
    __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
    found = ecx & bit_AVX512VBMI ? 1 : -1;
    __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  }
  return found > 0;
}

__attribute__((target("avx512vbmi"))) void look_up_permuted(const uint8_t *table, uint8_t *to,
                                                            const uint8_t *from, int64_t count) {
  const __m512i a = _mm512_load_si512(table), b = _mm512_load_si512(table + 64);
  const __m512i c = _mm512_load_si512(table + 128), d = _mm512_load_si512(table + 192);
  for (int64_t at = 0; at < count; at += 64) {
    const __mmask64 some = count - at >= 64 ? ~__mmask64{0} : (__mmask64{1} << (count - at)) - 1;
    const __m512i x = _mm512_maskz_loadu_epi8(some, from + at);
    const __m512i low = _mm512_permutex2var_epi8(a, x, b);
    const __m512i high = _mm512_permutex2var_epi8(c, x, d);
    _mm512_mask_storeu_epi8(to + at, some, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(x), high));
  }
}
#endif

}  // namespace

void q8_look_up(const Q8Table &table, uint8_t *to, const uint8_t *from, int64_t count) {
#if TY_VF == 16
  if (has_vbmi()) {
    look_up_permuted(table.entries, to, from, count);
    return;
  }
#endif
  look_up_shuffled(table.entries, to, from, count);
}

}  // namespace TY_ISA
