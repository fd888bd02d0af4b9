#include "machine/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/cache_file.h"
#include "base/error.h"
#include "base/json_text.h"

namespace shoal::machine {
namespace {

/// What a family of GPUs has in common: how much of its peak rates kernels for models reach.
struct Generation {
  double bandwidth;  ///< of the memory's peak, products of one column
  double quantized;  ///< of the dense rate with 8-bit integers, products of many columns with quantised weights
  double plain;      ///< of the dense rate with halves, products of many columns with float weights
};
constexpr Generation kVolta{0.80, 0.30, 0.40};
constexpr Generation kAmpere{0.80, 0.15, 0.55};         // data centre
constexpr Generation kAmpereDesktop{0.90, 0.20, 0.85};  // GDDR6
constexpr Generation kAda{0.90, 0.22, 0.85};
constexpr Generation kAdaServer{0.88, 0.13, 0.50};
constexpr Generation kHopper{0.80, 0.08, 0.35};
constexpr Generation kBlackwell{0.80, 0.08, 0.30};
constexpr Generation kBlackwellDesktop{0.90, 0.26, 0.85};

struct Gpu {
  std::string_view name;
  const Generation& generation;
  double memory_mib;  ///< as the driver shows it
  double bandwidth;   ///< GB/s, peak
  double half_rate;   ///< dense Tflop/s of f16 with f32 sums
  double int8_rate;   ///< dense Top/s
  int processors;
  double clock;    ///< GHz
  int nvlink;      ///< generation; 0: none
  int joined;      ///< GPUs that NVLink can join: 2 by a bridge, or all of a machine by switches
  int pcie;        ///< generation
  bool has_peers;  ///< over PCIe, with the driver that it comes with
};
constexpr std::array kGpus{
    Gpu{"H200", kHopper, 143771, 4800, 989, 1979, 132, 1.83, 4, 8, 5, true},
    Gpu{"H100", kHopper, 81559, 3350, 989, 1979, 132, 1.83, 4, 8, 5, true},
    Gpu{"H100-PCIe", kHopper, 81559, 2039, 756, 1513, 114, 1.62, 4, 2, 5, true},
    Gpu{"B200", kBlackwell, 183359, 7700, 2250, 4500, 148, 1.86, 5, 8, 5, true},
    Gpu{"A100", kAmpere, 81920, 2039, 312, 624, 108, 1.41, 3, 8, 4, true},
    Gpu{"A100-40G", kAmpere, 40960, 1555, 312, 624, 108, 1.41, 3, 8, 4, true},
    Gpu{"A100-PCIe", kAmpere, 81920, 1935, 312, 624, 108, 1.41, 3, 2, 4, true},
    Gpu{"V100", kVolta, 32768, 900, 125, 62, 80, 1.53, 2, 8, 3, true},
    Gpu{"L40S", kAdaServer, 46068, 864, 362, 733, 142, 2.49, 0, 1, 4, true},
    Gpu{"L4", kAdaServer, 23034, 300, 121, 242, 58, 2.04, 0, 1, 4, true},
    Gpu{"A6000", kAmpereDesktop, 49140, 768, 155, 310, 84, 1.80, 3, 2, 4, true},
    Gpu{"RTX6000Ada", kAda, 49140, 960, 364, 728, 142, 2.51, 0, 1, 4, true},
    Gpu{"RTXPRO6000", kBlackwellDesktop, 97887, 1792, 468, 936, 188, 2.43, 0, 1, 5, true},
    Gpu{"RTX5090", kBlackwellDesktop, 32607, 1792, 210, 838, 170, 2.41, 0, 1, 5, false},
    Gpu{"RTX4090", kAda, 24564, 1008, 165, 661, 128, 2.52, 0, 1, 4, false},
    Gpu{"RTX3090", kAmpereDesktop, 24576, 936, 71, 284, 82, 1.70, 3, 2, 4, false},
};

// Figures of all GPUs.
constexpr double kContextBytes = 512.0 * 1024 * 1024;  // of its memory that the driver and the program take
constexpr double kDecodedPerClock = 12;      // weights of less than 8 bits that a processor decodes for one column
constexpr double kOpSeconds = 3e-6;          // of a kernel in a CUDA graph: its start and its end
constexpr double kRunSeconds = 60e-6;        // starting a CUDA graph, waiting for it, the result's way to the host
constexpr double kAttentionRate = 0.3;       // of the rate with halves
constexpr double kAttentionBandwidth = 0.6;  // of the memory's peak
constexpr int64_t kMostColumns = 4096;
constexpr int kMostGpus = 64;

/// A way for GPUs to reach each other. Latencies in microseconds, bandwidths in GB/s.
struct Step {
  double latency, per_rank, bandwidth;
};
struct LinkKind {
  std::string_view name;
  Step one_shot, two_shot;  ///< by kernels over peer memory; without bandwidth: there is no peer access
  Step small, ring;         ///< NCCL: protocols for short messages and for long ones
  double copy_bandwidth;    ///< of what a scheduler hands from one device to the next, through the host
};
constexpr std::array kLinks{
    LinkKind{"nvlink5", {3.4, 0.36, 130}, {6.8, 0.55, 130}, {10, 0.9, 230}, {20, 1.2, 650}, 20},
    LinkKind{"nvlink4", {3.4, 0.36, 80}, {6.8, 0.55, 75}, {10, 0.9, 130}, {22, 1.2, 340}, 20},
    LinkKind{"nvlink3", {3.8, 0.42, 60}, {7.5, 0.6, 60}, {13, 1.2, 90}, {60, 3.0, 225}, 12},
    LinkKind{"nvlink2", {4.0, 0.45, 30}, {8.0, 0.6, 30}, {13, 1.2, 45}, {60, 3.0, 120}, 6},
    LinkKind{"nvlink-bridge", {4.0, 0.45, 25}, {8.0, 0.6, 25}, {13, 1.2, 25}, {30, 3.0, 45}, 12},
    LinkKind{"pcie5-p2p", {3.6, 0.5, 30}, {7.5, 0.6, 30}, {12, 1.5, 25}, {20, 2.0, 40}, 20},
    LinkKind{"pcie4-p2p", {4.0, 0.5, 18}, {8.0, 0.6, 18}, {13, 1.6, 13}, {25, 2.0, 20}, 12},
    LinkKind{"pcie3-p2p", {2.2, 0.3, 9.4}, {5.0, 0.4, 9.4}, {14, 1.6, 7}, {30, 2.0, 10}, 6},
    LinkKind{"pcie5", {}, {}, {5, 4.6, 4}, {20, 5.0, 24}, 20},
    LinkKind{"pcie4", {}, {}, {5, 4.6, 2}, {20, 5.0, 12}, 12},
    LinkKind{"pcie3", {}, {}, {5, 4.6, 1}, {20, 5.0, 6}, 6},
};
constexpr double kCopyLatency = 40e-6;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string_view without_scheme(std::string_view name) {
  return name.substr(lower(name).starts_with("sim:") ? 4 : 0);
}

const Gpu* find_gpu(std::string_view name) {
  const auto found =
      std::find_if(kGpus.begin(), kGpus.end(), [&](const Gpu& gpu) { return lower(gpu.name) == lower(name); });
  return found == kGpus.end() ? nullptr : &*found;
}

/// GPUs in the order of the name, each as often as it says.
using Gpus = std::vector<const Gpu*>;

/// "H200x8" -> eight; "RTX3090" -> one; no GPU for anything else.
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

/// "A100-PCIex4-pcie-p2p" -> "A100-PCIex4", "pcie-p2p": cut at the first dash behind a GPU.
std::pair<std::string_view, std::string_view> cut_link(std::string_view name) {
  const size_t plus = name.find_last_of('+'), last = plus == std::string_view::npos ? 0 : plus + 1;
  for (size_t end = name.size(); end != std::string_view::npos && end > last; end = name.rfind('-', end - 1)) {
    if (parse_group(name.substr(last, end - last)).gpu == nullptr) continue;
    return {name.substr(0, end), end == name.size() ? std::string_view() : name.substr(end + 1)};
  }
  return {name, {}};
}

Gpus parse_gpus(std::string_view name, std::string_view text) {
  Gpus gpus;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const Group group = parse_group(text.substr(begin, end - begin));
    if (group.gpu == nullptr) {
      fail<InvalidArgument>(
          "there is no machine '{}': '{}' is none of the GPUs {}; write H200x8-nvlink, RTX4090+RTX3090x2-pcie, or the "
          "path of a JSON file (docs/simulation.md)",
          name, text.substr(begin, end - begin), fmt::join(catalogue_gpus(), ", "));
    }
    require<InvalidArgument>(group.count >= 1 && group.count <= kMostGpus, "machine '{}': expected 1 to {} {}, got {}",
                             name, kMostGpus, group.gpu->name, group.count);
    gpus.insert(gpus.end(), static_cast<size_t>(group.count), group.gpu);
    begin = end + 1;
  }
  require<InvalidArgument>(gpus.size() <= kMostGpus, "machine '{}': expected up to {} GPUs, got {}", name, kMostGpus,
                           gpus.size());
  return gpus;
}

int newest_common(const Gpus& gpus, int Gpu::*generation) {
  int newest = gpus.front()->*generation;
  for (const Gpu* gpu : gpus) newest = std::min(newest, gpu->*generation);
  return newest;
}

bool have_nvlink(const Gpus& gpus) {
  const int count = static_cast<int>(gpus.size());
  return std::all_of(gpus.begin(), gpus.end(), [&](const Gpu* gpu) {
    return gpu == gpus.front() && gpu->nvlink > 0 && count <= std::max(gpu->joined, 2);
  });
}

const LinkKind& link_named(std::string_view machine, const std::string& name) {
  const auto found =
      std::find_if(kLinks.begin(), kLinks.end(), [&](const LinkKind& link) { return link.name == name; });
  if (found == kLinks.end()) {
    fail<InvalidArgument>("machine '{}': there is no link '{}'; there are {}", machine, name,
                          fmt::join(catalogue_links(), ", "));
  }
  return *found;
}

const LinkKind& find_link(std::string_view machine, const Gpus& gpus, std::string link) {
  if (link.empty()) link = have_nvlink(gpus) ? "nvlink" : "pcie";
  if (link == "nvlink") {
    const Gpu& gpu = *gpus.front();
    if (!have_nvlink(gpus)) {
      fail<InvalidArgument>("machine '{}': NVLink joins {}; write -pcie", machine,
                            gpu.nvlink == 0 ? fmt::format("no {}", gpu.name)
                                            : fmt::format("up to {} {}, and no others to them", gpu.joined, gpu.name));
    }
    return link_named(machine, gpu.joined == 2 ? "nvlink-bridge" : fmt::format("nvlink{}", gpu.nvlink));
  }
  const bool peers = std::all_of(gpus.begin(), gpus.end(), [](const Gpu* gpu) { return gpu->has_peers; });
  const std::string pcie = fmt::format("pcie{}", newest_common(gpus, &Gpu::pcie));
  if (link == "pcie") return link_named(machine, pcie + (peers ? "-p2p" : ""));
  if (link == "pcie-p2p") return link_named(machine, pcie + "-p2p");
  if (link == "pcie-host") return link_named(machine, pcie);
  return link_named(machine, link);
}

/// Bytes and operations add up: while a kernel for many columns decodes weights its matrix units rest.
ProductModel product(const Gpu& gpu, const DTypeTraits& dtype) {
  const double bytes = static_cast<double>(dtype.block_bytes) / static_cast<double>(dtype.block_elems);
  double element = bytes / (gpu.generation.bandwidth * gpu.bandwidth * 1e9);
  if (dtype.is_quantized && dtype.dtype != DType::kQ8_0) {
    element = std::max(element, 1 / (kDecodedPerClock * gpu.processors * gpu.clock * 1e9));
  }
  double rate = dtype.is_quantized ? gpu.generation.quantized * gpu.int8_rate : gpu.generation.plain * gpu.half_rate;
  if (dtype.dtype == DType::kF32) rate /= 4;
  const auto at = [&](int64_t columns) {
    return ProductPoint{columns, element + 2 * static_cast<double>(columns) / (rate * 1e12)};
  };
  return {{at(1), at(kMostColumns)}, {}};
}

DeviceModel device_of(const Gpu& gpu, int number, int domain) {
  DeviceModel device;
  device.name = fmt::format("{}.{}", gpu.name, number);
  device.identity = fmt::format("simulated {}", gpu.name);
  device.type = DeviceType::kGpu;
  device.domain = domain;
  device.memory = static_cast<size_t>(gpu.memory_mib * 1024 * 1024 - kContextBytes);
  device.bandwidth = gpu.bandwidth * 1e9;
  device.activation_bandwidth = gpu.generation.bandwidth * device.bandwidth;
  device.attention_rate = kAttentionRate * gpu.half_rate * 1e12;
  device.attention_bandwidth = kAttentionBandwidth * device.bandwidth;
  device.op_seconds = kOpSeconds;
  device.run_seconds = kRunSeconds;
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeTraits& dtype = traits(static_cast<DType>(i));
    if (dtype.is_float || dtype.is_quantized) device.products[std::string(dtype.name)] = product(gpu, dtype);
  }
  return device;
}

CollectiveAlgorithm algorithm(std::string name, bool one_shot, const Step& step) {
  return {std::move(name), one_shot, step.latency * 1e-6, step.per_rank * 1e-6, step.bandwidth * 1e9};
}

/// "RTX4090+RTX3090x2": neighbours that are alike counted.
std::string text_of(const Gpus& gpus) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < gpus.size(); begin = end) {
    while (end < gpus.size() && gpus[end] == gpus[begin]) ++end;
    text += fmt::format("{}{}{}", begin == 0 ? "" : "+", gpus[begin]->name,
                        end - begin > 1 ? fmt::format("x{}", end - begin) : "");
  }
  return text;
}

/// Why a file has no text.
std::string fault_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return "there is no such file";
  if (status.type() == std::filesystem::file_type::none) return "cannot be read: " + error.message();
  if (std::filesystem::is_directory(status)) return "is a folder";
  const bool is_file = std::filesystem::is_regular_file(status);
  if (!is_file && !std::filesystem::is_fifo(status)) return "is no file with text";
  errno = 0;
  if (is_file && !std::ifstream(path)) return fmt::format("cannot be read: {}", std::strerror(errno));
  return "is empty";
}

std::string read_text(const std::string& path) {
  std::string text = read_whole_file(path);
  if (text.find_first_not_of(" \t\r\n") != std::string::npos) return text;
  fail<InvalidArgument>("{}: {}; name a JSON file such as docs/simulation.md shows", path, fault_of(path));
}

/// Of what `shoal probe` prints the machine, of what it keeps in a file the one measured last; else all of the text.
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
  std::vector<std::string> names;
  for (const Gpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

std::vector<std::string> catalogue_links() {
  std::vector<std::string> names{"nvlink", "pcie", "pcie-p2p", "pcie-host"};
  for (const LinkKind& link : kLinks) {
    if (link.name.starts_with("pcie")) names.emplace_back(link.name);
  }
  return names;
}

MachineModel make_machine(std::string_view name) {
  const std::string_view bare = without_scheme(name);
  const auto [text, link_name] = cut_link(bare);
  const Gpus gpus = parse_gpus(bare, text);
  const LinkKind& link = find_link(bare, gpus, lower(link_name));
  MachineModel machine;
  std::map<std::string_view, int> counts;
  for (const Gpu* gpu : gpus) {
    machine.devices.push_back(device_of(*gpu, counts[gpu->name]++, static_cast<int>(machine.devices.size())));
    machine.domains.push_back({machine.devices.back().name, 0, 0});
  }
  machine.name = gpus.size() > 1 ? fmt::format("{}-{}", text_of(gpus), link.name) : text_of(gpus);
  if (link.one_shot.bandwidth > 0) {
    machine.algorithms.push_back(algorithm("one_shot", true, link.one_shot));
    machine.algorithms.push_back(algorithm("two_shot", false, link.two_shot));
  }
  machine.algorithms.push_back(algorithm("nccl_small", false, link.small));
  machine.algorithms.push_back(algorithm("nccl_ring", false, link.ring));
  machine.copy_latency = kCopyLatency;
  machine.copy_bandwidth = link.copy_bandwidth * 1e9;
  return machine;
}

MachineModel find_machine(std::string_view name) {
  const std::string_view bare = without_scheme(name);
  const bool is_file = bare.find('/') != std::string_view::npos || lower(bare).ends_with(".json");
  if (!is_file) return make_machine(bare);
  const std::string path(bare), text = read_text(path);
  return parse_machine(description_in(text), path);
}

}  // namespace shoal::machine
