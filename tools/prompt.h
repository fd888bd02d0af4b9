// What a model is asked with, checked against the model before its weights are loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/model.h"
#include "models/session.h"
#include "models/tokenizer.h"

namespace shoal::tools {

/// Throws InvalidArgument when the tokenizer has more or fewer tokens than the model has embeddings.
void check_tokenizer(const models::Model& model, const models::Tokenizer& tokenizer);

/// Throws InvalidArgument for an id that is not in [0, vocabulary), naming `flag`.
void check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t vocabulary);

/// Throws InvalidArgument when there are no tokens, or more than the context holds besides `more` others.
void check_length(std::span<const int32_t> tokens, const models::SessionSize& size, int64_t more = 0);

/// One line on stderr where the context is larger than what the model was trained for.
void warn_of_context(const models::Hparams& hparams, const models::SessionSize& size);

}  // namespace shoal::tools
