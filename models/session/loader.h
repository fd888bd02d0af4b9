// Loads weights from the file into the devices with loading_threads() threads. Each thread loads pieces of about one
// megabyte. Each piece is read once and divided among all devices that have a shard of the tensor. Neither the host nor
// a device ever holds a second copy of the model or of a whole tensor.
//
// If a device has its own memory layout for weights and LoadOptions::repack is on, loading repacks the weights. Without
// repacking, the weights of a simple device stay in the file's mapping if the device can use host memory. For mapped
// weights, loading allocates and copies nothing, and only reads the pages into memory. Processes share the pages of
// mapped weights. The system may drop these pages and read them again. A write to a mapped weight changes this
// process's copy of the page and not the file.
//
// Until the model is freed, the file may be renamed or removed, but it must not be written to. Overwriting the file
// changes the weights. After truncation of the file, the next access raises SIGBUS, and the program exits with a
// message.
#pragma once

#include <cstddef>
#include <functional>

#include "devices/device.h"
#include "models/place/placement.h"
#include "models/place/weights_placement.h"

namespace shoal::models {

/// Number of threads for loading onto `devices` devices: one per core up to 8, but at least 2 and at least one per
/// device. A fast disk and the repacking of weights need several threads.
int loading_threads(int devices);

/// Number of rows in a row group. Devices may interleave the blocks of a row group, so pieces contain whole row groups.
inline constexpr int64_t kRowGroup = 16;

/// A range of bytes of one tensor.
struct Piece {
  Tensor* tensor = nullptr;
  const GgufTensor* source = nullptr;
  size_t offset = 0;  ///< offset in the file's tensor, in bytes
  size_t bytes = 0;
};

/// Appends the pieces of a tensor, in order. Each piece has about a megabyte and consists of whole row groups of a
/// matrix, or of whole matrices. Example: 512 rows of 4352 bytes give 2 pieces of 240 rows and 1 piece of 32 rows.
void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces);

/// Receives the loaded and the total number of bytes. Loading calls this function often, from one thread at a time.
using LoadProgress = std::function<void(size_t done, size_t total)>;

/// Allocates the weights on the placement's devices and loads them, or uses the weights in the file's mapping.
/// Blocking. If loading fails, the model is unchanged. Throws InvalidArgument if the file was truncated after it was
/// opened.
void load_weights(Model& model, const Placement& placement, const LoadProgress& progress = {},
                  const LoadOptions& options = {});
/// Frees the weights. The devices of the weights may be destroyed afterwards.
void unload_weights(Model& model);

}  // namespace shoal::models
