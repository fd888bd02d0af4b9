// A host task that blocks its stream until the test sets `open`. If a closed gate blocks its stream for 20 seconds, the
// test fails.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "devices/backend.h"

namespace shoal::test {

struct Gate {
  ~Gate() { EXPECT_FALSE(expired) << "the host waited for a stream whose gate was closed"; }
  HostTask task() {
    return {[](void* object, const void*, bool) {
              auto& gate = *static_cast<Gate*>(object);
              const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
              while (!gate.open && !gate.expired) {
                std::this_thread::sleep_for(std::chrono::microseconds(100));
                gate.expired = std::chrono::steady_clock::now() > deadline;
              }
            },
            this, nullptr};
  }
  std::atomic<bool> open{false};
  std::atomic<bool> expired{false};
};

}  // namespace shoal::test
