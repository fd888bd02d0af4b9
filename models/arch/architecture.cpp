#include "models/arch/architecture.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "models/arch/decoder.h"

namespace shoal::models {

#define SHOAL_ARCHITECTURE(name, models, rope, define, read) \
  void define(Decoder& d);                                   \
  void read(const HparamsReader& in, Hparams& h);
#include "models/arch/architectures.def"

void no_extra_keys(const HparamsReader&, Hparams&) {}

namespace {

constexpr Architecture kArchitectures[] = {
#define SHOAL_ARCHITECTURE(name, models, rope, define, read) {name, models, RopeMode::rope, define, read},
#include "models/arch/architectures.def"
};

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

std::vector<TensorSpec> Architecture::tensors(const Hparams& hparams, const IsThere& is_there) const {
  std::vector<TensorSpec> specs;
  TensorContext scratch;
  KvCache cache;
  declare_cache(cache, hparams, {1, DType::kF32, DType::kF32});
  Decoder decoder(name, hparams, cache, {}, [&](const TensorSpec& spec) -> Tensor* {
    if (is_there ? !is_there(spec) : spec.alternative) return nullptr;
    specs.push_back(spec);
    return scratch.add(spec.name, DType::kF32, spec.shape);
  });
  define(decoder);
  // The fingerprint in saved session states depends on this order of the tensors.
  std::stable_partition(specs.begin(), specs.end(),
                        [](const TensorSpec& spec) { return spec.role != TensorRole::kRopeFactors; });
  return specs;
}

DecoderGraph Architecture::build(const Hparams& hparams, const TensorContext& weights, const KvCache& cache,
                                 BatchShape batch) const {
  Decoder decoder(name, hparams, cache, batch, [&](const TensorSpec& spec) {
    Tensor* tensor = weights.find(spec.name);
    check(tensor != nullptr || spec.optional, "weight {} was not declared", spec.name);
    return tensor;
  });
  define(decoder);
  return decoder.take();
}

const Architecture& find_architecture(std::string_view name, std::string_view path) {
  if (name == "gptoss") name = "gpt-oss";  // Ollama's name for gpt-oss
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
    known += known.empty() ? "" : ", ";
    known += architecture.name;
  }
  fail<InvalidArgument>("{}: architecture '{}' is not supported; use a model of one of these architectures: {}", path,
                        printable(name), known);
}

}  // namespace shoal::models
