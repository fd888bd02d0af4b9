// The catalogue of machines. CMake embeds data/machines/gpus.json, hosts.json and links.json into the library
// (cmake/machines.cmake). Each GPU, host or link is one row of these files. The fields of the structs below are the
// keys of a row. The name of a field contains its unit. docs/simulation.md lists the sources of the values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::machine {

/// A family of GPUs. Each value is the rate that the kernels of a model reach, divided by the peak rate of the GPU.
struct Generation {
  std::string name;
  double bandwidth_of_peak;  ///< fraction of the peak memory bandwidth in products with one column
  double quantized_of_int8;  ///< fraction of the dense int8 rate in products with many columns and quantised weights
  double plain_of_half;      ///< fraction of the dense f16 rate in products with many columns and float weights
};

struct Gpu {
  std::string name;
  Generation generation;
  double memory_mib;      ///< memory that the driver reports
  double bandwidth_gb_s;  ///< peak memory bandwidth
  double half_tflop_s;    ///< dense f16 rate with f32 sums
  double int8_top_s;      ///< dense int8 rate
  int processors;         ///< number of multiprocessors
  double clock_ghz;
  int nvlink_generation;  ///< 0: no NVLink
  int nvlink_joined;      ///< maximum number of GPUs that NVLink connects: 2 with a bridge, or all GPUs of a machine
                          ///< with switches
  int pcie_generation;
  bool pcie_peers;  ///< whether the official driver supports peer access over PCIe
};

/// Values that are the same for all GPUs.
struct CommonFigures {
  double context_mib;             ///< GPU memory that the driver and the program use
  double decoded_per_clock;       ///< number of weights of less than 8 bits that a multiprocessor decodes per clock in
                                  ///< products with one column
  double op_seconds;              ///< time to launch and end a kernel in a CUDA graph
  double run_seconds;             ///< time to launch a CUDA graph, wait for its end, and copy the result to the host
  double attention_of_half;       ///< fraction of the f16 rate that attention reaches
  double attention_of_bandwidth;  ///< fraction of the peak memory bandwidth that attention reaches
};

/// A CPU and its memory, for the part of a model that stays on the host.
struct Host {
  std::string name;
  double memory_gib;
  double bandwidth_gb_s;  ///< peak memory bandwidth
  int cores;
  double clock_ghz;  ///< clock with all cores busy
};

/// Values that are the same for all hosts.
struct HostFigures {
  double bandwidth_of_peak;    ///< fraction of the peak memory bandwidth in products with one column
  double quantized_per_clock;  ///< number of operations per core and clock (2 per multiply-add) in products with many
                               ///< columns and quantised weights
  double plain_per_clock;      ///< the same number for float weights
  double attention_per_clock;
  double op_seconds;   ///< time of a barrier of all cores after an op
  double run_seconds;  ///< time to wake the cores
};

/// Speed of one collective algorithm over a link.
struct LinkStep {
  double latency_us, per_rank_us, bandwidth_gb_s;
};

/// A connection between GPUs.
struct Link {
  std::string name;
  double copy_bandwidth_gb_s;                  ///< bandwidth of copies between two devices through the host
  std::optional<LinkStep> one_shot, two_shot;  ///< kernels that use peer memory; nullopt without peer access
  LinkStep nccl_small, nccl_ring;              ///< NCCL with short messages, NCCL with long messages
};

struct Catalogue {
  CommonFigures common;
  std::vector<Gpu> gpus;
  HostFigures host_common;
  std::vector<Host> hosts;
  double copy_latency_seconds;
  std::vector<Link> links;
};

/// Returns the catalogue. The first call parses the files. Thread-safe.
const Catalogue& catalogue();

/// Contents of the files (cmake/machines.cmake).
extern const std::string_view kGpusJson, kHostsJson, kLinksJson;

}  // namespace shoal::machine
