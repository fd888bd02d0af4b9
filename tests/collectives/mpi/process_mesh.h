// A mesh of ranks on the hosts of several processes, and collective calls for the ranks of this process.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/mpi/segment.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/thread_backend.h"
#include "tests/support/process_ranks.h"

namespace shoal::collectives {

/// The backend of each rank: a plain thread, or a CPU device with one thread.
enum class Ranks : uint8_t { kThread, kCpu };

class ProcessMesh : public test::ProcessRanks {
 public:
  /// `process_of`: the process number of each rank.
  ProcessMesh(ProcessGroup& group, const std::vector<int>& process_of, Ranks kind = Ranks::kThread)
      : ProcessRanks(group) {
    const bool are_threads = kind == Ranks::kThread;
    const auto own_backend = [&]() -> std::unique_ptr<Backend> {
      if (are_threads) return std::make_unique<ThreadBackend>("T" + std::to_string(size()));
      return Registry::instance().init("CPU0:threads=1");
    };
    for (const int process : process_of) {
      if (process == group.own()) {
        add_own(own_backend());
        continue;
      }
      RemoteSpec spec;
      spec.process = process, spec.is_host = true;
      spec.family = are_threads ? "NULL" : "CPU", spec.name = spec.family + "0";
      add_remote(std::move(spec), nullptr);
    }
  }

  std::unique_ptr<Communicator> communicator(Options options = {}) {
    options.processes = &group_;
    return make_mpi_communicator(backends(), options);
  }
};

/// A collective call whose data are in the memory of this process's ranks.
class ProcessCase : public CollectiveCase {
 public:
  /// `in_place`: whether to run in place if the collective allows it.
  explicit ProcessCase(CollectiveCase one, bool in_place = false)
      : CollectiveCase(std::move(one)), in_place_(in_place) {
    for (const Bytes& bytes : expected) out_.emplace_back(bytes.size(), std::byte{0x5a});
  }

  void queue(ProcessMesh& mesh, Communicator& communicator) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      std::byte* source = in[at].data();
      const InPlace place = info(kind).in_place;
      if (in_place_ && place != InPlace::kNever && !in[at].empty()) {
        source = out_[at].data() + (place == InPlace::kOwnPart ? bytes_for(dtype, prefix(counts, rank)) : 0);
        std::copy(in[at].begin(), in[at].end(), source);
      }
      calls_.push_back({kind, dtype, source, out_[at].data(), count, counts, root, "x"});
    }
    for (const int rank : mesh.own()) communicator.enqueue(rank, calls_[static_cast<size_t>(rank)]);
  }
  /// Describes the first wrong result of this process's ranks. Returns "" if all results are right.
  std::string wrong(const ProcessMesh& mesh) const {
    for (const int rank : mesh.own()) {
      const auto at = static_cast<size_t>(rank);
      if (out_[at] == expected[at]) continue;
      const auto first = std::mismatch(out_[at].begin(), out_[at].end(), expected[at].begin()).first - out_[at].begin();
      return fmt::format("{} {} of {} (counts {}): rank {} of {} differs from byte {} of {} on", name_of(kind),
                         name_of(dtype), count, counts.empty() ? 0 : counts[0], rank, mesh.size(), first,
                         out_[at].size());
    }
    return {};
  }
  const Bytes& out(int rank) const { return out_[static_cast<size_t>(rank)]; }

 private:
  const bool in_place_;
  std::vector<Bytes> out_;
  std::vector<Call> calls_;
};

/// Test cases for all collectives and dtypes. The data sizes are around the size of a slot (the largest piece of one
/// step).
inline std::vector<CollectiveCase> process_cases(int ranks) {
  constexpr auto kSlot = static_cast<int64_t>(mpi::kSlotBytes), kFloats = kSlot / 4;
  const auto n = static_cast<size_t>(ranks);
  const auto even = [n](int64_t count) { return std::vector<int64_t>(n, count); };
  std::vector<int64_t> one_part(n, 0);
  one_part.back() = kFloats + 4465;
  std::vector<CollectiveCase> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    const auto block = static_cast<int64_t>(traits(dtype).block_bytes);
    for (const int64_t bytes : {int64_t{0}, int64_t{4}, int64_t{16} << 10, int64_t{32} << 10, (int64_t{32} << 10) + 4,
                                kSlot - 4, kSlot, kSlot + 4, 2 * kSlot + 20004}) {
      cases.push_back(all_reduce_case(ranks, dtype, bytes / block));
    }
    for (const int64_t step : {0, 1, 37, 4500}) cases.push_back(reduce_scatter_case(dtype, uneven(ranks, step)));
  }
  cases.push_back(reduce_scatter_case(DType::kF32, one_part));
  cases.push_back(reduce_scatter_case(DType::kF32, even(2 * kFloats / ranks + 1)));
  cases.push_back(all_to_all_case(DType::kF32, ranks, std::vector<int64_t>(n * n, kFloats / ranks + 3)));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    cases.push_back(all_gather_case(dtype, one_part));
    cases.push_back(all_gather_case(dtype, even(0)));
    for (const int64_t step : {0, 1, 37, 9001}) cases.push_back(all_gather_case(dtype, uneven(ranks, step)));
    for (const int64_t step : {0, 1, 1000}) {
      cases.push_back(all_to_all_case(dtype, ranks, uneven(ranks * ranks, step)));
    }
    cases.push_back(all_to_all_case(dtype, ranks, std::vector<int64_t>(n * n, 0)));
    for (int root = 0; root < ranks; ++root) {
      for (const int64_t count : {0, 1, 5000}) cases.push_back(broadcast_case(ranks, dtype, count, root));
    }
  }
  for (const int64_t count : {kFloats, kFloats + 1}) {
    cases.push_back(all_gather_case(DType::kF32, even(count)));
    cases.push_back(broadcast_case(ranks, DType::kF32, count, ranks - 1));
  }
  for (const int64_t step : {int64_t{64}, kSlot * 3 / 5}) {
    std::vector<int64_t> rows = uneven(ranks, step), pairs = uneven(ranks * ranks, step / 16);
    for (int64_t& count : rows) count = count / 32 * 32;
    for (int64_t& count : pairs) count = count / 32 * 32;
    cases.push_back(all_gather_case(DType::kQ8_0, rows));
    cases.push_back(all_to_all_case(DType::kQ8_0, ranks, pairs));
    cases.push_back(broadcast_case(ranks, DType::kQ8_0, 2 * step / 32 * 32, ranks - 1));
  }
  return cases;
}

/// Returns a random case. Processes whose `random` has the same state get the same case.
inline CollectiveCase random_process_case(std::mt19937& random, int ranks) {
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  const int seed = static_cast<int>(up_to(1000));
  const bool is_large = up_to(9) == 0;
  const int64_t count = up_to(is_large ? 100000 : 200), step = up_to(is_large ? 9000 : 40);
  switch (up_to(4)) {
    case 0:
      return all_reduce_case(ranks, DType::kF32, count, seed);
    case 1:
      return all_gather_case(DType::kF32, uneven(ranks, step), seed);
    case 2:
      return reduce_scatter_case(DType::kF32, uneven(ranks, step), seed);
    case 3:
      return all_to_all_case(DType::kF32, ranks, uneven(ranks * ranks, step / (ranks * ranks)), seed);
    default:
      return broadcast_case(ranks, DType::kF32, count, seed % ranks, seed);
  }
}

/// Runs each case of process_cases(), first not in place and then in place. Then queues batches of 100 random cases,
/// and waits after each batch. If a result is wrong, throws a CommError that describes this result.
inline void run_process_suite(ProcessMesh& mesh, Communicator& communicator) {
  const auto check_all = [&](std::vector<ProcessCase>& cases) {
    mesh.synchronize();
    for (const ProcessCase& one : cases) {
      const std::string wrong = one.wrong(mesh);
      require<CommError>(wrong.empty(), "wrong: {}", wrong);
    }
    cases.clear();
  };
  std::vector<ProcessCase> queued;
  for (const bool in_place : {false, true}) {
    for (CollectiveCase& one : process_cases(mesh.size())) {
      queued.clear();
      queued.emplace_back(std::move(one), in_place).queue(mesh, communicator);
      check_all(queued);
    }
  }
  std::mt19937 random(7);
  for (int batch = 0; batch < 4; ++batch) {
    queued.clear();
    for (int i = 0; i < 100; ++i) queued.emplace_back(random_process_case(random, mesh.size()));
    for (ProcessCase& one : queued) one.queue(mesh, communicator);
    check_all(queued);
  }
}

}  // namespace shoal::collectives
