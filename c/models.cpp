// C functions for models, metadata and tokens.
#include "c/models.h"

#include <fmt/format.h>

using namespace shoal;
using namespace shoal::c;

static_assert(static_cast<int>(models::SplitMode::kLayer) == SHOAL_SPLIT_LAYER);

namespace {

models::PlacementOptions placement_options(const shoal_model_options& options) {
  models::PlacementOptions result;
  require<InvalidArgument>(options.threads >= 0, "threads is {}, expected a number >= 0 (0: default)", options.threads);
  require<InvalidArgument>(options.device_layers >= -1, "device_layers is {}, expected a number >= -1 (-1: all)",
                           options.device_layers);
  result.ratio = text_or_empty(options.ratio);
  result.threads = options.threads;
  result.mode = enumerator(options.split_mode, static_cast<models::SplitMode>(SHOAL_SPLIT_LAYER + 1), "split mode");
  result.device_layers = options.device_layers;
  result.expert_layers = options.expert_layers;
  result.cache_on_host = options.cache_on_host;
  return result;
}

/// In mode kLayer, each device is a group. In mode kTensor, the groups are joined.
models::DeviceGroups groups_of(std::vector<Device*> devices) {
  if (devices.empty()) devices.push_back(&Registry::instance().best());
  models::DeviceGroups groups;
  for (Device* device : devices) groups.push_back({device});
  return groups;
}

models::LoadProgress progress_of(const shoal_model_options& options) {
  if (options.progress == nullptr) return {};
  return [call = options.progress, user = options.user](size_t done, size_t total) {
    require<Aborted>(call(done, total, user), "the progress callback stopped the loading");
  };
}

const models::Tokenizer& tokenizer_of(const shoal_model* model) {
  const auto& tokenizer = object(model, "model").tokenizer;
  require<InvalidArgument>(tokenizer != nullptr, "the model has no tokenizer that shoal supports; pass token numbers");
  return *tokenizer;
}

const models::TokenizerVocabulary& vocabulary_with(const shoal_model* model, shoal_token token) {
  const auto& vocabulary = tokenizer_of(model).vocabulary();
  require<InvalidArgument>(token >= 0 && token < vocabulary.size(), "there is no token {}; the tokens are 0 to {}",
                           token, vocabulary.size() - 1);
  return vocabulary;
}

/// Copies `from` to an array of the caller and stores the number of elements.
template <class T, class Range>
void store(const Range& from, T* to, size_t capacity, size_t* count, const char* unit) {
  *checked(count, "count") = from.size();
  if (from.size() > capacity) {
    throw Failure(SHOAL_TOO_SMALL, fmt::format("the result has {} {}; the array has {}", from.size(), unit, capacity));
  }
  std::ranges::copy(from, elements(to, capacity, unit).begin());
}

template <class T>
bool append_value(const models::GgufFile& file, std::string_view key, std::string& text) {
  text = fmt::format("{}", file.get<T>(key));
  return true;
}

std::string value_text(const models::GgufFile& file, std::string_view key) {
  using Print = bool (*)(const models::GgufFile&, std::string_view, std::string&);
  // One function for each GgufType, in the order of the enumerators. Arrays have none.
  constexpr Print kPrint[] = {append_value<uint8_t>,     append_value<int8_t>,
                              append_value<uint16_t>,    append_value<int16_t>,
                              append_value<uint32_t>,    append_value<int32_t>,
                              append_value<float>,       append_value<bool>,
                              append_value<std::string>, nullptr,
                              append_value<uint64_t>,    append_value<int64_t>,
                              append_value<double>};
  static_assert(std::size(kPrint) == models::kGgufTypeCount);
  const models::GgufValue* value = file.find_value(key);
  require<InvalidArgument>(value != nullptr, "{} has no key '{}'", file.path(), key);
  const Print print = kPrint[static_cast<size_t>(value->type)];
  require<InvalidArgument>(print != nullptr, "the value of '{}' is an array of {} {}", key, value->count,
                           models::name_of(value->element));
  std::string text;
  print(file, key, text);
  return text;
}

}  // namespace

shoal_model* shoal_model_load(const char* path, shoal_device* const* devices, size_t device_count,
                              const shoal_model_options* given) {
  return guard<shoal_model*>(__func__, nullptr, [&] {
    const shoal_model_options options = read(given, SHOAL_MODEL_OPTIONS_INIT, "options");
    models::LoadOptions load;
    load.use_mapping = !options.no_mapping;
    load.repack = !options.no_repacking;
    auto loaded = std::make_unique<shoal_model>();
    loaded->model = models::open_model(std::string(text(path, "path")));
    const models::PlacementOptions place = placement_options(options);
    const models::DeviceGroups groups = groups_of(objects(devices, device_count, "devices"));
    loaded->placement = std::make_unique<models::Placement>(*loaded->model, groups, place);
    models::load_weights(*loaded->model, *loaded->placement, progress_of(options), load);
    if (models::has_known_tokenizer(loaded->model->file)) {
      loaded->tokenizer = std::make_unique<models::Tokenizer>(loaded->model->file);
    }
    return loaded.release();
  });
}

void shoal_model_free(shoal_model* model) {
  destroy(model);
}

shoal_status shoal_model_get_info(const shoal_model* model, shoal_model_info* info) {
  return guard(__func__, [&] {
    const models::Model& from = *object(model, "model").model;
    const models::Hparams& h = from.hparams;
    shoal_model_info result = SHOAL_MODEL_INFO_INIT;
    result.architecture = h.architecture.c_str();
    result.layers = h.layers;
    result.context = h.context;
    result.embedding = h.embd;
    result.vocabulary = h.vocab;
    result.heads = h.heads;
    result.kv_heads = h.kv_heads;
    result.weight_bytes = from.weight_bytes();
    for (const Tensor* weight : from.weights.tensors()) result.weight_elements += weight->elements();
    write(info, result, "info");
  });
}

size_t shoal_model_key_count(const shoal_model* model) {
  return guard<size_t>(__func__, 0, [&] { return object(model, "model").model->file.values().size(); });
}

shoal_blob* shoal_model_key_text(const shoal_model* model, size_t index) {
  return guard<shoal_blob*>(__func__, nullptr, [&] {
    const auto values = object(model, "model").model->file.values();
    require<InvalidArgument>(index < values.size(), "there is no key number {}; their number is {}", index,
                             values.size());
    return blob_of(values[index].key);
  });
}

shoal_blob* shoal_model_value_text(const shoal_model* model, const char* key) {
  return guard<shoal_blob*>(__func__, nullptr,
                            [&] { return blob_of(value_text(object(model, "model").model->file, text(key, "key"))); });
}

shoal_status shoal_model_tokenize(const shoal_model* model, const char* text, size_t bytes, bool is_template,
                                  shoal_token* tokens, size_t capacity, size_t* count) {
  return guard(__func__, [&] {
    const auto letters = elements(text, bytes, "text");
    const models::TextPart part{{letters.data(), letters.size()}, is_template};
    store(tokenizer_of(model).encode(std::span(&part, 1)), tokens, capacity, count, "tokens");
  });
}

shoal_status shoal_model_detokenize(const shoal_model* model, const shoal_token* tokens, size_t count, bool whole,
                                    char* text, size_t capacity, size_t* bytes) {
  return guard(__func__, [&] {
    store(tokenizer_of(model).decode(elements(tokens, count, "tokens"), whole), text, capacity, bytes, "text");
  });
}

const char* shoal_model_piece(const shoal_model* model, shoal_token token) {
  return guard<const char*>(__func__, nullptr, [&] { return vocabulary_with(model, token).piece(token).c_str(); });
}

float shoal_model_score(const shoal_model* model, shoal_token token) {
  return guard(__func__, 0.0f, [&] { return vocabulary_with(model, token).score(token); });
}

shoal_token shoal_model_bos(const shoal_model* model) {
  return guard<shoal_token>(__func__, -1, [&] { return tokenizer_of(model).bos(); });
}

shoal_token shoal_model_eos(const shoal_model* model) {
  return guard<shoal_token>(__func__, -1, [&] { return tokenizer_of(model).eos(); });
}

bool shoal_model_adds_bos(const shoal_model* model) {
  return guard(__func__, false, [&] { return tokenizer_of(model).adds_bos(); });
}

bool shoal_model_adds_eos(const shoal_model* model) {
  return guard(__func__, false, [&] { return tokenizer_of(model).adds_eos(); });
}

bool shoal_model_is_end(const shoal_model* model, shoal_token token) {
  return guard(__func__, false, [&] {
    vocabulary_with(model, token);
    return tokenizer_of(model).is_end(token);
  });
}

bool shoal_model_is_control(const shoal_model* model, shoal_token token) {
  return guard(__func__, false,
               [&] { return vocabulary_with(model, token).kind(token) == models::TokenKind::kControl; });
}
