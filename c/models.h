// The objects behind the handles of models and sessions.
#pragma once

#include <memory>

#include "c/guard.h"
#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/session.h"
#include "models/tokenizer/tokenizer.h"

struct shoal_model {
  std::unique_ptr<shoal::models::Placement> placement;
  std::unique_ptr<shoal::models::Model> model;
  std::unique_ptr<shoal::models::Tokenizer> tokenizer;  ///< nullptr if shoal does not support the file's tokenizer

  shoal_model() = default;
  shoal_model(const shoal_model&) = delete;
  shoal_model& operator=(const shoal_model&) = delete;
};

struct shoal_session {
  shoal::models::Session session;
  size_t outputs = 1;                            ///< number of outputs of the latest evaluate
  std::vector<shoal_candidate> candidates = {};  ///< result of shoal_session_candidates()
};

struct shoal_sampler {
  shoal::models::Sampler sampler;
};
