#include "meta/meta_functions.h"

#include <algorithm>

#include "graph/error.h"

namespace shoal::meta {
namespace {

/// Calls the function of each member's family; false: no family has it.
template <class F, class... Args>
bool for_members(Backend& backend, FunctionName<F> name, Args... args) {
  bool any = false;
  for (Backend* member : backend.members()) {
    const F function = find_function(member->device().reg(), name);
    if (function == nullptr) continue;
    function(*member, args...);
    any = true;
  }
  return any;
}

/// Of each member that can be told.
void set_threads(Backend& backend, int threads) {
  backend.synchronize();
  backend.plans().clear();  // they hold the members' plans
  const bool told = for_members(backend, functions::kSetThreads, threads);
  require<InvalidArgument>(told, "no device of {} can be told how many threads to use", backend.name());
}

void set_abort_callback(Backend& backend, bool (*stop)(void*), void* data) {
  const bool told = for_members(backend, functions::kSetAbortCallback, stop, data);
  require<InvalidArgument>(told, "no device of {} can be stopped by a callback", backend.name());
}

}  // namespace

collectives::CommunicatorFactory communicator_for(std::span<Device* const> members) {
  const BackendReg& family = members.front()->reg();
  const bool alike = std::all_of(members.begin(), members.end(), [&](Device* one) { return &one->reg() == &family; });
  const auto own = alike ? find_function(family, kCommunicatorFactory) : nullptr;
  return own != nullptr && *own ? *own : collectives::make_host_communicator;
}

std::span<const FunctionEntry> meta_functions() {
  // Between meta devices, whose backends run host functions in order.
  static collectives::CommunicatorFactory host = collectives::make_host_communicator;
  static const FunctionEntry table[] = {
      {functions::kSetThreads, set_threads},
      {functions::kSetAbortCallback, set_abort_callback},
      {kCommunicatorFactory, &host},
  };
  return table;
}

}  // namespace shoal::meta
