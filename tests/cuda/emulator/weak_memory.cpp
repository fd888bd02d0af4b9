#include "tests/cuda/emulator/weak_memory.h"

#include <algorithm>
#include <utility>

#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kMostWords = 64;

}  // namespace

uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

void StoreBuffer::start_block() {
  keeps_ = setting("SHOAL_EMULATED_WEAK", 0) != 0;
}

void StoreBuffer::end_block() {
  deliver_all();
  keeps_ = false;
}

void StoreBuffer::deliver(const Word& word) {
  if (word.release) {
    __atomic_store_n(static_cast<uint32_t*>(word.address), static_cast<uint32_t>(word.value), __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(static_cast<uint64_t*>(word.address), word.value, __ATOMIC_RELAXED);
  }
}

void StoreBuffer::keep(const Word& word) {
  if (!keeps_) {
    deliver(word);
    return;
  }
  while (words_.size() >= kMostWords) deliver_some();
  words_.push_back(word);
}

const StoreBuffer::Word* StoreBuffer::find(const void* address) const {
  const auto own =
      std::find_if(words_.rbegin(), words_.rend(), [&](const Word& word) { return word.address == address; });
  return own == words_.rend() ? nullptr : &*own;
}

uint32_t StoreBuffer::load(const uint32_t* address) const {
  const Word* const own = find(address);
  return own != nullptr ? static_cast<uint32_t>(own->value) : __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

uint64_t StoreBuffer::load(const uint64_t* address) const {
  const Word* const own = find(address);
  return own != nullptr ? own->value : __atomic_load_n(address, __ATOMIC_RELAXED);
}

void StoreBuffer::deliver_some() {
  const std::vector<Word> words = std::exchange(words_, {});
  for (const Word& word : words) {
    const bool may = word.release ? words_.empty() : find(word.address) == nullptr;
    if (may && (next_random(random_) >> 32 & 1) != 0) {
      deliver(word);
    } else {
      words_.push_back(word);
    }
  }
}

void StoreBuffer::deliver_all() {
  for (const Word& word : words_) deliver(word);
  words_.clear();
}

uint32_t load_acquire(const uint32_t* address) {
  return g_runner == nullptr ? __atomic_load_n(address, __ATOMIC_ACQUIRE) : g_runner->stores().load(address);
}

void store_release(uint32_t* address, uint32_t value) {
  if (g_runner == nullptr) {
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
  } else {
    g_runner->stores().store(address, value);
  }
}

uint64_t load_word(const uint64_t* address) {
  return g_runner->stores().load(address);
}

void store_word(uint64_t* address, uint64_t value) {
  g_runner->stores().store(address, value);
}

void deliver_stores() {
  if (g_runner != nullptr) g_runner->stores().deliver_all();
}

void fence() {
  deliver_stores();
#ifdef __SANITIZE_THREAD__
  static uint32_t fences = 0;
  __atomic_fetch_add(&fences, 1, __ATOMIC_ACQ_REL);
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

}  // namespace shoal::cuda::emulator
