// An opened model: the file, its metadata, and its weights as declared tensors. Opening checks that all tensors of the
// architecture are present, that their shapes are right, and that no tensor is unknown. Tensors for images, sound and
// draft heads are ignored, and tensors with Ollama's names are renamed. Loading (loader.h) places the weights on
// devices. A Model owns the file mapping, the tensors and the memory of loaded weights. So the Model must outlive the
// graphs that use it. One thread opens and loads a model. Afterwards any number of sessions may read the model.
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
  std::vector<TensorSpec> specs;  ///< specs of the tensors in the file
  /// Name prefixes ("v.", "mm.") of ignored tensors, which do not belong to the language model.
  std::vector<std::string> ignored_prefixes;
  TensorContext weights;  ///< one tensor per spec, in the same order
  /// Memory of the weights: one buffer per device of the placement, nullptr for devices without weights. Empty before
  /// the model is loaded.
  std::vector<std::unique_ptr<Buffer>> buffers;
  bool loaded = false;

  bool is_loaded() const { return loaded; }
  /// Whether the embedding is also the output head.
  bool is_tied() const;
  /// Total bytes of the tensors in `specs`, as stored in the file.
  size_t weight_bytes() const;
  /// The tensors for the split policy. They refer to elements of `specs`.
  std::vector<ModelTensor> split_tensors() const;
};

/// Opens the file. If the model has several files, also opens the other files. Throws InvalidArgument in these cases:
/// - files of the model are missing or do not match (models/gguf/parts.h)
/// - the architecture is not supported
/// - a tensor is missing or unknown
/// - a tensor has an unsupported type or another shape ("m.gguf: tensor 'blk.0.attn_q.weight' should be [256, 256],
///   found [256, 128]; ...")
std::unique_ptr<Model> open_model(const std::string& path);

}  // namespace shoal::models
