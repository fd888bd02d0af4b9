// Tests every collective of the mpi communicator on one node and on several nodes. Threads act as processes. A process
// has no rank, one rank or several ranks. Nodes have different numbers of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "tests/collectives/mpi/process_mesh.h"
#include "tests/support/sanitized.h"
#include "tests/support/thread_processes.h"

namespace shoal::collectives::mpi {
namespace {

struct Shape {
  const char* name;
  std::vector<std::string> hosts;  ///< host of each process
  std::vector<int> ranks;          ///< process of each rank
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

/// Whether a node contains a process with several ranks and another process with at least one rank.
bool mixes_addresses(const Shape& shape) {
  for (size_t a = 0; a < shape.ranks.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (shape.ranks[a] != shape.ranks[b]) continue;
      for (const int other : shape.ranks) {
        const auto host = [&](int process) { return shape.hosts[static_cast<size_t>(process)]; };
        if (other != shape.ranks[a] && host(other) == host(shape.ranks[a])) return true;
      }
    }
  }
  return false;
}

class Mpi : public testing::TestWithParam<Shape> {
 protected:
  // The threads act as processes and map the same memory at two addresses. The thread sanitizer does not know that an
  // atomic at one address also orders accesses at the other address.
  void SetUp() override {
    if (test::kThreadSanitizer && mixes_addresses(GetParam())) GTEST_SKIP() << "unsuitable for the thread sanitizer";
  }
  /// Calls the function in every process with the mesh and the communicator of this process.
  void in_all(const std::function<void(ProcessMesh&, Communicator&)>& function) {
    for (const test::ProcessEnd& end : test::in_processes(GetParam().hosts, [&](ProcessGroup& group) {
           ProcessMesh mesh(group, GetParam().ranks);
           const auto communicator = mesh.communicator({.timeout = std::chrono::seconds(60)});
           function(mesh, *communicator);
         })) {
      EXPECT_EQ(end.what(), "");
    }
  }
};

TEST_P(Mpi, RunsEveryCollective) {
  in_all([](ProcessMesh& mesh, Communicator& communicator) { run_process_suite(mesh, communicator); });
}

// Each addition rounds, so the sums depend on the order of the addends. The addends of each node are added first, in
// rank order. The sums of the nodes are added afterwards. all_reduce and reduce_scatter must give exactly the bits of
// this sum on every rank and for every message size.
TEST_P(Mpi, SumsWithinNodesPrecedeSumsBetweenNodes) {
  const Shape& shape = GetParam();
  const int ranks = static_cast<int>(shape.ranks.size());
  std::vector<std::string> nodes;  // in the order of each node's first process
  for (const std::string& host : shape.hosts) {
    if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t count : {1013, 12000, 40009}) {
      std::mt19937 random(11);
      std::normal_distribution<float> normal(0.0f, 100.0f);
      std::vector<std::vector<float>> numbers;
      CollectiveCase reduce{.kind = Collective::kAllReduce, .dtype = dtype, .count = count};
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> own(static_cast<size_t>(count));
        for (float& number : own) number = normal(random);
        reduce.in.push_back(encode(dtype, own));
        traits(dtype).to_f32(reduce.in.back().data(), own.data(), count);
        numbers.push_back(std::move(own));
      }
      const auto rounded = [&](std::vector<float> values) {
        const Bytes bytes = encode(dtype, values);
        traits(dtype).to_f32(bytes.data(), values.data(), count);
        return values;
      };
      std::vector<float> total;
      for (const std::string& node : nodes) {
        std::vector<float> sum;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto at = static_cast<size_t>(rank);
          if (shape.hosts[static_cast<size_t>(shape.ranks[at])] != node) continue;
          if (sum.empty()) sum.resize(numbers[at].size());
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += numbers[at][i];
        }
        if (sum.empty()) continue;
        sum = rounded(std::move(sum));
        if (total.empty()) total.resize(sum.size());
        for (size_t i = 0; i < sum.size(); ++i) total[i] += sum[i];
      }
      const Bytes bits = encode(dtype, total);
      reduce.expected.assign(static_cast<size_t>(ranks), bits);
      CollectiveCase scatter = reduce;
      scatter.kind = Collective::kReduceScatter;
      scatter.expected.clear();
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
        scatter.counts.push_back(end - begin);
        scatter.expected.emplace_back(bits.begin() + static_cast<int64_t>(bytes_for(dtype, begin)),
                                      bits.begin() + static_cast<int64_t>(bytes_for(dtype, end)));
      }
      in_all([&](ProcessMesh& mesh, Communicator& communicator) {
        std::vector<ProcessCase> both;
        both.emplace_back(reduce).queue(mesh, communicator);
        ProcessCase second(scatter);
        second.queue(mesh, communicator);
        mesh.synchronize();
        EXPECT_EQ(both[0].wrong(mesh), "");
        EXPECT_EQ(second.wrong(mesh), "");
      });
    }
  }
}

TEST_P(Mpi, TraitsMatchDescriptionOfCommunicator) {
  std::mutex mutex;
  std::vector<CommunicatorTraits> all;
  for (const test::ProcessEnd& end : test::in_processes(GetParam().hosts, [&](ProcessGroup& group) {
         ProcessMesh mesh(group, GetParam().ranks);
         const CommunicatorTraits described =
             describe_mpi_communicator(devices_of(mesh.backends()), {.processes = &group});
         EXPECT_EQ(mesh.communicator()->describe(), described);
         const std::lock_guard lock(mutex);
         all.push_back(described);
       })) {
    EXPECT_EQ(end.what(), "");
  }
  EXPECT_THAT(all, testing::Each(all.front())) << "all processes must make the same plans";
  EXPECT_EQ(all.front().buffer_bytes.size(), GetParam().ranks.size());
  EXPECT_FALSE(all.front().fused.allow(1, 1));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Mpi,
                         testing::Values(Shape{"OneRank", {"a"}, {0}}, Shape{"OneRankOfTwoProcesses", {"a", "a"}, {1}},
                                         Shape{"OneProcess", {"a"}, {0, 0, 0}},
                                         Shape{"TwoProcesses", {"a", "a"}, {0, 1}},
                                         Shape{"ThreeProcesses", {"a", "a", "a"}, {0, 1, 1, 2, 0}},
                                         Shape{"FourProcesses", {"a", "a", "a", "a"}, {0, 1, 2, 3}},
                                         Shape{"TwoNodes", {"a", "b"}, {0, 1}},
                                         Shape{"TwoNodesOfTwo", {"a", "a", "b", "b"}, {0, 1, 2, 3}},
                                         Shape{"TwoNodesByTurns", {"a", "b", "a"}, {0, 1, 2, 1}},
                                         Shape{"UnequalNodes", {"a", "a", "b"}, {0, 0, 1, 2}},
                                         Shape{"ThreeNodes", {"a", "b", "c"}, {0, 1, 2}},
                                         Shape{"ThreeNodesOfSeveral", {"a", "b", "c"}, {2, 1, 1, 0, 2, 2}},
                                         Shape{"ANodeWithoutRanks", {"c", "a", "b", "c"}, {1, 2, 2}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shoal::collectives::mpi
