#include "tools/cli/stuck_rank.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "devices/timeouts.h"
#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

/// What the devices that are not stuck need to stop, and to spare.
constexpr std::chrono::milliseconds kGraceOfStuckRanks{1000};

struct State {
  std::mutex mutex;  ///< held for good by the one that ends the process
  std::function<void(const std::string& error)>* last_words = nullptr;
};

/// Threads that wait may outlive the statics of the program.
State& state() {
  static State& state = *new State;
  return state;
}

void end_if_stuck(const std::string& error) {
  std::this_thread::sleep_for(kGraceOfStuckRanks);
  State& own = state();
  own.mutex.lock();
  if (open_timeouts() == 0 || own.last_words == nullptr) return own.mutex.unlock();
  try {
    (*own.last_words)(error);
  } catch (...) {
    // The output has gone; the exit code says that something failed.
  }
  _exit(kFailed);
}

void on_time_out(std::string_view message) {
  try {
    std::thread(end_if_stuck, std::string(message)).detach();
  } catch (const std::exception&) {
    // The error is reported all the same unless the rank is stuck for good.
  }
}

}  // namespace

StuckRankWatch::StuckRankWatch(std::function<void(const std::string& error)> last_words)
    : last_words_(std::move(last_words)) {
  const std::lock_guard lock(state().mutex);
  before_ = std::exchange(state().last_words, &last_words_);
  if (before_ == nullptr) set_timeout_callback(on_time_out);
}

StuckRankWatch::~StuckRankWatch() {
  const std::lock_guard lock(state().mutex);
  state().last_words = before_;
}

}  // namespace shoal::tools
