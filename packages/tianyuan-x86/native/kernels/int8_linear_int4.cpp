// linear_int4: weights of 4 bits, 16 outputs side by side, eight terms in 32 bits each. The floats
// of each group become integers of three signed bytes, as exact as the mantissa of the group's
// largest, so that products are sums of bytes.
#include "int8.hpp"

namespace TY_ISA {
namespace {

enum { BLOCKS = TY_VF == 16 ? 4 : 1, PLANES = 3, PLANE_WORDS = 2 * PLANES };

// Integers of a group stand for multiples of `unit`; `first` takes the 8 out of stored weights.
struct Group {
  float unit;
  int32_t first[PLANES];
};

struct Linear {
  const float *x;
  const int32_t *weight;  // [block of 16 outputs][K / 8][16 outputs]
  const float *scale;     // [block of 16 outputs][group][16 outputs]
  const float *bias;      // or NULL
  float *y;
  Group *table;
  int32_t *planes;  // by eight terms and plane, lowest first: bytes of the even and the odd ones
  int64_t k, k8, groups, group8, o;  // k8, group8: terms counted in eights
};

TY_INLINE __m256 load_eight(const Linear &p, const float *x, int64_t eight) {
  const int64_t some = p.k - 8 * eight;
  if (some >= 8) return _mm256_loadu_ps(x + 8 * eight);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(x + 8 * eight,
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(some)), lanes));
}

TY_INLINE int32_t largest_of(__m256i x) {
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), x);
  int32_t found = 0;
  for (int i = 0; i < 8; ++i) found = lanes[i] > found ? lanes[i] : found;
  return found;
}

// Turns a row into integers; false where it holds infinities or NaN.
bool split_row(const Linear &p, const float *x) {
  const float reach = 8355000.0f;  // below 127 * (2^16 + 2^8 + 1), room for rounding left
  const __m256i middle = _mm256_set1_epi32(0x808080);
  const __m128i order = _mm_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, -1, -1, -1, -1);
  const __m128i ones = _mm_set1_epi8(1), wide_ones = _mm_set1_epi16(1);
  for (int64_t group = 0; group < p.groups; ++group) {
    const int64_t begin = group * p.group8, end = lesser(begin + p.group8, p.k8);
    __m256i bits = _mm256_setzero_si256();
    for (int64_t i = begin; i < end; ++i)
      bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(load_eight(p, x, i)),
                                                     _mm256_set1_epi32(0x7fffffff)));
    const int32_t top_bits = largest_of(bits);
    if (top_bits >= 0x7f800000) return false;
    float top;
    __builtin_memcpy(&top, &top_bits, 4);
    const float inverse = reach / (top > 1e-31f ? top : 1e-31f);
    __m128i low_sums = _mm_setzero_si128(), high_sums = _mm_setzero_si128();
    for (int64_t i = begin; i < end; ++i) {
      const __m256i whole =
          _mm256_cvtps_epi32(_mm256_mul_ps(load_eight(p, x, i), _mm256_set1_ps(inverse)));
      // Bytes of the sum, moved down by 128 each, are the signed digits.
      const __m256i digits = _mm256_xor_si256(_mm256_add_epi32(whole, middle), middle);
      const __m128i a = _mm_shuffle_epi8(_mm256_castsi256_si128(digits), order);
      const __m128i b = _mm_shuffle_epi8(_mm256_extracti128_si256(digits, 1), order);
      const __m128i low = _mm_unpacklo_epi16(a, b), high = _mm_unpackhi_epi16(a, b);
      int32_t *to = p.planes + PLANE_WORDS * i;
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to), low);
      _mm_storel_epi64(reinterpret_cast<__m128i *>(to + 4), high);
      low_sums = _mm_add_epi32(low_sums, _mm_madd_epi16(_mm_maddubs_epi16(ones, low), wide_ones));
      high_sums =
          _mm_add_epi32(high_sums, _mm_madd_epi16(_mm_maddubs_epi16(ones, high), wide_ones));
    }
    alignas(16) int32_t sums[8];
    _mm_store_si128(reinterpret_cast<__m128i *>(sums), low_sums);
    _mm_store_si128(reinterpret_cast<__m128i *>(sums + 4), high_sums);
    Group &found = p.table[group];
    found.unit = 1.0f / inverse;
    for (int i = 0; i < PLANES; ++i) found.first[i] = -8 * (sums[2 * i] + sums[2 * i + 1]);
  }
  return true;
}

// Adds the products of eights [begin, end) to the sums of each plane.
#if defined(__AVX512VNNI__)
template <int NV>
TY_INLINE void add_products(vi (&sums)[PLANES][NV], const int32_t *w, int64_t panel,
                            const int32_t *planes, int64_t begin, int64_t end) {
  const vi four = vi_set1(0x0f0f0f0f);
  for (int64_t k = begin; k < end; ++k) {
    const int32_t *x = planes + PLANE_WORDS * k;
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const vi words = vi_load(w + v * panel + k * 16);
      const vi even = vi_and(words, four), odd = vi_and(vi_shr(words, 4), four);
#pragma GCC unroll 3
      for (int i = 0; i < PLANES; ++i) {
        sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], even, vi_set1(x[2 * i]));
        sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], odd, vi_set1(x[2 * i + 1]));
      }
    }
  }
}
#else
template <int NV>
TY_INLINE void add_products(vi (&sums)[PLANES][NV], const int32_t *w, int64_t panel,
                            const int32_t *planes, int64_t begin, int64_t end) {
  const vi four = vi_set1(0x0f0f0f0f), ones = _mm256_set1_epi16(1);
  for (int64_t k = begin; k < end;) {
    // Eight pairs of products of at most 15 * 128 fit 16 bits.
    const int64_t some = lesser(k + 4, end);
    vi pairs[PLANES][NV];
#pragma GCC unroll 3
    for (int i = 0; i < PLANES; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) pairs[i][v] = vi_set1(0);
    for (; k < some; ++k) {
      const int32_t *x = planes + PLANE_WORDS * k;
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) {
        const vi words = vi_load(w + v / 2 * panel + k * 16 + v % 2 * 8);
        const vi even = vi_and(words, four), odd = vi_and(vi_shr(words, 4), four);
#pragma GCC unroll 3
        for (int i = 0; i < PLANES; ++i) {
          const vi first = _mm256_maddubs_epi16(even, vi_set1(x[2 * i]));
          const vi second = _mm256_maddubs_epi16(odd, vi_set1(x[2 * i + 1]));
          pairs[i][v] = _mm256_add_epi16(pairs[i][v], _mm256_add_epi16(first, second));
        }
      }
    }
#pragma GCC unroll 3
    for (int i = 0; i < PLANES; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v)
        sums[i][v] = vi_add(sums[i][v], _mm256_madd_epi16(pairs[i][v], ones));
  }
}
#endif

// One row by NB blocks of outputs.
template <int NB>
void tile(const Linear &p, float *y, int64_t block) {
  enum { NV = NB * Q8_PARTS };
  const int64_t panel = p.k8 * 16;
  const float *scale = p.scale + block * p.groups * 16;
  vf total[NV];
  for (int v = 0; v < NV; ++v) total[v] = vzero();
  for (int64_t group = 0; group < p.groups; ++group) {
    const Group &form = p.table[group];
    vi sums[PLANES][NV];
#pragma GCC unroll 3
    for (int i = 0; i < PLANES; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sums[i][v] = vi_set1(form.first[i]);
    const int64_t begin = group * p.group8;
    add_products(sums, p.weight + block * panel, panel, p.planes, begin,
                 lesser(begin + p.group8, p.k8));
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const float *at = scale + (v / Q8_PARTS * p.groups + group) * 16 + v % Q8_PARTS * TY_VF;
      vf sum = vfma(vi_to_vf(sums[1][v]), vset1(256.0f), vi_to_vf(sums[0][v]));
      sum = vfma(vi_to_vf(sums[2][v]), vset1(65536.0f), sum);
      total[v] = vfma(sum, vmul(vload(at), vset1(form.unit)), total[v]);
    }
  }
  for (int v = 0; v < NV; ++v) {
    const int64_t o = block * 16 + v * TY_VF, count = p.o - o;
    if (count <= 0) return;
    const vtail tail = vtail_of(lesser(count, TY_VF));
    const vf bias = p.bias != nullptr ? vload_tail(p.bias + o, tail) : vzero();
    vstore_tail(y + o, vadd(total[v], bias), tail);
  }
}

// A row that no integers can stand for, output by output.
void run_floats(const Linear &p, const float *x, float *y) {
  for (int64_t o = 0; o < p.o; ++o) {
    const int64_t block = o / 16, lane = o % 16;
    float sum = p.bias != nullptr ? p.bias[o] : 0.0f;
    for (int64_t k = 0; k < p.k; ++k) {
      const uint32_t words = static_cast<uint32_t>(p.weight[(block * p.k8 + k / 8) * 16 + lane]);
      const int32_t weight = static_cast<int32_t>(words >> k % 8 * 4 & 15) - 8;
      const float scale = p.scale[(block * p.groups + k / 8 / p.group8) * 16 + lane];
      sum += x[k] * (static_cast<float>(weight) * scale);
    }
    y[o] = sum;
  }
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  const auto &a = *reinterpret_cast<const ty_linear_int4_attrs *>(attrs);
  const int64_t size = ty_count(outputs[0]);
  if (size == 0) return 0;
  Linear p = {};
  p.k = inputs[0].shape[inputs[0].ndim - 1];
  p.o = outputs[0].shape[outputs[0].ndim - 1];
  p.k8 = ceil_div(p.k, 8);
  p.groups = ceil_div(p.k, a.group);
  p.group8 = ceil_div(a.group, 8);
  p.x = static_cast<const float *>(inputs[0].data);
  p.weight = static_cast<const int32_t *>(inputs[1].data);
  p.scale = static_cast<const float *>(inputs[2].data);
  p.bias = a.has_bias ? static_cast<const float *>(inputs[3].data) : nullptr;
  p.y = static_cast<float *>(outputs[0].data);
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  p.table = static_cast<Group *>(scratch.take(p.groups * static_cast<int64_t>(sizeof(Group))));
  p.planes = static_cast<int32_t *>(scratch.take(p.k8 * PLANE_WORDS * 4));
  const int64_t blocks = ceil_div(p.o, 16), items = ceil_div(blocks, BLOCKS);
  const int64_t work = p.k8 * 8 * BLOCKS * 16;
  for (int64_t row = 0; row < size / p.o; ++row) {
    const float *x = p.x + row * p.k;
    float *y = p.y + row * p.o;
    if (!split_row(p, x)) {
      run_floats(p, x, y);
      continue;
    }
    ty_parallel(ctx, items, 1 + 400000 / (work + 1), [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t block = item * BLOCKS;
        if (blocks - block >= BLOCKS)
          tile<BLOCKS>(p, y, block);
        else
          for (int64_t one = block; one < blocks; ++one) tile<1>(p, y, one);
      }
    });
  }
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_linear_int4, TY_KERNEL(run, "linear_int4_f32", "digits"))
