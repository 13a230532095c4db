// linear_int4: floats times weights of 4 bits, 16 outputs side by side, eight terms in 32 bits
// each.
#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {
namespace {

enum { PARTS = 16 / TY_VF, BLOCKS = TY_VF == 16 ? 4 : 2, ROWS = 4 };

struct Linear {
  const float *x;
  const int32_t *weight;  // [block of 16 outputs][K / 8][16 outputs]
  const float *scale;     // [block of 16 outputs][group][16 outputs]
  const float *bias;      // or NULL
  float *y;
  int64_t k8, groups, group8, o;  // k8, group8: terms counted in eights
};

// The integers -8..7 of the bits from 4 * at on of each lane.
template <int AT>
TY_INLINE vf integers(vi words) {
#if TY_VF == 16
  const vf table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return _mm512_permutexvar_ps(vi_shr(words, 4 * AT), table);
#else
  return vi_to_vf(vi_sar(vi_shl(words, 28 - 4 * AT), 28));
#endif
}

TY_INLINE vi load_words(const int32_t *from) {
#if TY_VF == 16
  return vi_load(from);
#else
  return vi_xor(vi_load(from), vi_set1(static_cast<int32_t>(0x88888888u)));  // two's complements
#endif
}

// Term AT of eight by all outputs and rows; sums alternate so that they depend on fewer others.
template <int AT, int MR, int NV>
TY_INLINE void add_term(const float *const (&x)[MR], int64_t at, const vi (&words)[NV],
                        vf (&sums)[2][MR][NV]) {
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    const vf weight = integers<AT>(words[v]);
#pragma GCC unroll 4
    for (int m = 0; m < MR; ++m) {
      vf &sum = sums[MR == 1 ? AT % 2 : 0][m][v];
      sum = vfma(vset1(x[m][at + AT]), weight, sum);
    }
  }
}

template <int MR, int NB>
void tile(const Linear &p, int64_t row, int64_t block) {
  enum { NV = NB * PARTS };
  const int64_t panel = p.k8 * 16;
  const int32_t *w = p.weight + block * panel;
  const float *scale = p.scale + block * p.groups * 16;
  const float *x[MR];
  vf total[MR][NV];
  for (int m = 0; m < MR; ++m) {
    x[m] = p.x + (row + m) * p.k8 * 8;
    for (int v = 0; v < NV; ++v) total[m][v] = vzero();
  }
  for (int64_t group = 0, k = 0; group < p.groups; ++group) {
    vf sums[2][MR][NV];
#pragma GCC unroll 4
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sums[0][m][v] = sums[1][m][v] = vzero();
    const int64_t end = k + p.group8 < p.k8 ? k + p.group8 : p.k8;
    for (; k < end; ++k) {
      vi words[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        words[v] = load_words(w + v / PARTS * panel + k * 16 + v % PARTS * TY_VF);
      add_term<0>(x, 8 * k, words, sums);
      add_term<1>(x, 8 * k, words, sums);
      add_term<2>(x, 8 * k, words, sums);
      add_term<3>(x, 8 * k, words, sums);
      add_term<4>(x, 8 * k, words, sums);
      add_term<5>(x, 8 * k, words, sums);
      add_term<6>(x, 8 * k, words, sums);
      add_term<7>(x, 8 * k, words, sums);
    }
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const vf by = vload(scale + v / PARTS * p.groups * 16 + group * 16 + v % PARTS * TY_VF);
#pragma GCC unroll 4
      for (int m = 0; m < MR; ++m)
        total[m][v] = vfma(vadd(sums[0][m][v], sums[1][m][v]), by, total[m][v]);
    }
  }
  for (int v = 0; v < NV; ++v) {
    const int64_t o = block * 16 + v * TY_VF, count = p.o - o;
    if (count <= 0) return;
    const vtail tail = vtail_of(count < TY_VF ? count : TY_VF);
    const vf bias = p.bias != nullptr ? vload_tail(p.bias + o, tail) : vzero();
    for (int m = 0; m < MR; ++m)
      vstore_tail(p.y + (row + m) * p.o + o, vadd(total[m][v], bias), tail);
  }
}

template <int NB>
void run_rows(const Linear &p, int64_t rows, int64_t block) {
  enum { SOME = NB > 2 ? 2 : NB, REST = NB > 2 ? NB - 2 : NB };
  int64_t row = 0;
  for (; row + ROWS <= rows; row += ROWS) {
    tile<ROWS, SOME>(p, row, block);
    if (NB > 2) tile<ROWS, REST>(p, row, block + 2);
  }
  for (; row < rows; ++row) tile<1, NB>(p, row, block);
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  const auto &a = *reinterpret_cast<const ty_linear_int4_attrs *>(attrs);
  const int64_t k = inputs[0].shape[inputs[0].ndim - 1], size = ty_count(outputs[0]);
  if (size == 0) return 0;
  Linear p = {};
  p.o = outputs[0].shape[outputs[0].ndim - 1];
  p.k8 = (k + 7) / 8;
  p.groups = (k + a.group - 1) / a.group;
  p.group8 = (a.group + 7) / 8;
  p.x = static_cast<const float *>(inputs[0].data);
  p.weight = static_cast<const int32_t *>(inputs[1].data);
  p.scale = static_cast<const float *>(inputs[2].data);
  p.bias = a.has_bias ? static_cast<const float *>(inputs[3].data) : nullptr;
  p.y = static_cast<float *>(outputs[0].data);
  const int64_t rows = size / p.o;
  if (k % 8 != 0) {
    float *copy = static_cast<float *>(workspace);
    for (int64_t row = 0; row < rows; ++row) {
      __builtin_memcpy(copy + row * p.k8 * 8, p.x + row * k, static_cast<size_t>(k) * 4);
      __builtin_memset(copy + row * p.k8 * 8 + k, 0, static_cast<size_t>(p.k8 * 8 - k) * 4);
    }
    p.x = copy;
  }
  const int64_t blocks = (p.o + 15) / 16, items = (blocks + BLOCKS - 1) / BLOCKS;
  const int64_t work = rows * p.k8 * 8 * BLOCKS * 16;
  ty_parallel(ctx, items, 1 + 200000 / (work + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t block = item * BLOCKS;
      switch (blocks - block) {
        case 1:
          run_rows<1>(p, rows, block);
          break;
#if TY_VF == 16
        case 2:
          run_rows<2>(p, rows, block);
          break;
        case 3:
          run_rows<3>(p, rows, block);
          break;
#endif
        default:
          run_rows<BLOCKS>(p, rows, block);
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(linear_int4, TY_KERNEL(run, "linear_int4_f32", "packed"))
