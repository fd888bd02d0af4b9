#include "collectives/absent_communicator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "collectives/factory.h"
#include "processes/remote_device.h"

namespace shoal::collectives {
namespace {

/// The process that owns all members of a mesh; nullopt if several processes own members.
std::optional<int> only_process(std::span<Device* const> members, int own) {
  const int first = process_of(*members.front(), own);
  const bool is_one =
      std::all_of(members.begin(), members.end(), [&](Device* member) { return process_of(*member, own) == first; });
  return is_one ? std::optional(first) : std::nullopt;
}

/// The communicator traits received from other processes. The key is the list of device names of the mesh.
class SharedTraits {
 public:
  static SharedTraits& instance() {
    static SharedTraits all;
    return all;
  }
  void set(const std::string& mesh, CommunicatorTraits traits) {
    const std::lock_guard lock(mutex_);
    traits_[mesh] = std::move(traits);
  }
  std::optional<CommunicatorTraits> find(const std::string& mesh) const {
    const std::lock_guard lock(mutex_);
    const auto known = traits_.find(mesh);
    return known != traits_.end() ? std::optional(known->second) : std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, CommunicatorTraits> traits_;
};

std::string mesh_name(std::span<Device* const> devices, const ProcessGroup* group) {
  std::string text;
  for (const Device* device : devices) text += common_name(*device, group) + " ";
  return text;
}

class AbsentCommunicator final : public Communicator {
 public:
  explicit AbsentCommunicator(CommunicatorTraits traits) : traits_(std::move(traits)) {}
  std::string_view name() const override { return "absent"; }
  int size() const override { return static_cast<int>(traits_.buffer_bytes.size()); }
  size_t buffer_bytes(int rank) const override { return traits_.buffer_bytes[static_cast<size_t>(rank)]; }
  FusedLimits fused_limits() const override { return traits_.fused; }
  void abort(std::string_view) override {}
  void enqueue(int rank, const Call& call) override {
    fail<InvalidArgument>("[{} {}] rank {} belongs to another process", name_of(call.kind), call.what, rank);
  }

 private:
  const CommunicatorTraits traits_;
};

nlohmann::json to_json(const CommunicatorTraits& traits) {
  const FusedLimits& fused = traits.fused;
  return {{"buffers", traits.buffer_bytes}, {"fused", {fused.row, fused.rows, fused.elements, fused.products}}};
}

CommunicatorTraits parse_traits(const nlohmann::json& json) {
  const nlohmann::json& fused = json["fused"];
  return {json["buffers"], {fused[0], fused[1], fused[2], fused[3]}};
}

}  // namespace

bool are_absent(std::span<Device* const> members) {
  constexpr int kHere = -1;
  const std::optional<int> process = only_process(members, kHere);
  return process && *process != kHere;
}

CommunicatorFactory absent_factory(CommunicatorFactory guess) {
  const auto describe = [guess](std::span<Device* const> devices, const Options& options) {
    const auto said =
        options.processes == nullptr ? SharedTraits::instance().find(mesh_name(devices, nullptr)) : std::nullopt;
    return said ? *said : guess.describe(devices, options);
  };
  const auto make = [guess, describe](std::span<Backend* const> ranks,
                                      const Options& options) -> std::unique_ptr<Communicator> {
    if (options.processes != nullptr) return guess(ranks, options);
    return std::make_unique<AbsentCommunicator>(describe(devices_of(ranks), options));
  };
  return {make, describe};
}

void share_traits(ProcessGroup& group, std::span<const std::vector<Device*>> meshes, const Options& options) {
  nlohmann::json own = nlohmann::json::object();
  for (const std::vector<Device*>& mesh : meshes) {
    if (only_process(mesh, group.own()) != group.own()) continue;
    try {
      own[mesh_name(mesh, &group)] = to_json(communicator_for(mesh).describe(mesh, options));
    } catch (const Error&) {  // this error is reported when the plan is made
    }
  }
  for (const std::string& text : group.gather(own.dump(), "communicators")) {
    const nlohmann::json its = nlohmann::json::parse(text);
    for (const auto& [mesh, traits] : its.items()) SharedTraits::instance().set(mesh, parse_traits(traits));
  }
}

}  // namespace shoal::collectives
