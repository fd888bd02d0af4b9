// The figures of the catalogue of machines: data/machines/gpus.json, hosts.json and links.json, whose texts CMake puts
// into the library (cmake/machines.cmake). Each field below is a key there, with its unit in the name; a GPU, a host or
// a link is one row. Where the figures come from: docs/simulation.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::machine {

/// What a family of GPUs has in common: how much of its peak rates kernels for models reach.
struct Generation {
  std::string name;
  double bandwidth_of_peak;  ///< products of one column
  double quantized_of_int8;  ///< of the dense rate with 8-bit integers, products of many columns with quantised weights
  double plain_of_half;      ///< of the dense rate with halves, products of many columns with float weights
};

struct Gpu {
  std::string name;
  Generation generation;
  double memory_mib;      ///< as the driver shows it
  double bandwidth_gb_s;  ///< peak
  double half_tflop_s;    ///< dense, of f16 with f32 sums
  double int8_top_s;      ///< dense
  int processors;         ///< multiprocessors
  double clock_ghz;
  int nvlink_generation;  ///< 0: none
  int nvlink_joined;      ///< GPUs that NVLink can join: 2 by a bridge, or all of a machine by switches
  int pcie_generation;
  bool pcie_peers;  ///< peer access over PCIe, with the driver that it comes with
};

/// Figures of all GPUs.
struct CommonFigures {
  double context_mib;             ///< of its memory that the driver and the program take
  double decoded_per_clock;       ///< weights of less than 8 bits that a processor decodes for one column
  double op_seconds;              ///< of a kernel in a CUDA graph: its start and its end
  double run_seconds;             ///< starting a CUDA graph, waiting for it, the result's way to the host
  double attention_of_half;       ///< of the rate with halves
  double attention_of_bandwidth;  ///< of the memory's peak
};

/// A CPU with the memory that it has, for what stays beside the GPUs.
struct Host {
  std::string name;
  double memory_gib;
  double bandwidth_gb_s;  ///< peak
  int cores;
  double clock_ghz;  ///< of all cores at work
};

/// Figures of all hosts.
struct HostFigures {
  double bandwidth_of_peak;    ///< products of one column
  double quantized_per_clock;  ///< operations of a core (2 per multiplication and addition), products of many columns
  double plain_per_clock;      ///< the same of float weights
  double attention_per_clock;
  double op_seconds;   ///< all cores meet behind an op
  double run_seconds;  ///< waking them
};

/// What one algorithm of collectives takes over a link.
struct LinkStep {
  double latency_us, per_rank_us, bandwidth_gb_s;
};

/// A way for GPUs to reach each other.
struct Link {
  std::string name;
  double copy_bandwidth_gb_s;  ///< of what a scheduler hands from one device to the next, through the host
  std::optional<LinkStep> one_shot, two_shot;  ///< by kernels over peer memory; none: there is no peer access
  LinkStep nccl_small, nccl_ring;              ///< NCCL: protocols for short messages and for long ones
};

struct Catalogue {
  CommonFigures common;
  std::vector<Gpu> gpus;
  HostFigures host_common;
  std::vector<Host> hosts;
  double copy_latency_seconds;
  std::vector<Link> links;
};

/// Parsed by the first call. Any thread may call.
const Catalogue& catalogue();

/// Texts of the files (cmake/machines.cmake).
extern const std::string_view kGpusJson, kHostsJson, kLinksJson;

}  // namespace shoal::machine
