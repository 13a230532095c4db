// The emulation of tile instructions: products against plain sums, and what must not be done.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "kernels/tile_amx.hpp"

namespace TY_ISA {
namespace {

uint32_t random_state = 1;
uint8_t random_byte() {
  random_state = random_state * 1664525u + 1013904223u;
  return static_cast<uint8_t>(random_state >> 24);
}

TileConfig shapes(int64_t rows, int64_t fours, int64_t columns) {
  TileConfig config;
  config.set(0, rows, 4 * columns);
  config.set(1, rows, 4 * fours);
  config.set(2, fours, 4 * columns);
  return config;
}

struct Operands {
  std::vector<uint8_t> a, b;
  std::vector<int32_t> c;
  int64_t rows, fours, columns;
};

Operands operands(int64_t rows, int64_t fours, int64_t columns) {
  Operands o = {std::vector<uint8_t>(static_cast<size_t>(rows * fours * 4)),
                std::vector<uint8_t>(static_cast<size_t>(fours * columns * 4)),
                std::vector<int32_t>(static_cast<size_t>(rows * columns)),
                rows,
                fours,
                columns};
  for (uint8_t &x : o.a) x = random_byte();
  for (uint8_t &x : o.b) x = random_byte();
  for (int32_t &x : o.c) x = static_cast<int32_t>(random_byte()) << 23;
  return o;
}

template <typename First, typename Product>
void bytes_are_multiplied(Product product) {
  for (int64_t rows : {1, 7, 16})
    for (int64_t fours : {1, 5, 16})
      for (int64_t columns : {1, 12, 16}) {
        Operands o = operands(rows, fours, columns);
        std::vector<int32_t> want = o.c;
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t n = 0; n < columns; ++n)
            for (int64_t k = 0; k < 4 * fours; ++k) {
              const int32_t a = static_cast<First>(o.a[static_cast<size_t>(m * 4 * fours + k)]);
              const int32_t b =
                  static_cast<int8_t>(o.b[static_cast<size_t>((k / 4 * columns + n) * 4 + k % 4)]);
              int32_t &sum = want[static_cast<size_t>(m * columns + n)];
              sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(a * b));
            }
        tile_configure(shapes(rows, fours, columns));
        tile_load<0>(o.c.data(), 4 * columns);
        tile_load<1>(o.a.data(), 4 * fours);
        tile_load<2>(o.b.data(), 4 * columns);
        product();
        tile_store<0>(o.c.data(), 4 * columns);
        tile_release();
        CHECK(o.c == want);
      }
}

void integers_are_extended_by_their_type_and_sums_wrap() {
  bytes_are_multiplied<uint8_t>(tile_dot_u8s8<0, 1, 2>);
  bytes_are_multiplied<int8_t>(tile_dot_s8s8<0, 1, 2>);
}

uint16_t bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

void bfloat16_is_summed_in_float32() {
  uint16_t a[16][32], b[16][32];
  float c[16][16];
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 32; ++j) {
      a[i][j] = bf16(static_cast<float>(random_byte()) - 128.0f);
      b[i][j] = bf16(static_cast<float>(random_byte()) - 100.0f);
    }
  b[3][4] = 1;  // a denormal number, which counts as zero
  tile_configure(shapes(16, 16, 16));
  tile_zero<0>();
  tile_load<1>(a, 64);
  tile_load<2>(b, 64);
  tile_dot_bf16<0, 1, 2>();
  tile_store<0>(c, 64);
  tile_release();
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      double want = 0;  // all sums are whole and below 2^24, so they are exact
      for (int k = 0; k < 32; ++k) {
        const uint32_t x = static_cast<uint32_t>(a[m][k]) << 16;
        const uint32_t y = static_cast<uint32_t>(b[k / 2][2 * n + k % 2]) << 16;
        float first, second;
        std::memcpy(&first, &x, 4);
        std::memcpy(&second, &y, 4);
        want += static_cast<double>(first) * (y == 65536 ? 0.0 : static_cast<double>(second));
      }
      CHECK(static_cast<double>(c[m][n]) == want);
    }
}

void loads_clear_what_lies_outside_and_repeat_at_no_distance() {
  uint8_t ones[16][64], found[16][64];
  std::memset(ones, 1, sizeof ones);
  std::memset(found, 9, sizeof found);
  ones[0][5] = 7;
  TileConfig config;
  config.set(3, 4, 64);
  tile_configure(config);
  tile_load<3>(ones, 0);
  tile_store<3>(found, 64);
  for (int row = 0; row < 4; ++row) CHECK(std::memcmp(found[row], ones[0], 64) == 0);
  for (int i = 0; i < 64; ++i) CHECK(found[4][i] == 9);
  tile_release();
}

// Whether a child of this process that does so is ended.
template <typename Body>
bool traps(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGILL, SIG_DFL);
    std::signal(SIGTRAP, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

void what_the_processor_refuses_traps() {
  uint8_t data[16][64] = {};
  CHECK(traps([&] { tile_load<0>(data, 64); }));
  CHECK(traps([&] {
    tile_configure(shapes(16, 16, 16));
    tile_release();
    tile_zero<0>();
  }));
  CHECK(traps([&] {
    tile_configure(shapes(16, 16, 16));
    tile_load<3>(data, 64);
  }));
  CHECK(traps([] {
    TileConfig config = shapes(16, 16, 16);
    config.set(2, 15, 64);
    tile_configure(config);
    tile_dot_u8s8<0, 1, 2>();
  }));
  CHECK(traps([] {
    tile_configure(shapes(16, 16, 16));
    tile_dot_u8s8<0, 1, 1>();
  }));
  CHECK(traps([] { tile_configure(shapes(17, 16, 16)); }));
  CHECK(traps([] { tile_configure(shapes(0, 16, 16)); }));
  CHECK(traps([] {
    TileConfig config = shapes(16, 16, 16);
    config.reserved[3] = 1;
    tile_configure(config);
  }));
  CHECK(traps([] {
    TileConfig config = shapes(16, 16, 16);
    config.set(8, 1, 4);
    tile_configure(config);
  }));
  CHECK(!traps([] {
    tile_configure(shapes(16, 16, 16));
    tile_dot_u8s8<0, 1, 2>();
  }));
}

}  // namespace
}  // namespace TY_ISA

int main() {
  using namespace TY_ISA;
  RUN(integers_are_extended_by_their_type_and_sums_wrap);
  RUN(bfloat16_is_summed_in_float32);
  RUN(loads_clear_what_lies_outside_and_repeat_at_no_distance);
  RUN(what_the_processor_refuses_traps);
  return 0;
}
