#include "graph/placement.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "graph/tensor.h"

namespace shoal {
namespace {

/// With nothing of one that has gone touched by the other (sanitizers see it).
TEST(PlacedTensors, TensorsAndTheirListMayGoAtOnce) {
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
