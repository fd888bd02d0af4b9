// What tests have asked of the stand-in, and what it has seen. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "tests/cuda/nccl_standin/standin.h"

namespace shoal::nccl_standin {

using collectives::nccl::Result;

class Faults final : public Control {
 public:
  static Faults& instance();

  void reset() override;
  void fail_call(const std::string& name, int rank, int nth, int result) override;
  void set_async_error(int rank, int result) override;
  void never_connect(int rank) override;
  void stall(int rank) override;
  std::vector<std::string> take_calls(int rank) override;
  int count_calls(const std::string& name) override;
  std::vector<std::string> problems() override;
  int live_ranks() override;

  /// A call begins: what it must return at once, or success.
  Result begin(const std::string& name, int rank);
  void record(int rank, std::string call);
  void report(std::string problem);
  Result async_error(int rank);
  bool connects(int rank);
  bool stalls(int rank);

 private:
  struct Fault {
    std::string name;
    int rank;
    int skip;
    Result result;
  };

  std::mutex mutex_;
  std::vector<Fault> faults_;
  std::map<int, Result> async_errors_;
  std::set<int> unconnected_, stalled_;
  std::map<int, std::vector<std::string>> calls_;
  std::map<std::string, int> counts_;
  std::vector<std::string> problems_;
};

}  // namespace shoal::nccl_standin
