// linear_int4: weights of 4 bits, 16 outputs side by side, eight terms in 32 bits each. The floats
// of each group become integers of three signed bytes, as exact as the mantissa of the group's
// largest, so that products are sums of bytes.
#include "int8.hpp"

namespace TY_ISA {
namespace {

// Rows are multiplied MAX_ROWS at a time where registers hold their sums, and turned into integers
// CHUNK at a time.
enum { BLOCKS = TY_VF == 16 ? 4 : 1, MAX_ROWS = TY_VF == 16 ? 4 : 1, CHUNK = 16 };
enum { PLANES = 3, PLANE_WORDS = 2 * PLANES };

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
  Group *table;     // by row and group
  int32_t *planes;  // by row, eight terms and plane, lowest first: bytes of the even and the odd
  int64_t k, k8, groups, group8, o;  // k8, group8: terms counted in eights
  int64_t row;                       // words of planes between rows
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
bool split_row(const Linear &p, const float *x, Group *table, int32_t *planes) {
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
      int32_t *to = planes + PLANE_WORDS * i;
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to), low);
      _mm_storel_epi64(reinterpret_cast<__m128i *>(to + 4), high);
      low_sums = _mm_add_epi32(low_sums, _mm_madd_epi16(_mm_maddubs_epi16(ones, low), wide_ones));
      high_sums =
          _mm_add_epi32(high_sums, _mm_madd_epi16(_mm_maddubs_epi16(ones, high), wide_ones));
    }
    alignas(16) int32_t sums[8];
    _mm_store_si128(reinterpret_cast<__m128i *>(sums), low_sums);
    _mm_store_si128(reinterpret_cast<__m128i *>(sums + 4), high_sums);
    Group &found = table[group];
    found.unit = 1.0f / inverse;
    for (int i = 0; i < PLANES; ++i) found.first[i] = -8 * (sums[2 * i] + sums[2 * i + 1]);
  }
  return true;
}

// Sums the products of eights [begin, end) for each row and plane into to[row, plane][NV vectors].
// What lies `ahead` words behind the weights is fetched into the second-level cache. Sums are
// registers here because nothing else is in sight.
#if defined(__AVX512VNNI__)
template <int MR, int NV>
__attribute__((noinline)) void add_products(vi *to, const int32_t *w, int64_t panel, int64_t ahead,
                                            const int32_t *planes, int64_t row, const Group *form,
                                            int64_t groups, int64_t begin, int64_t end) {
  const vi four = vi_set1(0x0f0f0f0f);
  vi sums[MR * PLANES][NV];
#pragma GCC unroll 12
  for (int i = 0; i < MR * PLANES; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) sums[i][v] = vi_set1(form[i / PLANES * groups].first[i % PLANES]);
  for (int64_t k = begin; k < end; ++k) {
    const int32_t *x = planes + PLANE_WORDS * k;
    vi even[NV], odd[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const int32_t *at = w + v * panel + k * 16;
      _mm_prefetch(reinterpret_cast<const char *>(at + ahead), _MM_HINT_T1);
      even[v] = vi_and(vi_load(at), four);
      odd[v] = vi_and(vi_shr(vi_load(at), 4), four);
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR * PLANES; ++i) {
      const int32_t *digits = x + i / PLANES * row + i % PLANES * 2;
      const vi low = vi_set1(digits[0]), high = vi_set1(digits[1]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], even[v], low);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], odd[v], high);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR * PLANES; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) to[i * NV + v] = sums[i][v];
}
#else
template <int MR, int NV>
TY_INLINE void add_products(vi *to, const int32_t *w, int64_t panel, int64_t ahead,
                            const int32_t *planes, int64_t, const Group *form, int64_t,
                            int64_t begin, int64_t end) {
  static_assert(MR == 1, "the sums of a row fill the registers");
  const vi four = vi_set1(0x0f0f0f0f), ones = _mm256_set1_epi16(1);
  vi sums[PLANES][NV];
#pragma GCC unroll 3
  for (int i = 0; i < PLANES; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) sums[i][v] = vi_set1(form->first[i]);
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
        const int32_t *at = w + v / 2 * panel + k * 16 + v % 2 * 8;
        if (v % 2 == 0) _mm_prefetch(reinterpret_cast<const char *>(at + ahead), _MM_HINT_T1);
        const vi words = vi_load(at);
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
#pragma GCC unroll 3
  for (int i = 0; i < PLANES; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) to[i * NV + v] = sums[i][v];
}
#endif

// MR rows from `row` of a chunk by NB blocks of outputs.
template <int MR, int NB>
void tile(const Linear &p, float *y, int64_t row, int64_t block, int64_t ahead) {
  enum { NV = NB * Q8_PARTS };
  const int64_t panel = p.k8 * 16;
  const float *scale = p.scale + block * p.groups * 16;
  vf total[MR][NV];
  for (int m = 0; m < MR; ++m)
    for (int v = 0; v < NV; ++v) total[m][v] = vzero();
  for (int64_t group = 0; group < p.groups; ++group) {
    const Group *form = p.table + row * p.groups + group;
    vi sums[MR * PLANES * NV];
    const int64_t begin = group * p.group8;
    add_products<MR, NV>(sums, p.weight + block * panel, panel, ahead, p.planes + row * p.row,
                         p.row, form, p.groups, begin, lesser(begin + p.group8, p.k8));
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const vf at = vload(scale + (v / Q8_PARTS * p.groups + group) * 16 + v % Q8_PARTS * TY_VF);
#pragma GCC unroll 4
      for (int m = 0; m < MR; ++m) {
        vf part[PLANES];
#pragma GCC unroll 3
        for (int i = 0; i < PLANES; ++i) part[i] = vi_to_vf(sums[(m * PLANES + i) * NV + v]);
        vf sum = vfma(part[1], vset1(256.0f), part[0]);
        sum = vfma(part[2], vset1(65536.0f), sum);
        total[m][v] = vfma(sum, vmul(at, vset1(form[m * p.groups].unit)), total[m][v]);
      }
    }
  }
  for (int v = 0; v < NV; ++v) {
    const int64_t o = block * 16 + v * TY_VF, count = p.o - o;
    if (count <= 0) return;
    const vtail tail = vtail_of(lesser(count, TY_VF));
    const vf bias = p.bias != nullptr ? vload_tail(p.bias + o, tail) : vzero();
    for (int m = 0; m < MR; ++m)
      vstore_tail(y + (row + m) * p.o + o, vadd(total[m][v], bias), tail);
  }
}

// All rows of a chunk by up to BLOCKS blocks of outputs.
void run_blocks(const Linear &p, float *y, int64_t rows, int64_t block, int64_t blocks) {
  const int64_t ahead = BLOCKS * p.k8 * 16;
  int64_t row = 0;
#if TY_VF == 16
  for (; rows - row >= MAX_ROWS; row += MAX_ROWS) {
    const int64_t next = row == 0 ? ahead : 0;
    int64_t at = 0;
    for (; blocks - at >= 2; at += 2) tile<MAX_ROWS, 2>(p, y, row, block + at, next);
    if (at < blocks) tile<MAX_ROWS, 1>(p, y, row, block + at, next);
  }
  if (blocks == BLOCKS)
    for (; rows - row >= 2; row += 2) tile<2, BLOCKS>(p, y, row, block, row == 0 ? ahead : 0);
#endif
  for (; row < rows; ++row) {
    const int64_t next = row == 0 ? ahead : 0;
    if (blocks == BLOCKS)
      tile<1, BLOCKS>(p, y, row, block, next);
    else
      for (int64_t at = 0; at < blocks; ++at) tile<1, 1>(p, y, row, block + at, next);
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
  p.row = round_up(p.k8 * PLANE_WORDS, 16);
  const int64_t all = size / p.o, blocks = ceil_div(p.o, 16), items = ceil_div(blocks, BLOCKS);
  const int64_t chunk = lesser(all, CHUNK);
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  p.table =
      static_cast<Group *>(scratch.take(chunk * p.groups * static_cast<int64_t>(sizeof(Group))));
  p.planes = static_cast<int32_t *>(scratch.take(chunk * p.row * 4));
  for (int64_t first = 0; first < all; first += chunk) {
    const int64_t rows = lesser(chunk, all - first);
    const float *x = p.x + first * p.k;
    float *y = p.y + first * p.o;
    bool finite[CHUNK];
    ty_parallel(ctx, rows, 1 + 16384 / (p.k + 1), [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t row = begin; row < end; ++row)
        finite[row] = split_row(p, x + row * p.k, p.table + row * p.groups, p.planes + row * p.row);
    });
    const int64_t work = rows * p.k8 * 8 * BLOCKS * 16;
    ty_parallel(ctx, items, 1 + 400000 / (work + 1), [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t item = begin; item < end; ++item)
        run_blocks(p, y, rows, item * BLOCKS, lesser(blocks - item * BLOCKS, BLOCKS));
    });
    for (int64_t row = 0; row < rows; ++row)
      if (!finite[row]) run_floats(p, x + row * p.k, y + row * p.o);
  }
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_linear_int4, TY_KERNEL(run, "linear_int4_f32", "digits"))
