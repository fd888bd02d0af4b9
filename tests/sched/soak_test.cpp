// Runs two graphs alternately many times on a meta device and a CPU. In some pauses between runs, the threads park.
// Memory must not grow, no graph may be planned again, and each run must end. SHOAL_SOAK_RUNS is the number of runs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "sched/scheduler.h"
#include "tests/meta/llama_graph.h"
#include "tests/sched/rig.h"
#include "tests/support/sanitized.h"

namespace shoal::sched {
namespace {

using test::kSanitized;
using test::Rig;
using test::World;
using namespace std::chrono_literals;

int runs() {
  const char* text = std::getenv("SHOAL_SOAK_RUNS");
  return text != nullptr && *text != '\0' ? std::atoi(text) : kSanitized ? 1000 : 20000;
}

size_t resident_bytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

/// Aborts the program if `work` does not return within `limit`. An exception would not help, because the blocked
/// threads could not be joined.
void with_deadline(std::chrono::seconds limit, const std::function<void()>& work) {
  std::promise<void> done;
  std::thread watch([&, finished = done.get_future()] {
    if (finished.wait_for(limit) == std::future_status::ready) return;
    fmt::print(stderr, "still running after {} s\n", limit.count());
    std::abort();
  });
  work();
  done.set_value();
  watch.join();
}

/// A decoder on a meta device. The head and the caches of the decoder are on a CPU.
class Soak {
 public:
  Soak() {
    for (int64_t tokens : {6, 1}) {
      graphs_.push_back(&world_.add(test::llama_graph(tokens)));
    }
    expected_ = on_one_device();
    EXPECT_TRUE(scheduler_.reserve(*graphs_[0]));
    for (Graph* graph : graphs_) {
      scheduler_.allocate(*graph);
      world_.fill_inputs(*graph);
    }
  }

  void run(int count) {
    size_t warm = 0;
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      one(i);
      if (i % 97 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(i % 5));
      if (i % (count / 6 + 1) == count / 12) std::this_thread::sleep_for(300ms);
      if (i == count / 5) warm = resident_bytes();
    }
    EXPECT_EQ(scheduler_.plans_made(), 2U);
    if (kSanitized) return;  // sanitizers do not return freed memory to the system
    EXPECT_LT(resident_bytes(), warm + (256U << 10)) << "memory grew from " << warm;
  }

 private:
  /// Returns the expected outputs. From the second round on, the caches contain the rows of both graphs, and the values
  /// in the caches no longer change.
  static std::vector<test::Values> on_one_device() {
    World world({{"*", &Rig::cpu(3)}});
    const auto backend = Rig::cpu(3).init();
    std::vector<test::Values> logits;
    for (int64_t tokens : {6, 1, 6, 1}) {
      Graph& graph = world.add(test::llama_graph(tokens));
      backend->plans().plan(graph);
      world.fill_inputs(graph);
      EXPECT_EQ(backend->compute(graph), Status::kSuccess);
      logits.push_back(test::read_values(*graph.find("logits")));
    }
    return {logits.begin() + 2, logits.end()};
  }

  void one(int i) {
    const auto which = static_cast<size_t>(i % 2);
    Graph& graph = *graphs_[which];
    scheduler_.compute_async(graph);
    const Tensor& logits = *graph.find("logits");
    std::vector<float> values(static_cast<size_t>(logits.elements()));
    scheduler_.get_async(logits, values.data(), 0, logits.bytes());
    scheduler_.synchronize();
    if (i < 2) return;
    EXPECT_TRUE(test::close_to({values.begin(), values.end()}, expected_[which], {1e-9})) << "run " << i;
  }

  Rig rig_{4};
  std::unique_ptr<meta::MetaDevice> mesh_ = Rig::mesh({0, 1}, test::llama_layouts({3, 1}));
  std::unique_ptr<Backend> meta_ = mesh_->init(), cpu_ = Rig::cpu(2).init();
  World world_{{{"head", &Rig::cpu(2)}, {"ck", &Rig::cpu(2)}, {"cv", &Rig::cpu(2)}, {"*", mesh_.get()}}};
  Scheduler scheduler_{{meta_.get(), cpu_.get()}, {.copies = 2}};
  std::vector<Graph*> graphs_;
  std::vector<test::Values> expected_;
};

TEST(Soak, AlternatingGraphsUseConstantMemory) {
  const int count = runs();
  with_deadline(std::chrono::seconds(120 + count / 50), [&] { Soak().run(count); });
}

}  // namespace
}  // namespace shoal::sched
