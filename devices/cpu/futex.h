// Parking on a 32-bit word (Linux futex), because std::atomic::wait has no time-out, spins by rules of its own, and
// cannot wait for other processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::cpu {

/// Whose threads park on a word: of this process alone, which is cheaper, or of all that see its memory.
enum class Parking : uint8_t { kOwn, kShared };

/// Sleeps while `word` holds `expected`, for at most `timeout`. May wake without a reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout,
                Parking parking = Parking::kOwn);
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected);
void futex_wake_all(const std::atomic<uint32_t>& word, Parking parking = Parking::kOwn);

}  // namespace shoal::cpu
