#include "tuning/probe/probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "devices/cpu/cpu_device.h"
#include "devices/functions.h"
#include "graph/ops/ops.h"
#include "processes/remote_device.h"
#include "tuning/probe/other_programs.h"
#include "tuning/probe/probe_device.h"
#include "tuning/probe/probe_links.h"
#include "tuning/probe/probe_trial.h"

namespace shoal::probe {
namespace {

/// Number of cores that other programs may keep busy on an idle machine.
constexpr double kAtRest = 0.2;

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

/// Removes the remedy "use more devices" from an error message. More devices help to load a model, but not to probe a
/// device.
std::string without_remedy(const std::string& text) {
  return text.substr(0, text.find(": use more devices"));
}

/// Runs `work`. Adds the names of the devices to the messages of its exceptions.
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
    fail<OutOfMemory>("{}: release memory on the device, or omit the device", named(without_remedy(error.what())));
  } catch (const InvalidArgument& error) {  // for example, an environment variable is invalid
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
    total_ = static_cast<int>(2 + sets_.size());
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (first_alike(i) == i) total_ += static_cast<int>(3 + supported_dtypes(*devices_[i], dtypes()).size());
    }
  }

  MachineModel run() {
    for (Device* device : devices_) check_memory(*device);
    const double others = others_();
    const double seconds = seconds_of([&] { measure_everything(); });
    const double busy = (others_() - others) / seconds;
    if (busy > kAtRest) machine_.disturbance = fmt::format("other programs kept {:.1f} cores busy", busy);
    return std::move(machine_);
  }

 private:
  std::vector<DType> dtypes() const { return options_.dtypes.empty() ? machine::weight_dtypes() : options_.dtypes; }

  void check_arguments() const {
    require<InvalidArgument>(!devices_.empty(), "[probe] expected at least one device, got none");
    std::set<const Device*> seen;
    for (const Device* device : devices_) {
      require<InvalidArgument>(device != nullptr, "[probe] a device is null");
      require<InvalidArgument>(device->type() != DeviceType::kMeta,
                               "[probe] {} is a meta device; name its members instead", device->name());
      require<InvalidArgument>(seen.insert(device).second, "[probe] {} is listed twice; name each device once",
                               device->name());
    }
    const std::vector<DType> known = machine::weight_dtypes();
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

  /// Adds `device` with the properties that `device` reports.
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
                                      [&](const machine::Domain& domain) { return domain.name == names[i]; });
      machine_.devices[i].domain = static_cast<int>(known - machine_.domains.begin());
      if (known == machine_.domains.end()) machine_.domains.push_back({names[i], 0, 0});
    }
  }

  void measure_everything() {
    for (size_t i = 0; i < devices_.size(); ++i) {
      on_devices(devices_.subspan(i, 1), [&] { measure_device(i); });
    }
    tell("devices together");
    for (size_t d = 0; d < machine_.domains.size(); ++d) measure_domain(static_cast<int>(d));
    for (const std::vector<int>& set : sets_) {
      tell("collectives of " + names_of(devices_of(set)));
      measure_set(set);
    }
    machine_.name = "local";
    tell("copies");
    measure_all_copies();
  }

  /// Index of the first device with the same identity. All devices with this identity get the measurements of the first
  /// device. If each device were measured, noise would cause uneven splits.
  size_t first_alike(size_t index) const {
    size_t first = 0;
    while (machine_.devices[first].identity != machine_.devices[index].identity) ++first;
    return first;
  }

  void measure_device(size_t index) {
    if (const size_t first = first_alike(index); first != index) return take_figures(first, index);
    Device& device = *devices_[index];
    const std::vector<DType> types = supported_dtypes(device, dtypes());
    require<DeviceError>(!types.empty(), "[{}] supports none of the requested types of weights", device.name());
    const auto backend = make(index);
    DeviceProbe probe(device, *backend, effort_);
    DeviceModel& model = machine_.devices[index];
    tell(fmt::format("{} caches and fixed costs", device.name()));
    probe.measure_basics(model, types.back());
    for (const DType dtype : types) {
      tell(fmt::format("{} {}", device.name(), name_of(dtype)));
      probe.measure_products(model, dtype);
    }
    tell(fmt::format("{} attention", device.name()));
    probe.measure_attention(model);
    tell(fmt::format("{} activations", device.name()));
    probe.measure_activations(model, types.back());
    streamed_[index] = probe.streamed_bytes();
  }

  void take_figures(size_t from, size_t to) {
    DeviceModel& model = machine_.devices[to];
    const DeviceModel own = std::exchange(model, machine_.devices[from]);
    model.name = own.name;
    model.memory = own.memory;
    model.domain = own.domain;
    streamed_[to] = streamed_[from];
  }

  /// Measures the bandwidth and the cores that the devices of a domain share.
  void measure_domain(int number) {
    machine::Domain& domain = machine_.domains[static_cast<size_t>(number)];
    std::vector<size_t> members;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (machine_.devices[i].domain != number) continue;
      members.push_back(i);
      domain.bandwidth += machine_.devices[i].bandwidth;
      domain.cores += machine_.devices[i].cores;
    }
    if (members.size() < 2) return;
    // Prefers quantised types, because most models use them. An unquantised type is used only if the devices have no
    // common quantised type.
    double most = 0;
    DType fastest = DType::kF32;
    for (const DType dtype : machine::weight_dtypes()) {
      const double rate = read_rate(members, dtype);
      const bool is_preferred = traits(dtype).is_quantized == traits(fastest).is_quantized ? rate > most : rate > 0;
      if (is_preferred) most = rate, fastest = dtype;
    }
    if (most == 0) return;
    domain.bandwidth = most / together(members, fastest, false);
    domain.cores /= together(members, fastest, true);
  }

  /// Sum of the rates (bytes/s) at which the devices read weights of this type, each device alone. 0 if a device does
  /// not support the type.
  double read_rate(const std::vector<size_t>& members, DType dtype) const {
    double rate = 0;
    for (const size_t i : members) {
      const auto& products = machine_.devices[i].products;
      const auto product = products.find(std::string(name_of(dtype)));
      if (product == products.end()) return 0;
      rate += machine::element_bytes(dtype) / product->second.streamed[0].seconds;
    }
    return rate;
  }

  double together(const std::vector<size_t>& members, DType dtype, bool computes) {
    std::vector<Device*> devices;
    for (const size_t i : members) devices.push_back(devices_[i]);
    double factor = 1;
    on_devices(devices, [&] {
      std::vector<std::unique_ptr<Backend>> backends;
      std::vector<Backend*> pointers;
      std::vector<Load> loads;
      for (const size_t i : members) {
        DeviceProbe probe(*devices_[i], *pointers.emplace_back(backends.emplace_back(make(i)).get()), effort_);
        loads.push_back(probe.make_load(dtype, streamed_[i], computes));
      }
      factor = slowdown(loads, pointers, effort_.budget);
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
      machine_.collectives.push_back(
          measure_collectives(pointers, effort_.budget / 2, largest_message(options_.quick), options_.comm));
    });
  }

  /// Throws if the device has too little memory for the measurements. Without this check, the error might occur only at
  /// the last set.
  void check_memory(Device& device) const {
    const size_t free = device.memory().free;
    const size_t messages = devices_.size() > 1 ? largest_message(options_.quick) : 0;
    const size_t least = std::max(messages, least_memory(device, effort_, supported_dtypes(device, dtypes())));
    require<OutOfMemory>(
        free >= least,
        "[{}] cannot be measured: {} are needed, but {} are free: release memory on the device, or omit the device",
        device.name(), format_bytes(least), format_bytes(free));
  }

  /// Measures one latency and one bandwidth for all copies. The latency comes from the first pair, which consists of
  /// two GPUs if possible, because small copies are mostly between GPUs. The bandwidth is the lowest of all pairs,
  /// because large copies come from the host.
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
  const std::function<double()> others_;  ///< see ProbeOptions::others
  std::vector<std::vector<int>> sets_;
  MachineModel machine_;
  std::vector<size_t> streamed_;  ///< for each device: size of a working set that exceeds its caches, in bytes
  int done_ = 0, total_ = 0;
};

}  // namespace

MachineModel probe(std::span<Device* const> devices, const ProbeOptions& options) {
  const PollScope polled(options.poll);
  return Probe(devices, options).run();
}

std::string probe_params(const Device& device, int threads) {
  return is_cpu(device) ? fmt::format("threads={}", threads_of(device, threads)) : "";
}

std::string probe_identity(const Device& device, int threads) {
  std::string text = device.description();
  // One GPU may be divided into several devices (SHOAL_CUDA_DEVICES_PER_GPU). The identity omits the number of the
  // part, so all devices of one GPU have the same identity.
  if (const size_t part = text.rfind(", part "); part != std::string::npos) text.resize(part);
  // The identity contains the number of CPU devices, because this number determines which cores each device has.
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

}  // namespace shoal::probe
