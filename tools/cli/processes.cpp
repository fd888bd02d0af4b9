#include "tools/cli/processes.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/error.h"
#include "collectives/communicator.h"
#include "processes/core_shares.h"
#include "processes/join.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

using std::chrono::milliseconds;

/// Waiting times after a failure or a signal. Their sum is less than a second, because mpirun sends SIGKILL a second
/// after SIGTERM. kNoticeWait: for a message of another process. kGrace: for the process to exit by itself.
/// kFailureNotice: for a line to be written. kPollInterval is the time between two polls.
constexpr milliseconds kNoticeWait{300}, kGrace{400}, kFailureNotice{100}, kPollInterval{20};

/// Never destroyed, because threads of the group may run after the program's static objects were destroyed.
std::atomic<ProcessGroup*> joined{nullptr};
std::atomic<bool> has_reported{false}, takes_line{false}, has_written{false};  // set at most once, and only with
                                                                               // several processes
std::atomic<bool> is_alone{false};
std::atomic<int> own_code{kSuccess};  // exit code, valid after all processes have left the group

/// If several processes of a host may use the same cores, divides these cores among the processes.
void divide_cores(ProcessGroup* group) {
  const std::vector<UsableCore> usable = usable_cores();
  std::string text;
  for (const UsableCore& core : usable) text += fmt::format("{} of {} ", core.threads, core.node);
  const std::vector<std::string> all = group->gather(text, "cores");
  std::vector<int> neighbours = group->processes_of(group->node(group->own()));
  std::erase_if(neighbours, [&](int process) { return all[static_cast<size_t>(process)] != text; });
  const auto shares = divide_threads(usable, neighbours.size());
  if (shares.empty()) return;
  const auto place = std::find(neighbours.begin(), neighbours.end(), group->own()) - neighbours.begin();
  cpu_set_t own;
  CPU_ZERO(&own);
  for (const int number : shares[static_cast<size_t>(place)]) CPU_SET(number, &own);
  // Limits all threads of the process, including MPI's threads. Otherwise an unlimited thread could use the cores of
  // other processes.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    sched_setaffinity(std::stoi(entry.path().filename().string()), sizeof(own), &own);
  }
}

bool have_failed() {
  const ProcessGroup* group = joined;
  return group != nullptr && group->has_failed();
}

std::string ended_by_signal() {
  return terminated() ? "ended by SIGTERM, which mpirun sends on Ctrl-C or after another process exits"
                      : "ended by SIGINT (Ctrl-C)";
}

/// Whether this process must exit soon. After this process has joined the group, process 0 handles Ctrl-C for all
/// processes. Before joining, this process handles Ctrl-C itself.
bool must_end() {
  return have_failed() || terminated() || (joined == nullptr && interrupted());
}

/// Exits the process if it does not exit by itself soon after a failure or a signal.
[[noreturn]] void guard() {
  do {
    while (!must_end()) std::this_thread::sleep_for(kPollInterval);
    for (int i = 0; !have_failed() && i < kNoticeWait / kPollInterval; ++i) std::this_thread::sleep_for(kPollInterval);
  } while (!must_end());  // must_end() becomes false if this process joins the group, because process 0 then handles
                          // SIGINT
  std::this_thread::sleep_for(kGrace);
  // If this process still runs although all processes have left the group without a failure, MPI_Finalize() hangs. The
  // cause may be that mpirun has begun to end other processes.
  const ProcessGroup* group = joined;
  if (group != nullptr && group->all_have_left() && !group->has_failed()) {
    std::this_thread::sleep_for(kFailureNotice);
    _exit(own_code);
  }
  const bool by_sigint = !have_failed() && !terminated();
  const auto say = [] { report(ended_by_signal(), kFailed); };
  // The report to the other processes may hang. So a second thread sends the report, and this thread waits only
  // briefly.
  std::thread(say).detach();
  std::this_thread::sleep_for(kPollInterval);
  say();
  _exit(by_sigint ? interrupt_code() : kFailed);
}

[[noreturn]] void end(int code) {
  if (ProcessGroup* group = joined) group->leave_failed();
  _exit(code);
}

/// Name of this process before it has joined the group.
std::string own_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* rank = std::getenv(variable)) return fmt::format("process {} ({})", rank, host.data());
  }
  return fmt::format("a process ({})", host.data());
}

/// If no process has failed before, sends the message to the other processes, which then end. Returns the line for
/// users: either the message with process and host, or the earlier failure of another process.
std::string broadcast_report(ProcessGroup& group, std::string_view message) {
  const bool came_first = !group.has_failed();
  try {
    if (came_first) group.fail(message);
    group.throw_if_failed();
  } catch (const CommError& error) {
    const std::string told = error.what();
    // The failure of this process may have caused the failure of the other process, so the line contains both messages.
    if (came_first || told.find(message) != std::string::npos || message.find(told) != std::string_view::npos)
      return told;
    return fmt::format("{}; in {}: {}", told, group.describe(group.own()), message);
  }
  return std::string(message);
}

}  // namespace

ProcessGroup* processes() {
  return is_alone ? nullptr : joined.load();
}

void work_alone() {
  is_alone = true;
}

bool is_leader() {
  const ProcessGroup* group = joined;
  return group == nullptr || group->own() == 0;
}

int run_among_processes(const std::function<int()>& body) {
  if (!is_one_of_several()) {
    const char* task = std::getenv("SLURM_PROCID");
    if (const int tasks = unconnected_tasks(); tasks > 0 && task != nullptr && std::string_view(task) == "0") {
      warn(fmt::format("srun started {} unconnected processes; add --mpi=pmix to srun to connect them", tasks));
    }
    return body();
  }
  ProcessGroup* group = nullptr;
  try {
    catch_interrupts();
    std::thread(guard).detach();
    group = join_processes(collectives::default_timeout()).release();
    joined = group;
    if (!is_leader()) leave_interrupts_to_others();
    const std::vector<std::string> versions = group->gather(version_line(), "version");
    for (int process = 1; process < group->size(); ++process) {
      if (versions[static_cast<size_t>(process)] == versions[0]) continue;
      group->fail(fmt::format("{} runs {}, but {} runs {}; install the same version on all hosts", group->describe(0),
                              versions[0], group->describe(process), versions[static_cast<size_t>(process)]));
    }
    divide_cores(group);
  } catch (...) {
    report_current(kFailed);
    end(kFailed);
  }
  int code = kSuccess;
  bool is_cut_off = false;  // whether a signal stopped this process and the other processes
  try {
    code = body();
  } catch (const Interrupted&) {
    is_cut_off = true;
    code = terminated() ? kFailed : interrupt_code();
  }
  // mpirun may have sent the signal because another process failed. The message of that failure may still arrive.
  for (int i = 0; interrupted() && !group->has_failed() && i < kNoticeWait / kPollInterval; ++i)
    std::this_thread::sleep_for(kPollInterval);
  // On SIGTERM, mpirun also ends the other processes, so MPI_Finalize() might wait for these processes forever.
  is_cut_off |= terminated();
  if (group->has_failed() || is_cut_off || (code != kSuccess && code != interrupt_code())) {
    report(is_cut_off              ? ended_by_signal()
           : code == kOutputClosed ? "the reader of stdout closed the pipe"
                                   : "the command failed",
           kFailed);
    end(code == kSuccess ? kFailed : code);
  }
  own_code = code;
  try {
    group->leave();
  } catch (...) {
    report_current(kFailed);
    end(kFailed);
  }
  return code;
}

void report_failure(std::string_view message, const std::function<void(std::string_view)>& write) noexcept {
  thread_local bool tells = false;
  if (tells) return;  // this thread failed again while it reported a failure
  // Waits only briefly, because the thread that writes the line may be stuck.
  const auto wait_for_line = [] {
    for (int i = 0; !has_written && i < kFailureNotice / kPollInterval; ++i) std::this_thread::sleep_for(kPollInterval);
  };
  std::string text;
  try {
    ProcessGroup* const group = joined;
    if (group == nullptr && !is_one_of_several()) return write(message);
    if (group == nullptr) {
      text = fmt::format("{}: {}", own_name(), message);
    } else if (!has_reported.exchange(true)) {
      tells = true;
      text = broadcast_report(*group, message);
    } else {
      wait_for_line();
      text = fmt::format("{}: {}", group->describe(group->own()), message);
    }
  } catch (...) {
    text = "out of memory";
  }
  tells = false;
  if (takes_line.exchange(true)) return wait_for_line();
  write(text);
  has_written = true;
}

}  // namespace shoal::tools
