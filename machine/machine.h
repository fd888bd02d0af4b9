// A MachineModel has the rates and times of a machine for predictions. `shoal probe` measures these values
// (tuning/probe/probe.h). A user can also describe a machine that does not exist (`shoal simulate`). Models are stored
// as JSON. tuning/estimate.h computes seconds from a Plan and a MachineModel. Plain values without synchronisation.
//
//   two devices of one socket, each 39e9 bytes/s alone, 66e9 bytes/s together:
//   domains {bandwidth 66e9, cores 2}, devices CPU0 and CPU1 {domain 0, bandwidth 39e9, cores 1}
//   While both devices read, each reads at 66 / (39 + 39) = 0.85 of 39e9 bytes/s. When one device is done, the other
//   device reads at 39e9 bytes/s.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "graph/collective.h"

namespace shoal::machine {

/// A measured product. With `columns` columns, the product takes `seconds` per element of its weights, on the whole
/// device.
struct ProductPoint {
  int64_t columns = 1;
  double seconds = 0;
  bool operator==(const ProductPoint&) const = default;
};

/// Speed of products with weights of one dtype. The points are in ascending order of columns.
struct ProductModel {
  std::vector<ProductPoint> streamed;  ///< weights are read from memory
  std::vector<ProductPoint> cached;    ///< weights are read from the device's caches; empty: use `streamed`
  /// Seconds per element of the weights. Below the first point, the result is the value of the first point. Between two
  /// points, the result is interpolated linearly. Beyond the last point, the result is proportional to the columns.
  /// `streamed` or `cached` must have points.
  double seconds(double columns, bool in_cache) const;
  bool operator==(const ProductModel&) const = default;
};

/// The rates and times of one device while the other devices are idle.
struct DeviceModel {
  std::string name;      ///< "CPU0", "H200.3"
  std::string identity;  ///< description, threads, options; measurements are valid only for devices with the same
                         ///< identity
  DeviceType type = DeviceType::kCpu;
  int domain = 0;                   ///< index into MachineModel::domains
  int host = 0;                     ///< index of the host; MachineModel::network connects hosts
  size_t memory = 0;                ///< total bytes
  double cores = 1;                 ///< number of cores that the device keeps busy in its domain
  double bandwidth = 0;             ///< bytes/s of plain memory reads
  double cache_bytes = 0;           ///< number of bytes that stay in the device's caches during repeated reads
  double activation_bandwidth = 0;  ///< bytes/s that ops without weights read and write
  double attention_rate = 0;        ///< operations/s (2 per multiply-add) of attention with many queries
  double attention_bandwidth = 0;   ///< bytes/s of keys and values that attention with one query reads
  double op_seconds = 0;            ///< fixed cost of every op, such as a barrier or a kernel launch
  double step_seconds = 0;          ///< fixed cost of a compute step between two collectives, in addition to its ops
  double run_seconds = 0;           ///< time from the host's call to its result, in addition to the ops of the run
  std::map<std::string, ProductModel> products;  ///< product models by dtype of the weights, such as "q4_0"
  bool operator==(const DeviceModel&) const = default;
};

/// Devices that share memory bandwidth and cores, such as the devices of one socket. A GPU has a domain of its own.
struct Domain {
  std::string name;
  double bandwidth = 0;  ///< bytes/s of all devices together; 0: no common limit
  double cores = 0;      ///< number of cores that all devices share; 0: no limit
  bool operator==(const Domain&) const = default;
};

/// A measured collective. The points are in ascending order of message size (bytes of the full tensor).
struct CollectiveTable {
  std::vector<std::string> members;  ///< names of devices, in rank order
  Collective kind = Collective::kAllReduce;
  struct Point {
    double bytes = 0;
    double seconds = 0;
    bool operator==(const Point&) const = default;
  };
  std::vector<Point> points;
  bool operator==(const CollectiveTable&) const = default;
};

/// One algorithm for collectives. If a machine has several algorithms, predictions use the fastest algorithm. For n
/// ranks and a message of B bytes:
///   seconds = latency + latency_per_rank * (n - 1) + traffic * B / bandwidth
/// For one-shot algorithms, traffic is (n - 1). For other algorithms, traffic is the bus_factor() of the collective,
/// which is 2 (n - 1) / n for an all_reduce. For an all_to_all, this factor is divided by n, because each rank has only
/// 1/n of the tensor.
struct CollectiveAlgorithm {
  std::string name;
  bool one_shot = false;
  double latency = 0;
  double latency_per_rank = 0;
  double bandwidth = 1;  ///< bytes/s that a rank sends while it receives the same amount
  bool operator==(const CollectiveAlgorithm&) const = default;
};

/// The network between hosts.
struct Network {
  double latency = 0;    ///< seconds of a short message between two hosts
  double bandwidth = 1;  ///< bytes/s that a host sends while it receives the same amount
  bool operator==(const Network&) const = default;
};

/// A measured link between two processes. If both processes are on one host, `from` and `to` are equal.
struct HostLink {
  std::string from, to;  ///< names of hosts
  Network speed;
  bool operator==(const HostLink&) const = default;
};

struct MachineModel {
  std::string name;
  std::string disturbance;  ///< activity of other programs during the measurement; usually empty
  std::vector<Domain> domains;
  std::vector<DeviceModel> devices;
  std::vector<CollectiveTable> collectives;     ///< measured tables
  std::vector<CollectiveAlgorithm> algorithms;  ///< for collectives without tables
  double copy_latency = 20e-6;                  ///< latency (seconds) of a copy between two devices of a schedule
  double copy_bandwidth = 5e9;                  ///< bandwidth (bytes/s) of these copies
  double disk_bandwidth = 1e9;                  ///< bytes/s of disk reads for weights that do not fit into memory
  std::optional<Network> network;               ///< additional cost of copies and unmeasured collectives between hosts
  std::vector<HostLink> links;                  ///< measured links; `network` is the slowest link between hosts

  /// Groups devices (indices) by host, in the order of first appearance. Without a network, there is one group of all
  /// devices.
  std::vector<std::vector<int>> by_host(std::span<const int> members) const;
  /// Index of the device with this name. Throws InvalidArgument for an unknown name. The message lists the devices.
  int index(std::string_view device) const;
  /// Seconds of one collective among devices (indices); 0 for a single device. `bytes` is the size of the full tensor.
  /// The time comes from the first of these sources that exists:
  /// - A table of this collective and these members. Within one host, the order of the members does not matter. Below
  ///   the first point, the time of the first point holds. Between two points, the time is linear. Beyond the last
  ///   point, the line through the last two points continues.
  /// - For members on several hosts: the longest time within a host plus the time between the hosts.
  /// - Tables of similar sets (machine/sets.h), if the devices have identities.
  /// - The fastest algorithm.
  /// - Tables of another collective, in proportion to the traffic.
  /// - rough_collective_seconds().
  double collective_seconds(Collective kind, std::span<const int> members, double bytes) const;
  /// Fixed cost of a run on these devices (indices): the largest run_seconds of a device. On several hosts, the network
  /// latency is added, because process 0 first notifies the other hosts.
  double run_seconds(std::span<const int> members) const;
  bool operator==(const MachineModel&) const = default;
};

/// Seconds of a collective on an unknown machine. By default, a phase takes 10 us, and ranks exchange data at 10 GB/s.
/// An all_reduce takes two phases, or one phase in which each rank reads all messages. The result is the shorter time.
double rough_collective_seconds(Collective kind, int ranks, double bytes, const Network& links = {10e-6, 10e9});

/// Returns a machine with several copies of `one`, connected by a network. The devices of host 1 have names such as
/// "1:H200.0", like the devices of process 1.
MachineModel several_hosts(const MachineModel& one, int hosts, const Network& network);

/// Dtypes that the weights of products may have: floats and all quantised types.
std::vector<DType> weight_dtypes();
/// Bytes per element. The number is a fraction for quantised types.
double element_bytes(DType dtype);

/// A product model with two limits: bytes_per_second limits the reads of weights, and `rate` limits the
/// multiplications. Each element takes max(bytes / bytes_per_second, 2 * columns / rate) seconds. The model is exact
/// for whole numbers of columns.
ProductModel product_at_rate(double rate, double bytes_per_second, DType dtype);
/// Adds product_at_rate() for each dtype of weights that has no product model in the device.
void add_products(DeviceModel& device, double rate, double bytes_per_second);

/// Parses a machine. Throws InvalidArgument. The message is one line with the path of the value, the expected value and
/// the found value:
///   machine.json: devices[1].bandwidth: expected a positive number, got -3
/// `origin` names the text in messages. docs/simulation.md has an example. A minimal machine:
///   {"version": 1,
///    "devices": [{"name": "GPU", "count": 8, "memory": 80e9, "bandwidth": 2e12, "rates": {"default": 200e12}}]}
/// Optional keys and their defaults:
///   name                  the origin
///   disturbance           ""
///   domain                a domain for this device alone, without limits
///   count                 one device with this name. With a count, the names are "name.0", "name.1", ...
///   type, cores           "CPU", 1
///   identity              ""
///   cache_bytes           0
///   efficiency            0.8: fraction of the bandwidth at which products read their weights
///   products, rates       At least one of them is required. "rates" (operations/s by dtype) defines the products of
///                         dtypes that are not in "products". The key "default" of "rates" defines the products of all
///                         other dtypes. Each element of the weights takes max(bytes / (efficiency * bandwidth),
///                         2 * columns / rate) seconds.
///   activation_bandwidth  the bandwidth
///   attention_bandwidth   efficiency * bandwidth
///   attention_rate        rate of products with many columns and f16 weights, or else with the fastest dtype
///   op_seconds            1e-6 (CPU), 2e-6 (others)
///   step_seconds          0
///   run_seconds           20e-6
///   copy_latency, copy_bandwidth   20e-6, 5e9
///   disk_bandwidth        1e9
///   host, network         0, no network; devices on several hosts need {"latency": 20e-6, "bandwidth": 12.5e9}
///   links                 none; links are only displayed
/// Dtypes are case-insensitive ("Q4_k").
MachineModel parse_machine(std::string_view json, std::string_view origin);
/// Returns JSON with all values, including defaults. parse_machine() of this JSON gives the same machine.
std::string to_json(const MachineModel& machine);

}  // namespace shoal::machine
