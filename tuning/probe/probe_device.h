// Measures one device while the other devices are idle. Used by tuning/probe/probe.cpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"
#include "tuning/probe/probe_trial.h"

namespace shoal::probe {

using machine::DeviceModel;
using machine::ProductModel;
using machine::ProductPoint;

/// Extent of the measurements.
struct ProbeEffort {
  std::vector<int64_t> columns;  ///< numbers of columns in products, ascending
  double budget;                 ///< seconds for one figure
  size_t working_set;            ///< bytes of weights for the cache search, unless the caches are known to be larger
};
ProbeEffort probe_effort(bool quick);
/// Upper limit of a device's cache size, as far as it is known without measuring.
size_t most_cache(const Device& device);
/// Bytes of a working set that safely exceeds the device's caches.
size_t beyond_caches(const Device& device);
/// Bytes/s at which a working set is read repeatedly.
struct ReadRate {
  double bytes = 0, rate = 0;
};
/// The rate at which memory is read. `rates` are sorted by working set, and the largest set exceeds all caches. Returns
/// the highest rate of the largest sets, because other programs may have slowed down one of them.
double memory_rate(std::span<const ReadRate> rates);
/// Bytes of the smallest working set at which the caches have no effect: this set and all larger sets are read at the
/// rate of the memory. It may be smaller than the caches, because a device may use only a part of shared caches.
size_t least_beyond_caches(std::span<const ReadRate> rates);
/// Bytes of memory that the measurements need on a device: one matrix of the largest type, and its columns.
size_t least_memory(const Device& device, const ProbeEffort& effort, std::span<const DType> dtypes);

/// A product that keeps a device busy. Loads on several devices show how much the devices slow each other down.
struct Load {
  std::unique_ptr<TrialLeaves> leaves;
  std::unique_ptr<Trial> trial;
  double seconds = 0;  ///< seconds of a run while no other load runs
};

class DeviceProbe {
 public:
  DeviceProbe(Device& device, Backend& backend, const ProbeEffort& effort);

  /// Measures the bandwidth, the size of the caches, and the costs of ops, steps and runs.
  void measure_basics(DeviceModel& model, DType dtype);
  /// Measures products with weights of one type. Raises the bandwidth if these products read faster.
  void measure_products(DeviceModel& model, DType dtype);
  void measure_attention(DeviceModel& model);
  /// Measures the other ops. Call it after measure_products() with this dtype and measure_attention().
  void measure_activations(DeviceModel& model, DType dtype);
  /// Bytes of weights that exceed the caches, as far as their size is known.
  size_t streamed_bytes() const { return streamed_bytes_; }
  /// Makes a load that computes (`computes`) or reads this many bytes of weights.
  Load make_load(DType dtype, size_t bytes, bool computes);

 private:
  struct Matrices;

  Matrices make_matrices(DType dtype, size_t bytes, int64_t k, int64_t m);
  /// Seconds of one run that multiplies the first `count` matrices.
  double run_products(const Matrices& matrices, size_t count, int64_t columns, double budget);
  void measure_costs(DeviceModel& model, DType dtype);
  double step_cost();
  double run_cost();
  void find_caches(DeviceModel& model, DType dtype);
  std::vector<ProductPoint> measure_points(const Matrices& matrices, const DeviceModel& model);
  size_t affordable(size_t bytes) const;

  Device& device_;
  Backend& backend_;
  const ProbeEffort& effort_;
  size_t streamed_bytes_;
};

}  // namespace shoal::probe
