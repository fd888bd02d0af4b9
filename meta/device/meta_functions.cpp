#include "meta/device/meta_functions.h"

#include "base/error.h"
#include "collectives/factory.h"

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

}  // namespace

std::span<const FunctionEntry> meta_functions() {
  // Between meta devices, whose backends run host functions in order.
  static collectives::FamilyFactory host{
      collectives::class_sizes(), {collectives::make_host_communicator, collectives::describe_host_communicator}};
  static const FunctionEntry table[] = {
      {functions::kSetThreads, set_threads},
      {collectives::kCommunicatorFactory, &host},
  };
  return table;
}

}  // namespace shoal::meta
