#include "models/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "models/tokenizer/encoder.h"
#include "models/tokenizer/pretokenizer.h"
#include "models/tokenizer/utf8.h"

namespace shoal::models {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model", kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kBosKey = "tokenizer.ggml.bos_token_id", kEosKey = "tokenizer.ggml.eos_token_id";
constexpr std::string_view kEndKeys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
/// Keys of the tokens that separate files and repositories in code models. These tokens also end generation.
constexpr std::string_view kCodeEndKeys[] = {"tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
                                             "tokenizer.ggml.fim_sep_token_id"};

/// A kind of tokenizer, with the defaults for absent keys.
struct Kind {
  std::string_view name;  ///< value of tokenizer.ggml.model
  PieceAlphabet alphabet;
  bool needs_scores;
  Token bos, eos;
  bool space_prefix;
  std::unique_ptr<Encoder> (*make)(const GgufFile& file, const TokenizerVocabulary& vocabulary, bool space_prefix);
};

std::string pretokenizer_name(const GgufFile& file) {
  return file.get_or<std::string>(kPreKey, "default");
}

const PretokenizerKind& pretokenizer_of(const GgufFile& file) {
  const std::string name = pretokenizer_name(file);
  const PretokenizerKind* kind = find_pretokenizer(name);
  require<InvalidArgument>(kind != nullptr, "{}: key '{}' is '{}', which is not supported; use a model with one of: {}",
                           file.path(), kPreKey, printable(name), fmt::join(pretokenizer_names(), ", "));
  return *kind;
}

constexpr std::array kKinds{
    Kind{"llama", PieceAlphabet::kText, true, 1, 2, true,
         [](const GgufFile&, const TokenizerVocabulary& vocabulary, bool space_prefix) {
           return make_spm_encoder(vocabulary, space_prefix);
         }},
    Kind{"gpt2", PieceAlphabet::kBytes, false, -1, -1, false,
         [](const GgufFile& file, const TokenizerVocabulary& vocabulary, bool) {
           return make_byte_bpe_encoder(file, vocabulary, pretokenizer_of(file));
         }},
    Kind{"gemma4", PieceAlphabet::kText, false, -1, -1, false,
         [](const GgufFile& file, const TokenizerVocabulary& vocabulary, bool) {
           return make_text_bpe_encoder(file, vocabulary);
         }},
};

const Kind* find_kind(const std::string& name) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& kind) { return kind.name == name; });
  return found == kKinds.end() ? nullptr : &*found;
}

const Kind& kind_of(const GgufFile& file) {
  const auto name = file.get<std::string>(kModelKey);
  const Kind* kind = find_kind(name);
  require<InvalidArgument>(kind != nullptr,
                           "{}: tokenizer '{}' is not supported; use a model with one of: llama (SentencePiece), gpt2 "
                           "(byte-level byte-pair encoding), gemma4",
                           file.path(), printable(name));
  return *kind;
}

/// Reads an id from the metadata and checks it against the vocabulary. If the key is absent, returns `fallback`, or -1
/// if `fallback` is not a valid id.
Token read_id(const GgufFile& file, std::string_view key, Token fallback, int vocabulary_size) {
  if (!file.has(key) && (fallback < 0 || fallback >= vocabulary_size)) return -1;
  const auto id = file.get_or<uint32_t>(key, static_cast<uint32_t>(fallback));
  if (id == UINT32_MAX) return -1;  // the file stores -1 if there is no such token
  require<InvalidArgument>(id < static_cast<uint32_t>(vocabulary_size),
                           "{}: key '{}' is {}, but the vocabulary has {} tokens; convert the model again", file.path(),
                           key, id, vocabulary_size);
  return static_cast<Token>(id);
}

/// Texts of tokens that end a turn or a text in at least one model. These tokens end generation even if no key of the
/// file names the tokens.
const std::set<std::string_view> kEndTexts{"<|eot_id|>",
                                           "<|im_end|>",
                                           "<|end|>",
                                           "<|return|>",
                                           "<|call|>",
                                           "<|flush|>",
                                           "<|calls|>",
                                           "<end_of_turn>",
                                           "<|endoftext|>",
                                           "<|eom_id|>",
                                           "<|end_of_text|>",
                                           "<end_of_utterance>",
                                           "<turn|>",
                                           "<|tool_response>",
                                           "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                           "<|END_OF_TURN_TOKEN|>",
                                           "</s>",
                                           "<eos>",
                                           "<EOT>",
                                           "[EOT]",
                                           "[EOS]",
                                           "[e~["};
/// Members of kEndTexts that may also be ordinary text. These tokens end generation only if the file marks them as
/// special.
const std::set<std::string_view> kPlainEndTexts{"</s>", "<eos>", "<EOT>", "[EOT]", "[EOS]", "[e~["};

/// Texts of tokens that separate files and repositories in code models. User text may contain these tokens if the file
/// lists them as user-defined.
const std::set<std::string_view> kCodeEndTexts{"<|fim_pad|>",   "<fim_pad>",  "<fim-pad>",  "<|fim_repo|>",
                                               "<|repo_name|>", "<fim-repo>", "<reponame>", "<|file_sep|>"};
/// Control tokens of Phi 3 that do not include the white space after the token. All other control tokens of Phi 3
/// include this white space. No key of the file states this property.
const std::set<std::string_view> kWithoutSpace{"<unk>", "<s>", "<|endoftext|>"};

/// Whether a token is written like a control token, regardless of its kind in the file. The result is false for
/// fill-in-the-middle tokens, because users write these tokens.
bool looks_like_control(std::string_view text) {
  const auto between = [&](std::string_view begin, std::string_view end) {
    return text.starts_with(begin) && text.ends_with(end) && text.size() > begin.size() + end.size();
  };
  if (text.find("fim") != std::string_view::npos) return false;
  return between("<|", "|>") || between("<\uff5c", "\uff5c>") || text == "<start_of_turn>";
}

bool is_special(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined || kind == TokenKind::kUnknown;
}

}  // namespace

Tokenizer::Tokenizer(const GgufFile& file) {
  const Kind& kind = kind_of(file);
  vocabulary_ = std::make_unique<TokenizerVocabulary>(file, kind.alphabet, kind.needs_scores);
  add_space_prefix_ = file.get_or<bool>("tokenizer.ggml.add_space_prefix", kind.space_prefix) && kind.space_prefix;
  const int size = vocabulary_->size();
  bos_ = read_id(file, kBosKey, kind.bos, size);
  eos_ = read_id(file, kEosKey, kind.eos, size);
  if (eos_ >= 0) ends_.push_back(eos_);
  for (const std::string_view key : kEndKeys) {
    if (file.has(key)) ends_.push_back(read_id(file, key, -1, size));
  }
  for (const std::string_view key : kCodeEndKeys) {
    const auto id = file.get_or<uint32_t>(key, UINT32_MAX);
    if (id < static_cast<uint32_t>(size)) ends_.push_back(static_cast<Token>(id));
  }
  guesses_pieces_ = kind.name == "gpt2" && pretokenizer_name(file) == "default";
  const bool by_default = kind.name != "gpt2" || pretokenizer_of(file).adds_bos;
  // Gemma 4 always needs a BOS.
  add_bos_ = bos_ >= 0 && (kind.name == "gemma4" || file.get_or<bool>("tokenizer.ggml.add_bos_token", by_default));
  add_eos_ = eos_ >= 0 && file.get_or<bool>("tokenizer.ggml.add_eos_token", false);
  // Gemma 4 has user-defined tokens that look like control tokens. These user-defined tokens are quotation marks and
  // similar text, so they stay user-defined.
  if (kind.name != "gemma4") protect_control_tokens();
  find_ends();
  index_special_tokens(kind.needs_scores && file.get_or<std::string>("general.architecture", "") == "phi3");
  encoder_ = kind.make(file, *vocabulary_, add_space_prefix_);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

/// Turns normal and user-defined tokens that look like control tokens into control tokens.
void Tokenizer::protect_control_tokens() {
  for (Token id = 0; id < vocabulary_->size(); ++id) {
    const TokenKind kind = vocabulary_->kind(id);
    const bool is_text = kind == TokenKind::kNormal || kind == TokenKind::kUserDefined;
    if (is_text && looks_like_control(vocabulary_->piece(id))) vocabulary_->set_control(id);
  }
}

/// Finds end tokens by their text. Turns end tokens that the file marks as normal or user-defined into control tokens.
/// A token in kPlainEndTexts is not an end token if the file marks it as normal.
void Tokenizer::find_ends() {
  std::set<std::string_view> found;
  std::vector<Token> by_text;
  for (Token id = 0; id < vocabulary_->size(); ++id) {
    const std::string_view text = vocabulary_->piece(id);
    const TokenKind kind = vocabulary_->kind(id);
    if (is_special(kind) && kCodeEndTexts.contains(text)) ends_.push_back(id);
    if (!kEndTexts.contains(text)) continue;
    if (!is_special(kind) && kPlainEndTexts.contains(text)) continue;
    if (!is_special(kind) || kind == TokenKind::kUserDefined) vocabulary_->set_control(id);
    found.insert(text);
    by_text.push_back(id);
  }
  for (const Token id : by_text) {
    const std::string_view text = vocabulary_->piece(id);
    // In models with the tokens "<|return|>" and "<|call|>", the token "<|end|>" ends a message but not the turn. In
    // models with the token "<|tool_response>", the token "</s>" does not end the turn.
    if (text == "<|end|>" && found.contains("<|return|>") && found.contains("<|call|>")) continue;
    if (text == "</s>" && found.contains("<|tool_response>")) continue;
    ends_.push_back(id);
  }
}

void Tokenizer::index_special_tokens(bool of_phi3) {
  for (Token id = 0; id < vocabulary_->size(); ++id) {
    const TokenKind kind = vocabulary_->kind(id);
    if (!is_special(kind)) continue;
    const bool anywhere = kind == TokenKind::kUserDefined;
    const std::string& piece = vocabulary_->piece(id);
    special_.add(anywhere ? vocabulary_->text_of(id) : piece, id,
                 {.templates_only = !anywhere, .takes_space = of_phi3 && !anywhere && !kWithoutSpace.contains(piece)});
  }
}

bool has_known_tokenizer(const GgufFile& file) {
  const GgufValue* kind = file.find_value(kModelKey);
  return kind != nullptr && kind->type == GgufType::kString && find_kind(file.get<std::string>(kModelKey)) != nullptr;
}

std::vector<Token> end_tokens(const GgufFile& file) {
  std::vector<Token> ends;
  if (file.has(kEosKey)) ends.push_back(static_cast<Token>(file.get<uint32_t>(kEosKey)));
  for (const std::string_view key : kEndKeys) {
    if (file.has(key)) ends.push_back(static_cast<Token>(file.get<uint32_t>(key)));
  }
  return ends;
}

bool Tokenizer::is_end(Token id) const {
  return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

std::vector<Token> Tokenizer::encode(std::string_view text) const {
  return encode(std::array{TextPart{text}});
}

std::vector<Token> Tokenizer::encode(std::span<const TextPart> parts) const {
  const bool spaced = vocabulary_->alphabet() == PieceAlphabet::kText;
  std::string text;
  std::vector<SpecialTokens::Range> templates;
  for (const TextPart& part : parts) {
    const size_t begin = text.size();
    // Tokenizers with the alphabet kText do not distinguish U+2581 from a space, so U+2581 is replaced by a space.
    text += spaced ? replace_all(part.text, kSpacePiece, " ") : std::string(part.text);
    if (!part.is_template) continue;
    const bool follows = !templates.empty() && templates.back().end == begin;
    follows ? void(templates.back().end = text.size()) : templates.push_back({begin, text.size()});
  }
  std::vector<Token> ids;
  if (add_bos_) ids.push_back(bos_);
  for (const TextFragment& fragment : special_.cut(text, templates)) {
    const bool is_second_bos = add_bos_ && fragment.token == bos_ && ids.size() == 1;
    if (fragment.token < 0) {
      encoder_->append(fragment.text, ids);
    } else if (!is_second_bos) {
      ids.push_back(fragment.token);
    }
  }
  if (add_eos_) ids.push_back(eos_);
  return ids;
}

std::string Tokenizer::decode(std::span<const Token> ids, bool whole) const {
  StreamDecoder decoder(*this, whole);
  std::string text;
  for (const Token id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool whole)
    : tokenizer_(tokenizer), drops_spaces_(whole && tokenizer.adds_space_prefix()), drop_space_(drops_spaces_) {}

std::string StreamDecoder::push(Token id) {
  std::string text = tokenizer_.vocabulary().text_of(id);
  const bool is_fragment = tokenizer_.vocabulary().is_user_defined(id);
  if (drop_space_ && !text.empty() && !is_fragment) {
    if (text[0] == ' ') text.erase(0, 1);
    drop_space_ = false;
  }
  if (is_fragment) drop_space_ = drops_spaces_;
  held_ += text;
  const size_t complete = held_.size() - utf8_incomplete_tail(held_);
  std::string ready = held_.substr(0, complete);
  held_.erase(0, complete);
  return ready;
}

std::string StreamDecoder::finish() {
  drops_spaces_ = drop_space_ = false;
  return std::exchange(held_, {});
}

}  // namespace shoal::models
