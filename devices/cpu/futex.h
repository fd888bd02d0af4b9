// Parking on a 32-bit word (Linux futex), because std::atomic::wait has no time-out and spins by rules of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::cpu {

/// Sleeps while `word` holds `expected`, for at most `timeout`. May wake without a reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected);
void futex_wake_all(const std::atomic<uint32_t>& word);

}  // namespace shoal::cpu
