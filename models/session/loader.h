// Loads weights from the file into the devices, in pieces of a megabyte, with loading_threads() threads. Each piece is
// read once and divided among all devices that have a part of it. So neither the host nor a device ever holds a second
// copy of the model or of a whole tensor.
//
// If a device has its own layout for weights, loading repacks them. Otherwise, or with LoadOptions::repack off, a
// simple device that can use host memory uses the weights in the file's mapping. For mapped weights, loading allocates
// and copies nothing and only reads the pages into memory. Processes share mapped weights, and the system may drop
// pages and read them again. Writing to such a weight changes this process's copy of its pages and never the file.
// Until the model is freed, the file may be renamed or removed but not written to: truncation raises SIGBUS on the next
// access (the program exits with a message), and overwriting the file changes the weights.
#pragma once

#include <cstddef>
#include <functional>

#include "devices/device.h"
#include "models/place/placement.h"
#include "models/place/weights_placement.h"

namespace shoal::models {

/// Number of threads for loading onto `devices` devices: at least 2, at least one per device, and one per core up to 8.
/// A fast disk and the repacking of weights need several threads.
int loading_threads(int devices);

/// Number of rows in a row group. Devices may interleave the blocks of a row group, so pieces contain whole groups.
inline constexpr int64_t kRowGroup = 16;

/// A range of bytes of one tensor.
struct Piece {
  Tensor* tensor = nullptr;
  const GgufTensor* source = nullptr;
  size_t offset = 0;  ///< offset in the file's tensor
  size_t bytes = 0;
};

/// Appends the pieces of a tensor, in order. Each piece has about a megabyte and consists of whole row groups of a
/// matrix, or of whole matrices. Example: 512 rows of 4352 bytes give 2 pieces of 240 rows and one of 32.
void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces);

/// Called often, by one thread at a time, with the loaded and the total number of bytes.
using LoadProgress = std::function<void(size_t done, size_t total)>;

/// Allocates the weights on the placement's devices and fills them, or uses the mapping. Blocking. On failure the model
/// is unchanged. Throws InvalidArgument if the file was truncated after it was opened.
void load_weights(Model& model, const Placement& placement, const LoadProgress& progress = {},
                  const LoadOptions& options = {});
/// Frees the weights; their devices may be destroyed afterwards.
void unload_weights(Model& model);

}  // namespace shoal::models
