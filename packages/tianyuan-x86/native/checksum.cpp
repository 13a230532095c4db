// CRC-32 at the speed of memory: what lies far ahead of the end is folded into what lies nearer, as
// a polynomial over GF(2) times x^n is the same modulo P as one times x^n mod P. After Gopal et
// al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009.
#include "checksum.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tianyuan_x86 {
namespace {

// P, as all polynomials here, with the coefficient of the highest power in the lowest bit; x^32 is
// left out.
constexpr uint32_t POLYNOMIAL = 0xedb88320;

// a(x) x mod P.
constexpr uint32_t times_x(uint32_t a) { return a & 1 ? a >> 1 ^ POLYNOMIAL : a >> 1; }

// x^n mod P.
constexpr uint32_t power(int n) {
  uint32_t found = 0x80000000;
  for (int i = 0; i < n; ++i) found = times_x(found);
  return found;
}

struct Bytes {
  uint32_t next[256];
};

constexpr Bytes remainders() {
  Bytes found = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int i = 0; i < 8; ++i) rest = times_x(rest);
    found.next[byte] = rest;
  }
  return found;
}

uint32_t by_bytes(uint32_t rest, const unsigned char *at, size_t size) {
  static constexpr Bytes table = remainders();
  for (; size > 0; --size) rest = rest >> 8 ^ table.next[(rest ^ *at++) & 0xff];
  return rest;
}

#if defined(__x86_64__)

#define TY_FOLDING __attribute__((target("pclmul,sse4.1")))

enum { WIDTH = 16, WAYS = 8, BLOCK = WIDTH * WAYS };  // bytes of a vector, and of a step of all

// Factors by which the halves of a vector move `bytes` ahead. The first half lies 64 bits further
// from the end. A product of such halves is short of a vector by one bit, which is one power of x.
TY_FOLDING inline __m128i factors(uint32_t first, uint32_t second) {
  return _mm_set_epi64x(static_cast<int64_t>(static_cast<uint64_t>(second) << 32),
                        static_cast<int64_t>(static_cast<uint64_t>(first) << 32));
}

template <int BYTES>
TY_FOLDING inline __m128i ahead() {
  constexpr uint32_t first = power(8 * BYTES + 63), second = power(8 * BYTES - 1);
  return factors(first, second);
}

TY_FOLDING inline __m128i fold(__m128i a, __m128i by, __m128i onto) {
  const __m128i both =
      _mm_xor_si128(_mm_clmulepi64_si128(a, by, 0x00), _mm_clmulepi64_si128(a, by, 0x11));
  return _mm_xor_si128(both, onto);
}

TY_FOLDING inline __m128i vector_at(const unsigned char *at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
}

// The remainder of whole blocks after `rest`, as that of the 16 bytes it leaves in `left`.
TY_FOLDING void fold_blocks(uint32_t rest, const unsigned char *at, size_t blocks,
                            unsigned char *left) {
  __m128i sums[WAYS];
  for (int i = 0; i < WAYS; ++i) sums[i] = vector_at(at + i * WIDTH);
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(rest)));
  const __m128i block = ahead<BLOCK>(), vector = ahead<WIDTH>();
  while (--blocks > 0) {
    at += BLOCK;
    for (int i = 0; i < WAYS; ++i) sums[i] = fold(sums[i], block, vector_at(at + i * WIDTH));
  }
  __m128i sum = sums[0];
  for (int i = 1; i < WAYS; ++i) sum = fold(sum, vector, sums[i]);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(left), sum);
}

#endif

}  // namespace

uint32_t crc32(const void *data, size_t size) {
  const auto *at = static_cast<const unsigned char *>(data);
  uint32_t rest = 0xffffffff;
#if defined(__x86_64__)
  if (const size_t blocks = size / BLOCK; blocks > 0) {
    unsigned char left[WIDTH];
    fold_blocks(rest, at, blocks, left);
    rest = by_bytes(0, left, WIDTH);
    at += blocks * BLOCK;
    size %= BLOCK;
  }
#endif
  return ~by_bytes(rest, at, size);
}

}  // namespace tianyuan_x86
