// Collectives over CUDA devices of several processes. mpirun starts the processes on one machine with as many emulated
// GPUs as ranks. Each process loads the plug-in (SHOAL_TEST_PLUGIN).
//
//   mpirun -np 3 cuda_ranks suite nccl      checks all collectives on all ranks (nccl, auto or staged)
//   mpirun -np 2 cuda_ranks early nccl      checks that messages arrive even if their sender has already finished
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "collectives/factory.h"
#include "processes/join.h"
#include "tests/cuda/process_mesh.h"
#include "tests/support/plugin.h"
#include "tests/support/process_program.h"

namespace shoal::test {
namespace {

using collectives::Communicator;
using std::chrono::milliseconds;

std::unique_ptr<Communicator> make(const CudaProcessMesh& mesh, const collectives::Options& options) {
  return collectives::communicator_for(mesh.devices())(mesh.backends(), options);
}

/// Assigns one rank to each process.
std::vector<int> one_each(const ProcessGroup& group) {
  std::vector<int> process_of;
  for (int process = 0; process < group.size(); ++process) process_of.push_back(process);
  return process_of;
}

std::string text_of(const collectives::CommunicatorTraits& traits) {
  return fmt::format("{} {} {}", fmt::join(traits.buffer_bytes, ","), traits.fused.row, traits.fused.elements);
}

/// Checks that the communicator has the predicted traits in every process.
void check_traits(ProcessGroup& group, const CudaProcessMesh& mesh, const Communicator& communicator,
                  const collectives::Options& options) {
  const auto foreseen = collectives::communicator_for(mesh.devices()).describe(mesh.devices(), options);
  require<InternalError>(communicator.describe() == foreseen,
                         "the predicted traits are {}, but the communicator has {}", text_of(foreseen),
                         text_of(communicator.describe()));
  for (const std::string& text : group.gather(text_of(foreseen), "traits")) {
    require<InternalError>(text == text_of(foreseen), "predicted traits differ: {} here, {} in another process",
                           text_of(foreseen), text);
  }
}

/// Records a collective if the communicator can record, and replays it three times.
void check_recorded(CudaProcessMesh& mesh, Communicator& communicator) {
  if (!communicator.can_be_recorded()) return;
  CudaProcessCase one(mesh, collectives::all_reduce_case(mesh.size(), DType::kF32, 5000));
  for (const int rank : mesh.own()) {
    require<InternalError>(mesh.backend(rank).start_recording(), "rank {} cannot record", rank);
  }
  one.queue(communicator);
  std::vector<std::unique_ptr<Recording>> recordings;
  for (const int rank : mesh.own()) recordings.push_back(mesh.backend(rank).stop_recording());
  for (int i = 0; i < 3; ++i) {
    for (size_t own = 0; own < recordings.size(); ++own) {
      mesh.backend(mesh.own()[own]).replay_async(*recordings[own]);
    }
  }
  mesh.synchronize();
  require<CommError>(one.wrong().empty(), "recorded: {}", one.wrong());
}

void suite(ProcessGroup& group, const std::string& implementation) {
  std::vector<std::vector<int>> shapes{one_each(group), one_each(group)};
  shapes.back().insert(shapes.back().begin(), group.size() - 1);  // ranks are not in the order of processes
  if (group.size() > 2) shapes.push_back({1, 2});                 // process 0 has no ranks
  for (const std::vector<int>& shape : shapes) {
    CudaProcessMesh mesh(group, shape, plugin_devices());
    const auto options = mesh.options(implementation);
    const auto communicator = make(mesh, options);
    check_traits(group, mesh, *communicator, options);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<CudaProcessCase>> all;
      for (const auto& one : cuda_process_cases(mesh.size())) {
        all.push_back(std::make_unique<CudaProcessCase>(mesh, one));
        all.back()->queue(*communicator);
        if (round == 0) mesh.synchronize();  // the second round queues all cases at once
      }
      mesh.synchronize();
      for (const auto& one : all) require<CommError>(one->wrong().empty(), "wrong: {}", one->wrong());
    }
    check_recorded(mesh, *communicator);
  }
  group.gather("", "end of the suite");
  if (group.own() == 0) fmt::print("{} is right in {} processes\n", implementation, group.size());
}

/// Process 0 destroys its communicator while its messages are still in flight.
void early(ProcessGroup& group, const std::string& implementation) {
  CudaProcessMesh mesh(group, one_each(group), plugin_devices());
  auto communicator = make(mesh, mesh.options(implementation, milliseconds(4000)));
  for (const bool last : {false, true}) {
    CudaProcessCase one(mesh, collectives::broadcast_case(mesh.size(), DType::kF32, 1000, 0));
    one.queue(*communicator);
    mesh.synchronize();
    require<CommError>(one.wrong().empty(), "wrong: {}", one.wrong());
    if (last && group.own() == 0) communicator.reset();
  }
  communicator.reset();
  group.gather("", "end of the run");
  if (group.own() == 0) fmt::print("{} leaves nothing behind\n", implementation);
}

void run(std::string_view mode, const std::string& implementation) {
  const auto group = join_processes(std::chrono::seconds(10));
  require<InvalidArgument>(group != nullptr, "start several processes: mpirun -np 2 cuda_ranks ...");
  run_in(*group, [&] {
    if (mode == "suite") suite(*group, implementation);
    if (mode == "early") early(*group, implementation);
  });
}

}  // namespace
}  // namespace shoal::test

int main(int count, char** arguments) {
  shoal::test::end_with(
      [&] { shoal::test::run(count > 1 ? arguments[1] : "suite", count > 2 ? arguments[2] : "nccl"); });
}
