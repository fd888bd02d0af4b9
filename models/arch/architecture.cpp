#include "models/arch/architecture.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "models/arch/llama.h"
#include "models/gguf/cursor.h"

namespace shoal::models {
namespace {

constexpr std::array<Architecture, 1> kArchitectures{{
    {"llama", llama_tensors, build_llama},
}};

}  // namespace

void add_outputs(DecoderGraph& decoder, Tensor* logits, int64_t candidates) {
  Graph& g = *decoder.graph;
  decoder.logits = logits;
  if (candidates == 0) {
    g.output(logits);
    return;
  }
  const int64_t vocab = logits->shape[0], outputs = logits->shape[1], k = std::min(candidates, vocab);
  decoder.candidate_ids = k == 1 ? argmax(g, logits, "candidates") : top_k(g, logits, k, "candidates");
  Tensor* elements = reshape(g, logits, {1, vocab, outputs, 1}, "logits.elements");
  decoder.candidate_logits = get_rows(g, elements, decoder.candidate_ids, {}, "candidates.logits");
  g.output(decoder.candidate_ids);
  g.output(decoder.candidate_logits);
}

const Architecture& find_architecture(std::string_view name, std::string_view path) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
    known += known.empty() ? "" : ", ";
    known += architecture.name;
  }
  fail<InvalidArgument>("{}: architecture '{}' is not supported; use a model of one of these: {}", path,
                        printable(name), known);
}

}  // namespace shoal::models
