// Functions that a family may offer beyond the classes of devices/device.h, by name: what only some families can do. A
// family hands them out untyped (BackendReg::function), because a plug-in may offer more than this page knows; a
// FunctionName carries the type, so that none is called with another signature.
//
//   if (const auto set_threads = find_function(device.reg(), functions::kSetThreads)) set_threads(*backend, 4);
//
// One more name belongs to a later folder: "communicator_factory" (collectives/factory.h) is what a meta device
// connects backends with that are all of the family.
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

/// Threads that a backend of the family computes with from now on. Waits for queued work and throws its failure; kept
/// plans are made anew, and plans made for fewer threads are refused.
using SetThreads = void (*)(Backend& backend, int threads);
inline constexpr FunctionName<SetThreads> kSetThreads{"set_threads"};

/// Buffer types of a device besides Device::buffer_type and host_buffer_type.
using ExtraBufferTypes = std::vector<BufferType*> (*)(Device& device);
inline constexpr FunctionName<ExtraBufferTypes> kExtraBufferTypes{"extra_buffer_types"};

/// What is queued on the backend so far is not wanted any more: a run under way ends at the next node, and the first
/// item that has not ended fails with CommError(reason). Any thread; does not wait.
using GiveUp = void (*)(Backend& backend, std::string_view reason);
inline constexpr FunctionName<GiveUp> kGiveUp{"give_up"};

/// What a backend is at: nothing, as all that was queued has ended, well or not; a wait for a stream of its family that
/// has not come so far, as far as it can tell (CUDA devices cannot); or anything else, waits for other families and for
/// ranks of a collective included.
enum class Activity : uint8_t { kNone, kWaits, kWorks };
struct QueueState {
  Activity activity;
  uint64_t ended;  ///< pieces of work that have, ever; for CUDA devices: that have been launched
};
/// Waits for everything queued on the backend, for so long at most, and says what it is at then; failures stay.
using WaitForQueued = QueueState (*)(Backend& backend, std::chrono::nanoseconds time);
inline constexpr FunctionName<WaitForQueued> kWaitForQueued{"wait_for_queued"};

/// What the family was built with and what it uses of this machine, for listings.
using Features = std::vector<Feature> (*)();
inline constexpr FunctionName<Features> kFeatures{"features"};

/// Memory in which a weight's rows (axis 1) are divided over the devices by shares (1, 3: a quarter and three). Owned
/// by the family; the same for the same arguments. Throws InvalidArgument unless there is one share for each device.
using SplitBufferType = BufferType& (*)(std::span<Device* const> devices, std::span<const double> shares);
inline constexpr FunctionName<SplitBufferType> kSplitBufferType{"split_buffer_type"};

inline constexpr std::string_view kCommunicatorFactory = "communicator_factory";

}  // namespace functions

/// nullptr when the family has no such function.
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

/// BackendReg::function for a family that has a table.
inline void* find_in(std::span<const FunctionEntry> table, std::string_view name) {
  for (const FunctionEntry& entry : table) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace shoal
