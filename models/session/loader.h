// Loading: from the file to the devices in pieces of a megabyte, by loading_threads() threads. Each piece is read once
// and cut up for all devices that have some of it, so that no host or device ever holds the whole model, or one tensor
// of it, a second time.
//
// Weights of a device that has a layout of its own for them are repacked on the way. Else, or with LoadOptions::repack
// off, a simple device that can use memory of the host takes its weights where the file is mapped: nothing is allocated
// or copied, several processes share one set of them, and the system may drop and read again what it has no room for.
// Loading then brings the pages into memory. Writing to such a weight changes this process's copy of its pages and
// never the file. Until the model is freed the file may be renamed or removed but not written to: what is cut off gives
// SIGBUS on the next use (the program ends with a message), what is overwritten changes the weights.
#pragma once

#include <cstddef>
#include <functional>

#include "devices/device.h"
#include "models/place/placement.h"
#include "models/place/weights_placement.h"

namespace shoal::models {

/// Threads that load onto this number of devices: one for each, and as many as this process has cores for, up to eight,
/// as it takes several to read from a fast disk and to bring weights into the order that a device wants. At least two.
int loading_threads(int devices);

/// Rows that a device may want to get at once because it keeps their blocks side by side.
inline constexpr int64_t kRowGroup = 16;

/// Some bytes of one tensor.
struct Piece {
  Tensor* tensor = nullptr;
  const GgufTensor* source = nullptr;
  size_t offset = 0;  ///< of the file's tensor
  size_t bytes = 0;
};

/// Appends the pieces of a tensor, in order: about a megabyte each, of whole groups of rows of a matrix or of whole
/// matrices. Example: 512 rows of 4352 bytes are 2 pieces of 240 rows and one of 32.
void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces);

/// Told how many bytes of how many are on their devices; called from one thread at a time, often.
using LoadProgress = std::function<void(size_t done, size_t total)>;

/// Allocates the weights on the placement's devices and fills them, or uses the mapping; blocking. On failure the model
/// is as before. Throws InvalidArgument when the file has become shorter since it was opened.
void load_weights(Model& model, const Placement& placement, const LoadProgress& progress = {},
                  const LoadOptions& options = {});
/// Takes the weights off their devices, which may go then.
void unload_weights(Model& model);

}  // namespace shoal::models
