#include "graph/placement.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "graph/tensor.h"

namespace shoal {
namespace {

/// The list must not access destroyed tensors, and tensors must not access the destroyed list. Sanitizers detect
/// violations.
TEST(PlacedTensors, TensorsAndListCanBeDestroyedConcurrently) {
  for (int round = 0; round < 500; ++round) {
    PlacedTensors list;
    std::optional<std::deque<Tensor>> tensors(20);
    for (Tensor& tensor : *tensors) list.add(tensor, false);
    std::atomic<int> ready{0};
    const auto meet = [&] {
      for (++ready; ready < 2;) {
      }
    };
    std::thread other([&] {
      meet();
      tensors.reset();
    });
    meet();
    list.unplace_all(nullptr);
    other.join();
  }
}

}  // namespace
}  // namespace shoal
