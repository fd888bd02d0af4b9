#include "models/engine/output_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace shoal::models {

OutputChannel::OutputChannel() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require<DeviceError>(descriptor_ >= 0, "cannot create an event descriptor: {}; close files, or raise ulimit -n",
                       std::strerror(errno));
}

OutputChannel::~OutputChannel() {
  close(descriptor_);
}

void OutputChannel::put(std::vector<Output> outputs) {
  if (outputs.empty()) return;
  const std::lock_guard lock(mutex_);
  if (outputs_.empty()) {
    eventfd_write(descriptor_, 1);
    outputs_ = std::move(outputs);
  } else {
    outputs_.insert(outputs_.end(), std::move_iterator(outputs.begin()), std::move_iterator(outputs.end()));
  }
}

std::vector<Output> OutputChannel::take() {
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  if (!outputs_.empty()) eventfd_read(descriptor_, &count);
  return std::exchange(outputs_, {});
}

std::vector<Output> OutputChannel::wait(std::chrono::milliseconds longest) {
  pollfd entry{descriptor_, POLLIN, 0};
  poll(&entry, 1, static_cast<int>(longest.count()));
  return take();
}

}  // namespace shoal::models
