#include "collectives/nccl/meeting.h"

#include <cstring>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "devices/cuda/cuda_family.h"
#include "processes/remote_device.h"

namespace shoal::collectives::nccl {
namespace {

constexpr const char* kWhat = "start of NCCL";

/// A process's report. It contains the NCCL version, or the reason why the process cannot use NCCL. It also contains
/// the GPU of each of the process's ranks.
struct Told {
  int version = 0;
  std::string reason;
  std::vector<std::string> gpus;
};

std::string tell(std::span<Device* const> ranks) {
  nlohmann::json told{{"gpus", nlohmann::json::array()}};
  try {
    told["version"] = api().version;
  } catch (const DeviceError& error) {
    told["reason"] = error.what();
  }
  for (const Device* rank : ranks) {
    const auto* own = dynamic_cast<const cuda::CudaDevice*>(rank);
    if (own != nullptr) told["gpus"].push_back(own->gpu().pci_id);
  }
  return told.dump();
}

Told parse(const std::string& text) {
  const nlohmann::json told = nlohmann::json::parse(text, nullptr, false);
  if (!told.is_object() || !told.contains("gpus")) return {0, "this process does not create an NCCL communicator", {}};
  return {told.value("version", 0), told.value("reason", ""), told["gpus"]};
}

/// Whether the process owns ranks of the mesh. A process without ranks does not need NCCL.
bool is_in(int process, std::span<Device* const> ranks, const ProcessGroup& group) {
  for (const Device* rank : ranks) {
    if (process_of(*rank, group.own()) == process) return true;
  }
  return false;
}

void require_one_version(const std::map<int, Told>& all, ProcessGroup& group) {
  const auto& [first, its] = *all.begin();
  for (const auto& [process, told] : all) {
    if (told.version == its.version) continue;
    group.fail(fmt::format("{} has NCCL {}, but {} has NCCL {}; install one version everywhere, or use --comm staged",
                           group.describe(first), version_text(its.version), group.describe(process),
                           version_text(told.version)));
  }
}

void require_own_gpus(const std::map<int, Told>& all, std::span<Device* const> ranks, const ProcessGroup& group) {
  const std::vector<std::string> names = names_of(ranks, &group);
  std::map<std::string, size_t> users;
  std::map<int, size_t> seen;  // number of ranks seen so far in each process
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int process = process_of(*ranks[rank], group.own());
    const Told& told = all.at(process);
    const size_t index = seen[process]++;
    if (index >= told.gpus.size()) continue;
    const auto [user, is_first] = users.emplace(group.host(process) + " " + told.gpus[index], rank);
    require<DeviceError>(is_first, "[nccl] rank {} ({}) and rank {} ({}) share a GPU; use --comm staged", user->second,
                         names[user->second], rank, names[rank]);
  }
}

/// Process `maker` makes the NCCL id. The function returns this id in all processes.
UniqueId share_id(int maker, ProcessGroup& group) {
  UniqueId id{};
  std::string text;
  if (group.own() == maker) {
    const Result made = api().get_unique_id(&id);
    text = made == Result::kSuccess ? std::string(id.bytes, sizeof(id.bytes)) : api().get_error_string(made);
  }
  text = group.gather(text, kWhat)[static_cast<size_t>(maker)];
  require<DeviceError>(text.size() == sizeof(id.bytes), "[nccl] {} cannot create an NCCL id for the ranks: {}",
                       group.describe(maker), text);
  std::memcpy(id.bytes, text.data(), sizeof(id.bytes));
  return id;
}

}  // namespace

std::vector<std::string> names_of(std::span<Device* const> ranks, const ProcessGroup* group) {
  std::vector<std::string> names;
  for (const Device* rank : ranks) {
    names.push_back(group == nullptr ? rank->name()
                                     : fmt::format("{} on {}", common_name(*rank, group),
                                                   group->host(process_of(*rank, group->own()))));
  }
  return names;
}

UniqueId meet(std::span<Device* const> ranks, ProcessGroup& group) {
  const std::vector<std::string> texts = group.gather(tell(ranks), kWhat);
  std::map<int, Told> all;
  for (int process = 0; process < group.size(); ++process) {
    if (!is_in(process, ranks, group)) continue;
    const Told& told = all[process] = parse(texts[static_cast<size_t>(process)]);
    require<DeviceError>(told.reason.empty(), "{}: {}", group.describe(process), told.reason);
  }
  require_one_version(all, group);
  require_own_gpus(all, ranks, group);
  return share_id(process_of(*ranks[0], group.own()), group);
}

}  // namespace shoal::collectives::nccl
