#include "models/session/loader.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "devices/allocate.h"
#include "devices/cpu/topology.h"
#include "models/place/weights_placement.h"

namespace shoal::models {
namespace {

// Bytes that one thread reads at a time. A piece of this size stays in the CPU cache until it is divided among the
// devices.
constexpr size_t kPieceBytes = size_t{1} << 20;
// A row group with more than kLargestGroup bytes may be cut at any byte.
constexpr size_t kLargestGroup = 4 * kPieceBytes;

/// Cuts `all` into pieces of at most `step` bytes.
void cut_evenly(const Piece& all, size_t step, std::vector<Piece>& pieces) {
  for (size_t done = 0; done < all.bytes; done += step) {
    pieces.push_back({all.tensor, all.source, all.offset + done, std::min(step, all.bytes - done)});
  }
}

/// Gives the pieces of all weights to the loading threads in file order, and counts the loaded bytes.
class Work {
 public:
  Work(const Model& model, const LoadProgress& report) : total_(model.weight_bytes()), report_(report) {
    for (size_t i = 0; i < model.specs.size(); ++i) {
      cut(*model.weights.tensors()[i], model.file.tensor(model.specs[i].name), pieces_);
    }
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return a.source->offset + a.offset < b.source->offset + b.offset; });
  }

  /// Returns the next piece, or nullptr if no piece is left or a thread has failed.
  const Piece* next() {
    std::lock_guard lock(mutex_);
    return error_ || next_ == pieces_.size() ? nullptr : &pieces_[next_++];
  }
  void done(const Piece& piece) {
    std::lock_guard lock(mutex_);
    done_ += piece.bytes;
    if (report_ && !error_) report_(done_, total_);
  }
  void fail(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::vector<Piece> pieces_;
  size_t next_ = 0, done_ = 0, total_;
  std::exception_ptr error_;  // the first error
  const LoadProgress& report_;
};

/// Whether the data of the tensor are in the file's mapping.
bool is_mapped(const Tensor& tensor, const GgufTensor& source) {
  return tensor.data == source.data;
}

void load_pieces(const GgufFile& file, Work& work) {
  while (const Piece* piece = work.next()) {
    Tensor& tensor = *piece->tensor;
    const GgufTensor& source = *piece->source;
    if (is_mapped(tensor, source)) {
      file.fetch(source, piece->offset, piece->bytes);
    } else {
      tensor.buffer->fill(tensor, piece->offset, piece->bytes,
                          [&](size_t offset, std::span<std::byte> to) { file.read(source, offset, to); });
    }
    work.done(*piece);
  }
}

void load_all(const Model& model, int threads, const LoadProgress& progress) {
  Work work(model, progress);
  {
    std::vector<std::jthread> team;
    const auto load = [&] {
      try {
        load_pieces(model.file, work);
      } catch (...) {
        work.fail(std::current_exception());
      }
    };
    try {
      for (int i = 0; i < threads; ++i) team.emplace_back(load);
    } catch (...) {
      work.fail(std::current_exception());  // stops the threads that have started
    }
  }
  work.rethrow();
}

/// Places the tensors in the file's mapping. If the mapping cannot be used, changes nothing and returns nullptr.
std::unique_ptr<Buffer> place_in_mapping(Model& model, Device& device, std::span<Tensor* const> tensors) {
  if (!can_use_mapping(model, device)) return nullptr;
  const std::span<std::byte> bytes = model.file.unlock_tensors();
  auto buffer = buffer_of_mapping(model, device, bytes);
  if (buffer == nullptr) return nullptr;
  buffer->set_usage(Usage::kWeights);
  for (Tensor* tensor : tensors) {
    buffer->place(*tensor, static_cast<size_t>(model.file.tensor(tensor->name).data - bytes.data()));
  }
  return buffer;
}

/// Throws DeviceError if a copy of the weights does not fit into the free memory of the device. Loading needs a copy
/// only if the mapping cannot be used.
void require_room_for_copy(const Model& model, const Device& device, std::span<Tensor* const> tensors,
                           const BufferType& type) {
  size_t bytes = 0;
  for (const Tensor* tensor : tensors) bytes += type.alloc_size(*tensor);
  const size_t free = device.memory().free;
  require<DeviceError>(bytes <= free,
                       "{}: the system refuses a writable mapping for {} of weights, and {} has only {} free for a "
                       "copy; remove the limit (vm.overcommit_memory=2 or ulimit -d), or use a smaller model",
                       model.file.path(), format_bytes(bytes), device.name(), format_bytes(free));
}

void place(Model& model, const Placement& placement, const LoadOptions& options) {
  const std::span<Device* const> devices = placement.devices();
  model.loaded = true;
  for (size_t d = 0; d < devices.size(); ++d) {
    Device& device = *devices[d];
    std::vector<Tensor*> tensors;
    for (Tensor* tensor : model.weights.tensors()) {
      if (placement.device_of(*tensor) == static_cast<int>(d)) tensors.push_back(tensor);
    }
    model.buffers.emplace_back();
    const WeightsPlacement home = place_weights(model, device, tensors, devices.first(d), options);
    if (home.mapped) {
      model.buffers.back() = place_in_mapping(model, device, tensors);
      if (model.buffers.back() == nullptr) require_room_for_copy(model, device, tensors, *home.type);
    }
    if (model.buffers.back() == nullptr) {
      model.buffers.back() = allocate_tensors(tensors, *home.type, Usage::kWeights);
    }
  }
}

}  // namespace

void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces) {
  const Piece all{&tensor, &source, 0, source.bytes};
  const auto rows = static_cast<size_t>(source.shape[1]);
  const size_t matrices = static_cast<size_t>(source.shape[2]) * static_cast<size_t>(source.shape[3]);
  if (all.bytes <= kPieceBytes || rows * matrices == 0) return cut_evenly(all, kPieceBytes, pieces);
  const size_t matrix = all.bytes / matrices;
  if (matrix <= kPieceBytes) return cut_evenly(all, kPieceBytes / matrix * matrix, pieces);
  const size_t group = matrix / rows * kRowGroup;
  const size_t step = group <= kLargestGroup ? std::max<size_t>(1, kPieceBytes / group) * group : kPieceBytes;
  for (size_t i = 0; i < matrices; ++i) cut_evenly({&tensor, &source, i * matrix, matrix}, step, pieces);
}

int loading_threads(int devices) {
  constexpr int kEnough = 8;
  return std::max({2, devices, std::min(cpu::usable_cores(), kEnough)});
}

void load_weights(Model& model, const Placement& placement, const LoadProgress& progress, const LoadOptions& options) {
  require<InvalidArgument>(!model.is_loaded(), "{} is already loaded; open the file again for other devices",
                           model.file.path());
  try {
    place(model, placement, options);
    load_all(model, loading_threads(static_cast<int>(placement.members().size())), progress);
  } catch (...) {
    unload_weights(model);
    throw;
  }
}

void unload_weights(Model& model) {
  if (!model.loaded) return;
  model.buffers.clear();  // also unplaces the tensors
  model.loaded = false;
}

}  // namespace shoal::models
