// The tile instructions of AMX. With TY_EMULATE_TILES the same functions are plain C++ that follows
// the operations of Intel's Software Developer's Manual bit for bit, and trap where the processor
// would raise an exception, so that kernels can be proven on machines without tiles.
//
// Tiles and their shapes belong to the thread: a piece of a parallel loop configures them, uses
// them and releases them.
#pragma once

#include "simd.hpp"

namespace TY_ISA {
namespace {

enum { TILES = 8, TILE_MAX_ROWS = 16, TILE_ROW_BYTES = 64 };

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64, "the instruction reads 64 bytes");

#if defined(TY_EMULATE_TILES)

struct TileState {
  bool configured;
  int32_t rows[TILES], row_bytes[TILES];
  alignas(64) uint8_t data[TILES][TILE_MAX_ROWS][TILE_ROW_BYTES];
};
thread_local TileState tile_state;

TY_INLINE void tile_require(bool holds) {
  if (!holds) __builtin_trap();
}

// A tile that is in use, of which an instruction must be given a shape.
TY_INLINE void tile_require_shape(int tile) {
  tile_require(tile_state.configured && tile_state.rows[tile] > 0);
}

inline void tile_release() { __builtin_memset(&tile_state, 0, sizeof tile_state); }

inline void tile_configure(const TileConfig &config) {
  tile_release();
  if (config.palette == 0) return;
  tile_require(config.palette == 1 && config.start_row < TILE_MAX_ROWS);
  for (uint8_t byte : config.reserved) tile_require(byte == 0);
  for (int tile = 0; tile < 16; ++tile) {
    const int32_t rows = config.rows[tile], bytes = config.row_bytes[tile];
    tile_require((rows == 0) == (bytes == 0));
    tile_require(rows <= TILE_MAX_ROWS && bytes <= TILE_ROW_BYTES);
    tile_require(tile < TILES || rows == 0);
    if (tile >= TILES) continue;
    tile_state.rows[tile] = rows;
    tile_state.row_bytes[tile] = bytes;
  }
  tile_state.configured = true;
}

template <int T>
inline void tile_zero() {
  tile_require_shape(T);
  __builtin_memset(tile_state.data[T], 0, sizeof tile_state.data[T]);
}

template <int T>
inline void tile_load(const void *from, int64_t stride) {
  tile_zero<T>();
  for (int32_t row = 0; row < tile_state.rows[T]; ++row)
    __builtin_memcpy(tile_state.data[T][row], static_cast<const uint8_t *>(from) + row * stride,
                     static_cast<size_t>(tile_state.row_bytes[T]));
}

template <int T>
inline void tile_store(void *to, int64_t stride) {
  tile_require_shape(T);
  for (int32_t row = 0; row < tile_state.rows[T]; ++row)
    __builtin_memcpy(static_cast<uint8_t *>(to) + row * stride, tile_state.data[T][row],
                     static_cast<size_t>(tile_state.row_bytes[T]));
}

template <int C, int A, int B>
inline void tile_require_product() {
  tile_require(C != A && C != B && A != B);
  tile_require_shape(C);
  tile_require_shape(A);
  tile_require_shape(B);
  const TileState &s = tile_state;
  tile_require(s.row_bytes[C] % 4 == 0 && s.row_bytes[A] % 4 == 0 && s.row_bytes[B] % 4 == 0);
  tile_require(s.rows[C] == s.rows[A] && s.row_bytes[C] == s.row_bytes[B]);
  tile_require(s.row_bytes[A] / 4 == s.rows[B]);
}

// Integers are extended by the type that they are read as; sums wrap around.
template <int C, int A, int B, typename First, typename Second>
inline void tile_dot_bytes() {
  tile_require_product<C, A, B>();
  TileState &s = tile_state;
  for (int32_t m = 0; m < s.rows[C]; ++m)
    for (int32_t k = 0; k < s.row_bytes[A] / 4; ++k)
      for (int32_t n = 0; n < s.row_bytes[C] / 4; ++n) {
        uint32_t sum;
        __builtin_memcpy(&sum, &s.data[C][m][4 * n], 4);
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t a = static_cast<First>(s.data[A][m][4 * k + i]);
          const int32_t b = static_cast<Second>(s.data[B][k][4 * n + i]);
          sum += static_cast<uint32_t>(a * b);
        }
        __builtin_memcpy(&s.data[C][m][4 * n], &sum, 4);
      }
}

template <int C, int A, int B>
inline void tile_dot_u8s8() {
  tile_dot_bytes<C, A, B, uint8_t, int8_t>();
}
template <int C, int A, int B>
inline void tile_dot_s8s8() {
  tile_dot_bytes<C, A, B, int8_t, int8_t>();
}

// Denormal numbers count as zero, in what is read and in what is written.
TY_INLINE float tile_flushed(float x) {
  return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x;
}
TY_INLINE float tile_bf16(const uint8_t *from) {
  uint16_t half;
  __builtin_memcpy(&half, from, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return tile_flushed(value);
}

// Even terms and odd terms are summed apart by fused multiplications and additions, and their sums
// added to what the tile held.
template <int C, int A, int B>
inline void tile_dot_bf16() {
  tile_require_product<C, A, B>();
  TileState &s = tile_state;
  for (int32_t m = 0; m < s.rows[C]; ++m)
    for (int32_t n = 0; n < s.row_bytes[C] / 4; ++n) {
      float sums[2] = {0.0f, 0.0f}, old;
      for (int32_t k = 0; k < s.row_bytes[A] / 4; ++k)
        for (int32_t i = 0; i < 2; ++i)
          sums[i] = tile_flushed(__builtin_fmaf(tile_bf16(&s.data[A][m][4 * k + 2 * i]),
                                                tile_bf16(&s.data[B][k][4 * n + 2 * i]), sums[i]));
      __builtin_memcpy(&old, &s.data[C][m][4 * n], 4);
      const float both = tile_flushed(sums[0] + sums[1]);
      const float now = tile_flushed(tile_flushed(old) + both);
      __builtin_memcpy(&s.data[C][m][4 * n], &now, 4);
    }
}

#else

// The instructions are named in place: the compiler's own functions for tileloadd do not say that
// they read memory, so that earlier stores could be moved behind them.
TY_INLINE void tile_configure(const TileConfig &config) {
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
TY_INLINE void tile_release() { __asm__ volatile("tilerelease" ::: "memory"); }

template <int T>
TY_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
TY_INLINE void tile_load(const void *from, int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}
template <int T>
TY_INLINE void tile_store(void *to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}
template <int C, int A, int B>
TY_INLINE void tile_dot_u8s8() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
TY_INLINE void tile_dot_s8s8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
TY_INLINE void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#endif

}  // namespace
}  // namespace TY_ISA
