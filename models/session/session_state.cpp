#include "models/session/session_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "models/session/cache_rows.h"

namespace shoal::models {
namespace {

static_assert(std::endian::native == std::endian::little, "states are little-endian");

constexpr uint64_t kMagic = 0x3156'4b4c'414f'4853;  // "SHOALKV1"
constexpr uint32_t kVersion = 2;

/// The hash function FNV-1a.
class Hash {
 public:
  void add(std::span<const std::byte> bytes) {
    for (std::byte byte : bytes) value_ = (value_ ^ static_cast<uint64_t>(byte)) * 0x100'0000'01b3;
  }
  template <class T>
  void add_value(const T& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  void add_text(std::string_view text) {
    add_value(text.size());
    add(std::as_bytes(std::span(text)));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf2'9ce4'8422'2325;
};

/// The header of a state, without padding.
struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t dtype_k = 0, dtype_v = 0;  ///< GGUF type numbers
  uint32_t long_factors = 0;          ///< 1: keys use rope_factors_long
  uint64_t model = 0;
  uint64_t rows = 0;
  uint64_t checksum = 0;  ///< hash of the header (with 0 in this field) and of all following bytes
};
static_assert(sizeof(Header) == 48);

void add_hparams(Hash& hash, const Hparams& h) {
  hash.add_text(h.architecture);
  for (int64_t value : {h.layers, h.context, h.embd, h.ff, h.heads, h.kv_heads, h.head_dim_k, h.head_dim_v, h.vocab,
                        h.experts, h.experts_used}) {
    hash.add_value(value);
  }
  hash.add_value(h.norm_eps);
  std::apply([&](const auto&... field) { (hash.add_value(h.rope.*field.place), ...); }, RopeParams::fields());
  for (const LayerHparams& layer : h.per_layer) {
    for (int64_t value : {layer.ff, layer.heads, layer.kv_heads, layer.attention.window}) hash.add_value(value);
    const RecurrentHparams& r = layer.recurrent;
    if (r.taps == 0) continue;
    for (int64_t value : {r.taps, r.k_heads, r.v_heads, r.head_dim, int64_t{r.tiled}}) hash.add_value(value);
  }
}

/// The fingerprint includes the first bytes of each weight, so models of the same shape have different fingerprints.
uint64_t fingerprint(const Model& model) {
  Hash hash;
  add_hparams(hash, model.hparams);
  for (const Tensor* tensor : model.weights.tensors()) {
    hash.add_text(tensor->name);
    hash.add_text(name_of(tensor->dtype));
    for (int64_t length : tensor->shape) hash.add_value(length);
    std::vector<std::byte> first(std::min<size_t>(tensor->bytes(), 64));
    model.file.read(model.file.tensor(tensor->name), 0, first);
    hash.add(first);
  }
  return hash.value();
}

uint64_t checksum(Header header, std::span<const std::byte> rows) {
  header.checksum = 0;
  Hash hash;
  hash.add_value(header);
  hash.add(rows);
  return hash.value();
}

/// Whether keys use rope_factors_long, as in Decoder::rope_factors().
bool uses_long_factors(const Session& session) {
  const Model& model = session.model();
  const bool has_both =
      model.weights.find("rope_factors_long.weight") != nullptr && model.weights.find("rope_freqs.weight") == nullptr;
  return has_both && is_long(model.hparams, session.context());
}

/// Returns the GGUF type number of the cache tensors for keys or values (`part`), or 0 if the model has no such tensor.
uint32_t type_of(const KvCache& cache, CachePart part) {
  const auto found =
      std::find_if(cache.specs.begin(), cache.specs.end(), [&](const CacheTensor& spec) { return spec.part == part; });
  return found == cache.specs.end() ? 0 : traits(found->dtype).gguf_type;
}

Header header_for(const Session& session, int64_t rows) {
  Header header;
  header.dtype_k = type_of(session.cache(), CachePart::kKeys);
  header.dtype_v = type_of(session.cache(), CachePart::kValues);
  header.model = fingerprint(session.model());
  header.long_factors = uses_long_factors(session) ? 1 : 0;
  header.rows = static_cast<uint64_t>(rows);
  return header;
}

std::string type_name(uint32_t gguf_type) {
  const auto dtype = dtype_from_gguf(gguf_type);
  return dtype ? std::string(name_of(*dtype)) : fmt::format("type {}", gguf_type);
}

/// Returns the header if the state fits the session. Throws otherwise.
Header checked_header(const Session& session, std::span<const std::byte> state) {
  Header header;
  header.magic = 0;
  if (!state.empty()) std::memcpy(&header, state.data(), std::min(state.size(), sizeof header));
  require<InvalidArgument>(header.magic == kMagic && state.size() >= sizeof header,
                           "these {} bytes are not a session state; use the bytes that save_state returned",
                           state.size());
  require<InvalidArgument>(header.version == kVersion,
                           "the state has version {}, but this program reads version {}; save the state again "
                           "with this program",
                           header.version, kVersion);
  const Header own = header_for(session, session.position());
  require<InvalidArgument>(header.model == own.model,
                           "the state was saved with another model than {}; restore the state with that model",
                           session.model().file.path());
  require<InvalidArgument>(header.long_factors == own.long_factors,
                           "the state has {0} RoPE factors, but the session does not; use a context {2} {1} "
                           "tokens",
                           header.long_factors != 0 ? "long-context" : "short-context",
                           session.model().hparams.rope.original_context,
                           header.long_factors != 0 ? "above" : "of at most");
  require<InvalidArgument>(
      header.dtype_k == own.dtype_k && header.dtype_v == own.dtype_v,
      "the state has keys of {} and values of {}, but the cache has {} and {}; use a cache of the same types",
      type_name(header.dtype_k), type_name(header.dtype_v), type_name(own.dtype_k), type_name(own.dtype_v));
  require<InvalidArgument>(header.rows <= static_cast<uint64_t>(session.context()),
                           "the state has {} tokens, but the context has {}; use a larger context", header.rows,
                           session.context());
  const size_t expected = sizeof header + cache_bytes(session.cache(), session.model().hparams,
                                                      static_cast<int64_t>(header.rows), CacheScope::kAll);
  require<InvalidArgument>(state.size() == expected,
                           "the state of {} tokens should have {} bytes, but has {}; save the state again", header.rows,
                           expected, state.size());
  require<InvalidArgument>(checksum(header, state.subspan(sizeof header)) == header.checksum,
                           "the state is damaged: its checksum is wrong; save the state again");
  return header;
}

}  // namespace

std::vector<std::byte> save_state(Session& session) {
  session.check_whole();
  session.synchronize();
  const int64_t count = session.position();
  const std::vector<std::byte> contents = session.runner().read_cache(count, CacheScope::kAll);
  Header header = header_for(session, count);
  header.checksum = checksum(header, contents);
  std::vector<std::byte> state(sizeof(Header) + contents.size());
  std::memcpy(state.data(), &header, sizeof header);
  std::copy(contents.begin(), contents.end(), state.begin() + sizeof header);
  return state;
}

void restore_state(Session& session, std::span<const std::byte> state) {
  const Header header = checked_header(session, state);
  session.synchronize();
  session.set_position(0);  // empties the session, because a device may fail during the write
  const auto count = static_cast<int64_t>(header.rows);
  session.runner().write_cache(count, CacheScope::kAll, state.subspan(sizeof header));
  session.set_position(count);
}

}  // namespace shoal::models
