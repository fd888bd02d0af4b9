#include "tuning/probe/other_programs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "devices/cpu/topology.h"

namespace shoal::probe {
namespace {

/// CPU seconds since the system start in which these hardware threads ran programs or were withheld by a hypervisor.
double busy_seconds(const std::vector<int>& threads) {
  double ticks = 0;
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    std::istringstream words(line);
    std::string name;
    std::array<double, 8> count{};  // in this order: user nice system idle iowait irq softirq steal
    words >> name;
    for (double& value : count) words >> value;
    const auto is_named = [&](int thread) { return name == "cpu" + std::to_string(thread); };
    if (!std::any_of(threads.begin(), threads.end(), is_named)) continue;
    for (const size_t i : {0, 1, 2, 5, 6, 7}) ticks += count[i];
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

double other_programs() {
  double spare = -cpu::usable_cores();
  std::vector<int> threads;
  for (const cpu::Node& node : cpu::machine_nodes()) {
    spare += static_cast<double>(node.cores.size());
    const std::vector<int> of_node = cpu::hardware_threads(node.cores);
    threads.insert(threads.end(), of_node.begin(), of_node.end());
  }
  timespec own{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return busy_seconds(threads) - static_cast<double>(own.tv_sec) - 1e-9 * static_cast<double>(own.tv_nsec) -
         std::max(0.0, spare) * now.count();
}

}  // namespace shoal::probe
