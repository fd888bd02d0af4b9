#include "machine/probe_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "collectives/factory.h"
#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "machine/sets.h"
#include "processes/remote_device.h"

namespace shoal::machine {
namespace {

using collectives::Call;

constexpr size_t kKilo = 1024;
/// Threads that were just made may share a core for tens of milliseconds, until the system moves one; collectives then
/// take fifty times as long as ever after. So sets work for a while before they are measured, and every figure is
/// measured at several times.
constexpr double kSettle = 0.1;
constexpr int kRounds = 3;

void synchronize_all(std::span<Backend* const> backends) {
  std::exception_ptr failure;
  for (Backend* backend : backends) {
    try {
      backend->synchronize();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

/// Memory of one rank for messages of any size up to the largest.
struct RankMemory {
  RankMemory(Device& device, int64_t elements) : leaves(device) {
    in = leaves.add(DType::kF32, {elements, 1, 1, 1}, Role::kCache);
    out = leaves.add(DType::kF32, {elements, 1, 1, 1}, Role::kCache);
    leaves.place();
    in->buffer->memset(*in, 0, 0, in->bytes());  // sums of sums stay what they are
    out->buffer->memset(*out, 0, 0, out->bytes());
  }
  TrialLeaves leaves;
  Tensor* in = nullptr;
  Tensor* out = nullptr;
};

/// A little work for one rank, as tokens have between two collectives.
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
      memory_.push_back(std::make_unique<RankMemory>(*device, static_cast<int64_t>(largest / sizeof(float))));
    }
    for (size_t rank = 0; group != nullptr && rank < backends.size(); ++rank) {
      steps_.push_back(is_remote(*devices[rank]) ? nullptr : std::make_unique<Step>(*backends[rank]));
    }
    communicator_ = collectives::communicator_for(devices)(
        backends, {.implementation = collectives::implementation_or_default(comm), .processes = group});
  }
  ~Collectives() {
    try {
      synchronize_all(backends_);  // a communicator may only go when nothing of it is queued
    } catch (const Error&) {
      // The failure has been reported.
    }
  }
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Until the devices' threads have found their places.
  void settle() {
    prepare(Collective::kAllReduce, 1);
    for (double spent = 0; spent < kSettle;) spent += slowest(seconds_of([&] { series(16); }));
  }

  /// Seconds of one with a message of this many elements.
  double measure(Collective kind, int64_t elements, double budget) {
    prepare(kind, elements);
    series(2);
    int times = 4;
    for (double one = slowest(series(times)); one * times < kSeries && times < 1024;) one = slowest(series(times *= 2));
    if (group_ == nullptr) return repeat_for(budget, [&] { return series(times); });
    // What comes over a network finds threads, caches and sockets that have been at other work.
    std::vector<double> seconds;
    for (int i = 0; i < kSamples; ++i) {
      const double both = slowest(series(times, kSteps | kCollectives)), steps = slowest(series(times, kSteps));
      seconds.push_back(std::max(both - steps, both / 10));
    }
    return median(seconds);
  }

 private:
  /// Of several processes: they do the same, as often.
  static constexpr int kSamples = 5;

  /// The longest time of all processes, which go on together.
  double slowest(double own) const {
    if (group_ == nullptr) return own;
    for (const std::string& told : group_->gather(fmt::format("{}", own), "probe"))
      own = std::max(own, std::stod(told));
    return own;
  }

  void prepare(Collective kind, int64_t elements) {
    const auto ranks = static_cast<int64_t>(memory_.size());
    counts_.clear();
    calls_.clear();
    if (kind == Collective::kAllGather) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        counts_.push_back(elements * (rank + 1) / ranks - elements * rank / ranks);
      }
    }
    for (const auto& rank : memory_) {
      const bool in_place = kind == Collective::kAllReduce;
      calls_.push_back({kind, DType::kF32, in_place ? rank->out->data : rank->in->data, rank->out->data,
                        in_place ? elements : 0, counts_, 0, "probe"});
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
             synchronize_all(backends_);
           }) /
           times;
  }

  std::span<Backend* const> backends_;
  ProcessGroup* group_;
  std::vector<std::unique_ptr<RankMemory>> memory_;
  std::vector<std::unique_ptr<Step>> steps_;  ///< by rank, of this process; none without other processes
  std::unique_ptr<collectives::Communicator> communicator_;
  std::vector<int64_t> counts_;
  std::vector<Call> calls_;
};

std::string domain_of(Device& device) {
  const DeviceProps props = device.props();
  if (!props.device_id.empty()) return props.device_id;
  if (props.type != DeviceType::kCpu) return props.name;
  // Parts of one processor differ by their node alone.
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

constexpr int kFew = 4;
/// Sets of several kinds where there are many devices: as many as fit.
constexpr size_t kMostSets = 16;

class SetList {
 public:
  void add(std::vector<int> set) {
    std::sort(set.begin(), set.end());
    if (set.size() > 1 && std::find(sets_.begin(), sets_.end(), set) == sets_.end()) sets_.push_back(std::move(set));
  }
  /// The first few of each group.
  void add_first(std::span<const std::vector<int>* const> groups, size_t count) {
    std::vector<int> set;
    for (const auto* group : groups) {
      set.insert(set.end(), group->begin(),
                 group->begin() + static_cast<std::ptrdiff_t>(std::min(count, group->size())));
    }
    add(std::move(set));
  }
  /// The first 1, 2, 4, ... of each, and all.
  void add_powers(std::span<const std::vector<int>* const> groups) {
    size_t most = 0;
    for (const auto* group : groups) most = std::max(most, group->size());
    for (size_t count = 1; count < 2 * most; count *= 2) add_first(groups, std::min(count, most));
  }
  size_t size() const { return sets_.size(); }
  std::vector<std::vector<int>> take() { return std::move(sets_); }

 private:
  std::vector<std::vector<int>> sets_;
};

std::vector<std::vector<int>> all_sets(int devices) {
  SetList sets;
  for (unsigned bits = 0; bits < 1u << devices; ++bits) {
    std::vector<int> set;
    for (int i = 0; i < devices; ++i) {
      if ((bits >> i & 1u) != 0) set.push_back(i);
    }
    sets.add(std::move(set));
  }
  return sets.take();
}

/// Where some devices of a kind share domains and others do not: two that do, and two that do not.
void add_neighbours(SetList& sets, const MachineModel& machine, const std::vector<int>& group) {
  const auto domain = [&](int index) { return machine.devices[static_cast<size_t>(index)].domain; };
  std::vector<int> near, far;
  for (const int a : group) {
    for (const int b : group) {
      if (a >= b) continue;
      std::vector<int>& pair = domain(a) == domain(b) ? near : far;
      if (pair.empty()) pair = {a, b};
    }
  }
  if (near.empty() || far.empty()) return;
  sets.add(near);
  sets.add(far);
}

}  // namespace

std::vector<std::vector<int>> member_sets(const MachineModel& machine) {
  const int devices = static_cast<int>(machine.devices.size());
  if (devices <= kFew) return all_sets(devices);
  std::vector<std::vector<int>> groups;
  for (int i = 0; i < devices; ++i) {
    const auto same = [&](const std::vector<int>& group) {
      return DeviceSet(machine, {{i}}).has_same_kinds(DeviceSet(machine, {{group.front()}}));
    };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(i);
  }
  SetList sets;
  std::vector<const std::vector<int>*> all;
  for (const std::vector<int>& group : groups) {
    all.push_back(&group);
    sets.add_powers({{&group}});
    add_neighbours(sets, machine, group);
  }
  sets.add_powers(all);
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = a + 1; b < all.size() && sets.size() + 2 <= kMostSets; ++b) {
      const std::array pair{all[a], all[b]};
      sets.add_first(pair, 1);
      sets.add_first(pair, static_cast<size_t>(devices));
    }
  }
  return sets.take();
}

double slowdown(std::span<Load> loads, std::span<Backend* const> backends, double budget, bool least) {
  constexpr int kTimes = 4;
  const double wanted = std::max(budget, 10e-3);
  std::vector<int> runs;
  for (const Load& load : loads) runs.push_back(std::max(1, static_cast<int>(std::lround(wanted / load.seconds))));
  const auto seconds = [&](size_t first, size_t last) {
    return seconds_of([&] {
      for (size_t i = first; i < last; ++i) loads[i].trial->start(runs[i]);
      synchronize_all(backends.subspan(first, last - first));
    });
  };
  double alone = std::numeric_limits<double>::infinity(), together = alone;
  const double middle = repeat_for(kTimes * wanted * static_cast<double>(loads.size() + 1), [&] {
    double longest = 0;
    for (size_t i = 0; i < loads.size(); ++i) longest = std::max(longest, seconds(i, i + 1));
    const double all = seconds(0, loads.size());
    alone = std::min(alone, longest);
    together = std::min(together, all);
    return all / longest;
  });
  return std::max(1.0, least ? together / alone : middle);
}

std::vector<CollectiveTable> measure_collectives(std::span<Backend* const> backends, double budget, size_t largest,
                                                 const std::string& comm, ProcessGroup* group) {
  const std::vector kinds{Collective::kAllReduce, Collective::kAllGather};
  Collectives collectives(backends, largest, comm, group);
  collectives.settle();
  std::map<std::pair<Collective, size_t>, std::vector<double>> seconds;
  for (int round = 0; round < kRounds; ++round) {
    for (const Collective kind : kinds) {
      for (size_t bytes = kKilo; bytes <= largest; bytes *= 4) {
        seconds[{kind, bytes}].push_back(
            collectives.measure(kind, static_cast<int64_t>(bytes / sizeof(float)), budget / kRounds));
      }
    }
  }
  std::vector<CollectiveTable> tables;
  for (const Collective kind : kinds) {
    CollectiveTable& table = tables.emplace_back();
    table.kind = kind;
    for (const Backend* backend : backends) table.members.push_back(common_name(backend->device(), group));
    for (size_t bytes = kKilo; bytes <= largest; bytes *= 4) {
      table.points.push_back({static_cast<double>(bytes), median(seconds.at({kind, bytes}))});
    }
  }
  return tables;
}

namespace {

/// Runs of one length on several backends: each scales its input several times, and the host wants one result.
class Runs {
 public:
  Runs(std::span<Backend* const> backends, int ops) : backends_(backends), given_(kBytes), got_(kBytes) {
    for (Backend* backend : backends) {
      leaves_.push_back(std::make_unique<TrialLeaves>(backend->device()));
      inputs_.push_back(leaves_.back()->add(DType::kF32, {kElements, 1, 1, 1}, Role::kCache));
      leaves_.back()->place();
      trials_.push_back(std::make_unique<Trial>(*backend));
      Graph& g = trials_.back()->graph();
      Tensor* y = inputs_.back();
      for (int i = 0; i < ops; ++i) y = scale(g, y, {1.0f, 0.0f});
      outputs_.push_back(g.output(y));
      trials_.back()->compile();
    }
  }

  double measure(double budget) {
    run();
    return repeat_for(budget, [&] { return seconds_of([&] { run(); }); });
  }

 private:
  // Enough for all threads of a device, of which the host gives and takes little.
  static constexpr int64_t kElements = 32 * 1024;
  static constexpr size_t kBytes = 4 * kKilo;

  void run() {
    {
      std::vector<std::unique_ptr<HeldBackend>> held;
      for (Backend* backend : backends_) held.push_back(std::make_unique<HeldBackend>(*backend));
      for (size_t i = 0; i < backends_.size(); ++i) {
        backends_[i]->set_async(*inputs_[i], given_.data(), 0, kBytes);
        trials_[i]->start(1);
      }
    }
    backends_.front()->get_async(*outputs_.front(), got_.data(), 0, kBytes);
    synchronize_all(backends_);
  }

  std::span<Backend* const> backends_;
  std::vector<std::unique_ptr<TrialLeaves>> leaves_;
  std::vector<Tensor*> inputs_, outputs_;
  std::vector<std::unique_ptr<Trial>> trials_;
  std::vector<std::byte> given_, got_;
};

}  // namespace

// A host that waits for an almost empty run meets threads that are on their way to rest, which a token never is: what
// runs of a length like a small model's token cost beside their ops, which are counted in longer ones.
RunCost measure_run(std::span<Backend* const> backends, double budget) {
  constexpr int kOps = 24, kTimes = 4;
  RunCost cost;
  for (const Backend* backend : backends) cost.members.push_back(backend->device().name());
  Runs short_ones(backends, kOps), long_ones(backends, kTimes * kOps);
  std::vector<double> of_short, of_long;
  for (int round = 0; round < kRounds; ++round) {
    of_short.push_back(short_ones.measure(2 * budget / kRounds));
    of_long.push_back(long_ones.measure(2 * budget / kRounds));
  }
  const double one = median(of_short), several = median(of_long);
  cost.seconds = std::clamp(one - (several - one) / (kTimes - 1), 1e-7, one);
  return cost;
}

std::vector<CollectiveAlgorithm> fit_algorithms(const MachineModel& machine) {
  // seconds = latency + latency_per_rank * (n - 1) + traffic * bytes / bandwidth, from the smallest and largest sets.
  const CollectiveTable *small = nullptr, *large = nullptr;
  const auto set_of = [&](const CollectiveTable& table) { return *DeviceSet::of(machine, table.members); };
  for (const CollectiveTable& table : machine.collectives) {
    if (table.kind != Collective::kAllReduce) continue;
    if (large == nullptr || table.members.size() > large->members.size()) large = &table;
  }
  for (const CollectiveTable& table : machine.collectives) {
    if (table.kind != Collective::kAllReduce || !set_of(table).has_same_kinds(set_of(*large))) continue;
    if (small == nullptr || table.members.size() < small->members.size()) small = &table;
  }
  if (small == nullptr) return {};
  CollectiveAlgorithm fitted;
  fitted.name = "measured";
  const auto others = [](const CollectiveTable& table) { return static_cast<double>(table.members.size()) - 1; };
  const double first = small->points.front().seconds, last = large->points.front().seconds;
  if (others(*large) > others(*small)) {
    fitted.latency_per_rank =
        std::clamp((last - first) / (others(*large) - others(*small)), 0.0, first / others(*small));
  }
  fitted.latency = std::max(0.0, first - fitted.latency_per_rank * others(*small));
  const auto& most = large->points.back();
  const double traffic = 2 * others(*large) / (others(*large) + 1) * most.bytes;
  fitted.bandwidth = traffic / std::max(most.seconds - last, most.seconds / 2);
  return {fitted};
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
    RankMemory source(from.device(), elements), target(to.device(), elements);
    return repeat_for(budget, [&] {
      return seconds_of([&] {
        from.copy_async(*source.in, to, *target.in);
        from.synchronize();
        to.synchronize();
      });
    });
  };
  const double bytes = sizeof(float) * static_cast<double>(kLarge);
  const double latency = seconds(kSmall), large = seconds(kLarge);
  return {latency, bytes / std::max(large - latency, large / 2)};
}

}  // namespace shoal::machine
