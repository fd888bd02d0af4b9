// Tokenizers as GGUF files store them, of three kinds (tokenizer.ggml.model): `llama`, SentencePiece with scores;
// `gpt2`, byte-level byte-pair encoding, whose pretokenizer the file names (pretokenizer.h); `gemma4`, byte-pair
// encoding of characters.
//
// Encoding: special tokens are cut out of the text first (special_tokens.h): user-defined ones anywhere, control tokens
// only where a template wrote them, so that what users write never becomes one: their "<s>" is three characters. What
// is left is merged from small symbols.
//   llama: a space is put before each stretch of text (add_space_prefix) and every space becomes U+2581; characters are
//     merged by the scores of the pieces that they make. With pieces \u2581 t h e he the \u2581the and scores falling
//     in that order, "the" goes _ t h e -> _ t he -> _ the -> _the. What is then no piece is spelled with byte tokens.
//   gpt2: the text is cut into pieces, whose bytes are merged in the order of tokenizer.ggml.merges.
//
// decode(encode(text)) == text for every text, valid UTF-8 or not; of kinds that write spaces as U+2581 for those
// without.
//
// A Tokenizer keeps its own copy of the vocabulary and is immutable: any number of threads may use it. A
// StreamDecoder has state and belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/gguf.h"
#include "models/tokenizer/special_tokens.h"
#include "models/tokenizer/vocabulary.h"

namespace shoal::models {

class Encoder;

class Tokenizer {
 public:
  /// Reads tokenizer.ggml.*. Throws InvalidArgument when the tokenizer is of another kind or inconsistent.
  explicit Tokenizer(const GgufFile& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  const TokenizerVocabulary& vocabulary() const { return *vocabulary_; }
  /// What a text begins and ends with; -1 where there is no such token.
  Token bos() const { return bos_; }
  Token eos() const { return eos_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  bool adds_space_prefix() const { return add_space_prefix_; }
  /// The file does not name how texts are cut into pieces (tokenizer.ggml.pre); they are cut as GPT-2's, which may not
  /// be what the model was trained on.
  bool guesses_pieces() const { return guesses_pieces_; }
  /// Generation stops at these: EOS, the file's end-of-turn and end-of-message tokens, those with the text of one, such
  /// as <|im_end|>, and in models of code what separates files.
  bool is_end(Token id) const;

  /// Token ids of a user's text, with the BOS and EOS that the file asks for.
  std::vector<Token> encode(std::string_view text) const;
  /// The same of the parts one after the other. A template may write the BOS itself: there is one then, too.
  std::vector<Token> encode(std::span<const TextPart> parts) const;

  /// The text of ids; control tokens have none. `whole`: the ids are a text from its beginning, so the
  /// spaces that encode() put into it are removed; false for the continuation of a text. May end inside a UTF-8
  /// sequence. Throws InvalidArgument for an id outside the vocabulary.
  std::string decode(std::span<const Token> ids, bool whole = true) const;

 private:
  void protect_control_tokens();
  void find_ends();
  void index_special_tokens(bool of_phi3);

  std::unique_ptr<TokenizerVocabulary> vocabulary_;  // where the encoder knows it
  std::unique_ptr<Encoder> encoder_;
  SpecialTokens special_;
  Token bos_ = -1, eos_ = -1;
  std::vector<Token> ends_;
  bool add_bos_ = true, add_eos_ = false, add_space_prefix_ = true, guesses_pieces_ = false;
};

/// Is the file's tokenizer of a kind that Tokenizer reads? False where it has none.
bool has_known_tokenizer(const GgufFile& file);

/// The tokens that end a text as the file names them, whatever kind of tokenizer it has: EOS, end of turn, end of
/// message.
std::vector<Token> end_tokens(const GgufFile& file);

/// Decodes a stream of tokens into text that can be shown at once: bytes that begin an incomplete UTF-8 sequence are
/// held back until it is complete. push() and finish() together give what Tokenizer::decode() gives.
class StreamDecoder {
 public:
  /// Keeps a reference to the tokenizer. `whole` as for Tokenizer::decode().
  explicit StreamDecoder(const Tokenizer& tokenizer, bool whole = false);
  /// The text that is complete now, often empty. Throws InvalidArgument for an id outside the vocabulary.
  std::string push(Token id);
  /// What was held back; afterwards the decoder is as new, in the middle of a text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool drops_spaces_;  // whole text: those that encode() added
  bool drop_space_;    // the next text may begin with one
  std::string held_;   // at most 3 bytes
};

}  // namespace shoal::models
