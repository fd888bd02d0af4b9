// Reads the number and properties of the CPU devices from the environment or from the argument of configure(), and
// checks these values. Error messages name the origin of an invalid value. These two examples make the same devices:
//
//   SHOAL_CPU_DEVICES=2 SHOAL_CPU_THREADS=1,3 SHOAL_CPU_SLOWDOWN=2,1
//   configure("devices=2,threads=1+3,slowdown=2+1")
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::cpu {

/// Memory limits, for tests and for machines that several programs share.
struct Limits {
  size_t max_size = std::numeric_limits<size_t>::max();  ///< maximum bytes of one allocation
  std::optional<size_t> memory;                          ///< maximum bytes of all allocations of a device
};

/// A setting with one number per device, one number for all devices, or no number.
template <class Number>
struct PerDevice {
  std::string origin;
  std::vector<Number> numbers;

  bool one_each() const { return numbers.size() > 1; }
  Number of(size_t device, Number fallback) const {
    if (numbers.empty()) return fallback;
    return one_each() ? numbers[device] : numbers[0];
  }
};

struct Settings {
  int devices = 0;             ///< 0 means one device per NUMA node
  PerDevice<int> threads;      ///< 0 means one thread per core
  PerDevice<double> slowdown;  ///< 1 to kMaxSlowdown
  Limits limits;
};

/// Reads settings such as "devices=2,threads=1+3,slowdown=1+2.5,max_size=1M,memory=512M". Settings that `params` omits
/// come from the environment. If the number of devices is not set, a list of several numbers sets it. Throws
/// InvalidArgument.
Settings read_settings(std::string_view params);

}  // namespace shoal::cpu
