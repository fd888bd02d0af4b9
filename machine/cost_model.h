// The rough figures by which propagation compares ways to run a node. Values.
#pragma once

namespace shoal::machine {

struct CostModel {
  double latency = 10e-6;          ///< seconds per phase of a collective
  double link_bandwidth = 10e9;    ///< bytes/s between ranks
  double memory_bandwidth = 50e9;  ///< bytes/s of a rank's own memory
  double rate = 200e9;             ///< scalar operations/s of a rank
  /// Factor on moving a weight. Whoever split it did so because it should not be on every device: it moves only where
  /// nothing else is legal.
  double weight_penalty = 1000.0;
};

}  // namespace shoal::machine
