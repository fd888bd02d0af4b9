#include "machine/cost_model.h"

#include <algorithm>
#include <bit>

namespace shoal::machine {
namespace {

DeviceModel rough_device() {
  DeviceModel device;
  device.bandwidth = device.activation_bandwidth = device.attention_bandwidth = 50e9;
  device.attention_rate = 200e9;
  device.op_seconds = 0;
  add_products(device, 200e9, device.bandwidth);
  return device;
}

/// Whether two devices have equal rates and times. Names, identities, domains and memory may differ.
bool are_alike(DeviceModel one, const DeviceModel& other) {
  one.name = other.name;
  one.identity = other.identity;
  one.domain = other.domain;
  one.memory = other.memory;
  return one == other;
}

DeviceModel completed(DeviceModel device) {
  add_products(device, 1e15, std::max(device.bandwidth, 1.0));
  return device;
}

}  // namespace

CostModel::Kind::Kind(DeviceModel model)
    : device(std::make_shared<const DeviceModel>(std::move(model))), products(*device) {}

CostModel::CostModel() {
  static const Kind rough(rough_device());
  kinds_.push_back(rough);
}

CostModel::CostModel(std::shared_ptr<const MachineModel> machine, std::vector<int> devices)
    : machine_(std::move(machine)), devices_(std::move(devices)) {
  for (const int device : devices_) add_rank(completed(machine_->devices.at(static_cast<size_t>(device))));
}

CostModel CostModel::of(std::shared_ptr<const MachineModel> machine, std::span<const std::string> devices) {
  if (machine == nullptr) return {};
  std::vector<int> found;
  for (const std::string& name : devices) {
    const auto same = [&](const DeviceModel& device) { return device.name == name; };
    const auto it = std::find_if(machine->devices.begin(), machine->devices.end(), same);
    if (it == machine->devices.end()) return {};
    found.push_back(static_cast<int>(it - machine->devices.begin()));
  }
  return {std::move(machine), std::move(found)};
}

void CostModel::add_rank(const DeviceModel& device) {
  const auto alike = [&](const Kind& kind) { return are_alike(*kind.device, device); };
  const auto it = std::find_if(kinds_.begin(), kinds_.end(), alike);
  ranks_.push_back(static_cast<int>(it - kinds_.begin()));
  if (it == kinds_.end()) kinds_.emplace_back(device);
}

double CostModel::collective(Collective kind, int ranks, double bytes) const {
  if (machine_ == nullptr) return rough_collective_seconds(kind, ranks, bytes);
  const auto [known, is_new] =
      collectives_.try_emplace(std::bit_cast<uint64_t>(bytes) * kCollectives.size() + static_cast<uint64_t>(kind), 0.0);
  if (is_new) known->second = machine_->collective_seconds(kind, devices_, bytes);
  return known->second;
}

double CostModel::copy(double bytes) const {
  double bandwidth = kinds_.front().device->activation_bandwidth;
  for (const Kind& kind : kinds_) bandwidth = std::min(bandwidth, kind.device->activation_bandwidth);
  return bandwidth > 0 ? bytes / bandwidth : 0;
}

double CostModel::compute(const Tensor& node, int kind, int64_t experts) const {
  const Kind& one = kinds_[static_cast<size_t>(kind)];
  return node_cost(*one.device, one.products, node, 0, false, experts).seconds;
}

double CostModel::pair_seconds(const Tensor& node, int kind, int64_t experts) const {
  const Kind& one = kinds_[static_cast<size_t>(kind)];
  return machine::pair_seconds(*one.device, one.products, node, false, experts);
}

}  // namespace shoal::machine
