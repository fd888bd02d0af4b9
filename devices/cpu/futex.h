// Lets threads park on a 32-bit word with a Linux futex. std::atomic::wait cannot replace these functions.
// std::atomic::wait has no timeout, chooses its spin time itself, and cannot wait for other processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::cpu {

/// - kOwn: only threads of this process park on a word. This mode is cheaper.
/// - kShared: threads of all processes that share the word's memory may park on the word.
enum class Parking : uint8_t { kOwn, kShared };

/// Sleeps for at most `timeout` while `word` contains `expected`. May wake spuriously.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout,
                Parking parking = Parking::kOwn);
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected);
void futex_wake_all(const std::atomic<uint32_t>& word, Parking parking = Parking::kOwn);

}  // namespace shoal::cpu
