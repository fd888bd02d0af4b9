#include "machine/probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "devices/cpu/cpu_device.h"
#include "devices/functions.h"
#include "graph/ops/ops.h"
#include "machine/probe_device.h"
#include "machine/probe_interference.h"
#include "machine/probe_links.h"
#include "machine/probe_trial.h"
#include "processes/remote_device.h"

namespace shoal::machine {
namespace {

/// How often a part of the work is done when other programs disturb it, and how many parts are done again at all.
constexpr int kTries = 2, kMostAgain = 8;
/// Rounds in which devices are compared that say the same of themselves and seem to differ.
constexpr int kTwinRounds = 3;

bool is_cpu(const Device& device) {
  return device.type() == DeviceType::kCpu && family_name(device) == "CPU";
}

int threads_of(const Device& device, int threads) {
  if (threads > 0) return threads;
  const RemoteSpec* remote = remote_spec(device);
  return remote != nullptr ? remote->threads : cpu::default_threads(device);
}

std::string names_of(std::span<Device* const> devices) {
  std::vector<std::string> names;
  for (const Device* device : devices) names.push_back(device->name());
  return fmt::format("{}", fmt::join(names, ","));
}

/// What helps a probe, in place of what helps a model.
std::string without_remedy(const std::string& text) {
  return text.substr(0, text.find(": use more devices"));
}

/// A failure of devices, with their names.
template <class Work>
void on_devices(std::span<Device* const> devices, const Work& work) {
  const auto named = [&](const std::string& text) {
    const bool is_named = std::any_of(devices.begin(), devices.end(), [&](const Device* device) {
      return text.find("[" + device->name() + "]") != std::string::npos;
    });
    return is_named ? text : fmt::format("[{}] cannot be measured: {}", names_of(devices), text);
  };
  try {
    work();
  } catch (const InternalError&) {
    throw;
  } catch (const OutOfMemory& error) {
    fail<OutOfMemory>("{}: free memory there, or leave the device out of those that are probed",
                      named(without_remedy(error.what())));
  } catch (const InvalidArgument& error) {  // of the environment
    fail<InvalidArgument>("{}", named(error.what()));
  } catch (const Error& error) {
    fail<DeviceError>("{}", named(error.what()));
  }
}

class Probe {
 public:
  Probe(std::span<Device* const> devices, const ProbeOptions& options)
      : devices_(devices),
        options_(options),
        effort_(probe_effort(options.quick)),
        others_(options.others ? options.others : other_programs) {
    check_arguments();
    for (const Device* device : devices_) describe(*device);
    streamed_.resize(devices_.size());
    find_domains();
    sets_ = member_sets(machine_);
    total_ = static_cast<int>(devices_.size() * (3 + dtypes().size()) + 2 + sets_.size());
  }

  MachineModel run() {
    for (Device* device : devices_) check_memory(*device);
    for (size_t i = 0; i < devices_.size(); ++i) {
      on_devices(devices_.subspan(i, 1), [&] { measure_device(i); });
    }
    tell("devices together");
    for (size_t d = 0; d < machine_.domains.size(); ++d) measure_domain(static_cast<int>(d));
    for (const std::vector<int>& set : sets_) {
      tell("collectives of " + names_of(devices_of(set)));
      part([&] { measure_set(set); });
    }
    machine_.name = "local";
    machine_.algorithms = fit_algorithms(machine_);
    tell("copies");
    part([&] { measure_all_copies(); });
    machine_.disturbance = disturbance();
    return std::move(machine_);
  }

 private:
  std::vector<DType> dtypes() const { return options_.dtypes.empty() ? probe_dtypes() : options_.dtypes; }

  void check_arguments() const {
    require<InvalidArgument>(!devices_.empty(), "[probe] expected at least one device, got none");
    std::set<const Device*> seen;
    for (const Device* device : devices_) {
      require<InvalidArgument>(device != nullptr, "[probe] a device is missing");
      require<InvalidArgument>(device->type() != DeviceType::kMeta,
                               "[probe] {} stands for several devices; name these instead", device->name());
      require<InvalidArgument>(seen.insert(device).second, "[probe] {} is listed twice; name each device once",
                               device->name());
    }
    const std::vector<DType> known = probe_dtypes();
    for (const DType dtype : options_.dtypes) {
      require<InvalidArgument>(std::find(known.begin(), known.end(), dtype) != known.end(),
                               "[probe] weights cannot be of type {}", name_of(dtype));
    }
  }

  void tell(const std::string& what) {
    if (options_.progress) options_.progress(done_, total_, what);
    ++done_;
  }

  std::unique_ptr<Backend> make(size_t index) const {
    return devices_[index]->init(probe_params(*devices_[index], options_.threads));
  }

  /// What a device says of itself.
  void describe(const Device& device) {
    DeviceModel& model = machine_.devices.emplace_back();
    model.name = device.name();
    model.identity = probe_identity(device, options_.threads);
    model.type = device.type();
    model.memory = device.memory().total;
    model.cores = is_cpu(device) ? threads_of(device, options_.threads) : 1;
  }

  void find_domains() {
    const std::vector<std::string> names = domain_names(devices_);
    for (size_t i = 0; i < devices_.size(); ++i) {
      const auto known = std::find_if(machine_.domains.begin(), machine_.domains.end(),
                                      [&](const Domain& domain) { return domain.name == names[i]; });
      machine_.devices[i].domain = static_cast<int>(known - machine_.domains.begin());
      if (known == machine_.domains.end()) machine_.domains.push_back({names[i], 0, 0});
    }
  }

  /// A part of the work, done again where other programs disturb it: the try counts that they disturbed least.
  void part(const std::function<void()>& work) {
    const MachineModel before = machine_;
    MachineModel best;
    double least = std::numeric_limits<double>::infinity();
    for (int tries = 1;; ++tries) {
      const StretchClock clock(others_);
      work();
      const Stretch stretch = clock.stop();
      const double cores = stretch.is_disturbed() ? stretch.cores() : 0;
      if (cores < least) {
        least = cores;
        best = std::move(machine_);
      }
      if (cores == 0 || tries == kTries || again_ == kMostAgain) break;
      ++again_;
      machine_ = before;
    }
    machine_ = std::move(best);
    busiest_ = std::max(busiest_, least);
  }

  /// Why the figures may be wrong.
  std::string disturbance() const {
    if (busiest_ == 0) return unlike_;
    const std::string others = fmt::format("other programs kept {:.1f} cores busy", busiest_);
    return unlike_.empty() ? others : others + ", and " + unlike_;
  }

  void measure_device(size_t index) {
    Device& device = *devices_[index];
    const std::vector<DType> types = supported_dtypes(device, dtypes());
    require<DeviceError>(!types.empty(), "[{}] multiplies with none of the types of weights asked for", device.name());
    const DType last = types.back();
    tell(fmt::format("{} caches and costs", device.name()));
    signs_.push_back(sign(index, last));
    const std::optional<size_t> twin = find_twin(index, last);
    figures_of_.push_back(index);
    if (twin && !is_slower(*twin, index)) {
      figures_of_[index] = figures_of_[*twin];
      take_figures(*twin, index);
      done_ += static_cast<int>(dtypes().size()) + 2;
      return;
    }
    const auto backend = make(index);
    DeviceProbe probe(device, *backend, effort_);
    const auto model = [&]() -> DeviceModel& { return machine_.devices[index]; };
    part([&] { probe.measure_basics(model(), last); });
    for (const DType dtype : types) {
      tell(fmt::format("{} {}", device.name(), name_of(dtype)));
      part([&] { probe.measure_products(model(), dtype); });
    }
    tell(fmt::format("{} attention", device.name()));
    part([&] { probe.measure_attention(model()); });
    tell(fmt::format("{} activations", device.name()));
    part([&] { probe.measure_activations(model(), last); });
    streamed_[index] = probe.streamed_bytes();
    if (twin) replace_figures(figures_of_[*twin], index);
  }

  /// Of all devices that have those of `from`.
  void replace_figures(size_t from, size_t by) {
    for (size_t i = 0; i < by; ++i) {
      if (figures_of_[i] != from) continue;
      figures_of_[i] = by;
      take_figures(by, i);
    }
  }

  double sign(size_t index, DType dtype) const {
    const auto backend = make(index);
    return DeviceProbe(*devices_[index], *backend, effort_).sign(dtype);
  }

  /// Was it slower when its turn came?
  bool is_slower(size_t one, size_t other) const {
    return compare_twins({{{signs_[one], signs_[other]}}}) != Likeness::kAlike && signs_[one] > signs_[other];
  }

  /// Is there one measured that says the same of itself, and is as fast as this one, as far as that can be known now?
  std::optional<size_t> find_twin(size_t index, DType dtype) {
    for (size_t other = 0; other < index; ++other) {
      if (machine_.devices[other].identity != machine_.devices[index].identity) continue;
      std::vector<TwinRound> rounds{{signs_[other], signs_[index]}};
      if (compare_twins(rounds) == Likeness::kAlike) return other;
      rounds.clear();
      for (int i = 0; i < kTwinRounds; ++i) {
        const StretchClock clock(others_);
        TwinRound& round = rounds.emplace_back(TwinRound{sign(other, dtype), sign(index, dtype)});
        round.is_disturbed = clock.stop().is_disturbed();
      }
      const Likeness likeness = compare_twins(rounds);
      if (likeness == Likeness::kAlike) return other;
      const std::string both = devices_[other]->name() + " and " + devices_[index]->name();
      unlike_ = fmt::format("{}, which are described alike, took different times for the same work", both);
      if (likeness == Likeness::kUncertain) return other;
    }
    return std::nullopt;
  }

  void take_figures(size_t from, size_t to) {
    DeviceModel& model = machine_.devices[to];
    const DeviceModel own = model;
    model = machine_.devices[from];
    model.name = own.name;
    model.memory = own.memory;
    model.domain = own.domain;
  }

  /// What devices of one domain have together.
  void measure_domain(int number) {
    std::vector<size_t> members;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (machine_.devices[i].domain == number) members.push_back(i);
    }
    const auto domain = [&]() -> Domain& { return machine_.domains[static_cast<size_t>(number)]; };
    for (const size_t i : members) {
      domain().bandwidth += machine_.devices[i].bandwidth;
      domain().cores += machine_.devices[i].cores;
    }
    if (members.size() < 2) return;
    const std::vector<std::string> types = common_types(members);
    if (types.empty()) return;
    std::vector<SharedReads> reads;
    for (const std::string& type : types) {
      part([&] { machine_.devices[members[0]].products.at(type).contention = together(members, type, false); });
      const double slowdown = machine_.devices[members[0]].products.at(type).contention;
      reads.push_back({type, read_rate(members, type), slowdown});
    }
    std::vector<DeviceModel*> models;
    const auto fastest = std::max_element(reads.begin(), reads.end(),
                                          [](const auto& one, const auto& other) { return one.alone < other.alone; });
    part([&] { domain().cores /= together(members, fastest->dtype, true); });
    for (const size_t i : members) models.push_back(&machine_.devices[i]);
    domain().bandwidth = share_reads(reads, models);
  }

  /// Types of weights that all of them multiply with.
  std::vector<std::string> common_types(const std::vector<size_t>& members) const {
    std::vector<std::string> types;
    for (const auto& [name, product] : machine_.devices[members[0]].products) {
      const auto has_it = [&, &name = name](size_t i) { return machine_.devices[i].products.contains(name); };
      if (std::all_of(members.begin(), members.end(), has_it)) types.push_back(name);
    }
    return types;
  }

  /// Bytes/s that they read of such weights, each by itself.
  double read_rate(const std::vector<size_t>& members, const std::string& type) const {
    const DTypeTraits& t = traits(*dtype_from_name(type));
    const double bytes = static_cast<double>(t.block_bytes) / static_cast<double>(t.block_elems);
    double rate = 0;
    for (const size_t i : members) rate += bytes / machine_.devices[i].products.at(type).streamed[0].seconds;
    return rate;
  }

  double together(const std::vector<size_t>& members, const std::string& type, bool computes) {
    std::vector<Device*> devices;
    for (const size_t i : members) devices.push_back(devices_[i]);
    double factor = 1;
    on_devices(devices, [&] {
      std::vector<std::unique_ptr<Backend>> backends;
      std::vector<Backend*> pointers;
      std::vector<Load> loads;
      for (const size_t i : members) {
        DeviceProbe probe(*devices_[i], *pointers.emplace_back(backends.emplace_back(make(i)).get()), effort_);
        loads.push_back(probe.make_load(*dtype_from_name(type), streamed_[figures_of_[i]], computes));
      }
      factor = slowdown(loads, pointers, effort_.budget, computes);
    });
    return factor;
  }

  std::vector<Device*> devices_of(const std::vector<int>& set) const {
    std::vector<Device*> devices;
    for (const int i : set) devices.push_back(devices_[static_cast<size_t>(i)]);
    return devices;
  }

  void measure_set(const std::vector<int>& set) {
    on_devices(devices_of(set), [&] {
      std::vector<std::unique_ptr<Backend>> backends;
      std::vector<Backend*> pointers;
      for (const int i : set) pointers.push_back(backends.emplace_back(make(static_cast<size_t>(i))).get());
      // Collectives first: threads settle with them.
      const auto tables = measure_collectives(pointers, effort_.budget / 2, largest_message(), options_.comm);
      machine_.collectives.insert(machine_.collectives.end(), tables.begin(), tables.end());
      machine_.runs.push_back(measure_run(pointers, effort_.budget));
    });
  }

  size_t largest_message() const { return options_.quick ? 4 * kMega : 16 * kMega; }

  /// Better before anything has been measured than at the last set.
  void check_memory(Device& device) const {
    const size_t free = device.memory().free;
    const size_t messages = devices_.size() > 1 ? 2 * largest_message() : 0;
    const size_t least = std::max(messages, least_memory(device, effort_, supported_dtypes(device, dtypes())));
    require<OutOfMemory>(
        free >= least,
        "[{}] cannot be measured: it takes {}, and {} are free: free memory there, or leave the device "
        "out of those that are probed",
        device.name(), format_bytes(least), format_bytes(free));
  }

  /// One figure serves all copies. Between GPUs they are small and latency counts; what is large comes from the host.
  void measure_all_copies() {
    const auto pairs = copy_pairs(machine_);
    for (size_t i = 0; i < pairs.size(); ++i) {
      CopyCost cost;
      const std::array both{devices_[pairs[i].first], devices_[pairs[i].second]};
      on_devices(both, [&] {
        const auto from = make(pairs[i].first), to = make(pairs[i].second);
        cost = measure_copies(*from, *to, effort_.budget);
      });
      if (i == 0) machine_.copy_latency = cost.latency;
      machine_.copy_bandwidth = i == 0 ? cost.bandwidth : std::min(machine_.copy_bandwidth, cost.bandwidth);
    }
  }

  std::span<Device* const> devices_;
  const ProbeOptions& options_;
  const ProbeEffort effort_;
  const std::function<double()> others_;  ///< CPU seconds of other programs
  std::vector<std::vector<int>> sets_;
  MachineModel machine_;
  std::vector<double> signs_;       ///< by device
  std::vector<size_t> figures_of_;  ///< by device: the one that was measured for it
  std::vector<size_t> streamed_;    ///< by device that was measured: bytes that are not read from caches
  int again_ = 0;                   ///< parts done again
  double busiest_ = 0;              ///< cores that other programs kept busy in a part that was disturbed
  std::string unlike_;              ///< devices that should be alike
  int done_ = 0, total_ = 0;
};

}  // namespace

MachineModel probe(std::span<Device* const> devices, const ProbeOptions& options) {
  const PollScope polled(options.poll);
  return Probe(devices, options).run();
}

std::string probe_warning(const Device& device) {
  const size_t wanted = 3 * beyond_caches(device), free = device.memory().free;
  if (free >= wanted) return "";
  return fmt::format(
      "{} of {} are free, and it takes {} to read more than caches may hold: its figures may be those of its caches",
      format_bytes(free), device.name(), format_bytes(wanted));
}

std::string probe_params(const Device& device, int threads) {
  return is_cpu(device) ? fmt::format("threads={}", threads_of(device, threads)) : "";
}

std::string probe_identity(const Device& device, int threads) {
  std::string text = device.description();
  // Parts of one GPU are alike.
  if (const size_t part = text.rfind(", part "); part != std::string::npos) text.resize(part);
  // Devices that share a processor are other cores of it when there are more of them.
  const RemoteSpec* remote = remote_spec(device);
  if (is_cpu(device)) text += fmt::format("; one of {}", remote ? remote->siblings : device.reg().devices().size());
  if (const std::string params = probe_params(device, threads); !params.empty()) text += "; " + params;
  if (remote != nullptr) return remote->isa.empty() ? text : text + "; isa=" + remote->isa;
  if (const auto features = find_function(device.reg(), functions::kFeatures)) {
    for (const functions::Feature& feature : features()) {
      if (feature.name == "isa") text += "; isa=" + feature.value;
    }
  }
  return text;
}

std::string probe_place(const Device& device) {
  const RemoteSpec* remote = remote_spec(device);
  return remote != nullptr ? remote->place : place_of(device);
}

std::vector<DType> probe_dtypes() {
  std::vector<DType> found;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (traits(dtype).is_float || traits(dtype).is_quantized) found.push_back(dtype);
  }
  return found;
}

std::vector<DType> supported_dtypes(const Device& device, std::span<const DType> dtypes) {
  std::vector<DType> found;
  for (const DType dtype : dtypes) {
    Graph graph;
    TensorContext context;
    Tensor* weights = context.add("w", dtype, {2048, 256, 1, 1});
    if (device.supports_op(*mul_mat(graph, weights, graph.input("x", DType::kF32, {2048, 1, 1, 1})))) {
      found.push_back(dtype);
    }
  }
  return found;
}

}  // namespace shoal::machine
