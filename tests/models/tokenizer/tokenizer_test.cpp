// Compares the tokenizer with reference outputs and with a slow, simple merger. Also tests small vocabularies.
#include "models/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/error.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/small_vocabulary.h"
#include "tests/support/model_files.h"

namespace shoal::models {
namespace {

using test::Bytes;
using test::SpmVocabulary;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kModels = std::string(SHOAL_SOURCE_DIR) + "/data/models/";
constexpr const char* kFiles[] = {"tiny-kjv-5m-f16", "tiny-kjv-5m-q8_0", "tiny-kjv-5m-q4_k_m", "tiny-kjv-5m-q4_0"};

nlohmann::json cases_of(const std::string& name) {
  std::ifstream file(kModels + "expected/" + name + ".json");
  return nlohmann::json::parse(file).at("cases");
}

const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer{GgufFile(test::model_file(std::string(kFiles[2]) + ".gguf"))};
  return tokenizer;
}

TEST(Tokenizer, MatchesReferenceIds) {
  const auto cases = cases_of("tokenizer");
  ASSERT_EQ(cases.size(), 10u);
  for (const char* name : kFiles) {
    const Tokenizer tokenizer{GgufFile(test::model_file(std::string(name) + ".gguf"))};
    for (const auto& c : cases) {
      const std::string text = c.at("text");
      EXPECT_EQ(tokenizer.encode(text), c.at("ids").get<std::vector<Token>>()) << name << ": " << text;
    }
  }
}

TEST(Tokenizer, DecodesReferenceIds) {
  for (const auto& c : cases_of("tokenizer")) {
    const auto ids = c.at("ids").get<std::vector<Token>>();
    EXPECT_EQ(small_tokenizer().decode(ids), c.at("text").get<std::string>());
  }
}

TEST(Tokenizer, EncodesPromptsAndDecodesContinuations) {
  for (const char* name : kFiles) {
    const auto cases = cases_of(name);
    ASSERT_EQ(cases.size(), 3u);
    for (const auto& c : cases) {
      EXPECT_EQ(small_tokenizer().encode(c.at("prompt").get<std::string>()),
                c.at("prompt_ids").get<std::vector<Token>>());
      const auto ids = c.at("continuation_ids").get<std::vector<Token>>();
      EXPECT_EQ(small_tokenizer().decode(ids, false), c.at("continuation_text").get<std::string>());
    }
  }
}

// Merges symbols exactly as the definition says. Each merge compares all pairs, which takes O(n^2) time in total.
std::vector<std::string> merge_slowly(std::vector<std::string> symbols, const TokenizerVocabulary& vocabulary) {
  for (;;) {
    std::optional<size_t> best;
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Token id = vocabulary.find(symbols[i] + symbols[i + 1]);
      if (id < 0 || (best && vocabulary.score(id) <= best_score)) continue;
      best = i;
      best_score = vocabulary.score(id);
    }
    if (!best) return symbols;
    symbols[*best] += symbols[*best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(*best) + 1);
  }
}

TEST(Tokenizer, TokensEqualTokensOfQuadraticMerger) {
  const Tokenizer& tokenizer = small_tokenizer();
  const TokenizerVocabulary& vocabulary = tokenizer.vocabulary();
  std::mt19937_64 random(1);
  int merged = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text;
    std::vector<std::string> symbols{std::string(kSpacePiece)};
    for (uint64_t n = 1 + random() % 60; n > 0; --n) {
      const char c = "  aaehhinorstt"[random() % 14];
      text += c;
      symbols.push_back(c == ' ' ? std::string(kSpacePiece) : std::string(1, c));
    }
    const size_t characters = symbols.size();
    std::vector<Token> expected{tokenizer.bos()};
    for (const std::string& symbol : merge_slowly(symbols, vocabulary)) expected.push_back(vocabulary.find(symbol));
    EXPECT_EQ(tokenizer.encode(text), expected) << text;
    merged += expected.size() < characters;
  }
  EXPECT_GT(merged, 250);
}

TEST(Tokenizer, AnyBytesSurviveRoundTrip) {
  const Tokenizer& tokenizer = small_tokenizer();
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (uint64_t n = random() % 40; n > 0; --n) {
      // Most of these bytes begin, continue or break UTF-8 sequences. The bytes never form U+2581.
      const unsigned char bytes[] = {' ', 'a', 't', 'h', 0x80, 0xbf, 0xc3, 0xe0, 0xed, 0xf0, 0xf4, 0xff, 0x00, '\n'};
      text += static_cast<char>(bytes[random() % std::size(bytes)]);
    }
    const std::vector<Token> ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    StreamDecoder decoder(tokenizer, true);
    std::string streamed;
    for (const Token id : ids) streamed += decoder.push(id);
    EXPECT_EQ(streamed + decoder.finish(), text);
  }
}

TEST(Tokenizer, InvalidBytesBecomeByteTokens) {
  const Tokenizer& tokenizer = small_tokenizer();
  const auto byte = [&](unsigned char b) { return tokenizer.vocabulary().byte_token(b); };
  const Token space = tokenizer.vocabulary().find(kSpacePiece);
  // The texts are a lone continuation byte, an overlong slash and a surrogate.
  EXPECT_THAT(tokenizer.encode("\x80"), ElementsAre(tokenizer.bos(), space, byte(0x80)));
  EXPECT_THAT(tokenizer.encode("\xc0\xaf"), ElementsAre(tokenizer.bos(), space, byte(0xc0), byte(0xaf)));
  EXPECT_THAT(tokenizer.encode("\xed\xa0\x80"),
              ElementsAre(tokenizer.bos(), space, byte(0xed), byte(0xa0), byte(0x80)));
}

TEST(Tokenizer, TextNeverBecomesControlTokens) {
  const Tokenizer& tokenizer = small_tokenizer();
  for (const Token id : {tokenizer.bos(), tokenizer.eos()}) {
    const std::vector<Token> ids = tokenizer.encode(tokenizer.vocabulary().piece(id));
    EXPECT_EQ(std::count(ids.begin() + 1, ids.end(), id), 0);
    EXPECT_EQ(tokenizer.decode(ids), tokenizer.vocabulary().piece(id));
  }
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{tokenizer.bos(), tokenizer.eos()}), "");
}

TEST(Tokenizer, TimeForLongTextsIsNotQuadratic) {
  std::string text;
  while (text.size() < 500'000) text += "in the beginning aaaaaaaa";
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Token> ids = small_tokenizer().encode(text);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(small_tokenizer().decode(ids), text);
  // Encoding the text takes half a second with sanitizers. With quadratic time, half a million characters would take
  // minutes.
  EXPECT_LT(taken.count(), 20);
}

TEST(Tokenizer, StreamedTextIsValidUtf8AfterEveryToken) {
  const std::string text = "na\xc3\xafve \xe2\x80\x94 \xf0\x9f\x98\x80 and \xe6\x97\xa5\xe6\x9c\xac";
  StreamDecoder decoder(small_tokenizer(), true);
  std::string streamed;
  int held = 0;
  for (const Token id : small_tokenizer().encode(text)) {
    const std::string ready = decoder.push(id);
    held += ready.empty();
    streamed += ready;
    for (size_t at = 0; at < ready.size(); at += utf8_sequence(ready.substr(at))) {
      ASSERT_GT(utf8_sequence(ready.substr(at)), 0u) << streamed;
    }
  }
  EXPECT_EQ(streamed, text);
  EXPECT_GT(held, 5);
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Tokenizer, StreamHoldsBackIncompleteCharacters) {
  const Tokenizer& tokenizer = small_tokenizer();
  const auto byte = [&](unsigned char b) { return tokenizer.vocabulary().byte_token(b); };
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(tokenizer.vocabulary().find(std::string(kSpacePiece) + "the")), " the");
  for (const unsigned char b : {0xf0, 0x9f, 0x98}) EXPECT_EQ(decoder.push(byte(b)), "");
  EXPECT_EQ(decoder.push(byte(0x80)), "\xf0\x9f\x98\x80");
  EXPECT_EQ(decoder.push(byte(0xe2)), "");
  EXPECT_EQ(decoder.push(byte('a')),
            "\xe2"
            "a");  // "a" cannot continue the UTF-8 sequence that begins with e2
  EXPECT_EQ(decoder.push(byte(0xe2)), "");
  EXPECT_EQ(decoder.finish(), "\xe2");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Tokenizer, RefusesInvalidIds) {
  const Tokenizer& tokenizer = small_tokenizer();
  for (const Token id : {-1, 1024, std::numeric_limits<Token>::max()}) {
    EXPECT_THROW(tokenizer.decode(std::vector<Token>{id}), InvalidArgument);
  }
  try {
    tokenizer.vocabulary().piece(1024);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "token 1024 is outside the vocabulary; use ids from 0 to 1023");
  }
}

TEST(TokenizerVocabulary, MergesBestScoreThenLeftmost) {
  SpmVocabulary v;
  v.extra.add<bool>("tokenizer.ggml.add_space_prefix", false).add<bool>("tokenizer.ggml.add_bos_token", false);
  for (const char* c : {"a", "b", "c"}) v.add(c, -10);
  const Token ab = v.add("ab", -2), bc = v.add("bc", -1), aa = v.add("aa", -3);
  const Tokenizer tokenizer = v.tokenizer();
  const Token a = tokenizer.vocabulary().find("a");
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(a, bc));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(ab));
  EXPECT_THAT(tokenizer.encode("aaa"), ElementsAre(aa, a));
  EXPECT_THAT(tokenizer.encode("aaaaa"), ElementsAre(aa, aa, a));
}

TEST(TokenizerVocabulary, UserDefinedPiecesAreMatchedFirst) {
  SpmVocabulary v;
  v.extra.add<bool>("tokenizer.ggml.add_bos_token", false);
  const Token space = v.add(std::string(kSpacePiece), -1), x = v.add("x", -1), y = v.add("y", -1);
  const Token xy = v.add("xy", -0.5f);
  v.add("xxy", 0);  // encode("xxy") would return this token if the user-defined "xx" took part in merges
  const Token one = v.add("xx", 0, 4), two = v.add("xx y", 0, 4);
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("xxy"), ElementsAre(one, space, y));
  EXPECT_THAT(tokenizer.encode("xx y"), ElementsAre(two));
  EXPECT_THAT(tokenizer.encode("xyx"), ElementsAre(space, xy, x));
  EXPECT_THAT(tokenizer.encode("xxx y"), ElementsAre(one, space, x, space, y));  // the leftmost piece "xx" is matched,
                                                                                 // not the longest piece "xx y"
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("xx yxxy x")), "xx yxxy x");
}

// As in llama.cpp, the tokenizer adds a space before the first text and before each text after a user-defined piece.
TEST(TokenizerVocabulary, TextAfterUserDefinedPieceGetsSpace) {
  SpmVocabulary v;
  v.extra.add<bool>("tokenizer.ggml.add_bos_token", false);
  const Token space = v.add(std::string(kSpacePiece), -5), a = v.add("a", -5), b = v.add("b", -5);
  const Token space_a = v.add(std::string(kSpacePiece) + "a", -1), space_b = v.add(std::string(kSpacePiece) + "b", -2);
  const Token x = v.add("<x>", 0, 4), spaced = v.add(" <y>", 0, 4), newline = v.add("\n", 0, 4);
  {
    const Tokenizer tokenizer = v.tokenizer();
    EXPECT_THAT(tokenizer.encode("a<x>b"), ElementsAre(space_a, x, space_b));
    EXPECT_THAT(tokenizer.encode("<x>b"), ElementsAre(x, space_b));
    EXPECT_THAT(tokenizer.encode("a<x>"), ElementsAre(space_a, x));
    EXPECT_THAT(tokenizer.encode("<x><x>"), ElementsAre(x, x));
    EXPECT_THAT(tokenizer.encode("<x> b"), ElementsAre(x, space, space_b));
    EXPECT_THAT(tokenizer.encode("ab\na"), ElementsAre(space_a, b, newline, space_a));
    // Special tokens are matched before the space is added.
    EXPECT_THAT(tokenizer.encode(" <y>a"), ElementsAre(spaced, space_a));
    EXPECT_THAT(tokenizer.encode("<y>").size(), 4u);
    // Decoding a whole text removes only the added spaces.
    for (const char* text : {"a<x>b", "<x>b", "<x> b", "<x>  b", " <x>b ", " <y>a", "  <y> a", "<x><x>a\n\n b", "\n"}) {
      const std::vector<Token> ids = tokenizer.encode(text);
      EXPECT_EQ(tokenizer.decode(ids), text);
      StreamDecoder decoder(tokenizer, true);
      std::string streamed;
      for (const Token id : ids) streamed += decoder.push(id);
      EXPECT_EQ(streamed + decoder.finish(), text);
    }
    EXPECT_EQ(tokenizer.decode(std::vector<Token>{space_a, x, space_b}, false), " a<x> b");
  }
  v.extra.add<bool>("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(v.tokenizer().encode("a<x>b"), ElementsAre(a, x, b));
  EXPECT_THAT(v.tokenizer().encode("a <x> b"), ElementsAre(a, space, x, space_b));
  EXPECT_EQ(v.tokenizer().decode(std::vector<Token>{x, space_b}), "<x> b");
}

TEST(TokenizerVocabulary, UserDefinedPiecesSurviveRoundTrip) {
  SpmVocabulary v;
  v.add(std::string(kSpacePiece), -5), v.add("a", -5), v.add(std::string(kSpacePiece) + "a", -1);
  v.add("ab", 0, 4), v.add("abc", 0, 4), v.add(" b", 0, 4), v.add("  ", 0, 4), v.add("c\xff", 0, 4);
  const Tokenizer tokenizer = v.tokenizer();
  std::mt19937_64 random(3);
  int pieces = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint64_t n = random() % 12; n > 0; --n) text += "  aabc\xff\n"[random() % 8];
    const std::vector<Token> ids = tokenizer.encode(text);
    pieces += static_cast<int>(std::count_if(ids.begin(), ids.end(), [](Token id) { return id >= 262; }));
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_GT(pieces, 1500);
}

TEST(TokenizerVocabulary, MergingNeverProducesControlOrBytePieces) {
  SpmVocabulary v;
  v.extra.add<bool>("tokenizer.ggml.add_bos_token", false).add<bool>("tokenizer.ggml.add_space_prefix", false);
  const Token open = v.add("<", -1), s = v.add("s", -1), close = v.add(">", -1), half = v.add("<s", -1);
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("<s>"), ElementsAre(half, close));
  EXPECT_THAT(tokenizer.encode("<"), ElementsAre(open));
  EXPECT_THAT(tokenizer.encode("s"), ElementsAre(s));
}

TEST(TokenizerVocabulary, InvalidBytesAreNotMerged) {
  SpmVocabulary v;
  v.extra.add<bool>("tokenizer.ggml.add_bos_token", false).add<bool>("tokenizer.ggml.add_space_prefix", false);
  const Token a = v.add("a", -1);
  v.add("a\x80", 0);
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode("a\x80"), ElementsAre(a, tokenizer.vocabulary().byte_token(0x80)));
}

TEST(TokenizerVocabulary, LastOfDuplicatePiecesIsUsed) {
  SpmVocabulary v;
  v.extra.add<bool>("tokenizer.ggml.add_bos_token", false).add<bool>("tokenizer.ggml.add_space_prefix", false);
  v.add("a", -1);
  const Token again = v.add("a", -2);
  EXPECT_THAT(v.tokenizer().encode("a"), ElementsAre(again));
}

TEST(TokenizerVocabulary, ByteTokensAreRecognisedByTextIfTypesAreAbsent) {
  SpmVocabulary v;
  v.add(std::string(kSpacePiece), -1);
  const Tokenizer tokenizer = v.tokenizer(false);
  EXPECT_EQ(tokenizer.vocabulary().byte_token(0x0a), 13);
  EXPECT_THAT(tokenizer.encode("\n"), ElementsAre(1, 259, 13));
}

TEST(TokenizerVocabulary, AppliesFlagsAndIdsOfFile) {
  SpmVocabulary v;
  const Token space = v.add(std::string(kSpacePiece), -1), turn = v.add("<turn>", 0, 3);
  EXPECT_THAT(v.tokenizer().encode(" "), ElementsAre(1, space, space));
  EXPECT_TRUE(v.tokenizer().is_end(2));
  EXPECT_FALSE(v.tokenizer().is_end(turn));

  v.extra.add<bool>("tokenizer.ggml.add_bos_token", true).add<bool>("tokenizer.ggml.add_eos_token", true);
  v.extra.add<bool>("tokenizer.ggml.add_space_prefix", false).add<uint32_t>("tokenizer.ggml.bos_token_id", 2);
  v.extra.add<uint32_t>("tokenizer.ggml.eos_token_id", 1).add<uint32_t>("tokenizer.ggml.eot_token_id", turn);
  const Tokenizer tokenizer = v.tokenizer();
  EXPECT_THAT(tokenizer.encode(" "), ElementsAre(2, space, 1));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre(2, 1));
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{2, space, 1}), " ");  // encoding added no space, so decoding removes no
                                                                      // space
  EXPECT_TRUE(tokenizer.is_end(1));
  EXPECT_TRUE(tokenizer.is_end(turn));
  EXPECT_FALSE(tokenizer.is_end(0));
}

TEST(TokenizerVocabulary, RefusalNamesSupportedTokenizers) {
  SpmVocabulary v;
  v.model = "bert";
  EXPECT_THAT(v.error(), HasSubstr("tokenizer 'bert' is not supported; use a model with one of: llama"));
  v.model = std::string("g\x1b[31mpt\0\n", 10);
  EXPECT_THAT(v.error(), HasSubstr(R"(tokenizer 'g\x1b[31mpt\x00\n' is not)"));
}

TEST(TokenizerVocabulary, InconsistentVocabulariesAreRefused) {
  const auto error_after = [](auto spoil) {
    SpmVocabulary v;
    spoil(v);
    return v.error();
  };
  EXPECT_EQ(error_after([](SpmVocabulary&) {}), "");
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.tokens.clear(); }), HasSubstr("has 0 tokens"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.scores.pop_back(); }),
              HasSubstr("'tokenizer.ggml.scores' has 258 elements, but there are 259 tokens"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.types.push_back(1); }), HasSubstr("token_type' has 260 elements"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.scores[7] = std::nanf(""); }), HasSubstr("score of token 7"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.types[7] = 7; }), HasSubstr("token 7 has the unknown type 7"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.types[7] = -1; }), HasSubstr("token 7 has the unknown type -1"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.types[13] = 1; }), HasSubstr("no byte token <0x0A>"));
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.tokens[13] = "<0xGG>"; }),
              HasSubstr("byte token 13 is not of the form"));
  for (const char* key : {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"}) {
    EXPECT_THAT(
        error_after([&](SpmVocabulary& v) { v.extra.add<uint32_t>(std::string("tokenizer.ggml.") + key, 259); }),
        HasSubstr(std::string(key) + "' is 259, but the vocabulary has 259 tokens"));
  }
  EXPECT_THAT(error_after([](SpmVocabulary& v) { v.extra.add<int32_t>("tokenizer.ggml.bos_token_id", 1); }),
              HasSubstr("should be u32, found i32"));
}

TEST(Utf8, SequencesMatchStandard) {
  // Encodes every scalar value by hand. utf8_sequence() must return the length of the encoding, and
  // utf8_incomplete_tail() the length of every truncated encoding.
  for (uint32_t c = 0; c <= 0x10ffff; ++c) {
    std::string text;
    if (c < 0x80) {
      text = {static_cast<char>(c)};
    } else if (c < 0x800) {
      text = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      text = {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(utf8_sequence(text + "x"), surrogate ? 0 : text.size()) << c;
    ASSERT_EQ(utf8_incomplete_tail("x" + text), 0u) << c;
    if (surrogate) continue;
    for (size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(utf8_incomplete_tail("x" + text.substr(0, n)), n) << c;
      ASSERT_EQ(utf8_sequence(text.substr(0, n)), 0u) << c;
    }
  }
}

TEST(Utf8, InvalidSequencesHaveLengthZero) {
  EXPECT_EQ(utf8_sequence(""), 0u);
  for (const char* text : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3x", "\xe2\x82x", "\xf0\x9f\x98x"}) {
    EXPECT_EQ(utf8_sequence(text), 0u);
    EXPECT_EQ(utf8_incomplete_tail(text), 0u);
  }
}

}  // namespace
}  // namespace shoal::models
