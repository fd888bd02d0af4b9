// Tests the mpi communicator in real processes that mpirun starts. Each process has its own ranks.
//
//   mpirun -np 3 mpi_ranks suite            checks every collective on every rank
//   mpirun -np 2 mpi_ranks late             checks that every process names a missing rank
//   mpirun -np 2 mpi_ranks killed           checks that every process names a killed process
//   mpirun -np 2 mpi_ranks bench [ranks]    prints the microseconds of an all_reduce; [ranks]: ranks per process
//   mpi_ranks bench 2                       prints the times of the host communicator with 2 ranks, for comparison
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "processes/join.h"
#include "tests/collectives/mpi/process_mesh.h"
#include "tests/support/process_program.h"
#include "tests/support/thread_transport.h"

namespace shoal::collectives {
namespace {

using Clock = std::chrono::steady_clock;

void say(const ProcessGroup& group, std::string_view text) {
  if (group.own() == 0) fmt::print("{}\n", text);
  std::fflush(stdout);
}

/// Returns the process of each rank, for a mesh with `each` ranks per process.
std::vector<int> even(const ProcessGroup& group, int each) {
  std::vector<int> process_of;
  for (int i = 0; i < group.size() * each; ++i) process_of.push_back(i / each);
  return process_of;
}

void suite(ProcessGroup& group) {
  std::vector<std::vector<int>> shapes{even(group, 1), {0}};
  shapes.push_back(even(group, 2));
  shapes.back().insert(shapes.back().begin(), group.size() - 1);  // rank 0 is an additional rank of the last process
  for (const std::vector<int>& shape : shapes) {
    for (const Ranks kind : {Ranks::kThread, Ranks::kCpu}) {
      ProcessMesh mesh(group, shape, kind);
      const auto communicator = mesh.communicator();
      run_process_suite(mesh, *communicator);
      group.gather("", "end of a suite");
    }
  }
  say(group, fmt::format("right in {} processes", group.size()));
}

/// The process of rank 1 calls `instead` and does not queue the second all_reduce. The errors of the other ranks must
/// contain `why`.
void without_rank_1(ProcessGroup& group, void (*instead)(), std::string_view why) {
  ProcessMesh mesh(group, even(group, 1), Ranks::kCpu);
  const auto communicator = mesh.communicator({.timeout = std::chrono::milliseconds(1500)});
  ProcessCase first(all_reduce_case(mesh.size(), DType::kF32, 100)),
      second(all_reduce_case(mesh.size(), DType::kF32, 100));
  first.queue(mesh, *communicator);
  mesh.synchronize();
  require<CommError>(first.wrong(mesh).empty(), "{}", first.wrong(mesh));
  const auto begin = Clock::now();
  if (group.own() == 1) {
    instead();
  } else {
    second.queue(mesh, *communicator);
  }
  std::string error;
  for (const std::string& message : mesh.errors()) error = message;
  while (!group.has_failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (error.empty()) communicator->abort("later");
  require<InternalError>(group.own() == 1 || error.find(why) != std::string::npos, "expected '{}', got '{}'", why,
                         error);
  fmt::print("process {} after {:.1f} s: {}\n", group.own(),
             std::chrono::duration<double>(Clock::now() - begin).count(), error);
  std::fflush(stdout);
}

/// Time in seconds that `times` calls take together. All calls are queued before the first call begins.
double time_calls(ProcessGroup& group, ProcessMesh& mesh, Communicator& communicator, std::span<const Call> calls,
                  int times) {
  std::atomic<bool> gate{false};
  const auto wait = [](void* object, const void*, bool) { static_cast<std::atomic<bool>*>(object)->wait(false); };
  for (const int rank : mesh.own()) mesh.backend(rank).enqueue({wait, &gate, nullptr});
  for (int i = 0; i < times; ++i) {
    for (const int rank : mesh.own()) communicator.enqueue(rank, calls[static_cast<size_t>(rank)]);
  }
  group.gather("", "start of a measurement");
  const auto begin = Clock::now();
  gate = true;
  gate.notify_all();
  mesh.synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void bench(ProcessGroup& group, int each) {
  ProcessMesh mesh(group, even(group, each), Ranks::kCpu);
  const auto communicator = group.size() > 1 ? mesh.communicator() : make_host_communicator(mesh.backends());
  for (const int64_t bytes : {4, 2 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20}) {
    const auto count = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<std::vector<float>> data;
    std::vector<Call> calls;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      data.emplace_back(static_cast<size_t>(2 * count), 1.0f);
      calls.push_back(
          {Collective::kAllReduce, DType::kF32, data.back().data(), data.back().data() + count, count, {}, 0, "x"});
    }
    // The fastest repetition is printed. With many short repetitions, other programs probably leave at least one
    // repetition undisturbed.
    constexpr int kRepetitions = 60;
    const auto times = static_cast<int>(std::clamp<int64_t>((4 << 20) / bytes, 2, 500));
    double best = 1e9;
    for (int i = 0; i < kRepetitions; ++i)
      best = std::min(best, time_calls(group, mesh, *communicator, calls, times) / times);
    for (const int rank : mesh.own()) {
      for (int64_t i = 0; i < count; ++i) {
        const float sum = data[static_cast<size_t>(rank)][static_cast<size_t>(count + i)];
        require<CommError>(sum == static_cast<float>(mesh.size()), "wrong at {}: {}", i, sum);
      }
    }
    say(group, fmt::format("{} all_reduce f32 {:>9} bytes, {} ranks: {:9.2f} us", communicator->name(), bytes,
                           mesh.size(), best * 1e6));
  }
}

void stay_away() {}
void die() {
  std::raise(SIGKILL);
}

void run(std::string_view mode, int each) {
  test::ThreadHub alone({"here"});
  auto group = join_processes(std::chrono::seconds(10));
  require<InvalidArgument>(group != nullptr || mode == "bench", "start several processes: mpirun -np 2 mpi_ranks ...");
  if (group == nullptr) group = std::make_unique<ProcessGroup>(alone.transport(0), std::chrono::seconds(10));
  test::run_in(*group, [&] {
    if (mode == "suite") suite(*group);
    if (mode == "bench") bench(*group, each);
    if (mode == "late") without_rank_1(*group, stay_away, "rank 1 (1:CPU0 on ");
    if (mode == "killed") without_rank_1(*group, die, "process 1 (");
  });
}

}  // namespace
}  // namespace shoal::collectives

int main(int count, char** arguments) {
  shoal::test::end_with(
      [&] { shoal::collectives::run(count > 1 ? arguments[1] : "suite", count > 2 ? std::atoi(arguments[2]) : 1); });
}
