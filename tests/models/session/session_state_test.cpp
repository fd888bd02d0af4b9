// Tests saving the state of a session and restoring the state in another session.
#include "models/session/session_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "tests/models/checks.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

int32_t best_token(Session& session) {
  const std::span<const float> logits = session.logits();
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Returns `count` tokens. The first token is `token`, which is not in the cache yet. The session generates the
/// following tokens.
std::vector<int32_t> generate(Session& session, int32_t token, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(token);
    session.evaluate({&token, 1});
    token = best_token(session);
  }
  return tokens;
}

struct Place {
  int devices;
  const char* ratio;
  int64_t context;
};

class SessionState : public ::testing::TestWithParam<DType> {
 protected:
  static SessionOptions options(int64_t context) {
    return {.context = context, .batch = 8, .dtype_k = GetParam(), .dtype_v = GetParam()};
  }
};

TEST_P(SessionState, RestoredStateGivesSameTokensOnAnyDevices) {
  constexpr Place kPlaces[] = {{1, "", 64}, {2, "", 64}, {2, "3,1", 200}, {3, "5,0,2", 40}, {5, "", 512}};
  for (const Place& from : kPlaces) {
    LoadedModel first(tiny_model_path("f16"), from.devices, from.ratio, options(from.context));
    first.session->evaluate(kPrompt);
    const int32_t token = best_token(*first.session);
    generate(*first.session, token, 6);
    const int32_t next = best_token(*first.session);
    const Bytes state = save_state(*first.session);
    const std::vector<int32_t> expected = generate(*first.session, next, 20);
    for (const Place& to : kPlaces) {
      SCOPED_TRACE(fmt::format("from {} devices '{}' to {} '{}'", from.devices, from.ratio, to.devices, to.ratio));
      LoadedModel second(tiny_model_path("f16"), to.devices, to.ratio, options(to.context));
      second.session->evaluate(std::vector<int32_t>{5, 6, 7, 8, 9, 10});  // the restored state overwrites these tokens
      restore_state(*second.session, state);
      EXPECT_EQ(second.session->position(), 17);
      EXPECT_EQ(save_state(*second.session), state) << "the state has the same bytes on any devices";
      EXPECT_EQ(generate(*second.session, next, 20), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SessionState, ::testing::Values(DType::kF16, DType::kF32, DType::kQ8_0),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Phi uses different RoPE factors for long and short contexts.
TEST(SessionStates, RefuseContextWithOtherRopeFactors) {
  const std::string path = SHOAL_REFERENCE_MODELS "/phi3-short.gguf";  // trained on 400 tokens
  const auto state_in = [&](int64_t context) {
    LoadedModel loaded(path, 1, "", {.context = context, .batch = 8});
    loaded.session->evaluate(std::vector<int32_t>{1, 2, 3});
    return save_state(*loaded.session);
  };
  const auto restored_in = [&](int64_t context, const Bytes& state) -> std::string {
    LoadedModel loaded(path, 1, "", {.context = context, .batch = 8});
    try {
      restore_state(*loaded.session, state);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(restored_in(400, state_in(100)), "");
  EXPECT_EQ(restored_in(401, state_in(512)), "");
  EXPECT_THAT(restored_in(401, state_in(400)), HasSubstr("use a context of at most 400 tokens"));
  EXPECT_THAT(restored_in(400, state_in(401)), HasSubstr("long-context RoPE factors, but the session does not"));
}

TEST(SessionStates, RewoundSessionSavesStateOfPrefix) {
  LoadedModel loaded(tiny_model_path("q8_0"), 2, "3,1", {.context = 64});
  Session& session = *loaded.session;
  session.evaluate(kPrompt);
  const int32_t next = best_token(session);
  const Bytes whole = save_state(session);
  const std::vector<int32_t> expected = generate(session, next, 8);
  session.rewind(0);
  const Bytes empty = save_state(session);
  EXPECT_LT(empty.size(), 100u);
  restore_state(session, whole);
  EXPECT_THAT(message_of([&] { session.logits(); }), HasSubstr("no logits yet"));
  EXPECT_EQ(generate(session, next, 8), expected);
  restore_state(session, empty);
  EXPECT_EQ(session.position(), 0);
  session.evaluate(kPrompt);
  EXPECT_EQ(best_token(session), next);
}

/// Error of restoring `state`. Checks that the session stays unchanged.
std::string refusal(Session& session, const Bytes& state) {
  const Bytes before = save_state(session);
  const std::string message = message_of([&] { restore_state(session, state); });
  EXPECT_EQ(save_state(session), before);
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

TEST(SessionStates, TruncatedAndChangedStatesAreRefused) {
  const std::string path = SyntheticModel().write();
  LoadedModel loaded(path, 2, {}, {.context = 16});
  Session& session = *loaded.session;
  session.evaluate(std::vector<int32_t>{1, 2, 3});
  const Bytes state = save_state(session);
  session.evaluate(std::vector<int32_t>{4});
  const int32_t next = best_token(session);
  for (size_t size = 0; size < state.size(); size += size < 100 ? 1 : 97) {
    EXPECT_THAT(refusal(session, Bytes(state.begin(), state.begin() + static_cast<ptrdiff_t>(size))),
                HasSubstr(size < 48 ? "are not a session state" : "but has"))
        << size;
  }
  for (size_t at = 0; at < state.size(); at += at < 60 ? 1 : 53) {
    Bytes changed = state;
    changed[at] ^= std::byte{0x10};
    EXPECT_NE(refusal(session, changed), "nothing was thrown") << at;
  }
  Bytes longer = state;
  longer.push_back({});
  EXPECT_THAT(refusal(session, longer), HasSubstr("should have"));
  EXPECT_THAT(refusal(session, {}), HasSubstr("these 0 bytes are not a session state"));
  EXPECT_EQ(best_token(session), next) << "the session still has its logits";
  EXPECT_EQ(refusal(session, save_state(session)), "nothing was thrown");
}

TEST(SessionStates, ErrorsNameDifferenceToSession) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1, {}, {.context = 32});
  loaded.session->evaluate(kPrompt);
  const Bytes state = save_state(*loaded.session);
  {
    LoadedModel small(tiny_model_path("q8_0"), 2, {}, {.context = 10});
    EXPECT_THAT(refusal(*small.session, state),
                HasSubstr("the state has 11 tokens, but the context has 10; use a larger"));
  }
  {
    LoadedModel types(tiny_model_path("q8_0"), 1, {}, {.context = 32, .dtype_v = DType::kQ8_0});
    EXPECT_THAT(refusal(*types.session, state),
                HasSubstr("the state has keys of f16 and values of f16, but the cache has f16 and q8_0"));
  }
  LoadedModel other(tiny_model_path("q4_0"), 1, {}, {.context = 32});
  EXPECT_THAT(refusal(*other.session, state), HasSubstr("was saved with another model than"));
}

TEST(SessionStates, ModelsOfSameShapeAreDistinguished) {
  SyntheticModel synthetic;
  LoadedModel first(synthetic.write(), 1, {}, {.context = 16});
  first.session->evaluate(std::vector<int32_t>{1, 2, 3});
  const Bytes state = save_state(*first.session);
  // `same` loads the same file again. The other file has the same shapes, but one weight differs.
  LoadedModel same(first.model->file.path(), 2, {}, {.context = 16});
  EXPECT_EQ(refusal(*same.session, save_state(*same.session)), "nothing was thrown");
  restore_state(*same.session, state);
  const test::TemporaryFile changed("changed.gguf");
  std::filesystem::copy_file(same.model->file.path(), changed.path);
  std::fstream(changed.path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(same.model->file.tensor("output_norm.weight").offset))
      .put(1);
  LoadedModel other(changed.path, 2, {}, {.context = 16});
  EXPECT_THAT(message_of([&] { restore_state(*other.session, state); }), HasSubstr("saved with another model than"));
}

}  // namespace
}  // namespace shoal::models
