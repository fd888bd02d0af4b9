// Measures collectives among devices: what `shoal bench-comm` runs. Works through Device, Buffer and Communicator only,
// so any devices will do. One thread; blocking. Devices may belong to several processes: all of them do the same then,
// and get the same results.
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
  std::string implementation;      ///< as --comm names it
  std::string communicator;        ///< what that is here
  double us = 0.0;                 ///< of one collective, in the process that took longest
  std::optional<int64_t> wrong{};  ///< elements, of all ranks; nullopt: not checked

  /// 1e9 bytes per second: of the message, and of each rank's bus.
  double algbw() const { return static_cast<double>(which.size()) / 1e3 / us; }
  double busbw() const { return algbw() * bus_factor(which.kind, which.ranks); }
};

/// A way to make communicators over the devices at hand.
struct CommImplementation {
  std::string name;
  collectives::CommunicatorFactory make;
};

/// Names that --comm knows, whether there is one here or not.
std::vector<std::string> known_implementations();

class CommBench {
 public:
  /// A rank on each device. `group`: the processes that they belong to; nullptr: only this one. Throws what making a
  /// backend throws.
  explicit CommBench(const std::vector<Device*>& devices, ProcessGroup* group = nullptr);
  ~CommBench();

  int ranks() const { return static_cast<int>(backends_.size()); }
  /// Those that work among these devices: each is made once.
  std::vector<CommImplementation> implementations();
  /// Throws InvalidArgument that says why it does not work here, and names those that do.
  CommImplementation implementation(const std::string& name);

  /// Finds up to which size all_reduce of p2p is faster in one shot than in two, and from which on it is faster by
  /// NCCL, if that works here, and saves both for this mesh. Nothing is saved if it throws: InvalidArgument where p2p
  /// does not work, so that there is nothing to choose.
  collectives::Thresholds calibrate(const CommBenchOptions& options, size_t most_bytes,
                                    const std::function<bool()>& stop = {});

  /// Times the collective, then checks one on fresh data. `stop`: asked between runs; true throws Interrupted. Throws
  /// what the communicator or memory throws.
  CommResult measure(const CommImplementation& implementation, const CommCase& which, const CommBenchOptions& options,
                     const std::function<bool()>& stop = {});

 private:
  class Run;

  std::set<std::string> remarks_;  ///< made so far

  /// Of what each process has found: the largest, and the sum.
  double largest(double own) const;
  int64_t sum(int64_t own) const;
  std::vector<std::string> gather(const std::string& own) const;
  /// Waits for all ranks; throws the first failure after all have ended.
  void synchronize();
  collectives::Communicator& communicator(const CommImplementation& implementation);
  CommImplementation named(const std::string& name) const;
  /// The next one is made anew.
  void drop_communicator();

  std::vector<Device*> devices_;
  ProcessGroup* group_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
  collectives::CommunicatorFactory factory_;
  std::string current_;  ///< which implementation communicator_ is of
  std::unique_ptr<collectives::Communicator> communicator_;
};

}  // namespace shoal::tools
