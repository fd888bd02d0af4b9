// An encoder converts a text without special tokens into token ids. Each kind of tokenizer has its own encoder.
// Encoders refer to the vocabulary, which must outlive them. Immutable; any number of threads may use an encoder.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "models/gguf/gguf.h"
#include "models/tokenizer/vocabulary.h"

namespace shoal::models {

class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the ids of a text. Spaces in `text` are plain spaces, not U+2581.
  virtual void append(std::string_view text, std::vector<Token>& ids) const = 0;
};

/// SentencePiece: merges symbols by the score of the resulting piece. If `space_prefix` is true, the encoder puts a
/// space before each text.
std::unique_ptr<Encoder> make_spm_encoder(const TokenizerVocabulary& vocabulary, bool space_prefix);

struct PretokenizerKind;
/// Merges pairs in the order of tokenizer.ggml.merges. Encodes a byte without a token as U+FFFD. Throws InvalidArgument
/// if a merge does not have two parts, or if a byte of U+FFFD has no token.
std::unique_ptr<Encoder> make_byte_bpe_encoder(const GgufFile& file, const TokenizerVocabulary& vocabulary,
                                               const PretokenizerKind& pre);
/// Like make_byte_bpe_encoder(), but for characters instead of bytes. Each line of the text is a piece. Characters
/// without a token become byte tokens.
std::unique_ptr<Encoder> make_text_bpe_encoder(const GgufFile& file, const TokenizerVocabulary& vocabulary);

}  // namespace shoal::models
