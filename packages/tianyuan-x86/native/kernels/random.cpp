// Philox4x32-10 (Salmon et al., SC 2011): bits, uniform and normal, a vector of blocks at a time.
#include "kernel.hpp"
#include "simd.hpp"

extern "C" {
double log(double);
double sin(double);
double cos(double);
double sqrt(double);
}

namespace TY_ISA {
namespace {

static constexpr int64_t LANES = 16;         // blocks computed side by side
static constexpr int64_t WORDS = 4 * LANES;  // words that they give

struct State {
  uint64_t first;  // number of the first block
  uint32_t key[2];
};

State state_of(const ty_tensor &state, int64_t skip) {
  const int64_t *values = static_cast<const int64_t *>(state.data);
  const uint64_t seed = (uint64_t)values[0];
  return {(uint64_t)values[1] + (uint64_t)skip, {(uint32_t)seed, (uint32_t)(seed >> 32)}};
}

// The words of LANES blocks from `block` on, in order.
void philox(const State &s, int64_t block, uint32_t *words) {
  uint32_t c[4][LANES];
  for (int64_t i = 0; i < LANES; ++i) {
    const uint64_t number = s.first + (uint64_t)(block + i);
    c[0][i] = (uint32_t)number;
    c[1][i] = (uint32_t)(number >> 32);
    c[2][i] = c[3][i] = 0;
  }
  uint32_t k0 = s.key[0], k1 = s.key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    for (int64_t i = 0; i < LANES; ++i) {
      const uint64_t left = (uint64_t)0xD2511F53u * c[0][i];
      const uint64_t right = (uint64_t)0xCD9E8D57u * c[2][i];
      c[0][i] = (uint32_t)(right >> 32) ^ c[1][i] ^ k0;
      c[2][i] = (uint32_t)(left >> 32) ^ c[3][i] ^ k1;
      c[1][i] = (uint32_t)right;
      c[3][i] = (uint32_t)left;
    }
  }
  for (int64_t i = 0; i < LANES; ++i)
    for (int64_t k = 0; k < 4; ++k) words[4 * i + k] = c[k][i];
}

// Runs body(words, first element, elements) over the output in groups of WORDS words, of which an
// element takes `per_element`.
template <class Body>
int for_words(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, int64_t skip,
              int64_t per_element, const Body &body) {
  const State s = state_of(inputs[0], skip);
  const int64_t count = ty_count(outputs[0]), step = WORDS / per_element;
  ty_parallel(ctx, (count + step - 1) / step, 128, [&](int64_t begin, int64_t end, int32_t) {
    uint32_t words[WORDS];
    for (int64_t group = begin; group < end; ++group) {
      const int64_t left = count - group * step;
      philox(s, group * LANES, words);
      body(words, group * step, left < step ? left : step);
    }
  });
  return 0;
}

int philox_bits(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
                void *) {
  uint32_t *y = static_cast<uint32_t *>(outputs[0].data);
  return for_words(ctx, inputs, outputs, reinterpret_cast<const ty_philox_bits_attrs *>(raw)->skip,
                   1, [&](const uint32_t *words, int64_t at, int64_t n) {
                     for (int64_t i = 0; i < n; ++i) y[at + i] = words[i];
                   });
}

int uniform_float(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                  const ty_attrs *raw, void *) {
  float *y = static_cast<float *>(outputs[0].data);
  return for_words(ctx, inputs, outputs,
                   reinterpret_cast<const ty_philox_uniform_attrs *>(raw)->skip, 1,
                   [&](const uint32_t *words, int64_t at, int64_t n) {
                     for (int64_t i = 0; i < n; ++i)
                       y[at + i] = (float)(int32_t)(words[i] >> 8) * 0x1p-24f;
                   });
}

int uniform_double(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                   const ty_attrs *raw, void *) {
  double *y = static_cast<double *>(outputs[0].data);
  return for_words(ctx, inputs, outputs,
                   reinterpret_cast<const ty_philox_uniform_attrs *>(raw)->skip, 2,
                   [&](const uint32_t *words, int64_t at, int64_t n) {
                     for (int64_t i = 0; i < n; ++i) {
                       const uint64_t high = words[2 * i + 1], low = words[2 * i];
                       y[at + i] = (double)((high << 32 | low) >> 11) * 0x1p-53;
                     }
                   });
}

// Box and Muller (1958) on pairs of words, in double.
template <class T>
int normal(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
           void *) {
  T *y = static_cast<T *>(outputs[0].data);
  return for_words(
      ctx, inputs, outputs, reinterpret_cast<const ty_philox_normal_attrs *>(raw)->skip, 1,
      [&](const uint32_t *words, int64_t at, int64_t n) {
        for (int64_t i = 0; i < n; i += 2) {
          const double u = ((double)words[i] + 0.5) * 0x1p-32;
          const double angle = 2.0 * 3.141592653589793 * ((double)words[i + 1] * 0x1p-32);
          const double radius = sqrt(-2.0 * log(u));
          y[at + i] = (T)(radius * cos(angle));
          if (i + 1 < n) y[at + i + 1] = (T)(radius * sin(angle));
        }
      });
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(random, TY_KERNEL(philox_bits, "philox_bits_u32", "lanes"),
                  TY_KERNEL(uniform_float, "philox_uniform_f32", "lanes"),
                  TY_KERNEL(uniform_double, "philox_uniform_f64", "lanes"),
                  TY_KERNEL(normal<float>, "philox_normal_f32", "lanes"),
                  TY_KERNEL(normal<double>, "philox_normal_f64", "lanes"))
