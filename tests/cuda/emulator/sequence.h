// Runs the operations of a stream or of a graph one after the other. With SHOAL_EMULATED_EARLY=1, a kernel that
// launch_early() launches may begin before the preceding kernels have ended (launch.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/cuda/emulator/launch.h"
#include "tests/cuda/emulator/workers.h"

namespace shoal::cuda::emulator {

enum class OperationKind { kKernel, kCopy, kFill, kGraph, kEventRecord, kEventWait, kFree };

/// An operation of a stream or a graph. `run` receives the workers of the stream.
struct Operation {
  OperationKind kind;
  std::function<void(Workers&)> run;  ///< empty for kernels
  std::shared_ptr<const Kernel> kernel = nullptr;
  bool may_start_early() const { return kernel != nullptr && kernel->size.early; }
};

/// Largest number of kernels that may begin while an earlier kernel runs. A kernel first lets the next kernel start,
/// and then waits for its predecessor. Therefore, on a GPU, several kernels may wait for the running kernel.
constexpr size_t kMostEarly = 3;
bool kernels_start_early();

class Sequence {
 public:
  explicit Sequence(Workers& workers) : workers_(workers) {}
  /// `next` contains the operations that directly follow `operation` and may start early. The caller must later run all
  /// operations in `next`.
  void run(const Operation& operation, const std::vector<const Operation*>& next);

 private:
  Workers& workers_;
  std::deque<std::unique_ptr<Launch>> begun_;  // launches that began early
};

}  // namespace shoal::cuda::emulator
