// Tests merges, the pieces of each pretokenizer, special tokens and end tokens of byte-pair encoding. Each test has its
// own small vocabulary. vocabularies_test.cpp tests the vocabularies of published models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "models/tokenizer/pretokenizer.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace shoal::models {
namespace {

using test::ByteVocabulary;
using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kSpace = "\u0120";  // the letter that represents a space

TEST(ByteBpe, MergesByRankThenLeftmost) {
  ByteVocabulary v;
  const Token bc = v.merge("b", "c"), ab = v.merge("a", "b"), aa = v.merge("a", "a");
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre('a', bc));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(ab));
  EXPECT_THAT(tokenizer.encode("aaa"), ElementsAre(aa, 'a'));
  EXPECT_THAT(tokenizer.encode("aaaaab"), ElementsAre(aa, aa, ab));
}

TEST(ByteBpe, FirstOfDuplicateMergesIsUsed) {
  ByteVocabulary v;
  const Token ab = v.merge("a", "b");
  const Token bc = v.merge("b", "c");
  v.merges.push_back("a b");
  EXPECT_THAT(v.tokenizer().encode("abc"), ElementsAre(ab, 'c'));
  EXPECT_THAT(v.tokenizer().encode("bc"), ElementsAre(bc));
}

// The text that results from a merge is not always a token. Such a text may be only a part of a longer token.
TEST(ByteBpe, MergedTextWithoutTokenIsSpelledInBytes) {
  ByteVocabulary v;
  v.merges = {"a b", "ab c"};
  const Token abc = v.add("abc");
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre('a', 'b'));
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(abc));
}

// Like StarCoder's vocabulary, this vocabulary lacks the bytes that valid UTF-8 never contains.
TEST(ByteBpe, ByteWithoutTokenBecomesReplacementCharacter) {
  ByteVocabulary v;
  v.tokens[0xc0] = v.tokens[0xff] = "<unused>";
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("a\xc0"), ElementsAre('a', 0xef, 0xbf, 0xbd));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\xc1\xff")), "\xc1\ufffd");
}

TEST(ByteBpe, SomePretokenizersPreferTokenOfWholePiece) {
  ByteVocabulary v;
  const Token ab = v.merge("a", "b"), abc = v.add("abc");  // merges cannot reach "abc"
  EXPECT_THAT(v.tokenizer().encode("abc"), ElementsAre(ab, 'c'));
  v.pre = "llama-bpe";
  EXPECT_THAT(v.tokenizer().encode("abc"), ElementsAre(abc));
}

// The numbers are from GLM-4's tokenizer.json. The text " \u738b" is token 102322, but no sequence of merges leads to
// this token. Merge 27944 joins the space and the first byte of the character. Merge 242943, which would produce the
// token, has a lower priority.
TEST(ByteBpe, GlmUsesTokensUnreachableByMerges) {
  const std::string first = "\u00e7", rest = "\u0130\u012d";  // the bytes e7 8e 8b
  for (const char* pre : {"glm4", "glm5", "chatglm-bpe"}) {
    ByteVocabulary v;
    v.pre = pre;
    v.merge(std::string(kSpace), first);
    v.merge("\u0130", "\u012d");
    const Token character = v.merge(first, rest), spaced = v.merge(std::string(kSpace), first + rest);
    EXPECT_THAT(v.tokenizer().encode(" \u738b"), ElementsAre(spaced)) << pre;
    EXPECT_THAT(v.tokenizer().encode("\u738b"), ElementsAre(character)) << pre;
  }
}

// docs/models.md lists the sources of these names.
TEST(ByteBpe, OnlyListedPretokenizersPreferTokenOfWholePiece) {
  std::vector<std::string> found;
  for (const std::string_view name : pretokenizer_names()) {
    if (find_pretokenizer(name)->whole_pieces) found.emplace_back(name);
  }
  EXPECT_THAT(found, ElementsAre("chatglm-bpe", "dbrx", "falcon3", "glm4", "glm5", "gpt-4o", "hunyuan", "kimi-k2",
                                 "lfm2", "llama-bpe", "llama-v3", "llama3", "llama4", "midm-2.0", "minicpm5", "pixtral",
                                 "tekken", "youtu"));
}

TEST(ByteBpe, TokensDoNotCrossPieces) {
  ByteVocabulary v;
  const Token spaced = v.merge(std::string(kSpace), "b");
  v.merge("a", std::string(kSpace));
  EXPECT_THAT(v.tokenizer().encode("a b"), ElementsAre('a', spaced));
}

TEST(ByteBpe, AnyBytesSurviveRoundTrip) {
  ByteVocabulary v;
  v.merge("\u00c3", "\u00a4");  // the UTF-8 bytes of U+00E4
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = static_cast<char>(round % 2 ? random() : "a \n\xc3\xa4\xe2\x81"[random() % 7]);
    for (const char* pre : {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-v3"}) {
      v.pre = pre;
      static std::map<std::string, Tokenizer> made;
      const Tokenizer& tokenizer = made.try_emplace(pre, v.tokenizer()).first->second;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << pre;
    }
  }
}

// An added token with characters outside the byte alphabet is literal text.
TEST(ByteBpe, AddedTokensAreLiteralText) {
  ByteVocabulary v;
  const Token added = v.add("\u6f22 x", 4), letters = v.add("\u0120", 4);
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("a\u6f22 x"), ElementsAre('a', added));
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{added, letters}), "\u6f22 x\u0120");
}

TEST(ByteBpe, InvalidVocabulariesAreRefused) {
  const auto error_after = [](auto spoil) {
    ByteVocabulary v;
    spoil(v);
    return error_of(v.image());
  };
  EXPECT_EQ(error_after([](ByteVocabulary&) {}), "");
  EXPECT_THAT(
      error_after([](ByteVocabulary& v) { v.pre = "unknown's\n"; }),
      HasSubstr(R"(key 'tokenizer.ggml.pre' is 'unknown's\n', which is not supported; use a model with one of: )"));
  for (const char* merge : {"", " ", "ab", "a ", " b"}) {
    EXPECT_THAT(
        error_after([&](ByteVocabulary& v) {
          v.merges = {"a b", merge};
        }),
        HasSubstr(std::string("merge 1 of key 'tokenizer.ggml.merges' is '") + merge + "', expected two parts"));
  }
  EXPECT_THAT(error_after([](ByteVocabulary& v) { v.tokens[0xef] = "x"; }),
              HasSubstr("no token stands for the byte 0xef"));
  EXPECT_THAT(error_after([](ByteVocabulary& v) { v.types.pop_back(); }), HasSubstr("token_type' has 255 elements"));
}

TEST(ByteBpe, AddsBosAndEosOnlyIfFileNamesThem) {
  ByteVocabulary v;
  const Token bos = v.add("<|bos|>", 3), eos = v.add("<|eos|>", 3);
  for (const char* pre : {"gpt-2", "llama-bpe"}) {
    v.pre = pre;
    EXPECT_EQ(v.tokenizer().bos(), -1);
    EXPECT_THAT(v.tokenizer().encode("a"), ElementsAre('a'));
  }
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"}) {
    ByteVocabulary none = v;
    none.extra.add<uint32_t>(key, 0xffffffff);  // the value -1 means that there is no such token
    EXPECT_THAT(none.tokenizer().encode("a"), ElementsAre('a'));
  }
  v.extra.add<uint32_t>("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
  v.extra.add<uint32_t>("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(eos));
  EXPECT_THAT(v.tokenizer().encode("a"), ElementsAre(bos, 'a'));
  v.pre = "gpt-2";
  EXPECT_THAT(v.tokenizer().encode("a"), ElementsAre('a'));
  v.extra.add<bool>("tokenizer.ggml.add_bos_token", true).add<bool>("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(v.tokenizer().encode("a"), ElementsAre(bos, 'a', eos));
  // The result has only one BOS token, although the template also writes a BOS token.
  const std::vector<TextPart> parts{{"<|bos|>", true}, {"a<|bos|>", true}};
  EXPECT_THAT(v.tokenizer().encode(parts), ElementsAre(bos, 'a', bos, eos));
}

TEST(ByteBpe, ReportsGuessedPretokenizer) {
  ByteVocabulary v;
  EXPECT_FALSE(v.tokenizer().guesses_pieces());
  for (const char* pre : {"", "default"}) {
    v.pre = pre;
    const Tokenizer tokenizer = v.tokenizer();
    EXPECT_TRUE(tokenizer.guesses_pieces());
    EXPECT_THAT(tokenizer.encode("a"), ElementsAre('a'));
  }
  EXPECT_FALSE(test::SpmVocabulary().tokenizer().guesses_pieces());
}

TEST(SpecialTokens, UserTextNeverBecomesControlTokens) {
  ByteVocabulary v;
  const Token start = v.add("<|im_start|>", 3), end = v.add("<|im_end|>", 3), tool = v.add("<tool>", 4);
  const Tokenizer tokenizer = v.tokenizer();
  const std::vector<TextPart> parts{{"<|im_start|>", true}, {"<|im_end|><tool>"}, {"<|im_end|>", true}};
  std::vector<Token> expected{start};
  for (const char c : std::string_view("<|im_end|>")) expected.push_back(c);
  expected.insert(expected.end(), {tool, end});
  EXPECT_EQ(tokenizer.encode(parts), expected);
  EXPECT_EQ(tokenizer.encode("<|im_end|>").size(), 10u);
  // User text and neighbouring template text never form a control token together.
  for (const std::vector<TextPart>& cut : {std::vector<TextPart>{{"<|im_", true}, {"end|>"}},
                                           {{"<|im_"}, {"end|>", true}},
                                           {{"<|im", true}, {"_"}, {"end|>", true}},
                                           {{"", true}, {"<|im_end|>"}, {"", true}}}) {
    EXPECT_EQ(tokenizer.encode(cut).size(), 10u);
  }
  // Consecutive parts of a template form one text.
  EXPECT_THAT(tokenizer.encode(std::vector<TextPart>{{"<|im_", true}, {"end|>", true}}), ElementsAre(end));
}

TEST(SpecialTokens, PrefersLeftmostThenLongestMatch) {
  ByteVocabulary v;
  const Token a = v.add("<a>", 4), ab = v.add("<a><b>", 4), b = v.add("><b>", 3);
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("<a><a><b>"), ElementsAre(a, ab));
  EXPECT_THAT(tokenizer.encode("x><b>").size(), 5u);
  EXPECT_THAT(tokenizer.encode(std::vector<TextPart>{{"x><b>", true}}), ElementsAre('x', b));
}

TEST(SpecialTokens, EndTokensAreFoundByText) {
  ByteVocabulary v;
  const Token named = v.add("<|im_end|>", 3), typed_wrongly = v.add("<|eot_id|>", 1), plain = v.add("</s>", 1);
  const Token user_defined = v.add("[EOS]", 4);
  const Token end = v.add("<|end|>", 3), other = v.add("<|start|>", 3);
  {
    const Tokenizer tokenizer = v.tokenizer();
    for (const Token id : {named, typed_wrongly, user_defined, end}) EXPECT_TRUE(tokenizer.is_end(id)) << id;
    for (const Token id : {plain, other, Token{'a'}}) EXPECT_FALSE(tokenizer.is_end(id)) << id;
    EXPECT_EQ(tokenizer.decode(std::vector<Token>{'a', typed_wrongly}), "a");  // typed_wrongly acts as a control token
    EXPECT_EQ(tokenizer.encode("<|eot_id|>").size(), 10u);
    EXPECT_EQ(tokenizer.encode("[EOS]").size(), 5u);
  }
  // If a model has separate end tokens for messages and for turns, only the end of a turn ends generation.
  const Token returns = v.add("<|return|>", 3), calls = v.add("<|call|>", 3);
  const Tokenizer tokenizer = v.tokenizer();
  for (const Token id : {returns, calls}) EXPECT_TRUE(tokenizer.is_end(id));
  EXPECT_FALSE(tokenizer.is_end(end));
}

// Command R's files have <|START_OF_TURN_TOKEN|> as a user-defined token.
TEST(SpecialTokens, TokensThatLookLikeControlTokensAreControlTokens) {
  ByteVocabulary v;
  const Token start = v.add("<|START_OF_TURN_TOKEN|>", 4), bar = v.add("<\uff5cUser\uff5c>", 4);
  const Token typed_as_text = v.add("<|im_start|>", 1);
  const Token text = v.add("<tool>", 4), none = v.add("<||>", 4), gap = v.add("<|fim_middle|>", 4);
  const Tokenizer tokenizer = v.tokenizer();
  for (const Token id : {start, bar, typed_as_text}) {
    const std::string& piece = tokenizer.vocabulary().piece(id);
    EXPECT_THAT(tokenizer.encode(piece), testing::Not(testing::Contains(id)));
    EXPECT_THAT(tokenizer.encode(std::vector<TextPart>{{piece, true}}), ElementsAre(id));
  }
  EXPECT_THAT(tokenizer.encode("<tool><||><|fim_middle|>"), ElementsAre(text, none, gap));
  // In Gemma 4, tokens that look like control tokens are quotation marks.
  test::SpmVocabulary gemma4;
  gemma4.model = "gemma4";
  const Token quote = gemma4.add("<|\"|>", 0, 4);
  gemma4.extra.add_array("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  EXPECT_THAT(gemma4.tokenizer().encode("<|\"|>"), ElementsAre(quote));
}

// Separators of code models also end generation. User text may still contain user-defined separators.
TEST(SpecialTokens, FileSeparatorsEndGeneration) {
  ByteVocabulary v;
  const Token pad = v.add("<fim-pad>", 4), file = v.add("<|file_sep|>", 3), text = v.add("<reponame>", 1);
  const Token middle = v.add("<|fim_middle|>", 3), named = v.add("<REPO>", 1);
  v.extra.add<uint32_t>("tokenizer.ggml.fim_rep_token_id", static_cast<uint32_t>(named));
  v.extra.add<uint32_t>("tokenizer.ggml.fim_sep_token_id", 99999);  // not a valid id
  const Tokenizer tokenizer = v.tokenizer();
  for (const Token id : {pad, file, named}) EXPECT_TRUE(tokenizer.is_end(id)) << id;
  for (const Token id : {text, middle}) EXPECT_FALSE(tokenizer.is_end(id)) << id;
  EXPECT_THAT(tokenizer.encode("a<fim-pad>"), ElementsAre('a', pad));
}

// Phi 3's control tokens include the following space, but no key of the file states this. Therefore "<|user|>\nHi" has
// two tokens instead of four.
TEST(SpecialTokens, Phi3ControlTokensIncludeFollowingSpace) {
  test::SpmVocabulary v;
  const Token user = v.add("<|user|>", 0, 3), end = v.add("<|endoftext|>", 0, 3), mine = v.add("<mine>", 0, 4);
  const Token hi = v.add(std::string(kSpacePiece) + "Hi", 1), line = 3 + '\n', bos = 1;
  v.add(std::string(kSpacePiece) + "H", 2), v.add(std::string(kSpacePiece), 0);
  const Token space = v.add("i", 0) - 1;
  const std::vector<TextPart> parts{
      {"<|user|>\n", true}, {" \u3000Hi<mine>\n"}, {"<|user|><|endoftext|>\n", true}, {"<|user|>\n"}};
  const std::vector<Token> spelled = v.tokenizer().encode("<|user|>\n");
  v.extra.add<std::string>("general.architecture", "phi3");
  std::vector<Token> expected{bos, user, hi, mine, space, line, user, end, space, line};
  expected.insert(expected.end(), spelled.begin() + 2, spelled.end());  // omits BOS and the space prefix
  EXPECT_EQ(v.tokenizer().encode(parts), expected);
}

// Each line is a piece. Merges apply to characters. Characters without a token become byte tokens.
TEST(Gemma4, MergesCharacters) {
  test::SpmVocabulary v;
  v.model = "gemma4";
  const Token bos = 2;
  v.extra.add<uint32_t>("tokenizer.ggml.bos_token_id", bos).add<bool>("tokenizer.ggml.add_bos_token", false);
  const std::string space(kSpacePiece);
  v.add(space, 0);
  const Token a = v.add("a", 0), umlaut = v.add("\u00e4", 0), spaced = v.add(space + "a", 0),
              breaks = v.add("\n\n\n", 0);
  const Token both = v.add("a\u00e4", 0);
  v.extra.add_array("tokenizer.ggml.merges", std::vector<std::string>{space + " a", "a \u00e4"});
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("a\u00e4\u00e4"), ElementsAre(bos, both, umlaut));
  EXPECT_THAT(tokenizer.encode(" a"), ElementsAre(bos, spaced));
  EXPECT_THAT(tokenizer.encode("a\n\n\na"), ElementsAre(bos, a, breaks, a));
  EXPECT_THAT(tokenizer.encode("a\n\na"), ElementsAre(bos, a, 3 + '\n', 3 + '\n', a));
  EXPECT_THAT(tokenizer.encode("\u00f6"), ElementsAre(bos, 3 + 0xc3, 3 + 0xb6));
  for (const char* text : {" a  b\n", "\xff\xc3", ""}) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

struct PieceCase {
  const char* pre;
  const char* text;
  std::vector<std::string_view> pieces;
};

// The expected pieces are derived by hand from the published regular expressions.
const PieceCase kPieceCases[] = {
    {"llama-bpe",
     "I'LL pay 12345 \u20ac!!\n\n  ok",
     {"I", "'LL", " pay", " ", "123", "45", " \u20ac!!\n\n", " ", " ok"}},
    {"llama-bpe", "_word\tx  \n y\u0301", {"_word", "\tx", "  \n", " y", "\u0301"}},
    {"qwen2", "a12 \u0968\u0969", {"a", "1", "2", " ", "\u0968", "\u0969"}},
    {"qwen35", "\u0915\u094d\u0937!", {"\u0915\u094d\u0937", "!"}},
    {"tekken", "helloWorld HTTPServer a//\n", {"hello", "World", " HTTPServer", " a", "//\n"}},
    {"gpt-4o", "helloWorld's I'm 1234", {"hello", "World's", " I'm", " ", "123", "4"}},
    {"kimi-k2", "abc\u6f22\u5b57Def's", {"abc", "\u6f22\u5b57", "Def's"}},
    {"tiny_aya",
     "1234567 12a 1234b c12345",
     {"1", "234", "567", " ", "12", "a", " ", "123", "4", "b", " c", "12", "345"}},
    {"tiny_aya", "12345", {"12", "345"}},
    {"tiny_aya", "1234\u00b2 1234_ 1234\u2167", {"123", "4\u00b2", " ", "123", "4", "_", " ", "123", "4\u2167"}},
    {"glm5", "I'LL pay 12345", {"I", "'LL", " pay", " ", "123", "45"}},
    {"kormo", "a12 It's", {"a", "1", "2", " It", "'s"}},
    {"midm-2.0", "a1234", {"a", "123", "4"}},
    {"mellum", "x  12'll 'LL!", {"x", " ", " 12", "'ll", " '", "LL", "!"}},
    {"trillion", "x  12'll", {"x", " ", " 12", "'ll"}},
    {"seed-coder", "a12 !!\n\n'LL", {"a", "1", "2", " !!", "\n\n", "'LL"}},
    {"minicpm5", "a12345 !!\n\n'LL", {"a", "123", "45", " !!\n\n", "'LL"}},
    {"youtu",
     "\ud55c\uad6d\u6f22\u5b57\u3042\uff0c\u3001\u3105x12 helloWorld's",
     {"\ud55c\uad6d", "\u6f22\u5b57\u3042", "\uff0c\u3001", "\u3105", "x", "1", "2", " hello", "World's"}},
    {"viking", "Hei, maailma (12)!? a|b", {"Hei", ",", " maailma", " (", "1", "2", ")!?", " a", "|", "b"}},
    {"superbpe", "By the way, 1234567 and 12345", {"By the way, ", "1", "234", "567", " and ", "12", "345"}},
    {"superbpe",
     "1\u00b22345x345\u00b212 12\u00b2123456",
     {"1\u00b22", "345", "x", "345\u00b212", " ", "12\u00b2", "123", "456"}},
    {"deepseek-v3", "a+b \u6f22\u5b57\u3042x 1234", {"a", "+b", " ", "\u6f22\u5b57\u3042", "x", " ", "123", "4"}},
    {"deepseek-llm",
     "a1\r\n b,\u6f22 \u2018 \uff01x12  ",
     {"a", "1", "\r", "\n", " b", ",", "\u6f22", " ", "\u2018", " \uff01", "x", "12", "  "}},
    {"deepseek-coder", "a1\r\n b,\u6f22", {"a", "1", "\r", "\n", " b", ",", "\u6f22"}},
    {"command-r", "x  12'll", {"x", "  ", "1", "2", "'ll"}},
    {"gpt-2", "x  12'll 'LL!", {"x", " ", " 12", "'ll", " '", "LL", "!"}},
};

class PretokenizerPieces : public testing::TestWithParam<PieceCase> {};

TEST_P(PretokenizerPieces, MatchPublishedExpressions) {
  const PieceCase& c = GetParam();
  const PretokenizerKind* kind = find_pretokenizer(c.pre);
  ASSERT_NE(kind, nullptr);
  EXPECT_THAT(Pretokenizer(kind->expressions).cut(c.text), testing::ElementsAreArray(c.pieces));
}

INSTANTIATE_TEST_SUITE_P(All, PretokenizerPieces, testing::ValuesIn(kPieceCases), [](const auto& info) {
  std::string name = std::string(info.param.pre) + "_" + std::to_string(info.index);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

// Cutting takes linear time for every text and does not exceed the memory of the matcher.
TEST(PretokenizerPieces, LongRunsTakeLinearTime) {
  const char* runs[] = {" ",       "1234 12345678a", "1\u00b2123", "123456\u00b2", "\n",   "A",   "a",      "\u6f22",
                        "a\u0301", "\U0001f600",     "7",          "'s",           "\xff", " \n", "\u3000", "aB",
                        "!"};
  for (const char* pre :
       {"llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "kimi-k2", "tiny_aya", "deepseek-v3", "youtu", "seed-coder",
        "minicpm5", "superbpe", "viking", "deepseek-llm", "deepseek-coder", "command-r", "gpt-2"}) {
    const Pretokenizer pretokenizer(find_pretokenizer(pre)->expressions);
    for (const char* run : runs) {
      std::string text;
      while (text.size() < 1 << 20) text += run;
      const auto begin = std::chrono::steady_clock::now();
      const auto pieces = pretokenizer.cut(text + "x");
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      size_t size = 0;
      for (const std::string_view piece : pieces) size += piece.size();
      EXPECT_EQ(size, text.size() + 1);
      EXPECT_LT(seconds.count(), 10) << pre << " on a megabyte of '" << run << "'";
    }
  }
}

}  // namespace
}  // namespace shoal::models
