// Parses the text form of graphs; graph/text.h defines the grammar.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "graph/param_text.h"
#include "graph/text.h"

namespace shoal {
namespace {

/// Reads one line from left to right. Its InvalidArgument messages contain no line number.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : rest_(line.substr(0, line.find('#'))) {}

  bool at_end() {
    skip_blanks();
    return rest_.empty();
  }
  /// Consumes `symbol` if it is the next character.
  bool accept(char symbol) {
    skip_blanks();
    if (rest_.empty() || rest_.front() != symbol) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char symbol) {
    if (!accept(symbol)) fail<InvalidArgument>("expected '{}', got {}", symbol, next());
  }
  void expect_end() {
    if (!at_end()) fail<InvalidArgument>("expected the end of the line, got {}", next());
  }
  /// A word that consists of the characters [A-Za-z0-9_.-].
  std::string_view word(std::string_view what) {
    skip_blanks();
    const auto is_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; };
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_word);
    if (end == rest_.begin()) fail<InvalidArgument>("expected {}, got {}", what, next());
    return take(static_cast<size_t>(end - rest_.begin()));
  }
  /// The name after a '%'.
  std::string_view name() {
    expect('%');
    return word("a name");
  }
  /// A list "[...]", including the brackets.
  std::string_view list() {
    skip_blanks();
    const size_t end = rest_.find(']');
    if (rest_.empty() || rest_.front() != '[' || end == std::string_view::npos) {
      fail<InvalidArgument>("expected [...], got {}", next());
    }
    return take(end + 1);
  }
  /// A parameter's value: a list, a text in quotation marks, or the text before ',' or '}'.
  std::string_view value() {
    skip_blanks();
    if (!rest_.empty() && rest_.front() == '"') {
      const size_t end = rest_.find('"', 1);
      if (end == std::string_view::npos) fail<InvalidArgument>("expected a second '\"' after {}", rest_);
      return take(end + 1);
    }
    if (!rest_.empty() && rest_.front() == '[') return list();
    return take(std::min(rest_.find_first_of(",}"), rest_.size()));
  }

 private:
  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r"), rest_.size())); }
  std::string_view take(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string next() { return at_end() ? "the end of the line" : fmt::format("'{}'", rest_); }

  std::string_view rest_;
};

/// Parses "name=value, name=value".
void parse_params(Cursor& cursor, OpParams& params) {
  do {
    const std::string_view name = cursor.word("a parameter");
    cursor.expect('=');
    set_param(params, name, cursor.value());
  } while (cursor.accept(','));
}

/// Parses parameters after a '{', and the '}'.
void parse_params_in_braces(Cursor& cursor, OpParams& params) {
  if (cursor.accept('}')) return;
  parse_params(cursor, params);
  cursor.expect('}');
}

class Parser {
 public:
  Parser(Graph& graph, TensorContext& weights) : graph_(graph), weights_(weights) {}

  void statement(std::string_view line) {
    Cursor cursor(line);
    if (cursor.at_end()) return;
    if (cursor.accept('%')) {
      node(cursor);
    } else {
      keyword(cursor);
    }
    cursor.expect_end();
  }

 private:
  void keyword(Cursor& cursor) {
    const std::string_view word = cursor.word("input, weight, cache, output or a %name");
    if (word == "output") {
      graph_.output(find(cursor.name()));
    } else if (word == "input" || word == "weight" || word == "cache") {
      leaf(cursor, word == "input" ? Role::kInput : word == "cache" ? Role::kCache : Role::kWeight);
    } else {
      fail<InvalidArgument>("expected input, weight, cache, output or a %name, got '{}'", word);
    }
  }

  void leaf(Cursor& cursor, Role role) {
    const std::string name(cursor.name());
    const std::string_view dtype_name = cursor.word("a dtype");
    const std::optional<DType> dtype = dtype_from_name(dtype_name);
    require<InvalidArgument>(dtype.has_value(), "there is no dtype '{}'", dtype_name);
    const Shape shape = parse_shape(cursor.list());
    require_new(name);
    define(name, role == Role::kInput ? graph_.input(name, *dtype, shape) : persistent(name, *dtype, shape, role));
  }

  Tensor* persistent(const std::string& name, DType dtype, const Shape& shape, Role role) {
    Tensor* found = weights_.find(name);
    if (!found) return weights_.add(name, dtype, shape, role);
    require<InvalidArgument>(found->dtype == dtype && found->shape == shape && found->role == role,
                             "%{} exists with another dtype, shape or role: {}", name, describe(*found));
    return found;
  }

  // Parses the rest of a node's line, after the first '%'.
  void node(Cursor& cursor) {
    const std::string name(cursor.word("a name"));
    cursor.expect('=');
    const std::string_view op_name = cursor.word("an op");
    const std::optional<Op> op = op_from_name(op_name);
    require<InvalidArgument>(op.has_value(), "there is no op '{}'", op_name);
    cursor.expect('(');
    std::vector<Tensor*> sources = parse_sources(cursor);
    OpParams params = info(*op).default_params;
    if (cursor.accept('{')) parse_params_in_braces(cursor, params);
    require_new(name);
    define(name, graph_.add_node(*op, std::move(params), std::move(sources), name));
  }

  std::vector<Tensor*> parse_sources(Cursor& cursor) {
    std::vector<Tensor*> sources;
    if (cursor.accept(')')) return sources;
    do {
      sources.push_back(cursor.accept('_') ? nullptr : find(cursor.name()));
    } while (cursor.accept(','));
    cursor.expect(')');
    return sources;
  }

  static Shape parse_shape(std::string_view text) {
    const std::optional<std::vector<int64_t>> lengths = parse_integers(text);
    require<InvalidArgument>(lengths && !lengths->empty() && lengths->size() <= kMaxDims,
                             "expected a shape of 1 to {} lengths, got '{}'", kMaxDims, text);
    Shape shape{1, 1, 1, 1};
    std::copy(lengths->begin(), lengths->end(), shape.begin());
    return shape;
  }

  Tensor* find(std::string_view name) const {
    const auto found = tensors_.find(std::string(name));
    require<InvalidArgument>(found != tensors_.end(), "%{} is not defined", name);
    return found->second;
  }
  void require_new(const std::string& name) const {
    require<InvalidArgument>(!tensors_.contains(name), "%{} is defined already", name);
  }
  void define(const std::string& name, Tensor* tensor) { tensors_.emplace(name, tensor); }

  Graph& graph_;
  TensorContext& weights_;
  std::unordered_map<std::string, Tensor*> tensors_;
};

}  // namespace

OpParams params_from_string(Op op, std::string_view text) {
  OpParams params = info(op).default_params;
  Cursor cursor(text);
  if (cursor.accept('{')) {
    parse_params_in_braces(cursor, params);
  } else if (!cursor.at_end()) {
    parse_params(cursor, params);
  }
  cursor.expect_end();
  return params;
}

void parse_graph(std::string_view text, Graph& graph, TensorContext& weights) {
  Parser parser(graph, weights);
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    try {
      parser.statement(text.substr(0, end));
    } catch (const InvalidArgument& error) {
      fail<InvalidArgument>("line {}: {}", number, error.what());
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace shoal
