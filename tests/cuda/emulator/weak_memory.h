// What other blocks, GPUs and the host see of the words that kernels store with store_release() and store_pair(), and
// when: SHOAL_EMULATED_WEAK=1. A block's words stay with it at first. Whenever all of its threads pause, each of them
// becomes visible by the toss of a coin, as long as words for the same address stay in their order and a release comes
// after all words before it; a block keeps 64 at most. All are visible at a fence, an atomic operation and the end of
// the block. The block itself sees its words at once, if it loads them with load_acquire() and load_pair(). So it shows
// when
//
// - a packet's halves, or packets, are taken to arrive together or in order;
// - what is stored after a release is taken to become visible after it;
// - a store is taken to be visible before a later load is made, without a fence.
//
// Plain stores are visible at once, and plain loads never stale: nothing intercepts them. What orders them between
// blocks and streams, or fails to, the thread sanitizer sees.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::cuda::emulator {

/// A generator (xorshift).
uint64_t next_random(uint64_t& state);

/// The words of one block; not thread-safe.
class StoreBuffer {
 public:
  /// Asks for the mode; outside of blocks, and without it, words are stored at once.
  void start_block();
  void end_block();
  void store(uint32_t* address, uint32_t value) { keep({address, value, true}); }  // a release
  void store(uint64_t* address, uint64_t value) { keep({address, value, false}); }
  /// What the block sees.
  uint32_t load(const uint32_t* address) const;
  uint64_t load(const uint64_t* address) const;
  void deliver_some();
  void deliver_all();

 private:
  struct Word {
    void* address;
    uint64_t value;
    bool release;  ///< of 32 bits; 64 bits in no order otherwise
  };
  static void deliver(const Word& word);
  void keep(const Word& word);
  /// The latest one for an address; nullptr: none is kept.
  const Word* find(const void* address) const;

  bool keeps_ = false;
  std::vector<Word> words_;  // oldest first
  uint64_t random_ = 0x9e3779b97f4a7c15;
};

// As platform.h has them; the host's words are visible at once.
uint32_t load_acquire(const uint32_t* address);
void store_release(uint32_t* address, uint32_t value);
uint64_t load_word(const uint64_t* address);
void store_word(uint64_t* address, uint64_t value);
/// Before atomic operations.
void deliver_stores();
/// Of all OS threads. The thread sanitizer does not know fences: it gets an operation on a word that is theirs, which
/// orders a fence behind all that came before it.
void fence();

}  // namespace shoal::cuda::emulator
