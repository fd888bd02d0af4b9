#include "tests/cuda/emulator/sequence.h"

#include <utility>

#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {

bool kernels_start_early() {
  return setting("SHOAL_EMULATED_EARLY", 0) != 0;
}

void Sequence::run(const Operation& operation, const std::vector<const Operation*>& next) {
  if (operation.kernel == nullptr) {
    operation.run(workers_);
    return;
  }
  std::unique_ptr<Launch> own;
  if (begun_.empty()) {
    own = std::make_unique<Launch>(operation.kernel, workers_);
  } else {
    own = std::move(begun_.front());
    begun_.pop_front();
  }
  for (size_t i = begun_.size(); i < next.size(); ++i) {
    begun_.push_back(std::make_unique<Launch>(next[i]->kernel, workers_));
    begun_.back()->begin_early();
  }
  Launch* last = own.get();
  for (const auto& launch : begun_) std::exchange(last, launch.get())->set_next(launch.get());
  own->run();
}

}  // namespace shoal::cuda::emulator
