// Measures what devices can do: the figures of a MachineModel (machine/machine.h). Works through Device, Backend and
// Communicator only, so that any devices will do. Blocking, one thread. Nothing else should run meanwhile:
// MachineModel::disturbance says whether other programs did. Each figure is the median of several runs within a small
// budget of time. What is measured, and how: docs/prediction.md.
//
//   ProbeOptions options;
//   options.dtypes = {DType::kQ4_0, DType::kF32};
//   MachineModel machine = probe(Registry::instance().device_list("CPU0,CPU1"), options);
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"
#include "machine/machine.h"

namespace shoal::probe {

using machine::DeviceModel;
using machine::MachineModel;

struct ProbeOptions {
  int threads = 0;                 ///< of each CPU device; 0: its default
  std::vector<DType> dtypes = {};  ///< of weights; empty: all that a device multiplies with
  std::string comm = {};  ///< collectives by which implementation; empty: collectives::default_implementation()
  bool quick = false;     ///< fewer points and repetitions, less memory
  /// Told before each part of the work: how many are done, of how many, and what comes. May throw to stop.
  std::function<void(int done, int total, const std::string& what)> progress = {};
  /// Called between any two series of runs, and never while one is timed. May throw to stop. Quick, or figures suffer.
  std::function<void()> poll = {};
  /// CPU seconds that other programs have used so far; empty: other_programs() (tuning/probe/other_programs.h).
  std::function<double()> others = {};
};

/// Throws InvalidArgument for no devices, one named twice, one that stands for several, or a dtype that is not one of
/// weights; DeviceError that names the device when it fails, lacks memory or does nothing that takes time.
MachineModel probe(std::span<Device* const> devices, const ProbeOptions& options = {});

/// What a device's backend is made with when `threads` are asked for: Device::init parameters with the number that it
/// then has; "" for devices without threads of the host.
std::string probe_params(const Device& device, int threads);
/// What must be the same for measured figures to hold: description, parameters, and the instructions in use.
std::string probe_identity(const Device& device, int threads);
/// Which one of those alike it is: its PCI address, or the numbers of a CPU device's cores.
std::string probe_place(const Device& device);
/// Those of the types that the device multiplies with.
std::vector<DType> supported_dtypes(const Device& device, std::span<const DType> dtypes);

}  // namespace shoal::probe
