// Checks every rule of the table by brute force. Other tests check that the validator detects wrong rules.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "graph/text.h"
#include "meta/check/rule_validator.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/support/reference.h"
#include "tests/support/rule_cases.h"
#include "tests/support/rule_layouts.h"

namespace shoal::test {
namespace {

struct CaseGraph {
  explicit CaseGraph(std::string_view text) { parse_graph(text, graph, weights); }
  const Tensor& node() const { return *graph.nodes().back(); }
  Graph graph;
  TensorContext weights;
};

/// Validates the rule with the float64 reference.
meta::RuleVerdict validate_rule(const Graph& graph, const meta::Rule& rule) {
  constexpr uint64_t kSeed = 17;
  return meta::validate_rule(graph, rule,
                             {random_leaves(graph, kSeed), [](const Graph& one, const TensorValues& leaves) {
                                return reference_eval(one, leaves).at(one.nodes().back());
                              }});
}

/// The letters of the factors that may be split.
std::string splittable(const meta::Rule& rule) {
  std::string letters;
  for (const meta::Factor& factor : rule.factors) {
    if (factor.kind != meta::FactorKind::kWhole) letters += factor.letter;
  }
  return letters;
}

/// Compute ops without a rule. The layout of concat follows from the runs of its sources. `fill` has no source to
/// split. Each external op has its own rule (tests/meta/check/check_op_test.cpp).
constexpr Op kWithoutRule[] = {Op::kConcat, Op::kFill, Op::kExternal};

TEST(RuleValidator, EveryRuleIsCorrectAndComplete) {
  std::map<std::string, bool> used;  // the entries of `allowed` that the test has found
  std::map<Op, std::set<char>> splittable_in, exercised_in;
  const std::vector<AllowedMiss> allowed = allowed_misses();
  for (const std::string& text : rule_cases()) {
    const CaseGraph one(text);
    const auto rule = meta::rule_for(one.node());
    ASSERT_TRUE(rule) << text << "\nhas no rule";
    const meta::RuleVerdict verdict = validate_rule(one.graph, *rule);
    for (const meta::RuleFinding& finding : verdict.findings) {
      const auto miss = std::find_if(allowed.begin(), allowed.end(), [&](const AllowedMiss& candidate) {
        return finding.missing && candidate.op == finding.op && candidate.what == finding.what;
      });
      if (miss == allowed.end()) ADD_FAILURE() << to_string(finding);
      if (miss != allowed.end()) used[fmt::format("{} {}", name_of(miss->op), miss->what)] = true;
    }
    for (const char letter : splittable(*rule)) splittable_in[one.node().op].insert(letter);
    for (const char letter : verdict.exercised) exercised_in[one.node().op].insert(letter);
  }
  for (int i = 0; i < kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    if (info(op).kind != OpKind::kCompute) continue;
    const bool without = std::count(std::begin(kWithoutRule), std::end(kWithoutRule), op) > 0;
    EXPECT_EQ(meta::has_rule(op), !without) << name_of(op);
    if (without) continue;
    EXPECT_TRUE(splittable_in.contains(op)) << name_of(op) << ": add a case to tests/support/rule_cases.cpp";
    EXPECT_EQ(exercised_in[op], splittable_in[op])
        << name_of(op) << ": no case in tests/support/rule_cases.cpp divides each of its factors";
  }
  for (const AllowedMiss& miss : allowed) {
    EXPECT_TRUE(used[fmt::format("{} {}", name_of(miss.op), miss.what)])
        << name_of(miss.op) << " " << miss.what << " is listed as missing, but the rule allows it";
  }
}

struct BrokenRule {
  const char* graph;
  const char* rule;
  const char* what;
  bool missing;
};

const BrokenRule kBroken[] = {
    // Rules that allow wrong splits.
    {"input %x f32 [5, 3, 2]\n%y = rms_norm(%x)", "a b c -> a b c", "factor a", false},
    {"input %x f32 [5, 3, 2]\n%y = soft_max(%x, _, _)", "s t h, -, - -> s t h", "factor s", false},
    {"input %x f32 [8, 3, 5]\ninput %p i32 [5]\n%y = rope(%x, %p, _) {dims=8}", "d h t, t, - -> d h t | linear 0",
     "factor d", false},
    {"input %x f32 [5, 3]\n%y = argmax(%x)", "a b -> 1 b | sum a", "factor a", false},
    {"input %q f32 [4, 3, 2]\ninput %k f32 [4, 5, 2]\ninput %v f32 [6, 5, 2]\n%y = attention(%q, %k, %v)",
     "(d) t h, (d) s h, (e) s h, -, -, -, -, - -> (e) h t | sum s | linear 2", "factor s", false},
    {"input %q f32 [4, 3, 2]\ninput %k f32 [4, 5, 2]\ninput %v f32 [6, 5, 2]\n%y = attention(%q, %k, %v)",
     "d t h, d (s) h, (e) (s) h, -, -, -, -, - -> (e) h t | sum d | linear 2", "factor d", false},
    {"cache %c f32 [4, 7]\ninput %x f32 [4, 3]\ninput %i i32 [3]\n%y = set_rows(%c, %x, %i)",
     "x [r], x i, i -> x [r] | sum i", "factor i", false},
    // A rule with letters on wrong axes. The wrong axes have the correct lengths.
    {"input %q f32 [4, 3, 3]\ninput %k f32 [4, 5, 3]\ninput %v f32 [6, 5, 3]\n%y = attention(%q, %k, %v)",
     "(d) t h, (d) (s) h, (e) (s) h, -, -, -, -, - -> (e) t h | linear 2", "factor h", false},
    // Rules that wrongly declare a source as linear. `relu` and `abs` are linear for positive multiples of x. So
    // addends that are positive multiples of x do not reveal the error.
    {"input %x f32 [5, 3]\n%y = unary(%x) {kind=relu}", "a b -> a b | linear 0", "linear 0", false},
    {"input %x f32 [5, 3]\n%y = unary(%x) {kind=abs}", "a b -> a b | linear 0", "linear 0", false},
    {"input %x f32 [5, 3]\n%y = scale(%x) {scale=2, bias=1}", "a b -> a b | linear 0", "linear 0", false},
    {"input %a f32 [5, 3]\ninput %b f32 [5, 3]\n%y = add(%a, %b)", "a b, a b -> a b | linear 0 0+1", "linear 0", false},
    {"input %a f32 [5, 3]\ninput %b f32 [5, 3]\n%y = mul(%a, %b)", "a b, a b -> a b | linear 0 1 0+1", "linear 0+1",
     false},
    // Rules that forbid correct splits.
    {"input %x f32 [5, 3, 2]\n%y = rms_norm(%x)", "(a) (b) c -> (a) (b) c", "factor b", true},
    {"input %a f32 [5, 7]\ninput %b f32 [5, 3]\n%y = mul_mat(%a, %b)", "(k) m, (k) n -> m n | linear 0 1", "factor k",
     true},
    {"input %a f32 [5, 7]\ninput %b f32 [5, 3]\n%y = mul_mat(%a, %b)", "k m, k n -> m n | sum k | linear 0", "linear 1",
     true},
    {"input %t f32 [4, 7]\ninput %i i32 [5]\n%y = get_rows(%t, %i)", "x (r), i -> x i | linear 0", "factor r", true},
    {"input %a f32 [5, 3]\ninput %b f32 [5, 3]\n%y = sub(%a, %b)", "a b, a b -> a b", "linear 0+1", true},
};

TEST(RuleValidator, DetectsBrokenRules) {
  for (const BrokenRule& broken : kBroken) {
    const CaseGraph one(broken.graph);
    const meta::RuleVerdict verdict = validate_rule(one.graph, meta::parse_rule(broken.rule, one.node()));
    const bool found =
        std::any_of(verdict.findings.begin(), verdict.findings.end(), [&](const meta::RuleFinding& finding) {
          return finding.what == broken.what && finding.missing == broken.missing && finding.op == one.node().op;
        });
    EXPECT_TRUE(found) << broken.rule << "\nfor\n" << broken.graph;
  }
}

TEST(RuleValidator, DetectsUnitsThatCutBlocks) {
  const CaseGraph one("input %a q8_0 [96, 5]\ninput %b f32 [96, 3]\n%y = mul_mat(%a, %b)");
  meta::Rule rule = *meta::rule_for(one.node());
  EXPECT_THAT(validate_rule(one.graph, rule).findings, testing::IsEmpty());
  rule.factors[rule.find('k')].unit = 1;
  const meta::RuleVerdict verdict = validate_rule(one.graph, rule);
  ASSERT_EQ(verdict.findings.size(), 1u);
  EXPECT_THAT(to_string(verdict.findings[0]),
              testing::AllOf(testing::HasSubstr("mul_mat factor k is wrong"), testing::HasSubstr("block size 32")));
}

TEST(RuleValidator, DetectsSwappedAxes) {
  const CaseGraph one("input %x f32 [12, 3]\n%y = glu(%x, _) {kind=swiglu}");
  meta::Rule rule = *meta::rule_for(one.node());
  rule.sources[0].axes[0] = {rule.find('b'), 1, 1};  // the two axes are swapped
  rule.sources[0].axes[1] = {rule.find('a'), 1, 1};
  EXPECT_FALSE(validate_rule(one.graph, rule).findings.empty());
}

constexpr const char* kStructural[] = {
    "weight %a f32 [5, 3, 2]\nweight %b f32 [4, 3, 2]\n%y = concat(%a, %b) {axis=0}",
    "weight %a f32 [5, 3, 2]\nweight %b f32 [5, 4, 2]\n%y = concat(%a, %b, %a) {axis=1}",
    "weight %a f16 [5, 3, 2]\nweight %b f16 [5, 3, 4]\nweight %c f16 [5, 3, 0]\n%y = concat(%a, %b, %c) {axis=2}",
    "weight %a i32 [5, 3, 2]\nweight %b i32 [5, 3, 2, 3]\n%b1 = slice(%b) {axis=3, begin=1, length=1}\n"
    "%y = concat(%a, %b1) {axis=3}",
    "weight %a q8_0 [96, 3]\nweight %b q8_0 [64, 3]\n%y = concat(%a, %b) {axis=0}",
    "weight %a q8_0 [96, 3]\nweight %b q8_0 [96, 2]\n%y = concat(%a, %b) {axis=1}",
    "weight %x f32 [7, 5, 3, 2]\n%y = slice(%x) {axis=0, begin=2, length=4}",
    "weight %x f32 [7, 5, 3, 2]\n%y = slice(%x) {axis=1, begin=3, length=2}",
    "weight %x f16 [7, 5, 3, 2]\n%s = slice(%x) {axis=2, begin=1, length=2}\n%y = contiguous(%s)",
    "weight %x i32 [7, 5, 3, 4]\n%y = slice(%x) {axis=3, begin=1, length=0}",
    "weight %x q8_0 [128, 5]\n%y = slice(%x) {axis=0, begin=32, length=64}",
    "weight %x f32 [6, 4, 3, 2]\n%y = reshape(%x) {shape=[24,3,2,1]}",
    "weight %x f32 [6, 4, 3, 2]\n%y = reshape(%x) {shape=[6,12,1,2]}",
    "weight %x f32 [6, 4, 3, 2]\n%y = reshape(%x) {shape=[3,2,4,6]}",
    "weight %x f32 [6, 4, 3, 2]\n%y = reshape(%x) {shape=[2,3,12,2]}",
    "weight %x f16 [6, 4, 3, 2]\n%y = reshape(%x) {shape=[9,16,1,1]}",
    "weight %x q8_0 [64, 6, 2]\n%y = reshape(%x) {shape=[32,2,6,2]}",
    "weight %x f32 [5, 4, 3, 2]\n%y = permute(%x) {axes=[1,0,2,3]}",
    "weight %x f32 [5, 4, 3, 2]\n%p = permute(%x) {axes=[0,2,3,1]}\n%y = scale(%p) {scale=2}",
    "weight %x i32 [5, 4, 3, 2]\n%y = permute(%x) {axes=[3,2,1,0]}",
    "weight %x q8_0 [64, 4, 3]\n%y = permute(%x) {axes=[0,2,1,3]}",
    "weight %x f32 [6, 4, 3]\nweight %z f32 [2, 6, 3]\n%p = permute(%x) {axes=[1,0,2,3]}\n"
    "%s = slice(%p) {axis=0, begin=1, length=2}\n%y = concat(%s, %z) {axis=2}",
};

constexpr int kMostTrials = 40;

/// Turns all inputs into weights, because the callback chooses only layouts of weights. Also makes the last node an
/// output.
std::string to_lay_out(std::string text) {
  for (size_t at = text.find("input %"); at != std::string::npos; at = text.find("input %")) {
    text.replace(at, 5, "weight");
  }
  return text + "\noutput %y\n";
}

std::vector<std::string> graphs_to_lay_out() {
  std::vector<std::string> graphs = rule_cases();
  graphs.insert(graphs.end(), std::begin(kStructural), std::end(kStructural));
  for (std::string& text : graphs) text = to_lay_out(std::move(text));
  return graphs;
}

class EveryLayout : public testing::TestWithParam<int> {};

TEST_P(EveryLayout, GivesSameResultsAsOneDevice) {
  const CpuConfiguration configuration("devices=3,threads=1");
  LayoutTrials trials(GetParam());
  for (const std::string& text : graphs_to_lay_out()) {
    const auto outcome = trials.run(text, kMostTrials);
    EXPECT_EQ(outcome.problem, "");
    EXPECT_GE(outcome.trials, 5) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryLayout, testing::Values(2, 3));

TEST(LayoutTrials, DetectRulesThatAllowWrongSplits) {
  const CpuConfiguration configuration("devices=3,threads=1");
  for (const BrokenRule& broken : kBroken) {
    if (broken.missing) continue;  // a rule that forbids correct splits makes plans slower but does not change results
    // If a source of `add` is mirrored, lowering adds this source on one rank only and does not use the rule.
    if (CaseGraph(broken.graph).node().op == Op::kAdd) continue;
    LayoutTrials trials(2, [&](const Tensor&) { return std::optional<std::string>(broken.rule); });
    EXPECT_NE(trials.run(to_lay_out(broken.graph), 500).problem, "") << broken.rule << "\nfor\n" << broken.graph;
  }
}

}  // namespace
}  // namespace shoal::test
