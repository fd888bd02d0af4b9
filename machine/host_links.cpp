#include "machine/host_links.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "machine/probe_links.h"
#include "machine/probe_trial.h"

namespace shoal::machine {
namespace {

constexpr const char* kWhat = "links between hosts";
constexpr size_t kSmall = 1024, kLarge = 4 * kMega;
constexpr int kSmallTimes = 50, kRounds = 6;

/// Two processes; they may be of one host.
struct Ends {
  int from = 0, to = 0;
};

/// Rounds of pairs that have no process in common; each pair of `members` once.
std::vector<std::vector<Ends>> rounds_of_pairs(const std::vector<int>& members) {
  const size_t count = members.size(), odd = count | 1;
  std::vector<std::vector<Ends>> rounds(odd);
  for (size_t one = 0; one < count; ++one) {
    for (size_t other = one + 1; other < count; ++other) {
      rounds[(one + other) % odd].push_back({members[one], members[other]});
    }
  }
  std::erase_if(rounds, [](const auto& round) { return round.empty(); });
  return rounds;
}

/// Between hosts, and last of all within each that has several processes.
std::vector<std::vector<Ends>> rounds_of(const ProcessGroup& group) {
  std::vector<int> first;
  std::vector<Ends> within;
  for (int node = 0; node < group.nodes(); ++node) {
    const std::vector<int> processes = group.processes_of(node);
    first.push_back(processes[0]);
    if (processes.size() > 1) within.push_back({processes[0], processes[1]});
  }
  std::vector<std::vector<Ends>> rounds = rounds_of_pairs(first);
  if (!within.empty()) rounds.push_back(within);
  return rounds;
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

/// Seconds of a message to the other process, by one there and back.
double seconds_of_message(ProcessGroup& group, int peer, bool begins, std::span<std::byte> bytes) {
  return seconds_of([&] {
           if (begins) group.send(peer, group.passage_tag(peer), bytes, kWhat);
           group.receive(peer, group.passage_tag(peer), bytes, kWhat);
           if (!begins) group.send(peer, group.passage_tag(peer), bytes, kWhat);
         }) /
         2;
}

/// Measured from one end; the other one says the same, but for its interfaces.
HostLink measure_link(ProcessGroup& group, const Ends& ends) {
  const bool begins = group.own() == ends.from;
  const int peer = begins ? ends.to : ends.from;
  std::vector<std::byte> bytes(kLarge);
  std::vector<double> small, large;
  const SentBytes before = sent_bytes();
  // By single messages: in the middle of many those do not count that other programs held up.
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kSmallTimes; ++i) {
      small.push_back(seconds_of_message(group, peer, begins, std::span(bytes).first(kSmall)));
    }
    large.push_back(seconds_of_message(group, peer, begins, bytes));
  }
  const double latency = median(small), whole = median(large);
  HostLink link;
  link.speed = {latency, static_cast<double>(kLarge) / std::max(whole - latency, whole / 2)};
  if (group.node(ends.from) != group.node(ends.to)) {
    (begins ? link.from_interfaces : link.to_interfaces) =
        busy_interfaces(before, sent_bytes(), uint64_t{kLarge} * kRounds);
  }
  return link;
}

}  // namespace

std::vector<HostLink> measure_links(ProcessGroup& group) {
  const std::vector<std::vector<Ends>> rounds = rounds_of(group);
  nlohmann::json own = nlohmann::json::array();
  for (const std::vector<Ends>& round : rounds) {
    group.gather("", kWhat);  // the others wait here
    for (const Ends& ends : round) {
      if (group.own() != ends.from && group.own() != ends.to) continue;
      const HostLink link = measure_link(group, ends);
      own.push_back({link.from_interfaces, link.to_interfaces, link.speed.latency, link.speed.bandwidth});
    }
  }
  std::vector<nlohmann::json> all;
  for (const std::string& text : group.gather(own.dump(), kWhat)) all.push_back(nlohmann::json::parse(text));
  std::vector<size_t> taken(all.size(), 0);
  std::vector<HostLink> links;
  for (const std::vector<Ends>& round : rounds) {
    for (const Ends& ends : round) {
      const auto said_by = [&](int process) -> const nlohmann::json& {
        const auto index = static_cast<size_t>(process);
        return all[index].at(taken[index]++);
      };
      const nlohmann::json &from = said_by(ends.from), &to = said_by(ends.to);
      links.push_back({unique_host(group, ends.from), unique_host(group, ends.to), from[0], to[1], {from[2], from[3]}});
    }
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

// Two lines of titles, then "  eth0: " and 16 numbers, of which the ninth is what was sent.
SentBytes parse_net_dev(std::string_view text) {
  SentBytes sent;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream words(line.substr(0, colon) + " " + line.substr(colon + 1));
    std::string name;
    uint64_t number = 0;
    words >> name;
    for (int i = 0; i < 9; ++i) words >> number;
    if (words) sent[name] = number;
  }
  return sent;
}

SentBytes sent_bytes() {
  std::ostringstream text;
  if (std::ifstream file("/proc/net/dev"); file) text << file.rdbuf();
  SentBytes sent = parse_net_dev(text.str());
  std::error_code none;
  for (const auto& adapter : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    uint64_t words = 0;  // of 4 bytes
    for (const auto& port : std::filesystem::directory_iterator(adapter.path() / "ports", none)) {
      uint64_t number = 0;
      if (std::ifstream(port.path() / "counters/port_xmit_data") >> number) words += number;
    }
    sent[adapter.path().filename().string()] = 4 * words;
  }
  return sent;
}

std::string busy_interfaces(const SentBytes& before, const SentBytes& after, uint64_t bytes) {
  std::string names;
  for (const auto& [name, sent] : after) {
    const auto known = before.find(name);
    const uint64_t begin = known == before.end() ? 0 : known->second;
    if (sent >= begin + bytes / 8) names += (names.empty() ? "" : ",") + name;  // a message may be spread over several
  }
  return names;
}

}  // namespace shoal::machine
