// Measures collectives between devices for `shoal bench-comm`. The benchmark uses only Device, Buffer and Communicator,
// so it works with any devices. All calls block and must be made from one thread. With several processes, all processes
// make the same calls and get the same results.
//
//   CommBench bench(devices);
//   const CommResult result = bench.measure(bench.implementation("auto"), case_of_size(...), {});
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/thresholds.h"
#include "devices/device.h"
#include "processes/process_group.h"
#include "tools/bench/bench_comm_check.h"

namespace shoal::tools {

struct CommBenchOptions {
  int iterations = 100;
  int warmup = 10;
  bool check = true;
};

struct CommResult {
  CommCase which;
  std::string implementation;      ///< a value of --comm
  std::string communicator;        ///< name of the communicator that this implementation created
  double us = 0.0;                 ///< microseconds per collective, in the slowest process
  std::optional<int64_t> wrong{};  ///< number of wrong elements on all ranks; nullopt: not checked

  /// Algorithm bandwidth and bus bandwidth in GB/s, as defined by nccl-tests.
  double algbw() const { return static_cast<double>(which.size()) / 1e3 / us; }
  double busbw() const { return algbw() * bus_factor(which.kind, which.ranks); }
};

/// An implementation of the collectives: its name and its factory of communicators.
struct CommImplementation {
  std::string name;
  collectives::CommunicatorFactory make;
};

/// Names of all implementations that --comm accepts, including those that do not work on this machine.
std::vector<std::string> known_implementations();

class CommBench {
 public:
  /// Creates one rank per device. `group`: the processes that own the devices; nullptr: only this process. Throws the
  /// errors of Device::init().
  explicit CommBench(const std::vector<Device*>& devices, ProcessGroup* group = nullptr);
  ~CommBench();

  int ranks() const { return static_cast<int>(backends_.size()); }
  /// The implementations that work with these devices. The call creates a communicator to test each implementation.
  std::vector<CommImplementation> implementations();
  /// Returns the named implementation. If the implementation does not work here, throws InvalidArgument with the reason
  /// and the names of the working implementations.
  CommImplementation implementation(const std::string& name);

  /// Finds the largest message size at which one-shot p2p all_reduce is faster than two-shot p2p all_reduce. If NCCL
  /// works here, also finds the smallest message size at which NCCL is faster than p2p. Saves the thresholds for this
  /// mesh if no error occurs. Throws InvalidArgument if p2p does not work.
  collectives::Thresholds calibrate(const CommBenchOptions& options, size_t most_bytes,
                                    const std::function<bool()>& stop = {});

  /// Measures the time of the collective. If `options.check` is true, then checks the results of one more call. Polls
  /// `stop` between runs, and throws Interrupted when `stop` returns true. Throws the errors of the communicator and of
  /// allocation.
  CommResult measure(const CommImplementation& implementation, const CommCase& which, const CommBenchOptions& options,
                     const std::function<bool()>& stop = {});

 private:
  class Run;

  std::set<std::string> remarks_;  ///< remarks printed so far

  /// The maximum and the sum of the values that all processes pass as `own`.
  double largest(double own) const;
  int64_t sum(int64_t own) const;
  std::vector<std::string> gather(const std::string& own) const;
  /// Waits for all ranks, then throws the first failure.
  void synchronize();
  collectives::Communicator& communicator(const CommImplementation& implementation);
  CommImplementation named(const std::string& name) const;
  /// Destroys communicator_, so that communicator() creates a new one.
  void drop_communicator();

  std::vector<Device*> devices_;
  ProcessGroup* group_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
  collectives::CommunicatorFactory factory_;
  std::string current_;  ///< name of the implementation that created communicator_
  std::unique_ptr<collectives::Communicator> communicator_;
};

}  // namespace shoal::tools
