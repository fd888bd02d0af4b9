#include "graph/external_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <mutex>
#include <set>

#include "base/error.h"
#include "graph/text.h"

namespace shoal {
namespace {

/// An op and its uses. Entries form a list that only grows. An unregistered op stays in the list and is skipped.
struct Entry {
  ExternalOp op;
  std::atomic<bool> active{true};
  std::atomic<Entry*> next{nullptr};
  std::set<std::weak_ptr<const void>, std::owner_less<>> graphs = {};  ///< graphs with nodes of the op; guarded by
                                                                       ///< g_changing
};

std::mutex g_changing;
std::atomic<Entry*> g_first{nullptr};

template <class F>
void for_each_active(F&& visit) {
  for (Entry* entry = g_first.load(std::memory_order_acquire); entry != nullptr;
       entry = entry->next.load(std::memory_order_acquire)) {
    if (entry->active.load(std::memory_order_acquire)) visit(*entry);
  }
}

Entry* find_entry(std::string_view name) {
  Entry* found = nullptr;
  for_each_active([&](Entry& entry) {
    if (entry.op.name == name) found = &entry;
  });
  return found;
}

/// Copies a struct that may be shorter or longer than this version's struct.
template <class T>
T known_part(const T& given) {
  T copy{};
  std::memcpy(&copy, &given, std::min(given.size, sizeof(T)));
  return copy;
}

/// Element i of an array whose elements have the size that the first element states.
template <class T>
const T& at(const T* first, size_t i) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(first) + i * first->size);
}

bool is_name(const char* name) {
  if (name == nullptr || *name == '\0') return false;
  return std::all_of(name, name + std::strlen(name),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; });
}

bool same_family(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// Checks a shoal_op and copies its texts.
ExternalOp checked(const shoal_op& given, std::string_view owner) {
  constexpr size_t kLeast = offsetof(shoal_op, kernel_count) + sizeof(size_t);
  require<InvalidArgument>(given.size >= kLeast,
                           "[register_op] expected shoal_op::size >= {}, got {}: set it to sizeof(shoal_op)", kLeast,
                           given.size);
  ExternalOp op;
  op.functions = known_part(given);
  require<InvalidArgument>(is_name(given.name),
                           "[register_op] expected a name of letters, digits, '_', '.' and '-', got '{}'",
                           given.name != nullptr ? given.name : "");
  op.name = given.name;
  op.owner = owner;
  if (given.rule != nullptr) op.rule = given.rule;
  const auto expect = [&](bool condition, std::string_view text) {
    require<InvalidArgument>(condition, "[register_op {}] expected {}", op.name, text);
  };
  expect(given.infer != nullptr, "the function infer");
  expect(given.min_sources >= 0 && given.min_sources <= given.max_sources && given.max_sources <= SHOAL_OP_MAX_SOURCES,
         fmt::format("0 <= min_sources <= max_sources <= {}, got {} and {}", +SHOAL_OP_MAX_SOURCES, given.min_sources,
                     given.max_sources));
  expect(given.kernels != nullptr || given.kernel_count == 0, "an array of kernels");
  for (size_t i = 0; i < given.kernel_count; ++i) {
    const shoal_op_kernel& kernel = at(given.kernels, i);
    expect(kernel.size >= offsetof(shoal_op_kernel, supports) + sizeof(kernel.supports),
           "shoal_op_kernel::size to be sizeof(shoal_op_kernel)");
    expect(kernel.family != nullptr && kernel.run != nullptr,
           fmt::format("a family and the function run in kernel {}", i));
    expect(op.kernel(kernel.family) == nullptr, fmt::format("one kernel for {}, got two", kernel.family));
    op.kernels.push_back({kernel.family, known_part(kernel)});
  }
  return op;
}

/// Appends the ops. The caller holds g_changing.
void append(std::vector<ExternalOp> ops) {
  for (size_t i = 0; i < ops.size(); ++i) {
    const Entry* known = find_entry(ops[i].name);
    bool is_taken = known != nullptr;
    for (size_t j = 0; j < i; ++j) is_taken |= ops[j].name == ops[i].name;
    require<InvalidArgument>(!is_taken,
                             "[register_op {}] an op of this name is already registered by {}: use another "
                             "name, or unregister the other op first",
                             ops[i].name,
                             known == nullptr          ? "this plug-in"
                             : known->op.owner.empty() ? "the program"
                                                       : "the plug-in " + known->op.owner);
  }
  for (ExternalOp& op : ops) {
    auto* entry = new Entry{std::move(op)};
    // New entries are at the end, so that registered_ops() lists ops in order of registration.
    std::atomic<Entry*>* last = &g_first;
    while (last->load(std::memory_order_relaxed) != nullptr) last = &last->load(std::memory_order_relaxed)->next;
    last->store(entry, std::memory_order_release);
  }
}

/// Number of existing graphs with nodes of the op. The caller holds g_changing.
size_t uses(Entry& entry) {
  std::erase_if(entry.graphs, [](const auto& graph) { return graph.expired(); });
  return entry.graphs.size();
}

void check_unused(Entry& entry) {
  const size_t count = uses(entry);
  require<InvalidArgument>(count == 0,
                           "op '{}' cannot be unregistered: {} graphs have nodes of the op; destroy these "
                           "graphs and their plans first",
                           entry.op.name, count);
}

shoal_op_tensor to_c(const Tensor& tensor) {
  shoal_op_tensor c{};
  c.dtype = static_cast<int32_t>(traits(tensor.dtype).gguf_type);
  for (int axis = 0; axis < kMaxDims; ++axis) {
    c.shape[axis] = tensor.shape[axis];
    c.strides[axis] = static_cast<int64_t>(tensor.strides[axis]);
  }
  c.data = tensor.data;
  return c;
}

}  // namespace

const ExternalKernel* ExternalOp::kernel(std::string_view family) const {
  const auto found =
      std::ranges::find_if(kernels, [&](const ExternalKernel& one) { return same_family(one.family, family); });
  return found != kernels.end() ? &*found : nullptr;
}

void register_op(const shoal_op& op, std::string_view owner) {
  std::vector<ExternalOp> one;
  one.push_back(checked(op, owner));
  const std::lock_guard lock(g_changing);
  append(std::move(one));
}

void register_ops(const shoal_ops& ops) {
  std::vector<ExternalOp> all;
  for (size_t i = 0; i < ops.op_count; ++i) all.push_back(checked(at(ops.ops, i), ops.name));
  const std::lock_guard lock(g_changing);
  append(std::move(all));
}

void unregister_op(std::string_view name) {
  const std::lock_guard lock(g_changing);
  Entry* entry = find_entry(name);
  if (entry == nullptr) {
    const std::string known = fmt::format("{}", fmt::join(registered_ops(), ", "));
    fail<InvalidArgument>("there is no external op '{}' to unregister; there are: {}", name,
                          known.empty() ? "none" : known);
  }
  check_unused(*entry);
  entry->active.store(false, std::memory_order_release);
}

void unregister_ops(std::string_view owner) {
  const std::lock_guard lock(g_changing);
  const auto for_each_own = [&](auto&& visit) {
    for_each_active([&](Entry& entry) {
      if (entry.op.owner == owner) visit(entry);
    });
  };
  for_each_own(check_unused);
  for_each_own([](Entry& entry) { entry.active.store(false, std::memory_order_release); });
}

const ExternalOp* find_op(std::string_view name) {
  const Entry* entry = find_entry(name);
  return entry != nullptr ? &entry->op : nullptr;
}

const ExternalOp& op_of(const Tensor& node) {
  const auto& name = std::get<ExternalParams>(node.params).op;
  const ExternalOp* op = find_op(name);
  require<InvalidArgument>(op != nullptr,
                           "[external {}] op '{}' is not registered any more: register it again, or load its plug-in",
                           node.name, name);
  return *op;
}

std::vector<std::string> registered_ops() {
  std::vector<std::string> names;
  for_each_active([&](const Entry& entry) { names.push_back(entry.op.name); });
  return names;
}

const ExternalKernel* kernel_of(const Tensor& node, std::string_view family) {
  const ExternalKernel* kernel = op_of(node).kernel(family);
  if (kernel == nullptr || kernel->functions.supports == nullptr) return kernel;
  return kernel->functions.supports(ExternalCall(node).node()) != 0 ? kernel : nullptr;
}

std::string external_remedy(const Tensor& node, std::string_view family) {
  const ExternalOp& op = op_of(node);
  if (op.kernel(family) != nullptr) {
    return fmt::format(
        "the {} kernel of op '{}' refuses the dtypes, shapes or args of this node: cast the sources, or "
        "extend the kernel",
        family, op.name);
  }
  std::vector<std::string_view> known;
  for (const ExternalKernel& kernel : op.kernels) known.push_back(kernel.family);
  return fmt::format(
      "op '{}' has no kernel for {}, only for: {}; register a kernel for {}, or run the node on another "
      "device through a scheduler",
      op.name, family, known.empty() ? "no device" : fmt::format("{}", fmt::join(known, ", ")), family);
}

std::optional<std::string> external_rule(const Tensor& node) {
  const ExternalOp& op = op_of(node);
  if (op.functions.make_rule == nullptr) return op.rule;
  std::array<char, 512> text{};
  if (op.functions.make_rule(ExternalCall(node).node(), text.data(), text.size()) != 0) return std::nullopt;
  text.back() = '\0';
  return text.data();
}

void note_use(const Tensor& node, const std::shared_ptr<const void>& graph_life) {
  const std::lock_guard lock(g_changing);
  Entry* entry = find_entry(std::get<ExternalParams>(node.params).op);
  require<InvalidArgument>(entry != nullptr, "[external {}] the op was unregistered while the node was added",
                           node.name);
  const bool is_new = entry->graphs.insert(graph_life).second;
  if (is_new && entry->graphs.size() % 64 == 0) uses(*entry);  // drops destroyed graphs
}

ExternalCall::ExternalCall(const Tensor& node, bool has_result) {
  for (size_t i = 0; i < node.src.size(); ++i) sources_[i] = to_c(*node.src[i]);
  if (has_result) result_ = to_c(node);
  const auto& params = std::get<ExternalParams>(node.params);
  node_ = {.size = sizeof(shoal_op_node),
           .op = params.op.c_str(),
           .name = node.name.c_str(),
           .args = params.args.c_str(),
           .sources = sources_.data(),
           .source_count = static_cast<int32_t>(node.src.size()),
           .result = has_result ? &result_ : nullptr};
}

}  // namespace shoal
