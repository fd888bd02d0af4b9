// Checks of messages and logits for tests of models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace shoal::models {

/// Message of the InvalidArgument that `body` throws.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Largest absolute difference between corresponding values.
inline double worst(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0.0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max<double>(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace shoal::models
