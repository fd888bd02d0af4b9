#include "processes/core_shares.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace shoal {
namespace {

namespace fs = std::filesystem;

/// Of "3,19", "3-4" or "3"; `otherwise` where the system does not say.
int first_number(const fs::path& file, int otherwise) {
  int number = otherwise;
  std::ifstream(file) >> number;
  return number;
}

/// Of the directory "node1" among those of a hardware thread.
int node_of(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node") && name.size() > 4) return std::atoi(name.c_str() + 4);
  }
  return 0;
}

/// What is given out as one, and its node.
struct Unit {
  std::vector<int> threads;
  int node;
};

std::vector<Unit> units_of(std::span<const HardwareThread> threads, bool whole_cores) {
  std::vector<Unit> units;
  for (size_t i = 0; i < threads.size(); ++i) {
    const bool is_same = i > 0 && threads[i].core == threads[i - 1].core && threads[i].node == threads[i - 1].node;
    if (!whole_cores || !is_same) units.push_back({{}, threads[i].node});
    units.back().threads.push_back(threads[i].number);
  }
  return units;
}

/// Where the share that would begin with unit `even` begins: with a node, where one begins near it.
size_t begin_near(std::span<const Unit> units, size_t even, size_t share) {
  for (size_t distance = 0; 4 * distance <= share; ++distance) {
    for (const size_t at : {even - std::min(distance, even), even + distance}) {
      if (at > 0 && at < units.size() && units[at].node != units[at - 1].node) return at;
    }
  }
  return even;
}

}  // namespace

std::vector<HardwareThread> usable_threads() {
  std::vector<HardwareThread> threads;
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return threads;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &usable)) continue;
    const fs::path directory = fmt::format("/sys/devices/system/cpu/cpu{}", number);
    threads.push_back({number, first_number(directory / "topology/thread_siblings_list", number), node_of(directory)});
  }
  return threads;
}

std::vector<std::vector<int>> divide_threads(std::vector<HardwareThread> threads, size_t processes) {
  std::sort(threads.begin(), threads.end(), [](const HardwareThread& a, const HardwareThread& b) {
    return std::tie(a.node, a.core, a.number) < std::tie(b.node, b.core, b.number);
  });
  std::vector<Unit> units = units_of(threads, true);
  if (units.size() < processes) units = units_of(threads, false);
  if (units.size() < processes) return {};
  std::vector<std::vector<int>> shares(processes);
  size_t next = 0;
  for (size_t i = 0; i < processes; ++i) {
    const size_t end = i + 1 == processes
                           ? units.size()
                           : begin_near(units, (i + 1) * units.size() / processes, units.size() / processes);
    for (; next < end; ++next) {
      shares[i].insert(shares[i].end(), units[next].threads.begin(), units[next].threads.end());
    }
  }
  return shares;
}

}  // namespace shoal
