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

/// What a message of another process needs to come, and work to end by itself after a failure. A second after a signal
/// mpirun sends one that cannot be caught.
constexpr milliseconds kNews{300}, kGrace{400}, kTold{100}, kLook{20};

/// Threads that look after it may outlive the statics of the program: it stays to the end.
std::atomic<ProcessGroup*> joined{nullptr};
std::atomic<bool> has_reported{false}, takes_line{false}, has_written{false};  // each process of several, once
std::atomic<bool> is_alone{false};
std::atomic<int> own_code{kSuccess};  // valid once all have left

/// Processes of one computer that may all use the same cores take a part of them each.
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
  // All threads, those of MPI too: what the process may use is what any of them may.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    sched_setaffinity(std::stoi(entry.path().filename().string()), sizeof(own), &own);
  }
}

bool have_failed() {
  const ProcessGroup* group = joined;
  return group != nullptr && group->has_failed();
}

std::string ended_by_signal() {
  return terminated() ? "ended by SIGTERM, which mpirun sends on Ctrl-C and when another process has ended"
                      : "ended by SIGINT (Ctrl-C)";
}

/// Is this process to end soon, without being asked again? Among the others Ctrl-C is for process 0 to act on, as if it
/// were the only one; before it has met them nothing else would end it.
bool must_end() {
  return have_failed() || terminated() || (joined == nullptr && interrupted());
}

/// Ends a process that does not come to its end after a failure or a signal.
[[noreturn]] void guard() {
  do {
    while (!must_end()) std::this_thread::sleep_for(kLook);
    for (int i = 0; !have_failed() && i < kNews / kLook; ++i) std::this_thread::sleep_for(kLook);
  } while (!must_end());  // a SIGINT that is for process 0, which this one has joined meanwhile
  std::this_thread::sleep_for(kGrace);
  // The run went well: MPI_Finalize() alone hangs, as it may after mpirun has begun to end the others.
  const ProcessGroup* group = joined;
  if (group != nullptr && group->all_have_left() && !group->has_failed()) {
    std::this_thread::sleep_for(kTold);
    _exit(own_code);
  }
  const bool by_sigint = !have_failed() && !terminated();
  const auto say = [] { report(ended_by_signal(), kFailed); };
  // What tells the others may be stuck: this thread waits for it as for any other, and not for long.
  std::thread(say).detach();
  std::this_thread::sleep_for(kLook);
  say();
  _exit(by_sigint ? interrupt_code() : kFailed);
}

[[noreturn]] void end(int code) {
  if (ProcessGroup* group = joined) group->leave_failed();
  _exit(code);
}

/// What this process is called before it knows the others.
std::string own_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* rank = std::getenv(variable)) return fmt::format("process {} ({})", rank, host.data());
  }
  return fmt::format("a process ({})", host.data());
}

/// Ends the other processes with the message. What users read: it with process and host, or why another process had
/// failed before.
std::string tell_all(ProcessGroup& group, std::string_view message) {
  const bool came_first = !group.has_failed();
  try {
    if (came_first) group.fail(message);
    group.throw_if_failed();
  } catch (const CommError& error) {
    const std::string told = error.what();
    // What failed here may be why the others failed.
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
      warn(fmt::format("srun has started {} of this program that do not know each other; --mpi=pmix makes them one",
                       tasks));
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
      group->fail(fmt::format("{} runs {} and {} {}; install the same on all hosts", group->describe(0), versions[0],
                              group->describe(process), versions[static_cast<size_t>(process)]));
    }
    divide_cores(group);
  } catch (...) {
    report_current(kFailed);
    end(kFailed);
  }
  int code = kSuccess;
  bool is_cut_off = false;  // what the others were doing with it, too
  try {
    code = body();
  } catch (const Interrupted&) {
    is_cut_off = true;
    code = terminated() ? kFailed : interrupt_code();
  }
  // A signal may come from mpirun, because another process has ended: its name comes, too.
  for (int i = 0; interrupted() && !group->has_failed() && i < kNews / kLook; ++i) std::this_thread::sleep_for(kLook);
  // mpirun ends the others, too: MPI_Finalize() may wait for them in vain.
  is_cut_off |= terminated();
  if (group->has_failed() || is_cut_off || (code != kSuccess && code != interrupt_code())) {
    report(is_cut_off              ? ended_by_signal()
           : code == kOutputClosed ? "the reader of the output has gone"
                                   : "it has failed",
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
  if (tells) return;  // what is told to other processes came back
  // Another thread may be stuck on its way.
  const auto wait_for_line = [] {
    for (int i = 0; !has_written && i < kTold / kLook; ++i) std::this_thread::sleep_for(kLook);
  };
  std::string text;
  try {
    ProcessGroup* const group = joined;
    if (group == nullptr && !is_one_of_several()) return write(message);
    if (group == nullptr) {
      text = fmt::format("{}: {}", own_name(), message);
    } else if (!has_reported.exchange(true)) {
      tells = true;
      text = tell_all(*group, message);
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
