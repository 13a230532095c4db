// Memory of a program's run: 64-byte aligned blocks, and a pool from which concurrent runs take.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "tianyuan/runtime/platform.hpp"

namespace tianyuan::runtime {

constexpr size_t arena_alignment = 64;

// A block of uninitialised memory, aligned to 64 bytes; a large one lies in huge pages, as many as
// it fills, since the last one would be resident as a whole.
class Arena {
 public:
  explicit Arena(size_t size) : size_(size) {
    if (size == 0) return;
    const bool large = size >= huge_page;
    const size_t alignment = large ? huge_page : arena_alignment;
    const size_t rounded = (size + alignment - 1) / alignment * alignment;
    data_ = static_cast<char *>(std::aligned_alloc(alignment, rounded));
    if (data_ == nullptr) throw std::bad_alloc();
    if (large) prefer_huge_pages(data_, size / huge_page * huge_page);
  }
  ~Arena() { std::free(data_); }
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  char *data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char *data_ = nullptr;
  size_t size_;
};

// Keeps what runs give back and lends it to later ones; makes more only while all are lent.
template <typename Item>
class Pool {
 public:
  // Gives the item back at the end of its life.
  class Lease {
   public:
    Lease(Pool &pool, std::unique_ptr<Item> item) : pool_(pool), item_(std::move(item)) {}
    ~Lease() { pool_.give_back(std::move(item_)); }
    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;
    Item &operator*() const { return *item_; }
    Item *operator->() const { return item_.get(); }

   private:
    Pool &pool_;
    std::unique_ptr<Item> item_;
  };

  template <typename Make>
  Lease take(const Make &make) {
    {
      std::lock_guard<std::mutex> hold(lock_);
      if (!idle_.empty()) {
        std::unique_ptr<Item> item = std::move(idle_.back());
        idle_.pop_back();
        return Lease(*this, std::move(item));
      }
    }
    std::unique_ptr<Item> item = make();
    {
      // Room for giving it back is made now, so that the way back cannot fail.
      std::lock_guard<std::mutex> hold(lock_);
      idle_.reserve(++made_);
    }
    return Lease(*this, std::move(item));
  }

  // How many items exist.
  size_t made() {
    std::lock_guard<std::mutex> hold(lock_);
    return made_;
  }

 private:
  void give_back(std::unique_ptr<Item> item) {
    std::lock_guard<std::mutex> hold(lock_);
    idle_.push_back(std::move(item));
  }

  std::mutex lock_;
  std::vector<std::unique_ptr<Item>> idle_;
  size_t made_ = 0;
};

}  // namespace tianyuan::runtime
