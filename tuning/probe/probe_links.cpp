#include "tuning/probe/probe_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "collectives/factory.h"
#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "machine/sets.h"
#include "processes/remote_device.h"
#include "sched/scheduled_graph.h"

namespace shoal::probe {
namespace {

using collectives::Call;

constexpr size_t kKilo = 1024;
/// Seconds of work before the measurement of a set. New threads may share a core for tens of milliseconds until the
/// system moves one of the threads. Until then, a collective takes fifty times as long as normal.
constexpr double kSettle = 0.1;
constexpr int kRounds = 3;

/// The message of one rank: a tensor on its device. All elements are zeros, because repeated sums do not change zeros.
struct Message {
  Message(Device& device, int64_t elements) : leaves(device) {
    tensor = leaves.add(DType::kF32, {elements, 1, 1, 1}, Role::kCache);
    leaves.place();
    tensor->buffer->memset(*tensor, 0, 0, tensor->bytes());
  }
  TrialLeaves leaves;
  Tensor* tensor = nullptr;
};

/// Simulated work of one rank between two collectives. The work stands for the ops of a token.
struct Step {
  explicit Step(Backend& backend) : leaves(backend.device()), trial(backend) {
    constexpr int64_t kElements = 32 * 1024;
    Tensor* x = leaves.add(DType::kF32, {kElements, 1, 1, 1}, Role::kCache);
    leaves.place();
    trial.graph().output(scale(trial.graph(), x, {1.0f, 0.0f}));
    trial.compile();
  }
  TrialLeaves leaves;
  Trial trial;
};

class Collectives {
 public:
  Collectives(std::span<Backend* const> backends, size_t largest, const std::string& comm, ProcessGroup* group)
      : backends_(backends), group_(group) {
    std::vector<Device*> devices;
    for (Backend* backend : backends) devices.push_back(&backend->device());
    for (Device* device : devices) {
      memory_.push_back(std::make_unique<Message>(*device, static_cast<int64_t>(largest / sizeof(float))));
    }
    for (size_t rank = 0; group != nullptr && rank < backends.size(); ++rank) {
      steps_.push_back(is_remote(*devices[rank]) ? nullptr : std::make_unique<Step>(*backends[rank]));
    }
    communicator_ = collectives::communicator_for(devices)(
        backends, {.implementation = collectives::implementation_or_default(comm), .processes = group});
  }
  ~Collectives() {
    try {
      sched::synchronize_all(backends_);  // the communicator may be destroyed only when no work is queued
    } catch (const Error&) {
      // The failed call has already thrown this error.
    }
  }
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Runs collectives until the system has distributed the threads of the devices over the cores.
  void settle() {
    prepare(1);
    for (double spent = 0; spent < kSettle;) spent += slowest(seconds_of([&] { series(16); }));
  }

  /// Seconds of one all_reduce with a message of `elements` elements.
  double measure(int64_t elements, double budget) {
    prepare(elements);
    series(2);
    int times = 4;
    for (double one = slowest(series(times)); one * times < kSeries && times < 1024;) one = slowest(series(times *= 2));
    if (group_ == nullptr) return repeat_for(budget, [&] { return series(times); });
    // Real runs do other work between collectives, which affects threads, caches and sockets. So the loop times a
    // series of steps with collectives and subtracts the time of a series of steps without collectives.
    std::vector<double> seconds;
    for (int i = 0; i < kSamples; ++i) {
      const double both = slowest(series(times, kSteps | kCollectives)), steps = slowest(series(times, kSteps));
      seconds.push_back(std::max(both - steps, both / 10));
    }
    return median(seconds);
  }

 private:
  /// Number of samples with several processes. The number is constant, so all processes take the same number of
  /// samples.
  static constexpr int kSamples = 5;

  /// The longest time among all processes. All processes get the same value and so make the same decisions.
  double slowest(double own) const {
    if (group_ == nullptr) return own;
    for (const std::string& told : group_->gather(fmt::format("{}", own), "probe"))
      own = std::max(own, std::stod(told));
    return own;
  }

  void prepare(int64_t elements) {
    calls_.clear();
    for (const auto& rank : memory_) {
      void* const data = rank->tensor->data;
      calls_.push_back({Collective::kAllReduce, DType::kF32, data, data, elements, {}, 0, "probe"});
    }
  }

  enum Parts : unsigned { kCollectives = 1, kSteps = 2 };

  double series(int times, unsigned parts = kCollectives) {
    poll();
    return seconds_of([&] {
             std::vector<std::unique_ptr<HeldBackend>> held;
             for (Backend* backend : backends_) held.push_back(std::make_unique<HeldBackend>(*backend));
             for (int i = 0; i < times; ++i) {
               for (size_t rank = 0; rank < calls_.size(); ++rank) {
                 if (is_remote(backends_[rank]->device())) continue;
                 if ((parts & kSteps) != 0) steps_[rank]->trial.start(1);
                 if ((parts & kCollectives) != 0) communicator_->enqueue(static_cast<int>(rank), calls_[rank]);
               }
             }
             held.clear();
             sched::synchronize_all(backends_);
           }) /
           times;
  }

  std::span<Backend* const> backends_;
  ProcessGroup* group_;
  std::vector<std::unique_ptr<Message>> memory_;
  std::vector<std::unique_ptr<Step>> steps_;  ///< steps by rank; nullptr for ranks of other processes; empty if there
                                              ///< is only one process
  std::unique_ptr<collectives::Communicator> communicator_;
  std::vector<Call> calls_;
};

std::string domain_of(Device& device) {
  const DeviceProps props = device.props();
  if (!props.device_id.empty()) return props.device_id;
  if (props.type != DeviceType::kCpu) return props.name;
  // This text precedes the number of the NUMA node in the description of a CPU device.
  constexpr std::string_view kNode = ", node ";
  const size_t node = props.description.rfind(kNode);
  if (node == std::string::npos) return device.reg().name();
  const size_t begin = node + kNode.size();
  return "node" + props.description.substr(begin, props.description.find_first_not_of("0123456789", begin) - begin);
}

}  // namespace

std::vector<std::string> domain_names(std::span<Device* const> devices) {
  std::vector<std::string> names;
  for (Device* device : devices) names.push_back(domain_of(*device));
  return names;
}

namespace {

/// Largest number of devices for which all sets are measured.
constexpr int kFew = 4;

/// For n = 1, 2, 4, ..., adds the set with the first n devices of each group. The last set contains all devices of
/// the groups. Each set contains ascending indices of at least two devices and is added only once.
void add_powers(std::vector<std::vector<int>>& sets, std::span<const std::vector<int>> groups) {
  size_t most = 0;
  for (const auto& group : groups) most = std::max(most, group.size());
  for (size_t count = 1; count < 2 * most; count *= 2) {
    std::vector<int> set;
    for (const auto& group : groups) {
      set.insert(set.end(), group.begin(), group.begin() + static_cast<std::ptrdiff_t>(std::min(count, group.size())));
    }
    std::sort(set.begin(), set.end());
    if (set.size() > 1 && std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(std::move(set));
  }
}

}  // namespace

std::vector<std::vector<int>> member_sets(const MachineModel& machine) {
  const int devices = static_cast<int>(machine.devices.size());
  std::vector<std::vector<int>> sets, groups;
  for (unsigned bits = 0; devices <= kFew && bits < 1u << devices; ++bits) {
    std::vector<int> set;
    for (int i = 0; i < devices; ++i) {
      if ((bits >> i & 1u) != 0) set.push_back(i);
    }
    if (set.size() > 1) sets.push_back(std::move(set));
  }
  for (int i = 0; devices > kFew && i < devices; ++i) {
    const auto same = [&](const std::vector<int>& group) {
      return machine::DeviceSet(machine, {{i}}).has_same_kinds(machine::DeviceSet(machine, {{group.front()}}));
    };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(i);
  }
  for (const std::vector<int>& group : groups) add_powers(sets, {&group, 1});
  add_powers(sets, groups);
  return sets;
}

double slowdown(std::span<Load> loads, std::span<Backend* const> backends, double budget) {
  constexpr int kTimes = 4;
  const double wanted = std::max(budget, 10e-3);
  std::vector<int> runs;
  for (const Load& load : loads) runs.push_back(std::max(1, static_cast<int>(std::lround(wanted / load.seconds))));
  const auto seconds = [&](size_t first, size_t last) {
    return seconds_of([&] {
      for (size_t i = first; i < last; ++i) loads[i].trial->start(runs[i]);
      sched::synchronize_all(backends.subspan(first, last - first));
    });
  };
  double alone = std::numeric_limits<double>::infinity(), together = alone;
  repeat_for(kTimes * wanted * static_cast<double>(loads.size() + 1), [&] {
    double longest = 0;
    for (size_t i = 0; i < loads.size(); ++i) longest = std::max(longest, seconds(i, i + 1));
    const double all = seconds(0, loads.size());
    alone = std::min(alone, longest);
    together = std::min(together, all);
    return all / longest;
  });
  return std::max(1.0, together / alone);
}

CollectiveTable measure_collectives(std::span<Backend* const> backends, double budget, size_t largest,
                                    const std::string& comm, ProcessGroup* group) {
  Collectives collectives(backends, largest, comm, group);
  collectives.settle();
  std::map<size_t, std::vector<double>> seconds;  // samples by message size in bytes
  for (int round = 0; round < kRounds; ++round) {
    for (size_t bytes = kKilo; bytes <= largest; bytes *= 4) {
      seconds[bytes].push_back(collectives.measure(static_cast<int64_t>(bytes / sizeof(float)), budget / kRounds));
    }
  }
  CollectiveTable table;
  for (const Backend* backend : backends) table.members.push_back(common_name(backend->device(), group));
  for (const auto& [bytes, samples] : seconds) table.points.push_back({static_cast<double>(bytes), median(samples)});
  return table;
}

std::vector<std::pair<size_t, size_t>> copy_pairs(const MachineModel& machine) {
  std::vector<size_t> hosts, others;
  for (size_t i = 0; i < machine.devices.size(); ++i) {
    (machine.devices[i].type == DeviceType::kCpu ? hosts : others).push_back(i);
  }
  std::vector<std::pair<size_t, size_t>> pairs;
  if (others.size() > 1) pairs.emplace_back(others[0], others[1]);
  if (!others.empty() && !hosts.empty()) pairs.emplace_back(hosts[0], others[0]);
  if (others.empty() && hosts.size() > 1) pairs.emplace_back(hosts[0], hosts[1]);
  return pairs;
}

CopyCost measure_copies(Backend& from, Backend& to, double budget) {
  constexpr int64_t kSmall = 256, kLarge = 1 << 20;
  const auto seconds = [&](int64_t elements) {
    Message source(from.device(), elements), target(to.device(), elements);
    return repeat_for(budget, [&] {
      return seconds_of([&] {
        from.copy_async(*source.tensor, to, *target.tensor);
        from.synchronize();
        to.synchronize();
      });
    });
  };
  const double bytes = sizeof(float) * static_cast<double>(kLarge);
  const double latency = seconds(kSmall), large = seconds(kLarge);
  return {latency, bytes / std::max(large - latency, large / 2)};
}

}  // namespace shoal::probe
