// Optional functions of the family "CPU", which callers find by name (devices/functions.h).
#include <fmt/format.h>
#include <hwloc.h>

#include "base/error.h"
#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/cpu_family.h"
#include "devices/cpu/isa.h"
#include "devices/functions.h"

namespace shoal::cpu {
namespace {

CpuBackend& cpu_backend(Backend& backend) {
  auto* cpu = dynamic_cast<CpuBackend*>(&backend);
  require<InvalidArgument>(cpu != nullptr, "{} is not a CPU device", backend.name());
  return *cpu;
}

void set_threads(Backend& backend, int threads) {
  cpu_backend(backend).set_threads(threads);
}

std::vector<BufferType*> extra_buffer_types(Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  require<InvalidArgument>(cpu != nullptr, "{} is not a CPU device", device.name());
  return {&cpu->mapped_type(), &cpu->packed_type()};
}

void cancel(Backend& backend, std::string_view reason) {
  cpu_backend(backend).cancel(reason);
}

functions::QueueState wait_for_queued(Backend& backend, std::chrono::nanoseconds time) {
  return cpu_backend(backend).wait_for_queued(time);
}

std::string join(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ",") + std::string(name);
  return text;
}

std::vector<functions::Feature> features() {
  size_t cores = 0;
  for (const Node& node : machine_nodes()) cores += node.cores.size();
  const unsigned hwloc = hwloc_get_api_version();
  return {{"isa", std::string(level_in_use())},
          {"isa_usable", join(usable_levels())},
          {"isa_built", join(built_levels())},
          {"nodes", fmt::format("{}", machine_nodes().size())},
          {"cores", fmt::format("{}", cores)},
          {"openmp", fmt::format("{}", _OPENMP)},
          {"hwloc", fmt::format("{}.{}.{}", hwloc >> 16, hwloc >> 8 & 0xff, hwloc & 0xff)}};
}

}  // namespace

void* CpuFamily::function(std::string_view name) const {
  static const FunctionEntry table[] = {
      {functions::kSetThreads, set_threads}, {functions::kExtraBufferTypes, extra_buffer_types},
      {functions::kCancel, cancel},          {functions::kWaitForQueued, wait_for_queued},
      {functions::kFeatures, features},
  };
  return find_in(table, name);
}

}  // namespace shoal::cpu
