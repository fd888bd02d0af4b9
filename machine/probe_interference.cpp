#include "machine/probe_interference.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "devices/cpu/topology.h"

namespace shoal::machine {
namespace {

/// Cores that others may keep busy: system services, the terminal.
constexpr double kAtRest = 0.2;
/// The system counts in ticks of 10 ms, and a short stretch may have caught some of another.
constexpr double kTicks = 0.03;
/// Two devices that say the same of themselves are alike when they do the same work in times that differ by less.
constexpr double kAlike = 0.15;

/// Hardware threads that this process may use.
const std::vector<int>& own_threads() {
  static const std::vector<int> threads = [] {
    std::vector<int> all;
    for (const cpu::Node& node : cpu::machine_nodes()) {
      const std::vector<int> of_node = cpu::hardware_threads(node.cores);
      all.insert(all.end(), of_node.begin(), of_node.end());
    }
    return all;
  }();
  return threads;
}

/// Cores beyond the quota.
double spare_cores() {
  size_t cores = 0;
  for (const cpu::Node& node : cpu::machine_nodes()) cores += node.cores.size();
  return std::max(0.0, static_cast<double>(cores) - cpu::usable_cores());
}

double own_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::optional<double> busy_seconds(std::string_view stat, std::span<const int> threads, double ticks_per_second) {
  // cpu3 user nice system idle iowait irq softirq steal ...: guests are part of user.
  constexpr std::array kIsBusy{true, true, true, false, false, true, true, true};
  std::istringstream lines{std::string(stat)};
  std::string line;
  double ticks = 0;
  size_t found = 0;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    const auto is_named = [&](int thread) { return name == "cpu" + std::to_string(thread); };
    if (!name.starts_with("cpu") || std::none_of(threads.begin(), threads.end(), is_named)) continue;
    ++found;
    double count = 0;
    for (size_t i = 0; i < kIsBusy.size() && words >> count; ++i) ticks += kIsBusy[i] ? count : 0;
  }
  if (found == 0 || found != threads.size()) return std::nullopt;
  return ticks / ticks_per_second;
}

double other_programs() {
  std::ifstream file("/proc/stat");
  std::ostringstream text;
  text << file.rdbuf();
  const auto busy = busy_seconds(text.str(), own_threads(), static_cast<double>(sysconf(_SC_CLK_TCK)));
  if (!busy) return 0;
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return *busy - own_seconds() - spare_cores() * now.count();
}

double Stretch::cores() const {
  return seconds > 0 ? std::max(0.0, others) / seconds : 0;
}

bool Stretch::is_disturbed() const {
  return others > kAtRest * seconds + kTicks;
}

Stretch StretchClock::stop() const {
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
  return {time.count(), others_() - first_};
}

Likeness compare_twins(std::span<const TwinRound> rounds) {
  double one = std::numeric_limits<double>::infinity(), other = one;
  double least = one, most = 0;
  bool is_disturbed = false;
  for (const TwinRound& round : rounds) {
    one = std::min(one, round.one);
    other = std::min(other, round.other);
    least = std::min(least, round.one / round.other);
    most = std::max(most, round.one / round.other);
    is_disturbed = is_disturbed || round.is_disturbed;
  }
  const double difference = std::max(one / other, other / one);
  if (difference < 1 + kAlike) return Likeness::kAlike;
  // A difference counts that is more than rounds differ by.
  const bool is_steady = difference > (1 + kAlike) * most / least;
  return is_steady && !is_disturbed ? Likeness::kDifferent : Likeness::kUncertain;
}

}  // namespace shoal::machine
