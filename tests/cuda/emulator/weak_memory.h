// Weak memory (SHOAL_EMULATED_WEAK=1) delays words that a block writes with store_release() and store_pair(). Other
// blocks, other GPUs and the host see these words later. The block first buffers up to 64 words. Whenever all threads
// of the block pause, a random bit per word decides whether the word becomes visible. Words for one address become
// visible in the order of their stores, and a release becomes visible after all earlier words. A fence, an atomic
// operation and the end of the block make all words visible. The block itself sees its words immediately through
// load_acquire() and load_pair(). Weak memory detects kernels that wrongly rely on one of these properties:
//
// - The halves of a packet, or several packets, arrive together or in order.
// - A word that is stored after a release becomes visible after the release.
// - Without a fence between a store and a later load, the store is visible before the load.
//
// Plain stores are visible immediately, and plain loads never return stale data, because the emulator does not
// intercept plain accesses. The thread sanitizer checks that kernels order plain accesses between blocks and streams.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::cuda::emulator {

/// A random number generator (xorshift).
uint64_t next_random(uint64_t& state);

/// The buffered words of one block. Not thread-safe.
class StoreBuffer {
 public:
  /// Reads SHOAL_EMULATED_WEAK. Words are buffered only while a block runs and weak memory is on.
  void start_block();
  void end_block();
  void store(uint32_t* address, uint32_t value) { keep({address, value, true}); }  // a store with release semantics
  void store(uint64_t* address, uint64_t value) { keep({address, value, false}); }
  /// Returns the value that this block sees.
  uint32_t load(const uint32_t* address) const;
  uint64_t load(const uint64_t* address) const;
  void deliver_some();
  void deliver_all();

 private:
  struct Word {
    void* address;
    uint64_t value;
    bool release;  ///< true for 32-bit words; false for 64-bit words, which are unordered
  };
  static void deliver(const Word& word);
  void keep(const Word& word);
  /// The latest buffered word for an address, or nullptr.
  const Word* find(const void* address) const;

  bool keeps_ = false;
  std::vector<Word> words_;  // oldest first
  uint64_t random_ = 0x9e3779b97f4a7c15;
};

// The functions below are declared in platform.h. Words that the host stores are visible immediately.
uint32_t load_acquire(const uint32_t* address);
void store_release(uint32_t* address, uint32_t value);
uint64_t load_word(const uint64_t* address);
void store_word(uint64_t* address, uint64_t value);
/// Makes all buffered words visible. Atomic operations begin with this call.
void deliver_stores();
/// A fence for all OS threads. The thread sanitizer ignores fences. Therefore, with this sanitizer, each fence also
/// updates one shared word, which orders the fence after all earlier fences.
void fence();

}  // namespace shoal::cuda::emulator
