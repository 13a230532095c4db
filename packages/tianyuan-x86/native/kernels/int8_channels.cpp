// take along the channels of 8-bit images: a shuffle of the bytes of each pixel.
#include "int8.hpp"

namespace TY_ISA {
namespace {

// What 16 bytes of a pixel's source give to 16 bytes of its result: byte i takes byte order[i] from
// `offset` on, or nothing where that is negative.
struct Part {
  alignas(16) int8_t order[16];
};
struct Block {
  Part parts[16];
  int64_t offsets[16];
  int count;
};

int64_t index_at(const ty_tensor &indices, int64_t i) {
  return indices.dtype == TY_INT32 ? static_cast<const int32_t *>(indices.data)[i]
                                   : static_cast<const int64_t *>(indices.data)[i];
}

// Cuts the sources of up to 16 channels into as few loads as hold them. A load does not leave a
// pixel of `room` bytes, 16 or more.
void cut_block(Block &block, const int64_t *sources, int64_t count, int64_t room) {
  bool done[16] = {};
  block.count = 0;
  for (int64_t left = count; left > 0; ++block.count) {
    int64_t least = room;
    for (int64_t i = 0; i < count; ++i)
      if (!done[i]) least = lesser(least, sources[i]);
    const int64_t offset = lesser(least, room - 16);
    Part &part = block.parts[block.count];
    block.offsets[block.count] = offset;
    for (int64_t i = 0; i < 16; ++i) {
      const bool here = i < count && !done[i] && sources[i] < offset + 16;
      part.order[i] = static_cast<int8_t>(here ? sources[i] - offset : -1);
      if (!here) continue;
      done[i] = true;
      --left;
    }
  }
}

TY_INLINE __m128i part_of(const uint8_t *from, const Part &part) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm_shuffle_epi8(bytes, _mm_load_si128(reinterpret_cast<const __m128i *>(part.order)));
}

template <int COUNT>
void move_few(uint8_t *to, int64_t to_room, const uint8_t *from, int64_t from_room,
              const Block &block, int64_t pixels) {
  Part parts[COUNT];
  const uint8_t *sources[COUNT];
#pragma GCC unroll 4
  for (int i = 0; i < COUNT; ++i) {
    parts[i] = block.parts[i];
    sources[i] = from + block.offsets[i];
  }
  for (int64_t at = 0, read = 0; at < pixels; ++at, to += to_room, read += from_room) {
    __m128i found = part_of(sources[0] + read, parts[0]);
#pragma GCC unroll 4
    for (int i = 1; i < COUNT; ++i)
      found = _mm_or_si128(found, part_of(sources[i] + read, parts[i]));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), found);
  }
}

void move_block(uint8_t *to, int64_t to_room, const uint8_t *from, int64_t from_room,
                const Block &block, int64_t pixels) {
  switch (block.count) {
    case 1:
      return move_few<1>(to, to_room, from, from_room, block, pixels);
    case 2:
      return move_few<2>(to, to_room, from, from_room, block, pixels);
    case 3:
      return move_few<3>(to, to_room, from, from_room, block, pixels);
    case 4:
      return move_few<4>(to, to_room, from, from_room, block, pixels);
    default:
      break;
  }
  for (int64_t at = 0; at < pixels; ++at, to += to_room, from += from_room) {
    __m128i found = _mm_setzero_si128();
    for (int i = 0; i < block.count; ++i)
      found = _mm_or_si128(found, part_of(from + block.offsets[i], block.parts[i]));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), found);
  }
}

// inputs: x, indices
int take(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
         void *workspace) {
  const ty_tensor &x = inputs[0], &y = outputs[0], &indices = inputs[1];
  const int64_t size = x.shape[1], channels = y.shape[1];
  const int64_t from_room = q8_channels(size), to_room = q8_channels(channels);
  const int64_t pixels = y.shape[0] * y.shape[2] * y.shape[3], blocks = ceil_div(channels, 16);
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Block *found = static_cast<Block *>(scratch.take(blocks * static_cast<int64_t>(sizeof(Block))));
  for (int64_t first = 0; first < channels; first += 16) {
    int64_t sources[16];
    const int64_t some = lesser(16, channels - first);
    for (int64_t i = 0; i < some; ++i) {
      const int64_t at = index_at(indices, first + i);
      if (at < -size || at >= size)
        return ty_fail_as(TY_BAD_INDEX, ctx,
                          "take: index out of range, got %lld, expected %lld to %lld",
                          (long long)at, (long long)-size, (long long)(size - 1));
      sources[i] = at < 0 ? at + size : at;
    }
    cut_block(found[first / 16], sources, some, from_room);
  }
  const uint8_t *from = static_cast<const uint8_t *>(x.data);
  uint8_t *to = static_cast<uint8_t *>(y.data);
  constexpr int64_t chunk = 64;
  ty_parallel(ctx, ceil_div(pixels, chunk), 1 + 32768 / (chunk * to_room),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin * chunk; at < lesser(end * chunk, pixels); at += chunk)
                  for (int64_t block = 0; block < blocks; ++block)
                    move_block(to + at * to_room + block * 16, to_room, from + at * from_room,
                               from_room, found[block], lesser(chunk, pixels - at));
              });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_channels, TY_KERNEL(take, "take_q8", "channels"))
