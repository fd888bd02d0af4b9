// The part of a probe that measures one device while the others rest. Used by tuning/probe/probe.cpp.
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

/// How much is measured.
struct ProbeEffort {
  std::vector<int64_t> columns;  ///< of products, ascending
  double budget;                 ///< seconds for one figure
  size_t working_set;  ///< bytes of weights that the search for caches reads, unless caches are known to be large
};
ProbeEffort probe_effort(bool quick);
/// The caches of a device are no larger, as far as that is known without measuring.
size_t most_cache(const Device& device);
/// This many bytes are not read from its caches, however much of these it has.
size_t beyond_caches(const Device& device);
/// A working set that is read again and again, and bytes/s.
struct ReadRate {
  double bytes = 0, rate = 0;
};
/// How fast memory is read, of working sets from the smallest to the largest, which lies beyond all caches: other
/// programs may have slowed down one of them.
double memory_rate(std::span<const ReadRate> rates);
/// The smallest of them from which on all are read as fast as memory: a device may have but a part of caches that
/// others use, too.
size_t least_beyond_caches(std::span<const ReadRate> rates);
/// Bytes of a device without which it cannot be measured: one matrix of the largest type, and its columns.
size_t least_memory(const Device& device, const ProbeEffort& effort, std::span<const DType> dtypes);

/// A product that keeps a device busy, to see what devices take from each other.
struct Load {
  std::unique_ptr<TrialLeaves> leaves;
  std::unique_ptr<Trial> trial;
  double seconds = 0;  ///< of a run alone
};

class DeviceProbe {
 public:
  DeviceProbe(Device& device, Backend& backend, const ProbeEffort& effort);

  /// Bandwidth, caches, and what ops, steps and runs cost.
  void measure_basics(DeviceModel& model, DType dtype);
  /// One type of weights. The bandwidth rises where its products read faster.
  void measure_products(DeviceModel& model, DType dtype);
  void measure_attention(DeviceModel& model);
  /// Once products of the dtype and attention are known.
  void measure_activations(DeviceModel& model, DType dtype);
  /// Bytes of weights that are not read from caches, as far as that is known.
  size_t streamed_bytes() const { return streamed_bytes_; }
  /// One that reads this many bytes of weights beside another one that does, or one that computes.
  Load make_load(DType dtype, size_t bytes, bool computes);

 private:
  struct Matrices;

  Matrices make_matrices(DType dtype, size_t bytes, int64_t k, int64_t m);
  /// Seconds of a run with the first `count` matrices.
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
