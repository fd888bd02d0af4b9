#include "machine/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/user_file.h"
#include "machine/catalogue_data.h"

namespace shoal::machine {
namespace {

constexpr int64_t kMostColumns = 4096;
constexpr int kMostGpus = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

template <class Row>
const Row* find_row(const std::vector<Row>& rows, std::string_view name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return lower(row.name) == lower(name); });
  return found == rows.end() ? nullptr : &*found;
}

const Gpu* find_gpu(std::string_view name) {
  return find_row(catalogue().gpus, name);
}

const Host* find_host(std::string_view name) {
  return find_row(catalogue().hosts, name);
}

template <class Row>
std::vector<std::string> names_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.push_back(row.name);
  return names;
}

/// One entry per GPU, in the order of the GPUs in the name of the machine.
using Gpus = std::vector<const Gpu*>;

/// Group of equal GPUs: "H200x8" has eight GPUs, and "RTX3090" has one GPU. If parse_group() finds no GPU in the text,
/// `gpu` is nullptr.
struct Group {
  const Gpu* gpu = nullptr;
  int count = 1;
};
Group parse_group(std::string_view part) {
  if (const Gpu* gpu = find_gpu(part)) return {gpu, 1};
  const size_t times = part.find_last_of("xX");
  if (times == std::string_view::npos) return {};
  const std::string_view digits = part.substr(times + 1);
  int count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return {find_gpu(part.substr(0, times)), count};
}

/// Splits a name at the dash before the link: "A100-PCIex4-pcie-p2p" -> "A100-PCIex4" and "pcie-p2p".
std::pair<std::string_view, std::string_view> cut_link(std::string_view name) {
  const size_t plus = name.find_last_of('+'), last = plus == std::string_view::npos ? 0 : plus + 1;
  for (size_t end = name.size(); end != std::string_view::npos && end > last; end = name.rfind('-', end - 1)) {
    const std::string_view part = name.substr(last, end - last);
    if (parse_group(part).gpu == nullptr && find_host(part) == nullptr) continue;
    return {name.substr(0, end), end == name.size() ? std::string_view() : name.substr(end + 1)};
  }
  return {name, {}};
}

/// Splits off the host: "RTX4090x4+EPYC9654" -> "RTX4090x4" and EPYC9654. Without a host, the pointer is nullptr.
std::pair<std::string_view, const Host*> cut_host(std::string_view text) {
  const size_t plus = text.find_last_of('+');
  const Host* host = plus == std::string_view::npos ? nullptr : find_host(text.substr(plus + 1));
  return {host == nullptr ? text : text.substr(0, plus), host};
}

Gpus parse_gpus(std::string_view name, std::string_view text) {
  Gpus gpus;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const Group group = parse_group(text.substr(begin, end - begin));
    if (group.gpu == nullptr) {
      fail<InvalidArgument>(
          "there is no machine '{}': unknown GPU '{}'; GPUs: {}; hosts (only at the end of a name): {}; write a name "
          "such as H200x8-nvlink, RTX4090+RTX3090x2-pcie or RTX4090x4+EPYC9654, or the path of a JSON file "
          "(docs/simulation.md)",
          name, text.substr(begin, end - begin), fmt::join(catalogue_gpus(), ", "), fmt::join(catalogue_hosts(), ", "));
    }
    require<InvalidArgument>(group.count >= 1 && group.count <= kMostGpus, "machine '{}': expected 1 to {} {}, got {}",
                             name, kMostGpus, group.gpu->name, group.count);
    gpus.insert(gpus.end(), static_cast<size_t>(group.count), group.gpu);
    begin = end + 1;
  }
  require<InvalidArgument>(gpus.size() <= kMostGpus, "machine '{}': expected at most {} GPUs, got {}", name, kMostGpus,
                           gpus.size());
  return gpus;
}

int newest_common(const Gpus& gpus, int Gpu::* generation) {
  int newest = gpus.front()->*generation;
  for (const Gpu* gpu : gpus) newest = std::min(newest, gpu->*generation);
  return newest;
}

bool have_nvlink(const Gpus& gpus) {
  const int count = static_cast<int>(gpus.size());
  return std::all_of(gpus.begin(), gpus.end(), [&](const Gpu* gpu) {
    return gpu == gpus.front() && gpu->nvlink_generation > 0 && count <= std::max(gpu->nvlink_joined, 2);
  });
}

const Link& link_named(std::string_view machine, const std::string& name) {
  const Link* found = find_row(catalogue().links, name);
  if (found == nullptr) {
    fail<InvalidArgument>("machine '{}': there is no link '{}'; use one of {}", machine, name,
                          fmt::join(catalogue_links(), ", "));
  }
  return *found;
}

const Link& find_link(std::string_view machine, const Gpus& gpus, std::string link) {
  if (link.empty()) link = have_nvlink(gpus) ? "nvlink" : "pcie";
  if (link == "nvlink") {
    const Gpu& gpu = *gpus.front();
    if (!have_nvlink(gpus)) {
      fail<InvalidArgument>("machine '{}': NVLink connects {}; write -pcie instead of -nvlink", machine,
                            gpu.nvlink_generation == 0
                                ? fmt::format("no {} GPUs", gpu.name)
                                : fmt::format("at most {} GPUs, all of model {}", gpu.nvlink_joined, gpu.name));
    }
    return link_named(machine,
                      gpu.nvlink_joined == 2 ? "nvlink-bridge" : fmt::format("nvlink{}", gpu.nvlink_generation));
  }
  const bool peers = std::all_of(gpus.begin(), gpus.end(), [](const Gpu* gpu) { return gpu->pcie_peers; });
  const std::string pcie = fmt::format("pcie{}", newest_common(gpus, &Gpu::pcie_generation));
  if (link == "pcie") return link_named(machine, pcie + (peers ? "-p2p" : ""));
  if (link == "pcie-p2p") return link_named(machine, pcie + "-p2p");
  if (link == "pcie-host") return link_named(machine, pcie);
  return link_named(machine, link);
}

/// Adds the time for reading weights and the time for multiplying. Reading and multiplying do not overlap: the matrix
/// units wait while a kernel for many columns decodes weights.
ProductModel product(const Gpu& gpu, const DTypeTraits& dtype) {
  double element = element_bytes(dtype.dtype) / (gpu.generation.bandwidth_of_peak * gpu.bandwidth_gb_s * 1e9);
  if (dtype.is_quantized && dtype.dtype != DType::kQ8_0) {
    element = std::max(element, 1 / (catalogue().common.decoded_per_clock * gpu.processors * gpu.clock_ghz * 1e9));
  }
  double rate = dtype.is_quantized ? gpu.generation.quantized_of_int8 * gpu.int8_top_s
                                   : gpu.generation.plain_of_half * gpu.half_tflop_s;
  if (dtype.dtype == DType::kF32) rate /= 4;
  const auto at = [&](int64_t columns) {
    return ProductPoint{columns, element + 2 * static_cast<double>(columns) / (rate * 1e12)};
  };
  return {{at(1), at(kMostColumns)}, {}};
}

DeviceModel device_of(const Gpu& gpu, int number, int domain) {
  const CommonFigures& common = catalogue().common;
  DeviceModel device;
  device.name = fmt::format("{}.{}", gpu.name, number);
  device.identity = fmt::format("simulated {}", gpu.name);
  device.type = DeviceType::kGpu;
  device.domain = domain;
  device.memory = static_cast<size_t>(gpu.memory_mib * 1024 * 1024 - common.context_mib * 1024 * 1024);
  device.bandwidth = gpu.bandwidth_gb_s * 1e9;
  device.activation_bandwidth = gpu.generation.bandwidth_of_peak * device.bandwidth;
  device.attention_rate = common.attention_of_half * gpu.half_tflop_s * 1e12;
  device.attention_bandwidth = common.attention_of_bandwidth * device.bandwidth;
  device.op_seconds = common.op_seconds;
  device.run_seconds = common.run_seconds;
  for (const DType dtype : weight_dtypes()) {
    device.products[std::string(name_of(dtype))] = product(gpu, traits(dtype));
  }
  return device;
}

/// Model of a host as a device. The memory limits products with few columns, and the cores limit products with many
/// columns.
DeviceModel device_of(const Host& host, int domain) {
  const HostFigures& common = catalogue().host_common;
  const double clocks = host.cores * host.clock_ghz * 1e9, peak = host.bandwidth_gb_s * 1e9;
  DeviceModel device;
  device.name = host.name;
  device.identity = fmt::format("simulated {}", host.name);
  device.type = DeviceType::kCpu;
  device.domain = domain;
  device.memory = static_cast<size_t>(host.memory_gib * 1024 * 1024 * 1024);
  device.cores = host.cores;
  device.bandwidth = peak;
  device.activation_bandwidth = device.attention_bandwidth = common.bandwidth_of_peak * peak;
  device.attention_rate = common.attention_per_clock * clocks;
  device.op_seconds = common.op_seconds;
  device.run_seconds = common.run_seconds;
  for (const DType dtype : weight_dtypes()) {
    const double rate = (traits(dtype).is_quantized ? common.quantized_per_clock : common.plain_per_clock) * clocks;
    device.products[std::string(name_of(dtype))] = product_at_rate(rate, common.bandwidth_of_peak * peak, dtype);
  }
  return device;
}

CollectiveAlgorithm algorithm(std::string name, bool one_shot, const LinkStep& step) {
  return {std::move(name), one_shot, step.latency_us * 1e-6, step.per_rank_us * 1e-6, step.bandwidth_gb_s * 1e9};
}

/// Name of the GPUs, with a count for consecutive equal GPUs: "RTX4090+RTX3090x2".
std::string text_of(const Gpus& gpus) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < gpus.size(); begin = end) {
    while (end < gpus.size() && gpus[end] == gpus[begin]) ++end;
    text += fmt::format("{}{}{}", begin == 0 ? "" : "+", gpus[begin]->name,
                        end - begin > 1 ? fmt::format("x{}", end - begin) : "");
  }
  return text;
}

std::string read_text(const std::string& path, const std::function<void()>& poll) {
  constexpr std::string_view kRemedy = "use a JSON file in the format of docs/simulation.md";
  std::string text = read_file(
      {.path = path, .what = "description of a machine", .remedy = kRemedy, .takes_streams = true, .poll = poll});
  require<InvalidArgument>(text.find_first_not_of(" \t\r\n") != std::string::npos, "{}: is empty; {}", path, kRemedy);
  return text;
}

/// Extracts the description of one machine from `text`. `text` is the output of `shoal probe`, a machine file, or a
/// plain description. From a machine file, the function extracts the latest entry.
std::string description_in(const std::string& text) {
  using Json = nlohmann::ordered_json;
  const Json json = parse_json_or_nothing<Json>(text);
  if (!json.is_object()) return text;
  const Json* machine = &json;
  if (json.contains("machines") && json["machines"].is_array() && !json["machines"].empty()) {
    machine = &json["machines"].front();
  }
  if (machine->is_object() && machine->contains("machine")) machine = &(*machine)["machine"];
  return machine == &json ? text : machine->dump();
}

}  // namespace

std::vector<std::string> catalogue_gpus() {
  return names_of(catalogue().gpus);
}

std::vector<std::string> catalogue_hosts() {
  return names_of(catalogue().hosts);
}

std::vector<std::string> catalogue_links() {
  std::vector<std::string> names{"nvlink", "pcie", "pcie-p2p", "pcie-host"};
  for (const Link& link : catalogue().links) {
    if (link.name.starts_with("pcie")) names.emplace_back(link.name);
  }
  return names;
}

MachineModel make_machine(std::string_view name) {
  const auto [devices, link_name] = cut_link(name);
  const auto [text, host] = cut_host(devices);
  const Gpus gpus = parse_gpus(name, text);
  const Link& link = find_link(name, gpus, lower(link_name));
  MachineModel machine;
  std::map<std::string_view, int> counts;
  for (const Gpu* gpu : gpus) {
    machine.devices.push_back(device_of(*gpu, counts[gpu->name]++, static_cast<int>(machine.devices.size())));
    machine.domains.push_back({machine.devices.back().name, 0, 0});
  }
  const std::string names = text_of(gpus) + (host != nullptr ? "+" + host->name : "");
  machine.name = gpus.size() > 1 ? fmt::format("{}-{}", names, link.name) : names;
  if (host != nullptr) {
    const int domain = static_cast<int>(machine.domains.size());
    machine.devices.push_back(device_of(*host, domain));
    machine.domains.push_back({host->name, machine.devices.back().bandwidth, machine.devices.back().cores});
  }
  if (link.one_shot) machine.algorithms.push_back(algorithm("one_shot", true, *link.one_shot));
  if (link.two_shot) machine.algorithms.push_back(algorithm("two_shot", false, *link.two_shot));
  machine.algorithms.push_back(algorithm("nccl_small", false, link.nccl_small));
  machine.algorithms.push_back(algorithm("nccl_ring", false, link.nccl_ring));
  machine.copy_latency = catalogue().copy_latency_seconds;
  machine.copy_bandwidth = link.copy_bandwidth_gb_s * 1e9;
  return machine;
}

MachineModel find_machine(std::string_view name, const std::function<void()>& poll) {
  const bool is_file = name.find('/') != std::string_view::npos || lower(name).ends_with(".json");
  if (!is_file) return make_machine(name);
  const std::string path(name), text = read_text(path, poll);
  return parse_machine(description_in(text), path);
}

}  // namespace shoal::machine
