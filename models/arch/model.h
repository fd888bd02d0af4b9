// An opened model: the file, what it says of itself, and its weights as declared tensors. Opening checks that the file
// holds the tensors of its architecture with the right shapes and nothing else but what images, sound and draft heads
// need, which is passed over; tensors with Ollama's names get those that this program knows. Loading (loader.h) places
// the weights on a device. A Model owns the mapping, the tensors and, once loaded, their memory: it must outlive the
// graphs that use it. Open and load on one thread; then any number of sessions may read it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "devices/buffer.h"
#include "models/arch/architecture.h"
#include "models/gguf/gguf.h"

namespace shoal::models {

struct Model {
  explicit Model(const std::string& path);

  GgufFile file;
  const Architecture* architecture = nullptr;
  Hparams hparams;
  std::vector<TensorSpec> specs;  ///< of the tensors in the file
  /// Beginnings of the names of tensors that are not of the language model ("v.", "mm."), which are passed over.
  std::vector<std::string> passed_over;
  TensorContext weights;  ///< one tensor for each spec, in the same order
  /// Of the weights: one for each device of the placement that they were loaded with, nullptr where it has none of
  /// them; empty until loaded.
  std::vector<std::unique_ptr<Buffer>> buffers;
  bool loaded = false;

  bool is_loaded() const { return loaded; }
  /// Is the embedding the output head, too?
  bool is_tied() const;
  /// Bytes in the file of the tensors in `specs`.
  size_t weight_bytes() const;
  /// What the split policy needs to know; refers to `specs`.
  std::vector<ModelTensor> split_tensors() const;
};

/// Opens the file, and the further parts of a model in several. Throws InvalidArgument: parts that are missing or do
/// not belong together (models/gguf/parts.h), an architecture that is not supported, a tensor that is missing, unknown,
/// of a type that weights cannot have or of another shape ("m.gguf: tensor 'blk.0.attn_q.weight' should be [256, 256],
/// found [256, 128]; ...").
std::unique_ptr<Model> open_model(const std::string& path);

}  // namespace shoal::models
