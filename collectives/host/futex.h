// Parking on a 32-bit word (Linux futex), because std::atomic::wait has no time-out.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::collectives::host {

/// Sleeps while `word` holds `expected`, for at most `timeout`. May wake without a reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);
void futex_wake_all(const std::atomic<uint32_t>& word);

}  // namespace shoal::collectives::host
