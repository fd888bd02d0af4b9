// Measures devices and returns the figures as a MachineModel (machine/machine.h). Uses only Device, Backend and
// Communicator, so it works for all kinds of devices. Blocking, in one thread. No other programs should run meanwhile;
// MachineModel::disturbance reports them. Each figure is the median of several runs within a small time budget.
// docs/prediction.md describes the figures and the method.
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
  int threads = 0;                 ///< threads of each CPU device; 0: the device's default
  std::vector<DType> dtypes = {};  ///< dtypes of weights; empty: all dtypes in which a device supports products
  std::string comm = {};           ///< implementation of collectives; empty: collectives::default_implementation()
  bool quick = false;              ///< measures fewer points with fewer repetitions and less memory
  /// Called before each part of the work with the number of finished parts, the number of parts, and the name of the
  /// next part. May throw to stop the probe.
  std::function<void(int done, int total, const std::string& what)> progress = {};
  /// Called between two series of runs, never during a timed series. May throw to stop the probe. Must be quick,
  /// because a pause makes the figures less accurate.
  std::function<void()> poll = {};
  /// Returns the CPU seconds that other programs have used so far; empty: other_programs().
  std::function<double()> others = {};
};

/// Measures the devices. Throws InvalidArgument if there are no devices, if a device is listed twice or is a meta
/// device, or if weights cannot have one of the dtypes. Throws DeviceError, which names the device, if a device fails,
/// lacks memory or takes no measurable time.
MachineModel probe(std::span<Device* const> devices, const ProbeOptions& options = {});

/// Device::init parameters that set the number of threads (0: the default); "" for devices without host threads.
std::string probe_params(const Device& device, int threads);
/// Identity of a device: description, parameters, and the instructions in use. Figures are valid only for devices with
/// the same identity.
std::string probe_identity(const Device& device, int threads);
/// A text that distinguishes equal devices: the PCI address, or the core numbers of a CPU device.
std::string probe_place(const Device& device);
/// The given dtypes in which the device supports products.
std::vector<DType> supported_dtypes(const Device& device, std::span<const DType> dtypes);

}  // namespace shoal::probe
