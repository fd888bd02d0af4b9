#include "tools/prompt.h"

#include "graph/error.h"
#include "tools/program.h"

namespace shoal::tools {

void check_tokenizer(const models::Model& model, const models::Tokenizer& tokenizer) {
  require<InvalidArgument>(tokenizer.vocabulary().size() == model.hparams.vocab,
                           "{}: the tokenizer has {} tokens and token_embd.weight {} rows; convert the model again",
                           model.file.path(), tokenizer.vocabulary().size(), model.hparams.vocab);
}

void check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t vocabulary) {
  for (int32_t id : ids) {
    require<InvalidArgument>(id >= 0 && id < vocabulary, "{}: token {} is not in the vocabulary; use ids from 0 to {}",
                             flag, id, vocabulary - 1);
  }
}

void check_length(std::span<const int32_t> tokens, const models::SessionSize& size, int64_t more) {
  int64_t count = static_cast<int64_t>(tokens.size());
  require<InvalidArgument>(count > 0, "the prompt is empty; give a text with -p or ids with --prompt-tokens");
  require<InvalidArgument>(count + more <= size.context,
                           "the prompt has {} tokens and the context holds {}; use -c {} or more", count, size.context,
                           count + more);
}

void warn_of_context(const models::Hparams& hparams, const models::SessionSize& size) {
  if (size.context <= hparams.context) return;
  warn(fmt::format("a context of {} is more than the {} that the model was trained for; expect poor text beyond that",
                   size.context, hparams.context));
}

}  // namespace shoal::tools
