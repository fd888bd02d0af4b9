#include "meta/meta_functions.h"

#include <algorithm>

#include "graph/error.h"

namespace shoal::meta {
namespace {

/// Of each member whose family has the function.
void set_threads(Backend& backend, int threads) {
  backend.synchronize();
  backend.plans().clear();  // they hold the members' plans
  bool told = false;
  for (Backend* member : backend.members()) {
    const auto function = find_function(member->device().reg(), functions::kSetThreads);
    if (function == nullptr) continue;
    function(*member, threads);
    told = true;
  }
  require<InvalidArgument>(told, "no device of {} can be told how many threads to use", backend.name());
}

void set_abort_callback(Backend& backend, bool (*stop)(void*), void* data) {
  const bool told = backend.set_abort_callback(stop == nullptr ? AbortCallback() : [=] { return stop(data); });
  require<InvalidArgument>(told, "no device of {} can be stopped by a callback", backend.name());
}

}  // namespace

collectives::CommunicatorFactory communicator_for(std::span<Device* const> members) {
  const BackendReg& family = members.front()->reg();
  const bool alike = std::all_of(members.begin(), members.end(), [&](Device* one) { return &one->reg() == &family; });
  if (auto own = alike ? collectives::factory_of(family) : nullptr) return own;
  return [](std::span<Backend* const> ranks, const collectives::Options& options) {
    const std::string& name = options.implementation;
    require<InvalidArgument>(name != "p2p" && name != "nccl",
                             "collectives by '{}' are for CUDA devices; use auto or staged for {} and the others", name,
                             ranks[0]->name());
    const bool all_host =
        std::none_of(ranks.begin(), ranks.end(), [](Backend* rank) { return rank->has_own_memory(); });
    require<InvalidArgument>(
        name != "host" || all_host,
        "collectives by 'host' are for devices that compute in host memory; use auto or staged for "
        "{} and the others",
        ranks[0]->name());
    return all_host && name != "staged" ? collectives::make_host_communicator(ranks, options)
                                        : collectives::make_staged_communicator(ranks, options);
  };
}

std::span<const FunctionEntry> meta_functions() {
  // Between meta devices, whose backends run host functions in order.
  static collectives::FamilyFactory host{collectives::class_sizes(), collectives::make_host_communicator};
  static const FunctionEntry table[] = {
      {functions::kSetThreads, set_threads},
      {functions::kSetAbortCallback, set_abort_callback},
      {collectives::kCommunicatorFactory, &host},
  };
  return table;
}

}  // namespace shoal::meta
