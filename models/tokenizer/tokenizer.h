// The llama tokenizer as GGUF files store it: SentencePiece BPE with byte fallback.
//
// Encoding: user-defined pieces are cut out of the text, the longest first, and are tokens as they are. Before each
// stretch of text that is left, the first one and those after user-defined pieces, a space is put (add_space_prefix);
// every space becomes U+2581, and the text starts as one symbol per UTF-8 character. The adjacent pair whose
// concatenation is the piece with the best score is merged (the leftmost of equals) until no pair is a piece. What is
// then no piece is spelled with byte tokens, and so are bytes that are no valid UTF-8. Text never gives control tokens:
// "<s>" is three characters. With pieces ▁ t h e he the ▁the and scores falling in that order, "the" goes ▁ t h e -> ▁
// t he -> ▁ the -> ▁the.
//
// decode(encode(text)) == text for every text without U+2581, valid UTF-8 or not.
//
// A Tokenizer keeps its own copy of the vocabulary and is immutable: any number of threads may use it. A
// StreamDecoder has state and belongs to one thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/gguf.h"
#include "models/tokenizer/vocabulary.h"

namespace shoal::models {

class Tokenizer {
 public:
  /// Reads tokenizer.ggml.*. Throws InvalidArgument when the tokenizer is of another kind or inconsistent.
  explicit Tokenizer(const GgufFile& file);

  const TokenizerVocabulary& vocabulary() const { return vocabulary_; }
  Token bos() const { return bos_; }
  Token eos() const { return eos_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  bool adds_space_prefix() const { return add_space_prefix_; }
  /// Generation stops at these: EOS, and the file's end-of-turn and end-of-message tokens.
  bool is_end(Token id) const;

  /// Token ids of any text, with the BOS and EOS that the file asks for.
  std::vector<Token> encode(std::string_view text) const;

  /// The text of ids; control tokens have none. `whole`: the ids are a text from its beginning, so the
  /// spaces that encode() put into it are removed; false for the continuation of a text. May end inside a UTF-8
  /// sequence. Throws InvalidArgument for an id outside the vocabulary.
  std::string decode(std::span<const Token> ids, bool whole = true) const;

 private:
  /// Appends the ids of a text without user-defined pieces, with the space that belongs before it.
  void append_text(std::string_view text, std::vector<Token>& ids) const;

  TokenizerVocabulary vocabulary_;
  Token bos_ = 0, eos_ = 0;
  std::vector<Token> ends_;
  bool add_bos_ = true, add_eos_ = false, add_space_prefix_ = true;
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
