#include "models/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <utility>

#include "base/error.h"
#include "models/gguf/cursor.h"
#include "models/tokenizer/utf8.h"

namespace shoal::models {
namespace {

constexpr std::string_view kSupported[] = {"llama"};
constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kEosKey = "tokenizer.ggml.eos_token_id";
constexpr std::string_view kEndKeys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};

// A stretch of the text; neighbours as indices, kNone at the ends. A symbol that was merged away has length 0.
struct Symbol {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t start, length;
  size_t previous, next;
  bool frozen;  // never merged
};

// A pair that could be merged; the best is the one with the highest score, then the leftmost.
struct Pair {
  float score;
  size_t left, right;
  size_t length;  // of both together when the pair was found
  bool operator<(const Pair& other) const { return score != other.score ? score < other.score : left > other.left; }
};

bool is_supported(const std::string& model) {
  return std::find(std::begin(kSupported), std::end(kSupported), model) != std::end(kSupported);
}

void require_supported(const GgufFile& file) {
  const auto model = file.get<std::string>(kModelKey);
  require<InvalidArgument>(
      is_supported(model),
      "{}: tokenizer '{}' is not supported; use a model with one of: {} (SentencePiece, as of Llama 1 and "
      "2, Mistral 7B, Mixtral)",
      file.path(), printable(model), fmt::join(kSupported, ", "));
}

// An id from the metadata, checked against the vocabulary. Files without the key mean `fallback`.
Token read_id(const GgufFile& file, std::string_view key, uint32_t fallback, int vocabulary_size) {
  const auto id = file.get_or<uint32_t>(key, fallback);
  require<InvalidArgument>(id < static_cast<uint32_t>(vocabulary_size),
                           "{}: key '{}' is {}, but the vocabulary has {} tokens; convert the model again", file.path(),
                           key, id, vocabulary_size);
  return static_cast<Token>(id);
}

// A stretch of the text that is a user-defined token, or text between such.
struct Fragment {
  std::string_view text;
  Token token = -1;
};

// Cuts the pieces of one length out of the text that is left, from left to right.
void cut_out(const TokenizerVocabulary& vocabulary, size_t length, std::string_view text, std::vector<Fragment>& out) {
  size_t begin = 0;
  for (size_t at = 0; at + length <= text.size();) {
    const Token token = vocabulary.find_user_defined(text.substr(at, length));
    if (token < 0) {
      ++at;
      continue;
    }
    if (at > begin) out.push_back({text.substr(begin, at - begin)});
    out.push_back({text.substr(at, length), token});
    begin = at += length;
  }
  if (begin < text.size()) out.push_back({text.substr(begin)});
}

// The longest user-defined pieces of the whole text first, then shorter ones in what they leave.
std::vector<Fragment> partition(std::string_view text, const TokenizerVocabulary& vocabulary) {
  std::vector<Fragment> fragments{{text}};
  for (const size_t length : vocabulary.user_defined_lengths()) {
    std::vector<Fragment> finer;
    for (const Fragment& fragment : fragments) {
      if (fragment.token >= 0) {
        finer.push_back(fragment);
      } else {
        cut_out(vocabulary, length, fragment.text, finer);
      }
    }
    fragments = std::move(finer);
  }
  return fragments;
}

// One symbol per valid character or invalid byte. `text` is not empty.
std::vector<Symbol> split(std::string_view text) {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size(); at += symbols.back().length) {
    const size_t character = utf8_sequence(text.substr(at));
    const size_t i = symbols.size();
    symbols.push_back({at, std::max<size_t>(character, 1), i == 0 ? Symbol::kNone : i - 1, i + 1, character == 0});
  }
  symbols.back().next = Symbol::kNone;
  return symbols;
}

// Merges until no adjacent pair is a piece. Each merge queues at most two new pairs, so this is O(n log n). A queued
// pair of which a symbol has since been merged has another length, and is skipped.
void merge(std::string_view text, const TokenizerVocabulary& vocabulary, std::vector<Symbol>& symbols) {
  std::priority_queue<Pair> queue;
  const auto offer = [&](size_t left, size_t right) {
    if (left == Symbol::kNone || right == Symbol::kNone || symbols[left].frozen || symbols[right].frozen) return;
    const size_t length = symbols[left].length + symbols[right].length;
    const Token id = vocabulary.find(text.substr(symbols[left].start, length));
    if (id >= 0) queue.push({vocabulary.score(id), left, right, length});
  };

  for (size_t i = 1; i < symbols.size(); ++i) offer(i - 1, i);
  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    Symbol& left = symbols[pair.left];
    Symbol& right = symbols[pair.right];
    if (left.length == 0 || right.length == 0 || left.length + right.length != pair.length) continue;
    left.length = pair.length;
    left.next = right.next;
    right.length = 0;
    if (left.next != Symbol::kNone) symbols[left.next].previous = pair.left;
    offer(left.previous, pair.left);
    offer(pair.left, left.next);
  }
}

void append_ids(std::string_view symbol, const TokenizerVocabulary& vocabulary, std::vector<Token>& ids) {
  const Token piece = vocabulary.find(symbol);
  if (piece >= 0) return ids.push_back(piece);
  for (const char c : symbol) ids.push_back(vocabulary.byte_token(static_cast<unsigned char>(c)));
}

}  // namespace

Tokenizer::Tokenizer(const GgufFile& file) : vocabulary_((require_supported(file), file)) {
  bos_ = read_id(file, "tokenizer.ggml.bos_token_id", 1, vocabulary_.size());
  eos_ = read_id(file, kEosKey, 2, vocabulary_.size());
  ends_.push_back(eos_);
  for (const std::string_view key : kEndKeys) {
    if (file.has(key)) ends_.push_back(read_id(file, key, 0, vocabulary_.size()));
  }
  add_bos_ = file.get_or<bool>("tokenizer.ggml.add_bos_token", true);
  add_eos_ = file.get_or<bool>("tokenizer.ggml.add_eos_token", false);
  add_space_prefix_ = file.get_or<bool>("tokenizer.ggml.add_space_prefix", true);
}

bool has_known_tokenizer(const GgufFile& file) {
  const GgufValue* kind = file.find_value(kModelKey);
  return kind != nullptr && kind->type == GgufType::kString && is_supported(file.get<std::string>(kModelKey));
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
  std::vector<Token> ids;
  if (add_bos_) ids.push_back(bos_);
  if (!text.empty()) {
    const std::string spaced = replace_all(text, kSpacePiece, " ");
    for (const Fragment& fragment : partition(spaced, vocabulary_)) {
      if (fragment.token >= 0) {
        ids.push_back(fragment.token);
      } else {
        append_text(fragment.text, ids);
      }
    }
  }
  if (add_eos_) ids.push_back(eos_);
  return ids;
}

void Tokenizer::append_text(std::string_view text, std::vector<Token>& ids) const {
  std::string normal = replace_all(text, " ", kSpacePiece);
  if (add_space_prefix_) normal.insert(0, kSpacePiece);
  std::vector<Symbol> symbols = split(normal);
  merge(normal, vocabulary_, symbols);
  for (size_t i = 0; i != Symbol::kNone; i = symbols[i].next) {
    append_ids(std::string_view(normal).substr(symbols[i].start, symbols[i].length), vocabulary_, ids);
  }
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
