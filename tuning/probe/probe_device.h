// Measures one device while the other devices are idle, for tuning/probe/probe.cpp.
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

/// Number, duration and size of the measurements.
struct ProbeEffort {
  std::vector<int64_t> columns;  ///< numbers of columns for which products are measured, ascending
  double budget;                 ///< seconds for one measurement
  size_t working_set;            ///< size in bytes of the largest working set in the search for the cache size; if
                                 ///< beyond_caches() is larger, it replaces this size
};
ProbeEffort probe_effort(bool quick);
/// An upper limit of a device's cache size. The function measures nothing.
size_t most_cache(const Device& device);
/// Size in bytes of a working set that safely exceeds the device's caches.
size_t beyond_caches(const Device& device);
/// The rate (bytes/s) at which a device repeatedly reads a working set of `bytes` bytes.
struct ReadRate {
  double bytes = 0, rate = 0;
};
/// The rate at which a device reads its memory. `rates` are sorted by working set, and the largest working set exceeds
/// all caches. Other programs may have slowed down a measurement. So the result is the highest rate among the working
/// sets of at least half the largest size.
double memory_rate(std::span<const ReadRate> rates);
/// Size in bytes of the smallest working set for which the caches have no effect: the device reads this set and all
/// larger sets at the rate of the memory. This size may be smaller than the caches, because a device may use only a
/// fraction of a shared cache.
size_t least_beyond_caches(std::span<const ReadRate> rates);
/// Number of bytes that the measurements need on a device: one matrix of the largest type, and the columns of a
/// product.
size_t least_memory(const Device& device, const ProbeEffort& effort, std::span<const DType> dtypes);

/// A product that keeps a device busy. Loads on several devices at the same time measure how much the devices slow each
/// other down.
struct Load {
  std::unique_ptr<TrialLeaves> leaves;
  std::unique_ptr<Trial> trial;
  double seconds = 0;  ///< seconds of a run without other loads
};

class DeviceProbe {
 public:
  DeviceProbe(Device& device, Backend& backend, const ProbeEffort& effort);

  /// Measures the bandwidth, the cache size, and the costs of ops, steps and runs.
  void measure_basics(DeviceModel& model, DType dtype);
  /// Measures products with weights of one type. If these products read faster than the known bandwidth, raises the
  /// bandwidth.
  void measure_products(DeviceModel& model, DType dtype);
  void measure_attention(DeviceModel& model);
  /// Measures the ops other than products and attention. Must be called after measure_attention() and after
  /// measure_products() with the same dtype.
  void measure_activations(DeviceModel& model, DType dtype);
  /// Size in bytes of a set of weights that exceeds the caches, according to the measurements so far.
  size_t streamed_bytes() const { return streamed_bytes_; }
  /// Makes a load for this device. `computes`: the product is limited by the arithmetic. Otherwise, the product reads
  /// `bytes` bytes of weights and is limited by the bandwidth.
  Load make_load(DType dtype, size_t bytes, bool computes);

 private:
  struct Matrices;

  Matrices make_matrices(DType dtype, size_t bytes, int64_t k, int64_t m);
  /// Seconds of one run that multiplies the first `count` matrices by this number of columns.
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
