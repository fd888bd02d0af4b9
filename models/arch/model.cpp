#include "models/arch/model.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/error.h"
#include "models/gguf/cursor.h"

namespace shoal::models {
namespace {

const Architecture& architecture_of(const GgufFile& file) {
  return find_architecture(file.get<std::string>("general.architecture"), file.path());
}

void check_tensor(const GgufFile& file, const TensorSpec& spec, const GgufTensor& tensor) {
  require<InvalidArgument>(
      tensor.shape == spec.shape,
      "{}: tensor '{}' should be {}, found {}; the metadata and the weights do not belong together", file.path(),
      spec.name, to_string(spec.shape), to_string(tensor.shape));
  require<InvalidArgument>(!spec.elementwise || tensor.dtype == DType::kF32,
                           "{}: tensor '{}' should be f32, found {}; convert the model again", file.path(), spec.name,
                           name_of(tensor.dtype));
  const DTypeTraits& type = traits(tensor.dtype);
  require<InvalidArgument>(type.is_float || type.is_quantized,
                           "{}: tensor '{}' should be of a float or quantised type, found {}; convert the model again",
                           file.path(), spec.name, type.name);
}

/// The specs whose tensors are in the file. Throws for one that is missing or of another shape.
std::vector<TensorSpec> match(const GgufFile& file, const Architecture& architecture, const Hparams& hparams) {
  return architecture.tensors(hparams, [&](const TensorSpec& spec) {
    const GgufTensor* tensor = file.find_tensor(spec.name);
    require<InvalidArgument>(tensor || spec.optional, "{}: tensor '{}' is missing; the file is incomplete", file.path(),
                             spec.name);
    if (tensor) check_tensor(file, spec, *tensor);
    return tensor != nullptr;
  });
}

/// Of "blk.N.PART"; -1 for other names.
int64_t layer_of(std::string_view name) {
  int64_t layer = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

/// Is it of the keys and values that a layer has in the file, but does not use, as it reads those of another one?
bool is_of_unused_keys(std::string_view name, const Hparams& hparams) {
  const int64_t layer = layer_of(name);
  if (layer < 0 || layer >= hparams.layers || hparams.layer(layer).kv_layer < 0) return false;
  return name.find(".attn_k") != std::string_view::npos || name.find(".attn_v") != std::string_view::npos;
}

/// A tensor that the graph would leave out would make the output silently wrong.
void refuse_unknown(const GgufFile& file, const std::vector<TensorSpec>& specs, const Hparams& hparams) {
  std::unordered_set<std::string_view> known;
  for (const TensorSpec& spec : specs) known.insert(spec.name);
  const bool has_drafts = file.get<uint32_t>(hparams.architecture + ".block_count") > hparams.layers;
  for (const GgufTensor& tensor : file.tensors()) {
    if (has_drafts && layer_of(tensor.name) >= hparams.layers) continue;
    if (is_of_unused_keys(tensor.name, hparams)) continue;
    if (tensor.name.ends_with(".input_scale")) continue;  // of nvfp4 weights, for activations of four bits
    require<InvalidArgument>(known.contains(tensor.name),
                             "{}: tensor '{}' is not part of a {} model as this program knows it; use another model",
                             file.path(), printable(tensor.name), file.get<std::string>("general.architecture"));
  }
}

}  // namespace

Model::Model(const std::string& path)
    : file(path),
      architecture(&architecture_of(file)),
      hparams(read_hparams(file, architecture->rope, architecture->read)),
      specs(match(file, *architecture, hparams)) {
  refuse_unknown(file, specs, hparams);
  for (const TensorSpec& spec : specs) weights.add(spec.name, file.tensor(spec.name).dtype, spec.shape);
}

bool Model::is_tied() const {
  return std::none_of(specs.begin(), specs.end(),
                      [](const TensorSpec& spec) { return spec.role == TensorRole::kHead; });
}

std::vector<ModelTensor> Model::split_tensors() const {
  std::vector<ModelTensor> out;
  for (size_t i = 0; i < specs.size(); ++i) out.push_back({&specs[i], weights.tensors()[i]->dtype});
  return out;
}

std::unique_ptr<Model> open_model(const std::string& path) {
  return std::make_unique<Model>(path);
}

}  // namespace shoal::models
