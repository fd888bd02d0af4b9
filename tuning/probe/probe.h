// Measures devices and returns the measurements as a MachineModel (machine/machine.h). The probe uses only Device,
// Backend and Communicator, so it works for all kinds of devices. Each measurement is the median of several runs within
// a small time budget. docs/prediction.md describes the measurements and the method.
//
// The calls block and use one thread. No other programs should run at the same time. If they do,
// MachineModel::disturbance describes their load.
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
  int threads = 0;                 ///< number of threads of each CPU device; 0: the default number of the device
  std::vector<DType> dtypes = {};  ///< dtypes of weights; empty: all dtypes for which a device supports products
  std::string comm = {};           ///< implementation of collectives; empty: collectives::default_implementation()
  bool quick = false;              ///< whether to measure fewer points with fewer repetitions and less memory
  /// Called before each measurement with the number of finished measurements, the total number, and the name of the
  /// next measurement. May throw to stop the probe.
  std::function<void(int done, int total, const std::string& what)> progress = {};
  /// Called between two series of runs, never during a timed series. May throw to stop the probe. The function must
  /// return quickly, because a pause makes the measurements less accurate.
  std::function<void()> poll = {};
  /// Returns the CPU seconds that other programs have used so far; empty: other_programs().
  std::function<double()> others = {};
};

/// Measures the devices. Throws these exceptions:
///
/// - InvalidArgument if there are no devices, if a device is listed twice or is a meta device, or if a dtype is not a
///   type of weights
/// - DeviceError, which names the device, if a device fails, has too little memory or takes no measurable time
MachineModel probe(std::span<Device* const> devices, const ProbeOptions& options = {});

/// The Device::init parameters with this number of threads (0: the default number); "" for devices without host
/// threads.
std::string probe_params(const Device& device, int threads);
/// Identity of a device: its description, its parameters and the CPU instructions in use. Measurements are valid only
/// for devices with the same identity.
std::string probe_identity(const Device& device, int threads);
/// A text that differs between identical devices: the PCI address, or the core numbers of a CPU device.
std::string probe_place(const Device& device);
/// The given dtypes in which the device supports products.
std::vector<DType> supported_dtypes(const Device& device, std::span<const DType> dtypes);

}  // namespace shoal::probe
