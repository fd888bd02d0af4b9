// What a machine can do, as far as predictions need it: plain data, measured by `shoal probe` (tuning/probe/probe.h),
// written down for a machine that does not exist (`shoal simulate`), read and written as JSON. estimate.h turns a Plan
// and this into seconds. Values; thread-safe as such.
//
//   two devices of one socket, each 39e9 bytes/s alone, 66e9 together:
//   domains {bandwidth 66e9, cores 2}, devices CPU0 and CPU1 {domain 0, bandwidth 39e9, cores 1}
//   while both read, each gets 66 / (39 + 39) = 0.85 of its 39e9; when one of them is done the other gets all of it.
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

/// A product with `columns` columns takes `seconds` for each element of its weights, on the whole device.
struct ProductPoint {
  int64_t columns = 1;
  double seconds = 0;
  bool operator==(const ProductPoint&) const = default;
};

/// Products with weights of one dtype. Points ascend in columns.
struct ProductModel {
  std::vector<ProductPoint> streamed;  ///< weights come from memory
  std::vector<ProductPoint> cached;    ///< weights lie in the device's caches; empty: as streamed
  /// Seconds per element of the weights: up to the first point as there, between two by a straight line, beyond the
  /// last in proportion to the columns. One of the two has points.
  double seconds(double columns, bool in_cache) const;
  bool operator==(const ProductModel&) const = default;
};

/// One device by itself, while the others rest.
struct DeviceModel {
  std::string name;      ///< "CPU0", "H200.3"
  std::string identity;  ///< what must be the same for measured figures to hold: description, threads, options
  DeviceType type = DeviceType::kCpu;
  int domain = 0;                   ///< index into MachineModel::domains
  int host = 0;                     ///< hosts are joined by MachineModel::network
  size_t memory = 0;                ///< bytes in all
  double cores = 1;                 ///< of the domain, that it keeps busy
  double bandwidth = 0;             ///< bytes/s of plain reads of memory
  double cache_bytes = 0;           ///< what a run reads again and again, if no more than this, stays in its caches
  double activation_bandwidth = 0;  ///< bytes/s that ops without weights read and write
  double attention_rate = 0;        ///< operations/s (2 per multiplication and addition) of attention with many queries
  double attention_bandwidth = 0;   ///< bytes/s of keys and values read by attention with one query
  double op_seconds = 0;            ///< what any op costs before it does anything: a barrier, a kernel launch
  double step_seconds = 0;          ///< what a compute step between two collectives costs beside its ops
  double run_seconds = 0;           ///< from the host's call until it has a result, beside the ops of the run
  std::map<std::string, ProductModel> products;  ///< by name of the weights' dtype: "q4_0"
  bool operator==(const DeviceModel&) const = default;
};

/// Devices that take memory bandwidth and cores from each other: those of one socket, or one GPU by itself.
struct Domain {
  std::string name;
  double bandwidth = 0;  ///< bytes/s of all of them together; 0: no limit but their own
  double cores = 0;      ///< 0: no limit
  bool operator==(const Domain&) const = default;
};

/// A measured collective: seconds by size of the message (the full tensor), ascending.
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

/// One way of doing collectives; the fastest one is taken. For n ranks and a message of B bytes:
///   seconds = latency + latency_per_rank * (n - 1) + traffic * B / bandwidth
/// traffic is (n - 1) for one shot; otherwise the bus_factor() of the kind, 2 (n - 1) / n for an all_reduce; of an
/// all_to_all each rank has an n-th part.
struct CollectiveAlgorithm {
  std::string name;
  bool one_shot = false;
  double latency = 0;
  double latency_per_rank = 0;
  double bandwidth = 1;  ///< bytes/s that a rank sends while it receives as many
  bool operator==(const CollectiveAlgorithm&) const = default;
};

/// What passes between hosts.
struct Network {
  double latency = 0;    ///< seconds of a short message from one host to another
  double bandwidth = 1;  ///< bytes/s that a host sends while it receives as many
  bool operator==(const Network&) const = default;
};

/// What passes between processes of two hosts, or of one host (`from` and `to` are the same then), as measured.
struct HostLink {
  std::string from, to;  ///< names of hosts
  Network speed;
  bool operator==(const HostLink&) const = default;
};

struct MachineModel {
  std::string name;
  std::string disturbance;  ///< what went on while it was measured and may have spoilt the figures; mostly empty
  std::vector<Domain> domains;
  std::vector<DeviceModel> devices;
  std::vector<CollectiveTable> collectives;     ///< measured
  std::vector<CollectiveAlgorithm> algorithms;  ///< for everything else
  double copy_latency = 20e-6;     ///< seconds of passing a value from one device to another, as schedulers do
  double copy_bandwidth = 5e9;     ///< bytes/s
  double disk_bandwidth = 1e9;     ///< bytes/s of reading weights that memory has no room for
  std::optional<Network> network;  ///< what copies between hosts take besides, and collectives not measured there
  std::vector<HostLink> links;     ///< measured; network is the slowest of those between hosts

  /// Devices (indices) by host, in the order of their first ones; all together where there is no network.
  std::vector<std::vector<int>> by_host(std::span<const int> members) const;
  /// Index of a device, by name. Throws InvalidArgument that lists the devices.
  int index(std::string_view device) const;
  /// Seconds of one collective among devices (indices), 0 for a single one. `bytes`: of the full tensor. From the table
  /// of these members, in whatever order, and this kind: below its first point as there, between two by a straight
  /// line, beyond the last as steep as between the last two. Without such a table, from the tables of sets like theirs
  /// (machine/sets.h) if the devices have identities; else of the fastest algorithm; else from tables of another kind
  /// in proportion to the traffic; else rough_collective_seconds(). If members on several hosts were not measured
  /// together: the longest time within a host, and the time between the hosts.
  double collective_seconds(Collective kind, std::span<const int> members, double bytes) const;
  /// Cost of a run on these devices (indices): the most that one of them has, and the latency of the network if they
  /// are on several hosts, which are told first what to do.
  double run_seconds(std::span<const int> members) const;
  bool operator==(const MachineModel&) const = default;
};

/// Where nothing was measured or said: 10 us a phase and 10 GB/s between ranks. An all_reduce has two phases, or one in
/// which each rank reads all messages, whichever is faster.
double rough_collective_seconds(Collective kind, int ranks, double bytes, const Network& links = {10e-6, 10e9});

/// A machine so many times, joined by a network. The devices of its host 1 are called "1:H200.0", as those of
/// process 1.
MachineModel several_hosts(const MachineModel& one, int hosts, const Network& network);

/// Types that weights can have in products: floats and all quantised types.
std::vector<DType> weight_dtypes();
/// Bytes of one element; a fraction for quantised types.
double element_bytes(DType dtype);

/// Reads weights as fast as memory gives, multiplies as fast as the device can, whichever takes longer: for each
/// element max(bytes / bytes_per_second, 2 * columns / rate) seconds, exact at whole numbers of columns.
ProductModel product_at_rate(double rate, double bytes_per_second, DType dtype);
/// Such products of the dtypes that the device has none of.
void add_products(DeviceModel& device, double rate, double bytes_per_second);

/// Throws InvalidArgument in one line that says where, what is expected, and what is there:
///   machine.json: devices[1].bandwidth: expected a positive number, got -3
/// `origin` names the text in messages. See docs/simulation.md for all of the format. The least:
///   {"version": 1,
///    "devices": [{"name": "GPU", "count": 8, "memory": 80e9, "bandwidth": 2e12, "rates": {"default": 200e12}}]}
/// What may be left out, and what it is then:
///   name                  the origin
///   disturbance           ""
///   domain                one of the device's own, without limits
///   count                 1; otherwise "name" becomes "name.0", "name.1", ...
///   type, cores           "CPU", 1
///   identity              ""
///   cache_bytes           0
///   efficiency            0.8: of the bandwidth, when products read their weights
///   products, rates       one of them; "rates" (operations/s by dtype) makes the products of dtypes that "products"
///                         does not name, "default" those of all others: for each element of the weights
///                         max(bytes / (efficiency * bandwidth), 2 * columns / rate) seconds
///   activation_bandwidth  the bandwidth
///   attention_bandwidth   efficiency * bandwidth
///   attention_rate        the rate of many columns with f16 weights, or else of the fastest dtype
///   op_seconds            1e-6 (CPU), 2e-6 (others)
///   step_seconds          0
///   run_seconds           20e-6
///   copy_latency, copy_bandwidth   20e-6, 5e9
///   disk_bandwidth        1e9
///   host, network         0, and none, which devices of several hosts need: {"latency": 20e-6, "bandwidth": 12.5e9}
///   links                 none; for display only
/// A dtype in another case ("Q4_k") is understood.
MachineModel parse_machine(std::string_view json, std::string_view origin);
/// Everything spelt out; parse_machine() of it gives the same machine.
std::string to_json(const MachineModel& machine);

}  // namespace shoal::machine
