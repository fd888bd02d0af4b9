#include "tuning/probe/host_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tuning/probe/probe_trial.h"

namespace shoal::machine {
namespace {

constexpr const char* kWhat = "links between hosts";
constexpr size_t kShort = 1024, kLong = 4 * kMega;
constexpr int kShortTimes = 50, kLinkRounds = 6;

/// Two processes; they may be of one host.
std::vector<std::pair<int, int>> pairs_of(const ProcessGroup& group) {
  std::vector<std::pair<int, int>> pairs;
  for (int node = 0; node < group.nodes(); ++node) {
    const std::vector<int> processes = group.processes_of(node);
    for (int other = node + 1; other < group.nodes(); ++other) {
      pairs.emplace_back(processes[0], group.processes_of(other)[0]);
    }
    if (processes.size() > 1) pairs.emplace_back(processes[0], processes[1]);
  }
  return pairs;
}

/// Containers may have the name of their host in common.
std::string unique_host(const ProcessGroup& group, int process) {
  const int node = group.node(process);
  const std::string& name = group.host(process);
  for (int other = 0; other < node; ++other) {
    if (group.host(group.processes_of(other)[0]) == name) return fmt::format("{}/{}", name, node);
  }
  return name;
}

/// Seconds of a message to the other process: half of the way there and back.
double seconds_of_message(ProcessGroup& group, int peer, bool begins, std::span<std::byte> bytes) {
  return seconds_of([&] {
           if (begins) group.send(peer, group.passage_tag(peer), bytes, kWhat);
           group.receive(peer, group.passage_tag(peer), bytes, kWhat);
           if (!begins) group.send(peer, group.passage_tag(peer), bytes, kWhat);
         }) /
         2;
}

Network measure_link(ProcessGroup& group, int peer, bool begins) {
  std::vector<std::byte> bytes(kLong);
  std::vector<double> small, large;
  // Single messages: a median leaves out those that other programs held up.
  for (int round = 0; round < kLinkRounds; ++round) {
    for (int i = 0; i < kShortTimes; ++i) {
      small.push_back(seconds_of_message(group, peer, begins, std::span(bytes).first(kShort)));
    }
    large.push_back(seconds_of_message(group, peer, begins, bytes));
  }
  const double latency = median(small), whole = median(large);
  return {latency, static_cast<double>(kLong) / std::max(whole - latency, whole / 2)};
}

}  // namespace

std::vector<HostLink> measure_links(ProcessGroup& group) {
  std::vector<HostLink> links;
  for (const auto& [from, to] : pairs_of(group)) {
    Network speed;
    if (group.own() == from) speed = measure_link(group, to, true);
    if (group.own() == to) speed = measure_link(group, from, false);
    const std::vector<std::string> all = group.gather(nlohmann::json{speed.latency, speed.bandwidth}.dump(), kWhat);
    const auto told = nlohmann::json::parse(all[static_cast<size_t>(from)]);
    links.push_back({unique_host(group, from), unique_host(group, to), {told[0], told[1]}});
  }
  return links;
}

std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts) {
  std::optional<Network> slowest;
  for (const HostLink& link : links) {
    if ((link.from != link.to) != between_hosts) continue;
    if (!slowest) slowest = link.speed;
    slowest->latency = std::max(slowest->latency, link.speed.latency);
    slowest->bandwidth = std::min(slowest->bandwidth, link.speed.bandwidth);
  }
  return slowest;
}

}  // namespace shoal::machine
