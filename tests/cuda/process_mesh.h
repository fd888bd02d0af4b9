// A mesh of CUDA devices in several processes, and collectives on the ranks of this process.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "tests/collectives/cases.h"
#include "tests/support/process_ranks.h"

namespace shoal::test {

class CudaProcessMesh : public ProcessRanks {
 public:
  /// `process_of` contains the process of each rank. Rank r uses device r of its process.
  CudaProcessMesh(ProcessGroup& group, const std::vector<int>& process_of, std::span<Device* const> devices)
      : ProcessRanks(group) {
    for (const int process : process_of) {
      Device& own = *devices[static_cast<size_t>(size())];
      if (process == group.own()) {
        add_own(own.init());
        continue;
      }
      RemoteSpec spec;
      spec.process = process, spec.name = own.name();
      spec.family = own.reg().name(), spec.type = own.type();
      spec.free = spec.total = size_t{1} << 30;
      add_remote(std::move(spec), &own);
    }
  }

  std::vector<Device*> devices() const { return collectives::devices_of(backends()); }
  collectives::Options options(const std::string& implementation,
                               std::chrono::milliseconds timeout = std::chrono::minutes(5)) const {
    collectives::Options options;
    options.timeout = timeout;
    options.implementation = implementation;
    options.processes = &group_;
    return options;
  }
};

/// A case with buffers in the memory of the ranks of this process. The mesh must outlive the case.
class CudaProcessCase : public collectives::CollectiveCase {
 public:
  CudaProcessCase(CudaProcessMesh& mesh, CollectiveCase one, std::string name = "x")
      : CollectiveCase(std::move(one)), mesh_(mesh), name_(std::move(name)) {
    for (const int rank : mesh.own()) {
      const auto at = static_cast<size_t>(rank);
      BufferType& type = mesh.backend(rank).device().buffer_type();
      Memory& memory = memory_.emplace_back();
      memory.in = type.allocate(std::max<size_t>(in[at].size(), 1));
      memory.out = type.allocate(std::max<size_t>(expected[at].size(), 1));
      memory.result.assign(expected[at].size(), std::byte{0x5a});
      mesh.backend(rank).write_bytes_async(memory.in->base(), in[at].data(), in[at].size());
      mesh.backend(rank).write_bytes_async(memory.out->base(), memory.result.data(), memory.result.size());
      memory.call = {kind, dtype, memory.in->base(), memory.out->base(), count, counts, root, name_.c_str()};
    }
    mesh.synchronize();
  }

  void queue(collectives::Communicator& communicator) {
    for (size_t i = 0; i < memory_.size(); ++i) communicator.enqueue(mesh_.own()[i], memory_[i].call);
  }
  /// Synchronizes the ranks of this process and compares their results. Returns "" if all results are correct.
  std::string wrong() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      Memory& memory = memory_[i];
      const int rank = mesh_.own()[i];
      mesh_.backend(rank).read_bytes_async(memory.out->base(), memory.result.data(), memory.result.size());
      mesh_.backend(rank).synchronize();
      if (memory.result == expected[static_cast<size_t>(rank)]) continue;
      return fmt::format("{} {} of {} elements: wrong result on rank {} of {}", name_of(kind), name_of(dtype), count,
                         rank, mesh_.size());
    }
    return {};
  }

 private:
  struct Memory {
    std::unique_ptr<Buffer> in, out;
    collectives::Bytes result;
    collectives::Call call;
  };

  CudaProcessMesh& mesh_;
  const std::string name_;
  std::vector<Memory> memory_;  ///< one per rank of this process
};

/// Returns cases of all collectives, with even, uneven and empty parts. Long messages are split into several pieces.
inline std::vector<collectives::CollectiveCase> cuda_process_cases(int ranks) {
  using namespace collectives;  // NOLINT: the cases
  const auto n = static_cast<size_t>(ranks);
  std::vector<CollectiveCase> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    cases.push_back(all_reduce_case(ranks, dtype, 1013));
    cases.push_back(reduce_scatter_case(dtype, uneven(ranks, 37)));
    cases.push_back(reduce_scatter_case(dtype, std::vector<int64_t>(n, 41)));
  }
  for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
    cases.push_back(all_gather_case(dtype, std::vector<int64_t>(n, 64)));
    for (int root = 0; root < ranks; ++root) cases.push_back(broadcast_case(ranks, dtype, 96, root));
  }
  for (const int64_t count : {0, 1, 300'001}) cases.push_back(all_reduce_case(ranks, DType::kF32, count));
  cases.push_back(all_gather_case(DType::kF32, uneven(ranks, 9001)));
  cases.push_back(all_to_all_case(DType::kF16, ranks, uneven(ranks * ranks, 11)));
  cases.push_back(all_to_all_case(DType::kF32, ranks, std::vector<int64_t>(n * n, 0)));
  return cases;
}

}  // namespace shoal::test
