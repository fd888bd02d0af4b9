#include "models/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"

namespace shoal::models {
namespace {

// White space as Unicode has it; what PCRE2 calls \s has U+180E besides.
#define S R"(\t-\r\x{85}\p{Z})"
#define CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define ENDS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
// Letters from the point of view of capital ones, and of small ones.
#define UPPER R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})"
#define LOWER R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"
#define NOT_HAN R"((?!\p{sc:Han}))"
// Where a word ends; superscripts and fractions of Latin-1 belong to words, as Oniguruma has it.
#define NO_WORD R"((?![\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}]))"

/// Puts classes for \s and \S, which stand alone or in classes.
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
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[)" UPPER "]*[" LOWER "]+" CONTRACTION R"(?|[^\r\n\p{L}\p{N}]?[)" UPPER "]+[" LOWER
    "]*" CONTRACTION R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" ENDS;
constexpr std::string_view kKimi = R"([\p{sc:Han}]+|[^\r\n\p{L}\p{N}]?(?:)" NOT_HAN "[" UPPER "])*(?:" NOT_HAN "[" LOWER
                                   "])+" CONTRACTION R"(?|[^\r\n\p{L}\p{N}]?(?:)" NOT_HAN "[" UPPER "])+(?:" NOT_HAN
                                   "[" LOWER "])*" CONTRACTION R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" ENDS;
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" ENDS;
// Numbers in groups of three from their end, `\d{1,3}(?=(?:\d{3})*\b)`, in two steps that take linear time: whole
// numbers, then the one or two digits that a number has before its groups of three.
constexpr std::string_view kNumber = R"((?<!\p{Nd})\p{Nd}++)" NO_WORD;
constexpr std::string_view kShortGroup = R"(\A\p{Nd}{1,2}(?=(?:\p{Nd}{3})++\z))";
constexpr std::string_view kHanAndKana = "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+";
constexpr std::string_view kHanAndHangul = "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";

const std::vector<PretokenizerKind>& kinds() {
  static const std::vector<PretokenizerKind> all{
      kind({"llama-bpe", "llama3", "llama-v3", "pixtral", "lfm2", "falcon3"}, {kLlama3}, true, true),
      kind({"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3}),
      kind({"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez"}, {kQwen2}),
      kind({"qwen35"}, {kQwen35}),
      kind({"tekken"}, {kTekken}, true, true),
      kind({"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {kGpt4o}),
      kind({"kimi-k2"}, {kKimi}),
      kind({"tiny_aya", "cohere2moe"}, {kNumber, kShortGroup, kGpt4o}),
      kind({"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {R"(\p{N}{1,3})", kHanAndKana, kDeepseek3}),
      kind({"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kHanAndHangul, R"(\p{N})"}),
      kind({"command-r", "refact", "starcoder", "smollm", "codeshell", "exaone", "minerva-7b"}, {R"(\p{N})", kGpt2}),
      kind({"gpt-2", "default", "phi-2", "olmo", "mpt", "jais", "a.x-4.0", "modern-bert", "granite-docling"}, {kGpt2}),
  };
  return all;
}

#undef S
#undef CONTRACTION
#undef ENDS
#undef UPPER
#undef LOWER
#undef NOT_HAN
#undef NO_WORD

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
/// What matching a text of `bytes` needs: a place to go back to for each character, which only the system's limits
/// bound otherwise.
class MatchSpace {
 public:
  explicit MatchSpace(size_t bytes)
      : context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(size_t{32} << 10, (size_t{1} << 20) + 64 * bytes, nullptr)),
        match_(pcre2_match_data_create(1, nullptr)) {
    require<Error>(context_ && stack_ && match_, "no memory for cutting a text of {} bytes into pieces", bytes);
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

std::string known_pretokenizers() {
  std::vector<std::string_view> names;
  for (const PretokenizerKind& kind : kinds()) names.insert(names.end(), kind.names.begin(), kind.names.end());
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

Pretokenizer::Pretokenizer(const std::vector<std::string>& expressions) {
  for (const std::string& expression : expressions) {
    int error = 0;
    PCRE2_SIZE at = 0;
    // Categories of Unicode; invalid UTF-8 matches nothing.
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
    const auto* text = reinterpret_cast<PCRE2_SPTR>(expression.data());
    Expression made{
        std::unique_ptr<pcre2_code, FreeCode>(pcre2_compile(text, expression.size(), options, &error, &at, nullptr))};
    check(made.code != nullptr, "bad expression {} at {}: {}", expression, at, message_of(error));
    pcre2_jit_compile(made.code.get(), PCRE2_JIT_COMPLETE);  // where it is not possible, matching is slower
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
        require<Error>(found >= 0, "cutting a text of {} bytes into pieces failed: {}", piece.size(),
                       message_of(found));
        check(bounds[1] > bounds[0], "an expression matches nothing");
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
