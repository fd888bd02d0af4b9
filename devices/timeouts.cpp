#include "devices/timeouts.h"

#include <utility>

namespace shoal {
namespace {

std::atomic<int> open_count{0};

/// The callback is never destroyed, because devices may outlive the program's static objects.
TimeoutCallback& callback() {
  static TimeoutCallback& callback = *new TimeoutCallback;
  return callback;
}

}  // namespace

void set_timeout_callback(TimeoutCallback to) {
  callback() = std::move(to);
}

int open_timeouts() {
  return open_count;
}

TimeoutReport::~TimeoutReport() {
  if (said_) --open_count;
}

void TimeoutReport::say(std::string_view message) {
  if (said_.exchange(true)) return;
  ++open_count;
  if (callback()) callback()(message);
}

}  // namespace shoal
