// Groups of flags that several commands share, and what they mean.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "models/placement.h"
#include "models/session.h"

namespace shoal::tools {

/// -m
struct ModelFlags {
  std::string path;
  void add_to(CLI::App& app);
};

/// -dev -ts -t
struct DeviceFlags {
  std::string devices = "CPU0";
  std::string ratio;
  int threads = 0;
  void add_to(CLI::App& app);
  /// The devices named. Where SHOAL_CPU_DEVICES does not say how many CPU devices there are, naming CPU1 makes at least
  /// two, as long as each has a core. Throws InvalidArgument for an unknown device, listing those that exist.
  std::vector<Device*> find() const;
  models::PlacementOptions placement() const { return {ratio, threads}; }
};

/// -c -b -ub -ctk -ctv
struct ContextFlags {
  int64_t context = 0;
  int64_t batch = 2048;
  int64_t ubatch = 512;
  std::string dtype_k = "f16";
  std::string dtype_v = "f16";
  void add_to(CLI::App& app);
  models::SessionOptions session() const;
};

/// --output text|json
struct OutputFlag {
  std::string format = "text";
  void add_to(CLI::App& app);
  bool json() const { return format == "json"; }
};

/// "1,2,3" -> {1, 2, 3}. Throws InvalidArgument that names `flag`.
std::vector<int32_t> parse_ids(std::string_view flag, std::string_view text);

}  // namespace shoal::tools
