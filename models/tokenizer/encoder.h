// What the kinds of tokenizers differ in: how a text without special tokens becomes tokens. Encoders refer to the
// vocabulary, which outlives them; immutable, any number of threads may use one.
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
  /// Appends the ids of a text; spaces are spaces.
  virtual void append(std::string_view text, std::vector<Token>& ids) const = 0;
};

/// SentencePiece: pieces are merged by score. `space_prefix`: a space is put before each text.
std::unique_ptr<Encoder> make_spm_encoder(const TokenizerVocabulary& vocabulary, bool space_prefix);

struct PretokenizerKind;
/// Pairs are merged as tokenizer.ggml.merges says. Throws InvalidArgument for a merge that has not two parts, and for a
/// byte that no token stands for.
std::unique_ptr<Encoder> make_byte_bpe_encoder(const GgufFile& file, const TokenizerVocabulary& vocabulary,
                                               const PretokenizerKind& pre);
/// The same on characters instead of bytes, with byte tokens for those that no token has; lines are pieces.
std::unique_ptr<Encoder> make_text_bpe_encoder(const GgufFile& file, const TokenizerVocabulary& vocabulary);

}  // namespace shoal::models
