#include "models/arch/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "base/printable.h"
#include "models/gguf/foreign.h"

namespace shoal::models {
namespace {

/// A tensor name in Ollama's files and shoal's name for the same tensor. Names of layer tensors omit "blk.N.".
struct OtherName {
  std::string_view architecture;
  std::string_view theirs, ours;
};
constexpr auto kOtherNames = std::to_array<OtherName>({
    {"gptoss", "attn_out.weight", "attn_output.weight"},
    {"gptoss", "attn_out.bias", "attn_output.bias"},
    {"gptoss", "attn_sinks", "attn_sinks.weight"},
    {"gptoss", "ffn_norm.weight", "post_attention_norm.weight"},
    {"lfm2", "output_norm.weight", "token_embd_norm.weight"},
    {"qwen35", "ssm_dt", "ssm_dt.bias"},
    {"qwen35moe", "ssm_dt", "ssm_dt.bias"},
    {"qwen3next", "ssm_dt", "ssm_dt.bias"},
});

/// Name prefixes of ignored tensors, which belong to images, sound and draft heads.
constexpr std::array<std::string_view, 4> kPassedOver{"v.", "mm.", "a.", "mtp."};

/// Returns "blk.12." for "blk.12.ssm_dt", and "" for other names.
std::string_view layer_prefix(std::string_view name) {
  return name.starts_with("blk.") ? name.substr(0, name.find('.', 4) + 1) : std::string_view();
}

GgufFile open_file(const std::string& path) {
  GgufFile file(path);
  const std::string foreign = foreign_content(file);
  require<InvalidArgument>(foreign.empty(), "{}: {}", path, foreign);
  const auto architecture = file.get<std::string>("general.architecture");
  std::vector<std::pair<std::string, std::string>> names;
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string_view layer = layer_prefix(tensor.name), part = std::string_view(tensor.name).substr(layer.size());
    for (const OtherName& other : kOtherNames) {
      if (other.architecture != architecture || other.theirs != part) continue;
      names.emplace_back(tensor.name, fmt::format("{}{}", layer, other.ours));
    }
  }
  for (const auto& [theirs, ours] : names) file.rename_tensor(theirs, ours);
  return file;
}

const Architecture& architecture_of(const GgufFile& file) {
  return find_architecture(file.get<std::string>("general.architecture"), file.path());
}

void check_tensor(const GgufFile& file, const TensorSpec& spec, const GgufTensor& tensor) {
  require<InvalidArgument>(tensor.shape == spec.shape,
                           "{}: tensor '{}' should be {}, found {}; the metadata do not match the weights", file.path(),
                           spec.name, to_string(spec.shape), to_string(tensor.shape));
  require<InvalidArgument>(!spec.elementwise || tensor.dtype == DType::kF32,
                           "{}: tensor '{}' should be f32, found {}; convert the model again", file.path(), spec.name,
                           name_of(tensor.dtype));
  const DTypeTraits& type = traits(tensor.dtype);
  require<InvalidArgument>(type.is_float || type.is_quantized,
                           "{}: tensor '{}' should be of a float or quantised type, found {}; convert the model again",
                           file.path(), spec.name, type.name);
}

/// The specs whose tensors are in the file. Throws if a required tensor is missing, or if a tensor has a wrong shape or
/// type.
std::vector<TensorSpec> match(const GgufFile& file, const Architecture& architecture, const Hparams& hparams) {
  return architecture.tensors(hparams, [&](const TensorSpec& spec) {
    const GgufTensor* tensor = file.find_tensor(spec.name);
    require<InvalidArgument>(tensor || spec.optional, "{}: tensor '{}' is missing; the file is incomplete", file.path(),
                             spec.name);
    if (tensor) check_tensor(file, spec, *tensor);
    return tensor != nullptr;
  });
}

/// Returns N for "blk.N.PART", and -1 for other names.
int64_t layer_of(std::string_view name) {
  int64_t layer = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

/// Returns the prefix in kPassedOver with which `name` starts; "" if there is none.
std::string_view passed_over_as(std::string_view name) {
  const auto found = std::find_if(kPassedOver.begin(), kPassedOver.end(),
                                  [&](std::string_view beginning) { return name.starts_with(beginning); });
  return found == kPassedOver.end() ? std::string_view() : *found;
}

std::vector<std::string> passed_over_in(const GgufFile& file) {
  std::set<std::string> found;
  for (const GgufTensor& tensor : file.tensors()) {
    if (const std::string_view as = passed_over_as(tensor.name); !as.empty()) found.emplace(as);
  }
  return {found.begin(), found.end()};
}

/// Whether the tensor belongs to the unused keys or values of a layer that reads another layer's cache.
bool is_of_unused_keys(std::string_view name, const Hparams& hparams) {
  const int64_t layer = layer_of(name);
  if (layer < 0 || layer >= hparams.layers || hparams.layer(layer).kv_layer < 0) return false;
  return name.find(".attn_k") != std::string_view::npos || name.find(".attn_v") != std::string_view::npos;
}

/// Throws for an unknown tensor, because ignoring it would silently give wrong output.
void refuse_unknown(const GgufFile& file, const std::vector<TensorSpec>& specs, const Hparams& hparams) {
  std::unordered_set<std::string_view> known;
  for (const TensorSpec& spec : specs) known.insert(spec.name);
  const bool has_drafts = file.get<uint32_t>(hparams.architecture + ".block_count") > hparams.layers;
  for (const GgufTensor& tensor : file.tensors()) {
    if (has_drafts && layer_of(tensor.name) >= hparams.layers) continue;
    if (is_of_unused_keys(tensor.name, hparams)) continue;
    if (tensor.name.ends_with(".input_scale")) continue;  // scale for 4-bit activations of nvfp4; shoal ignores it
    if (!passed_over_as(tensor.name).empty()) continue;
    require<InvalidArgument>(known.contains(tensor.name),
                             "{}: tensor '{}' is not part of a {} model; use another model file", file.path(),
                             printable(tensor.name), file.get<std::string>("general.architecture"));
  }
}

}  // namespace

Model::Model(const std::string& path)
    : file(open_file(path)),
      architecture(&architecture_of(file)),
      hparams(read_hparams(file, architecture->rope, architecture->read)),
      specs(match(file, *architecture, hparams)),
      ignored_prefixes(passed_over_in(file)) {
  refuse_unknown(file, specs, hparams);
  for (const TensorSpec& spec : specs) weights.add(spec.name, file.tensor(spec.name).dtype, spec.shape);
}

bool Model::is_tied() const {
  return std::none_of(specs.begin(), specs.end(),
                      [](const TensorSpec& spec) { return spec.role == TensorRole::kHead; });
}

size_t Model::weight_bytes() const {
  size_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += file.tensor(spec.name).bytes;
  return bytes;
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
