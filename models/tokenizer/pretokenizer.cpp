#include "models/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"

namespace shoal::models {
namespace {

// White space in Unicode. S replaces PCRE2's \s, which also matches U+180E.
#define S R"(\t-\r\x{85}\p{Z})"
#define CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define ENDS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
// Letters that count as capital letters (UPPER), and letters that count as small letters (LOWER).
#define UPPER R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})"
#define LOWER R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"
#define NOT_HAN R"((?!\p{sc:Han}))"
// End of a word. As in Oniguruma, superscripts and fractions of Latin-1 belong to words.
#define NO_WORD R"((?![\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}]))"

/// Replaces \s by the characters in S, and \S by all other characters. \s may be inside a character class, but \S may
/// not.
std::string with_spaces(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char next = expression[++i];
      if (next == 's') {
        out += in_class ? S : "[" S "]";
      } else if (next == 'S') {
        out += "[^" S "]";
      } else {
        out += {c, next};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

PretokenizerKind kind(std::vector<std::string_view> names, std::vector<std::string_view> expressions,
                      bool whole_pieces = false, bool adds_bos = false) {
  PretokenizerKind made{std::move(names), {}, whole_pieces, adds_bos};
  for (const std::string_view expression : expressions) made.expressions.push_back(with_spaces(expression));
  return made;
}

constexpr std::string_view kLlama3 =
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" ENDS;
constexpr std::string_view kQwen2 = CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" ENDS;
constexpr std::string_view kQwen35 =
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" ENDS;
constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[)" UPPER "]*[" LOWER R"(]+|[^\r\n\p{L}\p{N}]?[)" UPPER
                                     "]+[" LOWER R"(]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" ENDS;
// A word is a run of capital letters, then a run of small letters, then an optional contraction. One of the two runs
// may be empty.
#define CAPITALS_AND_WORDS                                                                                 \
  R"([^\r\n\p{L}\p{N}]?[)" UPPER "]*[" LOWER "]+" CONTRACTION R"(?|[^\r\n\p{L}\p{N}]?[)" UPPER "]+[" LOWER \
  "]*" CONTRACTION "?"
constexpr std::string_view kGpt4o = CAPITALS_AND_WORDS R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" ENDS;
constexpr std::string_view kYoutu = CAPITALS_AND_WORDS R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" ENDS;
constexpr std::string_view kKimi = R"([\p{sc:Han}]+|[^\r\n\p{L}\p{N}]?(?:)" NOT_HAN "[" UPPER "])*(?:" NOT_HAN "[" LOWER
                                   "])+" CONTRACTION R"(?|[^\r\n\p{L}\p{N}]?(?:)" NOT_HAN "[" UPPER "])+(?:" NOT_HAN
                                   "[" LOWER "])*" CONTRACTION R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" ENDS;
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" ENDS;
// kNumber and kShortGroup divide a number into groups of three digits, counted from the end of the number. The result
// is the same as with `\d{1,3}(?=(?:\d{3})*\b)`, but the time is linear. kNumber matches whole numbers. kShortGroup
// then matches the one or two digits before the first group of three digits.
constexpr std::string_view kNumber = R"((?<!\p{Nd})\p{Nd}++)" NO_WORD;
constexpr std::string_view kShortGroup = R"(\A\p{Nd}{1,2}(?=(?:\p{Nd}{3})++\z))";
constexpr std::string_view kHanAndKana = "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+";
// Letters that have a capital and a small form. The publishers of the models list these letters.
#define CASED                                                                                                 \
  R"(\x{41}-\x{5a}\x{61}-\x{7a}\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})" \
  R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}-\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c})"       \
  R"(\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5})"           \
  R"(\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77})" \
  R"(\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57})" \
  R"(\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4})"   \
  R"(\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc})" \
  R"(\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d})"    \
  R"(\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}-\x{2184}\x{2c00}-\x{2c7b})"  \
  R"(\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}-\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f})" \
  R"(\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a})" \
  R"(\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2})"          \
  R"(\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943})"
constexpr std::string_view kCasedWord = R"(\s?[)" CASED "]+";
constexpr std::string_view kPunctuation =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
// `\s+$` in linear time: a match begins only at the first space of a run.
constexpr std::string_view kLastSpaces = R"((?<!\s)\s++\z)";
constexpr std::string_view kHanAndHangul = "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";
constexpr std::string_view kSeedCoder =
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)" ENDS;
constexpr std::string_view kMinicpm5 =
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)" ENDS;
// Hangul, CJK punctuation, Bopomofo, Han and Kana.
constexpr std::string_view kYoutuScripts =
    R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+)"
    R"(|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c})"
    R"(\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
constexpr std::string_view kViking = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)";
// `(?=(\d{3})+(?!\d))` cuts a number before each group of three digits, counted from the end of a run of digits.
// kLastGroup, kShortGroup and kGroup cut in the same places in linear time. A match of kLastGroup begins at the last
// group of a run, or at the beginning of the number, and ends at the next cut. The match may contain number characters
// that are not digits, and runs of fewer than three digits.
constexpr std::string_view kLastGroup =
    R"((?:\p{Nd}{3}(?!\p{Nd})|\A\p{Nd}{1,2}(?!\p{Nd})|\A(?=[\p{Nl}\p{No}])))"
    R"((?:[\p{Nl}\p{No}]++\p{Nd}{1,2}(?!\p{Nd}))*+(?:[\p{Nl}\p{No}]++(?:\p{Nd}{1,2}(?=(?:\p{Nd}{3})++(?!\p{Nd})))?)?)";
constexpr std::string_view kGroup = R"(\p{Nd}{3}(?=\p{Nd}))";

const std::vector<PretokenizerKind>& kinds() {
  // whole_pieces is `ignore_merges` of the published tokenizer.json. whole_pieces is also true for models published
  // with tiktoken, because tiktoken looks up whole pieces before merging. docs/models.md lists the sources.
  static const std::vector<PretokenizerKind> all{
      kind({"llama-bpe", "llama3", "llama-v3", "pixtral", "lfm2", "falcon3", "midm-2.0"}, {kLlama3}, true, true),
      kind({"glm4", "glm5", "chatglm-bpe", "dbrx"}, {kLlama3}, true),
      kind({"smaug-bpe"}, {kLlama3}),
      kind({"qwen2", "deepseek-r1-qwen", "stablelm2", "solar-open", "megrez", "kormo"}, {kQwen2}),
      kind({"hunyuan"}, {kQwen2}, true),
      kind({"qwen35"}, {kQwen35}),
      kind({"tekken"}, {kTekken}, true, true),
      kind({"gpt-4o", "llama4"}, {kGpt4o}, true),
      kind({"kanana2", "minimax-m2"}, {kGpt4o}),
      kind({"kimi-k2"}, {kKimi}, true),
      kind({"youtu"}, {kYoutuScripts, kYoutu}, true),
      kind({"seed-coder"}, {kSeedCoder}),
      kind({"minicpm5"}, {R"(\p{N}{1,3})", kMinicpm5}, true),
      kind({"tiny_aya", "cohere2moe"}, {kNumber, kShortGroup, kGpt4o}),
      kind({"superbpe"}, {R"(\p{N}+)", kLastGroup, kShortGroup, kGroup}),
      kind({"viking"}, {kViking, R"(\p{N})"}),
      kind({"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {R"(\p{N}{1,3})", kHanAndKana, kDeepseek3}),
      kind({"deepseek-llm"}, {R"([\r\n])", kCasedWord, kPunctuation, kLastSpaces, kHanAndHangul, R"(\p{N}+)"}),
      kind({"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kHanAndHangul, R"(\p{N})"}),
      kind({"command-r", "refact", "starcoder", "smollm", "codeshell", "exaone", "minerva-7b"}, {R"(\p{N})", kGpt2}),
      kind({"gpt-2", "default", "phi-2", "olmo", "mpt", "jais", "a.x-4.0", "modern-bert", "granite-docling", "trillion",
            "mellum"},
           {kGpt2}),
  };
  return all;
}

#undef S
#undef CASED
#undef CONTRACTION
#undef ENDS
#undef UPPER
#undef LOWER
#undef NOT_HAN
#undef NO_WORD
#undef CAPITALS_AND_WORDS

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
/// Memory for matching a text of `bytes` bytes, with room for one backtracking point per character. PCRE2 aborts a
/// match that needs more than this memory.
class MatchSpace {
 public:
  explicit MatchSpace(size_t bytes)
      : context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(size_t{32} << 10, (size_t{1} << 20) + 64 * bytes, nullptr)),
        match_(pcre2_match_data_create(1, nullptr)) {
    require<Error>(context_ && stack_ && match_, "not enough memory for dividing a text of {} bytes into pieces",
                   bytes);
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }
  pcre2_match_context* context() const { return context_.get(); }
  pcre2_match_data* match() const { return match_.get(); }

 private:
  struct Free {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
    void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_match_context, Free> context_;
  std::unique_ptr<pcre2_jit_stack, Free> stack_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Pretokenizer::Expression {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

const PretokenizerKind* find_pretokenizer(std::string_view name) {
  for (const PretokenizerKind& kind : kinds()) {
    if (std::find(kind.names.begin(), kind.names.end(), name) != kind.names.end()) return &kind;
  }
  return nullptr;
}

std::vector<std::string_view> pretokenizer_names() {
  std::vector<std::string_view> names;
  for (const PretokenizerKind& kind : kinds()) names.insert(names.end(), kind.names.begin(), kind.names.end());
  std::sort(names.begin(), names.end());
  return names;
}

Pretokenizer::Pretokenizer(const std::vector<std::string>& expressions) {
  for (const std::string& expression : expressions) {
    int error = 0;
    PCRE2_SIZE at = 0;
    // Uses Unicode categories. Invalid UTF-8 is never part of a match.
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
    const auto* text = reinterpret_cast<PCRE2_SPTR>(expression.data());
    Expression made{
        std::unique_ptr<pcre2_code, FreeCode>(pcre2_compile(text, expression.size(), options, &error, &at, nullptr))};
    check(made.code != nullptr, "bad regular expression {} at byte {}: {}", expression, at, message_of(error));
    pcre2_jit_compile(made.code.get(), PCRE2_JIT_COMPLETE);  // if this fails, matching is slower
    expressions_.push_back(std::move(made));
  }
}

Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;

std::vector<std::string_view> Pretokenizer::cut(std::string_view text) const {
  std::vector<std::string_view> pieces{text};
  const MatchSpace space(text.size());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(space.match());
  for (const Expression& expression : expressions_) {
    std::vector<std::string_view> finer;
    for (const std::string_view piece : pieces) {
      const auto* begin = reinterpret_cast<PCRE2_SPTR>(piece.data());
      size_t done = 0;
      while (done < piece.size()) {
        const int found =
            pcre2_match(expression.code.get(), begin, piece.size(), done, 0, space.match(), space.context());
        if (found == PCRE2_ERROR_NOMATCH) break;
        require<Error>(found >= 0, "dividing a text of {} bytes into pieces failed: {}", piece.size(),
                       message_of(found));
        check(bounds[1] > bounds[0], "an expression matches the empty string");
        if (bounds[0] > done) finer.push_back(piece.substr(done, bounds[0] - done));
        finer.push_back(piece.substr(bounds[0], bounds[1] - bounds[0]));
        done = bounds[1];
      }
      if (done < piece.size()) finer.push_back(piece.substr(done));
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace shoal::models
