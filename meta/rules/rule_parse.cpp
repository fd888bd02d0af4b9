// Parses the text form of rules for a node: "k m c/2 d, k n c d -> m n c d | sum k | linear 0 1".
#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "graph/text.h"
#include "meta/rules/rule.h"

namespace shoal::meta {
namespace {

using Words = std::vector<std::string_view>;

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

/// Divides the text at the separators, and trims the parts. The result has at least one part.
Words split(std::string_view text, std::string_view separator) {
  Words parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

/// The words of the text. Spaces separate the words.
Words words(std::string_view text) {
  Words parts = split(text, " ");
  std::erase_if(parts, [](std::string_view word) { return word.empty(); });
  return parts;
}

/// Parses one rule. Error messages contain `text_` and `node_`.
class Parser {
 public:
  Parser(std::string_view text, const Tensor& node) : text_(text), node_(node) {}

  Rule parse() {
    const Words clauses = split(text_, "|");
    const Words sides = split(clauses[0], "->");
    expect(sides.size() == 2, "one '->'");
    parse_sources(sides[1].empty() ? "" : sides[0]);
    parse_operand(sides[1], &node_, rule_.result);
    expect(rule_.result.present, "a result");
    for (size_t i = 1; i < clauses.size(); ++i) parse_clause(clauses[i]);
    check_factors();
    return std::move(rule_);
  }

 private:
  template <class... Args>
  void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail<InvalidArgument>("rule '{}' of {}: expected {}", text_, shoal::to_string(node_),
                          fmt::format(format, std::forward<Args>(args)...));
  }

  void parse_sources(std::string_view text) {
    const Words operands = text.empty() ? Words{} : split(text, ",");
    expect(operands.size() == node_.src.size(), "{} sources, got {}", node_.src.size(), operands.size());
    rule_.sources.resize(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) parse_operand(operands[i], node_.src[i], rule_.sources[i]);
  }

  void parse_operand(std::string_view text, const Tensor* tensor, Operand& operand) {
    operand.present = text != "-";
    expect(operand.present == (tensor != nullptr), "'-' for absent sources, and axes for present sources");
    if (!operand.present) return;
    const Words terms = words(text);
    expect(!terms.empty() && terms.size() <= kMaxDims, "1 to {} axes, got '{}'", kMaxDims, text);
    for (int axis = 0; axis < kMaxDims; ++axis) {
      const std::string_view term = axis < static_cast<int>(terms.size()) ? terms[axis] : "1";
      if (term == "1") {
        expect(tensor->shape[axis] == 1, "an axis {} of length 1 in '{}', got {}", axis, text, tensor->shape[axis]);
        continue;
      }
      const AxisTerm parsed = parse_term(term, tensor->shape[axis]);
      expect(Rule::axis_of(operand, parsed.factor) < 0, "'{}' once in '{}'", rule_.factors[parsed.factor].letter, text);
      operand.axes[axis] = parsed;
      // A cut of axis 0 must be at a multiple of the quantisation block. One element of the axis stands for `group`
      // elements of the factor. So a cut of the factor must be at a multiple of block_elems * group.
      Factor& factor = rule_.factors[parsed.factor];
      if (axis == 0) factor.unit = std::lcm(factor.unit, traits(tensor->dtype).block_elems * parsed.group);
    }
  }

  /// Parses "k", "(k)", "[k]", "2*k" or "k/2" on an axis of the given length.
  AxisTerm parse_term(std::string_view term, int64_t axis_length) {
    AxisTerm parsed;
    std::string_view rest = term;
    if (const size_t star = rest.find('*'); star != rest.npos) {
      parsed.repeat = number(rest.substr(0, star), 1);
      rest.remove_prefix(star + 1);
    }
    if (const size_t slash = rest.find('/'); slash != rest.npos) {
      parsed.group = number(rest.substr(slash + 1), 1);
      rest = rest.substr(0, slash);
    }
    FactorKind kind = FactorKind::kParallel;
    if (rest.size() == 3 && rest[0] == '(' && rest[2] == ')') kind = FactorKind::kWhole;
    if (rest.size() == 3 && rest[0] == '[' && rest[2] == ']') kind = FactorKind::kSelected;
    if (kind != FactorKind::kParallel) rest = rest.substr(1, 1);
    expect(rest.size() == 1 && rest[0] >= 'a' && rest[0] <= 'z', "a letter in '{}'", term);
    const bool plain = parsed.repeat == 1 && parsed.group == 1;
    expect(kind != FactorKind::kSelected || std::holds_alternative<SelectParams>(node_.params) ||
               std::holds_alternative<SetSliceParams>(node_.params),
           "an op with index ranges for the selected '{}'", term);
    expect(plain || kind != FactorKind::kSelected, "no groups or repetitions of a selected factor, got '{}'", term);
    expect(axis_length % parsed.repeat == 0, "a multiple of {} as length of the axis '{}', got {}", parsed.repeat, term,
           axis_length);
    int64_t length = 0;
    expect(!__builtin_mul_overflow(axis_length / parsed.repeat, parsed.group, &length), "a smaller group in '{}'",
           term);
    parsed.factor = factor_of(rest[0], kind, length);
    return parsed;
  }

  int factor_of(char letter, FactorKind kind, int64_t length) {
    int index = rule_.find(letter);
    if (index < 0) {
      index = static_cast<int>(rule_.factors.size());
      rule_.factors.push_back({letter, kind, length, 1});
    }
    const Factor& factor = rule_.factors[index];
    expect(factor.length == length, "the same length of '{}' everywhere, got {} and {}", letter, factor.length, length);
    expect(factor.kind == kind, "the same brackets around '{}' everywhere", letter);
    return index;
  }

  /// Parses "sum k ..." or "linear 0 1+2 ...".
  void parse_clause(std::string_view clause) {
    Words list = words(clause);
    expect(list.size() > 1 && (list[0] == "sum" || list[0] == "linear"),
           "'sum' or 'linear', followed by a list, got '{}'", clause);
    for (size_t i = 1; i < list.size(); ++i) {
      if (list[0] == "sum") {
        const int factor = list[i].size() == 1 ? rule_.find(list[i][0]) : -1;
        expect(factor >= 0 && rule_.factors[factor].kind == FactorKind::kParallel,
               "a letter without brackets after 'sum', got '{}'", list[i]);
        rule_.factors[factor].kind = FactorKind::kSummed;
      } else {
        parse_linear(list[i]);
      }
    }
  }

  void parse_linear(std::string_view text) {
    std::vector<int>& set = rule_.linear.emplace_back();
    for (const std::string_view part : split(text, "+")) {
      const int source = number(part, 0);
      expect(source < static_cast<int>(rule_.sources.size()) && rule_.sources[source].present,
             "the number of an existing source after 'linear', got '{}'", part);
      set.push_back(source);
    }
  }

  void check_factors() const {
    for (int f = 0; f < static_cast<int>(rule_.factors.size()); ++f) {
      const Factor& factor = rule_.factors[f];
      const bool in_result = Rule::axis_of(rule_.result, f) >= 0;
      expect(factor.kind != FactorKind::kParallel || in_result, "'{}' in the result, or in brackets, or after 'sum'",
             factor.letter);
      expect(factor.kind != FactorKind::kSummed || !in_result, "a result without the summed '{}'", factor.letter);
    }
  }

  int number(std::string_view text, int least) const {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    expect(error == std::errc() && end == text.data() + text.size() && value >= least, "a number >= {}, got '{}'",
           least, text);
    return value;
  }

  std::string_view text_;
  const Tensor& node_;
  Rule rule_;
};

}  // namespace

Rule parse_rule(std::string_view text, const Tensor& node) {
  return Parser(text, node).parse();
}

}  // namespace shoal::meta
