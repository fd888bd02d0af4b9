// Tokenizers from GGUF files. The key tokenizer.ggml.model names one of three kinds:
// - `llama`: SentencePiece with scores
// - `gpt2`: byte-level byte-pair encoding with a pretokenizer that the file names (pretokenizer.h)
// - `gemma4`: byte-pair encoding of characters
//
// Encoding first separates special tokens (special_tokens.h). User-defined tokens are recognised everywhere. Control
// tokens are recognised only in text of a template, so user text never becomes a control token. For example, "<s>" in a
// user's text is three ordinary characters. In the remaining text, small symbols are merged into tokens.
//   llama: a space is put before each stretch of text (add_space_prefix), and every space becomes U+2581. Characters
//     are merged by the scores of the resulting pieces. Characters that are not part of a piece become byte tokens.
//     Example with the pieces \u2581 t h e he the \u2581the, in descending order of their scores:
//     "the" becomes _ t h e -> _ t he -> _ the -> _the.
//   gpt2: the text is divided into pieces. The bytes of a piece are merged in the order of tokenizer.ggml.merges.
//
// decode(encode(text)) == text for every text, even if the text is not valid UTF-8. For kinds that write spaces as
// U+2581, this equation holds only for texts without U+2581.
//
// A Tokenizer keeps its own copy of the vocabulary and is immutable: any number of threads may use it. A StreamDecoder
// has state and belongs to one thread.
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
  /// Reads tokenizer.ggml.*. Throws InvalidArgument if the tokenizer has an unsupported kind or is inconsistent.
  explicit Tokenizer(const GgufFile& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  const TokenizerVocabulary& vocabulary() const { return *vocabulary_; }
  /// Tokens at the beginning (BOS) and at the end (EOS) of a text. The value is -1 if the tokenizer has no such token.
  Token bos() const { return bos_; }
  Token eos() const { return eos_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  bool adds_space_prefix() const { return add_space_prefix_; }
  /// True if the file names no pretokenizer (tokenizer.ggml.pre). The Tokenizer then uses GPT-2's pretokenizer,
  /// although the model may have been trained with another pretokenizer.
  bool guesses_pieces() const { return guesses_pieces_; }
  /// Whether this token ends generation. These tokens end generation: EOS, the file's end-of-turn and end-of-message
  /// tokens, tokens with the text of an end token (for example <|im_end|>), and the file separators of code models.
  bool is_end(Token id) const;
  /// All tokens for which is_end() is true.
  std::span<const Token> ends() const { return ends_; }

  /// Token ids of a user's text, with BOS and EOS if the file asks for them.
  std::vector<Token> encode(std::string_view text) const;
  /// Encodes the concatenation of the parts. If a template also writes the BOS, the result still has only one BOS.
  std::vector<Token> encode(std::span<const TextPart> parts) const;

  /// The text of `ids`. Control tokens have no text. `whole` is true if the ids start at the beginning of a text, and
  /// false for the continuation of a text. If `whole` is true, the spaces that encode() added are removed. The result
  /// may end inside a UTF-8 sequence. Throws InvalidArgument for an id outside the vocabulary.
  std::string decode(std::span<const Token> ids, bool whole = true) const;

 private:
  void protect_control_tokens();
  void find_ends();
  void index_special_tokens(bool of_phi3);

  std::unique_ptr<TokenizerVocabulary> vocabulary_;  // on the heap, because the encoder keeps a reference to the
                                                     // vocabulary
  std::unique_ptr<Encoder> encoder_;
  SpecialTokens special_;
  Token bos_ = -1, eos_ = -1;
  std::vector<Token> ends_;
  bool add_bos_ = true, add_eos_ = false, add_space_prefix_ = true, guesses_pieces_ = false;
};

/// Whether Tokenizer supports the file's tokenizer. False if the file has no tokenizer.
bool has_known_tokenizer(const GgufFile& file);

/// The end tokens that the file names: EOS, end of turn, end of message. Works with any kind of tokenizer.
std::vector<Token> end_tokens(const GgufFile& file);

/// Decodes a stream of tokens into text that can be shown immediately. If a UTF-8 sequence is incomplete, its bytes are
/// held back until the sequence is complete. The concatenated results of push() and finish() equal the result of
/// Tokenizer::decode().
class StreamDecoder {
 public:
  /// Keeps a reference to the tokenizer. `whole` has the same meaning as in Tokenizer::decode().
  explicit StreamDecoder(const Tokenizer& tokenizer, bool whole = false);
  /// Adds a token and returns all text that need not be held back. This text is often empty. Throws InvalidArgument for
  /// an id outside the vocabulary.
  std::string push(Token id);
  /// Returns the bytes that push() held back. Afterwards the decoder can decode another continuation of a text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool drops_spaces_;  // whether the spaces that encode() added to a whole text are removed
  bool drop_space_;    // whether the next text may begin with an added space
  std::string held_;   // the bytes of an incomplete UTF-8 sequence, at most 3
};

}  // namespace shoal::models
