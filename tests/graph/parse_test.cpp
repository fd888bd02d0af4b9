#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "graph/text.h"

namespace shoal {
namespace {

void parse(std::string_view text) {
  Graph graph;
  TensorContext weights;
  parse_graph(text, graph, weights);
}

TEST(Parse, AcceptsBlanksCommentsAndLineEnds) {
  Graph graph;
  TensorContext weights;
  parse_graph("# a comment\n\n  input %x f32[4,2] # another\r\n\t%y=scale( %x ){ scale = 2 , bias=1 }\noutput %y",
              graph, weights);
  ASSERT_EQ(graph.nodes().size(), 1u);
  EXPECT_EQ(graph.nodes()[0]->params, OpParams(ScaleParams{2.0f, 1.0f}));
  EXPECT_TRUE(graph.nodes()[0]->is_output);
}

TEST(Parse, AcceptsEmptyText) {
  Graph graph;
  TensorContext weights;
  parse_graph("", graph, weights);
  EXPECT_TRUE(graph.nodes().empty());
}

TEST(Parse, ReusesExistingWeights) {
  TensorContext weights;
  Graph first, second, third;
  parse_graph("weight %w q8_0 [32, 2]\ncache %c f16 [4]\n", first, weights);
  parse_graph("weight %w q8_0 [32, 2]\ncache %c f16 [4]\n", second, weights);
  EXPECT_EQ(weights.tensors().size(), 2u);
  EXPECT_THAT(
      [&] { parse_graph("weight %w q8_0 [32, 3]\n", third, weights); },
      testing::ThrowsMessage<InvalidArgument>("line 1: %w exists with another dtype, shape or role: w q8_0 [32, 2]"));
  EXPECT_THAT([&] { parse_graph("cache %w q8_0 [32, 2]\n", third, weights); }, testing::Throws<InvalidArgument>());
}

struct BadText {
  const char* text;
  const char* message;
};
void PrintTo(const BadText& row, std::ostream* out) {
  *out << row.text;
}

class ParseError : public testing::TestWithParam<BadText> {};

TEST_P(ParseError, NamesTheLine) {
  EXPECT_THAT([] { parse(GetParam().text); }, testing::ThrowsMessage<InvalidArgument>(GetParam().message));
}

constexpr const char* kKnownWords = "expected input, weight, cache, output or a %name, got ";
const std::string kUnknownWord = std::string("line 1: ") + kKnownWords + "'inputs'";
const std::string kNoWord = std::string("line 1: ") + kKnownWords + "'(x)'";

const BadText kBad[] = {
    {"inputs %x f32 [4]", kUnknownWord.c_str()},
    {"(x)", kNoWord.c_str()},
    {"input x f32 [4]", "line 1: expected '%', got 'x f32 [4]'"},
    {"input %x", "line 1: expected a dtype, got the end of the line"},
    {"input %x f33 [4]", "line 1: there is no dtype 'f33'"},
    {"input %x f32", "line 1: expected [...], got the end of the line"},
    {"input %x f32 [4", "line 1: expected [...], got '[4'"},
    {"input %x f32 []", "line 1: expected a shape of 1 to 4 lengths, got '[]'"},
    {"input %x f32 [1,2,3,4,5]", "line 1: expected a shape of 1 to 4 lengths, got '[1,2,3,4,5]'"},
    {"input %x f32 [4,,2]", "line 1: expected a shape of 1 to 4 lengths, got '[4,,2]'"},
    {"input %x f32 [99999999999999999999]", "line 1: expected a shape of 1 to 4 lengths, got '[99999999999999999999]'"},
    {"input %x f32 [4] more", "line 1: expected the end of the line, got 'more'"},
    {"input %x f32 [4]\n\ninput %x f32 [4]", "line 3: %x is defined already"},
    {"# one\ninput %x f32 [4]\n%y = scales(%x)", "line 3: there is no op 'scales'"},
    {"%y = none()", "line 1: there is no op 'none'"},
    {"%y = scale(%x)", "line 1: %x is not defined"},
    {"%y scale(%x)", "line 1: expected '=', got 'scale(%x)'"},
    {"input %x f32 [4]\n%y = scale(%x", "line 2: expected ')', got the end of the line"},
    {"input %x f32 [4]\n%y = scale(%x,)", "line 2: expected '%', got ')'"},
    {"input %x f32 [4]\n%y = scale(%x) {scale=2", "line 2: expected '}', got the end of the line"},
    {"input %x f32 [4]\n%y = scale(%x) {scale}", "line 2: expected '=', got '}'"},
    {"input %x f32 [4]\n%y = scale(%x) {scale=two}", "line 2: bad value 'two' of parameter 'scale'"},
    {"input %x f32 [4]\n%y = scale(%x) {scale=}", "line 2: bad value '' of parameter 'scale'"},
    {"input %x f32 [4]\n%y = scale(%x) {factor=2}", "line 2: unknown parameter 'factor'; known: scale, bias"},
    {"input %x f32 [4]\n%y = add(%x, %x) {a=2}", "line 2: unknown parameter 'a'; known: none"},
    {"input %x f32 [4]\n%y = unary(%x) {kind=sinh}", "line 2: bad value 'sinh' of parameter 'kind'"},
    {"input %x f32 [4]\n%y = reshape(%x) {shape=[4]}", "line 2: bad value '[4]' of parameter 'shape'"},
    {"%y = fill() {dtype=f99}", "line 1: bad value 'f99' of parameter 'dtype'"},
    {"input %x f32 [4]\ninput %i i32 [1]\n%y = get_rows(%x, %i) {ranges=[1,2]}",
     "line 3: bad value '[1,2]' of parameter 'ranges'"},
    {"input %x f32 [4]\n%y = attention(%x, %x, %x) {causal=1}", "line 2: bad value '1' of parameter 'causal'"},
    {"input %x f32 [4]\n%y = add(%x, _)", "line 2: [add y] source 1 is missing"},
    {"output %y", "line 1: %y is not defined"},
};
INSTANTIATE_TEST_SUITE_P(Parse, ParseError, testing::ValuesIn(kBad));

// The parser either accepts a text or refuses the text with a line number.
TEST(Parse, MutatedTextsNeverCrashTheParser) {
  const std::string good =
      "input %x f32 [4, 6]\ninput %i i32 [6]\nweight %t q8_0 [32, 6]\n"
      "%a = get_rows(%t, %i) {ranges=[10:2,40:4]}\n%b = rope(%x, %i, _) {dims=2, base=1e4}\n"
      "%c = reshape(%x) {shape=[2,-1,1,1]}\n%d = slice(%c) {axis=1, begin=2, length=3}\noutput %d\n";
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % text.size();
      const char symbols[] = "%[]{}(),:=_-.0919xfi#\n";
      if (random() % 2) {
        text[at] = symbols[random() % (sizeof(symbols) - 1)];
      } else {
        text.erase(at, 1 + random() % 4);
      }
    }
    try {
      parse(text);
    } catch (const InvalidArgument& error) {
      ++refused;
      ASSERT_EQ(std::string_view(error.what()).substr(0, 5), "line ") << text;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shoal
