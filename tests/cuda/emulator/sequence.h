// Operations that are run one after the other: those of a stream, or of a branch of a graph. With
// SHOAL_EMULATED_EARLY=1 kernels of launch_early() that follow a kernel begin before it does (launch.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/cuda/emulator/launch.h"
#include "tests/cuda/emulator/workers.h"

namespace shoal::cuda::emulator {

enum class OperationKind { kKernel, kCopy, kFill, kGraph, kEventRecord, kEventWait, kFree };

/// Something that a stream or a graph does; the workers are those of the stream that it runs in.
struct Operation {
  OperationKind kind;
  std::function<void(Workers&)> run;  ///< of all but kernels
  std::shared_ptr<const Kernel> kernel = nullptr;
  bool may_start_early() const { return kernel != nullptr && kernel->size.early; }
};

/// How far ahead kernels begin. A kernel lets the next one start before it waits itself, so on a GPU several kernels
/// may wait behind the one that runs.
constexpr size_t kMostEarly = 3;
bool kernels_start_early();

class Sequence {
 public:
  explicit Sequence(Workers& workers) : workers_(workers) {}
  /// `next`: what follows at once and may start early. All of it must be run later.
  void run(const Operation& operation, const std::vector<const Operation*>& next);

 private:
  Workers& workers_;
  std::deque<std::unique_ptr<Launch>> begun_;  // of what follows the operation that runs
};

}  // namespace shoal::cuda::emulator
