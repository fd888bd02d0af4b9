#include "tools/startup/memory_check.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace shoal::tools {

void require_memory(std::span<const models::DeviceUse> uses) {
  for (const models::DeviceUse& use : uses) {
    const std::string share = uses.size() > 1 ? ", a smaller share (--tensor-split)" : "";
    require<OutOfMemory>(use.use.weights <= use.memory.free,
                         "{} needs {} for weights alone and has {} free; use more devices{}, or a smaller model",
                         use.device, format_bytes(use.use.weights), format_bytes(use.memory.free), share);
    require<OutOfMemory>(use.use.total() <= use.memory.free,
                         "{} needs {} and has {} free; use more devices{}, a smaller context (-c, or --fit on) or "
                         "batch (-ub), or a quantised cache (-ctk q8_0 -ctv q8_0)",
                         use.device, format_bytes(use.use.total()), format_bytes(use.memory.free), share);
  }
}

std::string mapping_warning(std::span<const models::DeviceUse> uses) {
  for (const models::DeviceUse& use : uses) {
    if (!use.reads_disk()) continue;
    return fmt::format(
        "{} has {} free, but needs {} for weights and {} for the rest: parts of the model file are read from the disk "
        "again for every token; use a smaller model, or add devices with memory of their own",
        use.device, format_bytes(use.memory.free), format_bytes(use.mapped), format_bytes(use.use.total()));
  }
  return {};
}

}  // namespace shoal::tools
