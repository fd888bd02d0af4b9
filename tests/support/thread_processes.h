// Runs a function in several "processes". Each process is a thread with its own ProcessGroup (thread_transport.h).
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "processes/process_group.h"
#include "tests/support/thread_transport.h"

namespace shoal::test {

struct ProcessEnd {
  std::exception_ptr failure = nullptr;  ///< exception that the function threw
  std::string what() const {
    if (failure == nullptr) return "";
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      return error.what();
    }
  }
};

/// Calls the function in each process. `hosts` contains one host name per process. If the function returns in every
/// process, the processes leave the group together.
inline std::vector<ProcessEnd> in_processes(ThreadHub& hub, const std::function<void(ProcessGroup& group)>& function,
                                            std::chrono::milliseconds silence = std::chrono::seconds(60)) {
  std::vector<ProcessEnd> ends(static_cast<size_t>(hub.size()));
  std::vector<std::thread> threads;
  for (int process = 0; process < hub.size(); ++process) {
    threads.emplace_back([&, process] {
      try {
        ProcessGroup group(hub.transport(process), silence);
        try {
          function(group);
          if (!group.has_failed()) group.leave();
        } catch (...) {
          ends[static_cast<size_t>(process)].failure = std::current_exception();
        }
        group.leave_failed();
      } catch (...) {
        ends[static_cast<size_t>(process)].failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

inline std::vector<ProcessEnd> in_processes(const std::vector<std::string>& hosts,
                                            const std::function<void(ProcessGroup& group)>& function) {
  ThreadHub hub(hosts);
  return in_processes(hub, function);
}

}  // namespace shoal::test
