#include "processes/remote_device.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include <fmt/ranges.h>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/topology.h"
#include "devices/functions.h"
#include "devices/node_plan.h"

namespace shoal {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RemoteSpec, name, description, family, type, free, total, is_host, siblings, threads,
                                   isa, place)

namespace {

class RemoteBuffer final : public Buffer {
 public:
  RemoteBuffer(RemoteBufferType& type, RemoteDevice& device, size_t size) : Buffer(type, size), device_(device) {
    device_.take(size);
  }
  ~RemoteBuffer() override {
    close();
    device_.give_back(size());
  }
  /// Returns an address that no code dereferences.
  std::byte* base() const override { return reinterpret_cast<std::byte*>(uintptr_t{1} << 20); }
  void clear(uint8_t) override {}

 protected:
  void do_set(Tensor&, const void*, size_t, size_t) override {}
  void do_memset(Tensor&, uint8_t, size_t, size_t) override {}
  void do_fill(Tensor&, size_t, size_t, const ByteReader&) override {}
  void do_get(const Tensor& tensor, void*, size_t, size_t) override {
    fail<InternalError>("internal error: {} is on {} in another process and cannot be read in this process",
                        describe(tensor), device_.name());
  }

 private:
  RemoteDevice& device_;
};

class RemoteEvent final : public Event {
 public:
  explicit RemoteEvent(RemoteDevice& device) : device_(device) {}
  Device& device() const override { return device_; }
  void record(Backend&) override {}
  void wait(Backend&) override {}
  void synchronize() override {}

 private:
  RemoteDevice& device_;
};

class RemoteBackend final : public Backend {
 public:
  explicit RemoteBackend(RemoteDevice& device) : device_(device) {}
  ~RemoteBackend() override { plans().clear(); }
  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  void set_2d_async(Tensor&, const void*, size_t, const Rows&) override {}
  void synchronize() override {}
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override {
    check_options(range, options);
    return std::make_unique<NodePlan>(*this, range, options);
  }
  void compute_async(GraphPlan&, int, int) override {}
  bool enqueue(const HostTask&) override { return true; }

 private:
  RemoteDevice& device_;
};

class RemoteFamily final : public BackendReg {
 public:
  std::string name() const override { return "REMOTE"; }
  std::span<Device* const> devices() const override {
    const std::lock_guard lock(mutex_);
    return lists_.back();
  }
  bool is_listed() const override { return false; }
  RemoteDevice& add(RemoteSpec spec, Device* like) {
    const std::lock_guard lock(mutex_);
    RemoteDevice& device = devices_.emplace_back(std::move(spec), like);
    std::vector<Device*> list = lists_.back();
    std::erase_if(list, [&](const Device* known) { return known->name() == device.name(); });
    list.push_back(&device);
    lists_.push_back(std::move(list));
    return device;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<RemoteDevice> devices_;
  std::deque<std::vector<Device*>> lists_{{}};  ///< the last list is current; earlier lists may still be in use
};

RemoteFamily& family() {
  static RemoteFamily& registered = []() -> RemoteFamily& {
    auto made = std::make_unique<RemoteFamily>();
    RemoteFamily& family = *made;
    Registry::instance().add(std::move(made));
    return family;
  }();
  return registered;
}

bool is_cpu(const Device& device) {
  return device.type() == DeviceType::kCpu && device.reg().name() == "CPU";
}

std::string isa_of(const Device& device) {
  const auto features = find_function(device.reg(), functions::kFeatures);
  if (features == nullptr) return {};
  for (const functions::Feature& feature : features()) {
    if (feature.name == "isa") return feature.value;
  }
  return {};
}

/// Returns the spec that this process sends to the other processes. The receivers add the process number and the host.
RemoteSpec spec_of(Device& device) {
  const DeviceMemory memory = device.memory();
  return {.name = device.name(),
          .description = device.description(),
          .host = {},
          .family = device.reg().name(),
          .type = device.type(),
          .free = memory.free,
          .total = memory.total,
          .is_host = device.buffer_type().is_host(),
          .siblings = static_cast<int>(device.reg().devices().size()),
          .threads = is_cpu(device) ? cpu::default_threads(device) : 0,
          .isa = isa_of(device),
          .place = place_of(device)};
}

/// If several processes of one computer have CPU devices, each of these processes counts only a part of the computer's
/// memory.
void divide_memory(ProcessGroup& group, std::span<Device* const> own) {
  std::set<int> nodes;
  for (const Device* device : own) {
    if (is_cpu(*device)) nodes.insert(cpu::machine_nodes().size() == 1 ? -1 : cpu::node_of(*device));
  }
  const std::vector<std::string> all = group.gather(nlohmann::json(nodes).dump(), "CPU devices");
  std::vector<std::set<int>> neighbours;
  size_t index = 0;
  for (const int process : group.processes_of(group.node(group.own()))) {
    if (process == group.own()) index = neighbours.size();
    neighbours.push_back(nlohmann::json::parse(all[static_cast<size_t>(process)]).get<std::set<int>>());
  }
  cpu::share_memory(memory_sharers(neighbours, index));
}

}  // namespace

std::string RemoteBufferType::name() const {
  return device_.name();
}
Device& RemoteBufferType::device() const {
  return device_;
}
std::unique_ptr<Buffer> RemoteBufferType::allocate(size_t size) {
  return std::make_unique<RemoteBuffer>(*this, device_, size);
}

RemoteDevice::RemoteDevice(RemoteSpec spec, Device* like)
    : spec_(std::move(spec)),
      name_(name_in_process(spec_.process, spec_.name)),
      like_(like),
      buffer_type_(*this, like != nullptr ? &like->buffer_type() : nullptr),
      weights_type_(*this, like != nullptr ? &like->weights_type() : nullptr) {}

DeviceMemory RemoteDevice::memory() const {
  return {spec_.free - std::min(used_.load(), spec_.free), spec_.total};
}

DeviceProps RemoteDevice::props() const {
  DeviceProps props{name(), description(), type(), memory(), "", {}};
  props.caps.async = props.caps.events = true;
  return props;
}

BackendReg& RemoteDevice::reg() const {
  return family();
}

std::unique_ptr<Backend> RemoteDevice::init(std::string_view) {
  return std::make_unique<RemoteBackend>(*this);
}

std::unique_ptr<Event> RemoteDevice::new_event() {
  return std::make_unique<RemoteEvent>(*this);
}

int memory_sharers(std::span<const std::set<int>> nodes, size_t own) {
  const std::set<int>& mine = nodes[own];
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [&](const std::set<int>& its) {
    if (its.empty() || mine.empty()) return false;
    if (its.contains(-1) || mine.contains(-1)) return true;
    return std::any_of(its.begin(), its.end(), [&](int node) { return mine.contains(node); });
  }));
}

std::vector<Device*> gather_devices(ProcessGroup& group, std::span<Device* const> own) {
  divide_memory(group, own);
  std::vector<RemoteSpec> told;
  for (Device* device : own) told.push_back(spec_of(*device));
  const std::vector<std::string> texts = group.gather(nlohmann::json(told).dump(), "devices");
  std::vector<Device*> all;
  for (int process = 0; process < group.size(); ++process) {
    if (process == group.own()) {
      all.insert(all.end(), own.begin(), own.end());
      continue;
    }
    const nlohmann::json devices = nlohmann::json::parse(texts[static_cast<size_t>(process)]);
    for (RemoteSpec spec : devices.get<std::vector<RemoteSpec>>()) {
      spec.process = process;
      spec.host = group.host(process);
      spec.place = fmt::format("host {} {}", spec.host, spec.place);
      BackendReg* known = Registry::instance().find_family(spec.family);
      Device* like = known == nullptr || known->devices().empty() ? nullptr : known->devices().front();
      all.push_back(&family().add(std::move(spec), like));
    }
  }
  return all;
}

std::string place_of(const Device& device) {
  return is_cpu(device) ? fmt::format("cores {}", fmt::join(cpu::cores_of(device), ",")) : device.props().device_id;
}

const RemoteSpec* remote_spec(const Device& device) {
  const auto* remote = dynamic_cast<const RemoteDevice*>(&device);
  return remote != nullptr ? &remote->spec() : nullptr;
}

bool is_remote(const Device& device) {
  return remote_spec(device) != nullptr;
}

int process_of(const Device& device, int own) {
  const RemoteSpec* remote = remote_spec(device);
  return remote != nullptr ? remote->process : own;
}

std::string name_in_process(int process, std::string_view name) {
  return process == 0 ? std::string(name) : fmt::format("{}:{}", process, name);
}

std::string common_name(const Device& device, const ProcessGroup* group) {
  return group == nullptr || is_remote(device) ? device.name() : name_in_process(group->own(), device.name());
}

std::string family_name(const Device& device) {
  const RemoteSpec* remote = remote_spec(device);
  return remote != nullptr ? remote->family : device.reg().name();
}

bool has_host_memory(Device& device) {
  const RemoteSpec* remote = remote_spec(device);
  return remote != nullptr ? remote->is_host : device.buffer_type().is_host();
}

}  // namespace shoal
