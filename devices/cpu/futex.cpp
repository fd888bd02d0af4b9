#include "devices/cpu/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace shoal::cpu {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

namespace {

int operation(int which, Parking parking) {
  return parking == Parking::kOwn ? which | FUTEX_PRIVATE_FLAG : which;
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout,
                Parking parking) {
  const int64_t ns = std::max<int64_t>(timeout.count(), 0);
  const timespec relative{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  // The call returns after a wake-up, an interrupt or the time-out, or because the word had changed. In every case, the
  // caller reads the word again. So the result is ignored.
  syscall(SYS_futex, &word, operation(FUTEX_WAIT, parking), expected, &relative, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word, Parking parking) {
  syscall(SYS_futex, &word, operation(FUTEX_WAKE, parking), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace shoal::cpu
