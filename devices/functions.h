// Optional functions of a family, found by name. These functions provide abilities that only some families have. A
// family returns untyped pointers (BackendReg::function), because a plug-in may offer functions unknown to this header.
// A FunctionName also contains the function's type, so that callers cannot use a wrong signature.
//
//   if (const auto set_threads = find_function(device.reg(), functions::kSetThreads)) set_threads(*backend, 4);
//
// collectives/factory.h defines the type of one more function, "communicator_factory". A meta device uses this function
// to connect backends that all belong to the family.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "devices/device.h"

namespace shoal {

template <class F>
struct FunctionName {
  static_assert(std::is_pointer_v<F>);
  std::string_view name;
};

namespace functions {

struct Feature {
  std::string name;
  std::string value;
};

/// Sets the number of threads of a backend. Waits for queued work and rethrows the failure of this work. Drops cached
/// plans, which are compiled again when needed. Plans outside the cache still run, with at most the number of threads
/// for which they were made.
using SetThreads = void (*)(Backend& backend, int threads);
inline constexpr FunctionName<SetThreads> kSetThreads{"set_threads"};

/// Buffer types of a device in addition to Device::buffer_type and Device::host_buffer_type.
using ExtraBufferTypes = std::vector<BufferType*> (*)(Device& device);
inline constexpr FunctionName<ExtraBufferTypes> kExtraBufferTypes{"extra_buffer_types"};

/// Cancels the work queued so far on the backend. A running graph stops at its next node, and the first unfinished item
/// fails with CommError(reason). Any thread may call this function, which does not wait.
using Cancel = void (*)(Backend& backend, std::string_view reason);
inline constexpr FunctionName<Cancel> kCancel{"cancel"};

/// State of a backend.
/// - kNone: all queued work has ended, with or without failure.
/// - kWaits: the backend waits for a stream of its own family (CUDA devices never report this state).
/// - kWorks: any other state, which includes waits for other families and for ranks of a collective.
enum class Activity : uint8_t { kNone, kWaits, kWorks };
struct QueueState {
  Activity activity;
  uint64_t ended;  ///< number of ended items plus a constant that differs between backends; CUDA devices count launched
                   ///< items instead
};
/// Waits at most `time` until all work queued on the backend has ended. Returns the backend's state. Failures remain
/// stored for synchronize().
using WaitForQueued = QueueState (*)(Backend& backend, std::chrono::nanoseconds time);
inline constexpr FunctionName<WaitForQueued> kWaitForQueued{"wait_for_queued"};

/// Build options of the family, and the features of this machine that the family uses. Programs print this list.
using Features = std::vector<Feature> (*)();
inline constexpr FunctionName<Features> kFeatures{"features"};

/// Buffer type that divides the rows (axis 1) of a weight among the devices in proportion to `shares`. Shares 1 and 3
/// give a quarter of the rows to the first device and three quarters to the second. The family owns the type. Calls
/// with equal arguments return the same type. Throws InvalidArgument if the number of shares differs from the number of
/// devices.
using SplitBufferType = BufferType& (*)(std::span<Device* const> devices, std::span<const double> shares);
inline constexpr FunctionName<SplitBufferType> kSplitBufferType{"split_buffer_type"};

inline constexpr std::string_view kCommunicatorFactory = "communicator_factory";

}  // namespace functions

/// Returns nullptr if the family has no such function.
template <class F>
F find_function(const BackendReg& family, FunctionName<F> name) {
  return reinterpret_cast<F>(family.function(name.name));
}

/// One row of a family's table of functions.
struct FunctionEntry {
  template <class F>
  FunctionEntry(FunctionName<F> name, std::type_identity_t<F> function)
      : name(name.name), function(reinterpret_cast<void*>(function)) {}
  std::string_view name;
  void* function;
};

/// Implements BackendReg::function for a family that has a table of functions.
inline void* find_in(std::span<const FunctionEntry> table, std::string_view name) {
  for (const FunctionEntry& entry : table) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace shoal
