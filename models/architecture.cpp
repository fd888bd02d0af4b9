#include "models/architecture.h"

#include <array>

#include "graph/error.h"
#include "models/gguf_cursor.h"
#include "models/llama.h"

namespace shoal::models {
namespace {

constexpr std::array<Architecture, 1> kArchitectures{{
    {"llama", llama_tensors, build_llama},
}};

}  // namespace

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
