#include <atomic>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/emulator/shoal_cuda_emulator.h"

namespace shoal::cuda::emulator {
namespace {

std::atomic<uint64_t> g_copies_over_edges{0};

}  // namespace

uint64_t take_copies_over_edges() {
  return g_copies_over_edges.exchange(0);
}

void missing_lane(unsigned lane, unsigned source) {
  g_runner->die(*g_thread, fmt::format("executes a shuffle in which lane {} reads lane {}, which does not take part",
                                       lane, source));
}

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void check_aligned(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  g_runner->die(*g_thread, fmt::format("uses address {}, which is not aligned to {}", address, alignment));
}

void copy_16(void* shared, const void* global, bool valid) {
  check_aligned(shared, 16);
  check_aligned(global, 16);
  const size_t bytes = valid ? allocated_bytes(global, 16) : 0;
  if (valid && bytes == 0) {
    g_runner->die(*g_thread, fmt::format("copies 16 bytes from {}, none of which is in a CUDA allocation", global));
  }
  if (valid && bytes < 16) ++g_copies_over_edges;
  // The copied bytes arrive when the thread waits for the copy. Until then, all 16 bytes in shared memory are 0xFF.
  // Bytes whose source is outside of the allocation stay 0xFF.
  std::memset(shared, 0xFF, 16);
  g_thread->copies.push_back({shared, valid ? global : nullptr, bytes, g_thread->copy_groups});
}

void commit_copies() {
  ++g_thread->copy_groups;
}

void wait_for_copies(unsigned pending_groups) {
  Thread& thread = *g_thread;
  const auto is_due = [&](const PendingCopy& copy) { return copy.group + pending_groups < thread.copy_groups; };
  for (PendingCopy& copy : thread.copies) {
    if (!is_due(copy)) continue;
    copy.read();
    std::memcpy(copy.to, copy.data.data(), copy.from != nullptr ? copy.bytes : copy.data.size());
  }
  std::erase_if(thread.copies, is_due);
}

void PendingCopy::read() {
  if (from != nullptr && !has_read) std::memcpy(data.data(), from, bytes);
  has_read = true;
}

}  // namespace shoal::cuda::emulator
