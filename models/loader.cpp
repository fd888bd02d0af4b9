#include "models/loader.h"

#include <exception>
#include <mutex>
#include <thread>

#include "devices/allocate.h"
#include "graph/error.h"
#include "meta/meta_device.h"

namespace shoal::models {
namespace {

/// Adds up what the loading threads have done and passes it on.
class ProgressMeter {
 public:
  ProgressMeter(size_t total, const LoadProgress& report) : total_(total), report_(report) {}
  void add(size_t bytes) {
    std::lock_guard lock(mutex_);
    done_ += bytes;
    if (report_) report_(done_, total_);
  }

 private:
  std::mutex mutex_;
  size_t done_ = 0;
  size_t total_;
  const LoadProgress& report_;
};

void load_simple(Model& model, const LoadProgress& progress) {
  ProgressMeter meter(model.file.tensor_bytes(), progress);
  for (Tensor* tensor : model.weights.tensors()) {
    const GgufTensor& source = model.file.tensor(tensor->name);
    tensor_set(*tensor, source.data, 0, source.bytes);
    meter.add(source.bytes);
  }
}

void load_rank(Model& model, int rank, ProgressMeter& meter) {
  for (Tensor* tensor : model.weights.tensors()) {
    meta::set_shard(*tensor, rank, model.file.tensor(tensor->name).data);
    meter.add(meta::shard(*tensor, rank).bytes());
  }
}

size_t shard_bytes(const Model& model, int ranks) {
  size_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Tensor* tensor : model.weights.tensors()) total += meta::shard(*tensor, rank).bytes();
  }
  return total;
}

void load_sharded(Model& model, int ranks, const LoadProgress& progress) {
  ProgressMeter meter(shard_bytes(model, ranks), progress);
  std::vector<std::exception_ptr> errors(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          load_rank(model, rank, meter);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Takes the tensors out of a buffer that is about to be freed.
void unplace(Model& model) {
  for (Tensor* tensor : model.weights.tensors()) tensor->buffer = nullptr, tensor->data = nullptr;
  model.buffer.reset();
}

}  // namespace

void load_weights(Model& model, Device& device, const LoadProgress& progress) {
  require<InvalidArgument>(model.buffer == nullptr, "{} is loaded already; open it again for another device",
                           model.file.path());
  model.buffer = allocate_tensors(model.weights.tensors(), device.buffer_type(), Usage::kWeights);
  try {
    auto* meta_device = dynamic_cast<meta::MetaDevice*>(&device);
    if (meta_device) {
      load_sharded(model, static_cast<int>(meta_device->members().size()), progress);
    } else {
      load_simple(model, progress);
    }
  } catch (...) {
    unplace(model);
    throw;
  }
}

}  // namespace shoal::models
