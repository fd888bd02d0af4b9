#include "tools/cli/threads.h"

#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "models/session/loader.h"
#include "processes/remote_device.h"

namespace shoal::tools {

int threads_needed(std::span<Device* const> devices, int threads) {
  int count = models::loading_threads(static_cast<int>(devices.size()));
  for (const Device* device : devices) {
    if (device->type() != DeviceType::kCpu || is_remote(*device)) continue;
    count += threads > 0 ? threads : cpu::default_threads(*device);
  }
  return count;
}

void require_threads(int count) {
  std::promise<void> done;
  std::shared_future<void> end = done.get_future().share();
  std::vector<std::jthread> started;
  started.reserve(static_cast<size_t>(count));
  std::string problem;
  try {
    while (static_cast<int>(started.size()) < count) started.emplace_back([end] { end.wait(); });
  } catch (const std::system_error& error) {
    problem = error.code().message();
  }
  done.set_value();
  require<DeviceError>(problem.empty(),
                       "{} threads are needed, but the system starts only {} ({}); use fewer devices or threads (-t), "
                       "or raise the limit of processes (ulimit -u)",
                       count, started.size(), problem);
}

}  // namespace shoal::tools
