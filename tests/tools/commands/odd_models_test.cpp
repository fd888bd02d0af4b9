// Runs of faulty and unusual models.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/gguf/gguf.h"
#include "models/tokenizer/vocabulary.h"
#include "tests/models/synthetic_model.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int kVocabulary = 300;

/// A random model whose tokenizer has `tokens` pieces: control tokens, bytes and words. The last piece contains an
/// escape character.
models::SyntheticModel model_with_tokenizer(int tokens = kVocabulary, bool adds_bos = true) {
  models::SyntheticModel model;
  model.h.vocab = kVocabulary;
  model.keys = [tokens, adds_bos](test::GgufWriter& writer) {
    std::vector<std::string> pieces{"<unk>", "<s>", "</s>"};
    std::vector<int32_t> kinds{2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) pieces.push_back(fmt::format("<0x{:02X}>", byte)), kinds.push_back(6);
    while (static_cast<int>(pieces.size()) < tokens)
      pieces.push_back(fmt::format("w{}", pieces.size())), kinds.push_back(1);
    pieces.back() = "\x1b[31m\n", kinds.back() = 4;  // kind 4: a user-defined token, which the tokenizer uses wherever
                                                     // its text occurs
    writer.add("tokenizer.ggml.model", "llama");
    writer.add("tokenizer.ggml.add_bos_token", adds_bos);
    writer.add_array("tokenizer.ggml.tokens", pieces);
    writer.add_array("tokenizer.ggml.scores", std::vector<float>(pieces.size(), 0.0f));
    writer.add_array("tokenizer.ggml.token_type", kinds);
  };
  return model;
}

/// Sets rows [begin, end) of an f32 matrix in the file to NaN.
void poison(const std::string& path, const std::string& tensor, int64_t begin, int64_t end) {
  size_t offset = 0;
  int64_t length = 0;
  {
    models::GgufFile file(path);
    offset = file.tensor(tensor).offset, length = file.tensor(tensor).shape[0];
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::vector<float> row(length, std::numeric_limits<float>::quiet_NaN());
  file.seekp(static_cast<std::streamoff>(offset + begin * length * sizeof(float)));
  for (int64_t i = begin; i < end; ++i) {
    file.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(length * sizeof(float)));
  }
}

TEST(OddModels, RejectsTokenizerWithOtherVocabularySize) {
  for (int tokens : {kVocabulary - 1, kVocabulary + 1}) {
    std::string path = model_with_tokenizer(tokens).write();
    for (const char* command : {"run", "compare"}) {
      Finished finished = run({command, "-m", path, "-p", "x", "-dev", "CPU0,CPU1"});
      EXPECT_EQ(finished.code, 1);
      EXPECT_THAT(finished.err,
                  EndsWith(fmt::format(": the tokenizer has {} tokens, but token_embd.weight has 300 rows; "
                                       "convert the model again\n",
                                       tokens)));
    }
  }
}

TEST(OddModels, EmptyPromptNeedsABeginToken) {
  std::string path = model_with_tokenizer(kVocabulary, false).write();
  for (const char* command : {"run", "compare"}) {
    Finished finished = run({command, "-m", path, "-p", "", "-dev", "CPU0,CPU1"});
    EXPECT_EQ(finished.code, 1);
    EXPECT_THAT(finished.err, HasSubstr("the prompt is empty"));
  }
  EXPECT_EQ(run({"compare", "-m", path, "-p", "x", "-dev", "CPU0,CPU1"}).code, 0);
}

TEST(OddModels, FailedGenerationPrintsResultsSoFar) {
  std::string path = model_with_tokenizer().write();
  // Only the embedding of the prompt token is finite. In the second step, the logits are NaN, so the step fails.
  poison(path, "token_embd.weight", 0, 1), poison(path, "token_embd.weight", 2, kVocabulary);
  std::vector<std::string> args{"run", "-m", path, "--prompt-tokens", "1", "-n", "9", "--temp", "0", "--ignore-eos"};
  Finished text = run(args);
  EXPECT_EQ(text.code, 1);
  EXPECT_GT(text.out.size(), 1u);
  EXPECT_THAT(text.out, EndsWith("\n"));
  EXPECT_THAT(text.err, HasSubstr("shoal: error: the logit of token 0 is nan"));
  args.insert(args.end(), {"--output", "json"});
  Finished json = run(args);
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(json.err, text.err);
  auto result = nlohmann::json::parse(json.out);
  EXPECT_EQ(result["stop"], "error");
  EXPECT_EQ(result["tokens"].size(), 1u);
  EXPECT_THAT(text.err, HasSubstr(result["error"].get<std::string>()));
}

TEST(OddModels, WarningNamesIgnoredKeysAndTensors) {
  models::SyntheticModel model = model_with_tokenizer();
  const auto keys = model.keys;
  model.keys = [&](test::GgufWriter& writer) {
    keys(writer);
    writer.add("tokenizer.chat_template", "{{ messages[0].content }}");
    for (int i = 0; i < 9; ++i) writer.add<uint32_t>(fmt::format("llama.attention.new{}\n", i), 7);
    writer.add_tensor("v.patch.weight", DType::kF32, {4}, std::vector<float>(4, 1.0f));
  };
  const std::string path = model.write();
  const std::string named = "llama.attention.new0\\n, ", more = " and 1 more\n", tensors = "ignored: v.*\n";
  const Finished run_once = run({"run", "-m", path, "-p", "w", "-n", "1", "--devices", "CPU0"});
  EXPECT_EQ(run_once.code, 0) << run_once.err;
  const Finished chat = run({"chat", "-m", path, "-p", "w", "-n", "1", "--devices", "CPU0"});
  for (const Finished& finished : {run_once, chat}) {
    EXPECT_THAT(finished.err, HasSubstr(path + ": unknown keys are ignored, so answers may be wrong: "));
    EXPECT_THAT(finished.err, HasSubstr(named));
    EXPECT_THAT(finished.err, HasSubstr(more));
    EXPECT_THAT(finished.err, HasSubstr(tensors));
  }
  const Finished info = run({"info", "-m", path});
  EXPECT_THAT(info.out, HasSubstr("ignored keys         " + named));
  EXPECT_THAT(info.out, HasSubstr("ignored tensors      v.*\n"));
  const auto json = nlohmann::json::parse(run({"info", "-m", path, "--output", "json"}).out);
  EXPECT_EQ(json["ignored_keys"].size(), 9u);
  EXPECT_EQ(json["ignored_tensors"], nlohmann::json({"v."}));
}

TEST(OddModels, WarnsIfPretokenizerIsNotNamed) {
  models::SyntheticModel model;
  model.h.vocab = 256;
  model.keys = [](test::GgufWriter& writer) {
    std::vector<std::string> letters;
    for (int byte = 0; byte < 256; ++byte) letters.emplace_back(models::letter_of_byte(static_cast<uint8_t>(byte)));
    writer.add("tokenizer.ggml.model", "gpt2").add_array("tokenizer.ggml.tokens", letters);
    writer.add_array("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  };
  const std::string path = model.write();
  for (const char* command : {"tokenize", "run"}) {
    std::vector<std::string> args{command, "-m", path, "-p", "abc"};
    if (args[0] == "run") args.insert(args.end(), {"-n", "1", "--devices", "CPU0"});
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_THAT(finished.err, HasSubstr(path + ": key 'tokenizer.ggml.pre' does not name a pre-tokenizer"));
  }
}

/// A model with a tokenizer of this kind. If `kind` is "", the model has no tokenizer.
models::SyntheticModel model_with_other_tokenizer(const std::string& kind) {
  models::SyntheticModel model;
  model.keys = [kind](test::GgufWriter& writer) {
    if (!kind.empty()) writer.add("tokenizer.ggml.model", kind);
    writer.add<uint32_t>("tokenizer.ggml.eos_token_id", 17);
  };
  return model;
}

TEST(OddModels, TokenIdsNeedNoTokenizer) {
  for (const char* kind : {"rwkv", ""}) {
    const std::string path = model_with_other_tokenizer(kind).write();
    const Finished ids =
        run({"run", "-m", path, "--prompt-tokens", "1,2", "-n", "5", "--temp", "0", "--output", "json"});
    ASSERT_EQ(ids.code, 0) << ids.err;
    const auto result = nlohmann::json::parse(ids.out);
    EXPECT_TRUE(result["text"].is_null());
    EXPECT_GT(result["tokens"].size(), 0u);
    const Finished text = run({"run", "-m", path, "-p", "x", "-n", "5"});
    EXPECT_EQ(text.code, 1);
    EXPECT_THAT(text.err, EndsWith("; to run without a tokenizer, use --prompt-tokens with --output json\n"));
  }
  const std::string path = model_with_other_tokenizer("rwkv").write();
  EXPECT_THAT(run({"tokenize", "-m", path, "-p", "x"}).err,
              EndsWith("tokenizer 'rwkv' is not supported; use a model with one of: llama (SentencePiece), gpt2 "
                       "(byte-level byte-pair encoding), gemma4\n"));
}

TEST(OddModels, WarnsOfADamagedTokenizer) {
  const std::string path = model_with_other_tokenizer("llama").write();
  const Finished ids = run({"run", "-m", path, "--prompt-tokens", "1,2", "-n", "5", "--output", "json"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_TRUE(nlohmann::json::parse(ids.out)["text"].is_null());
  EXPECT_THAT(ids.err, HasSubstr("shoal: warning: " + path + ": key 'tokenizer.ggml.tokens' is missing"));
  EXPECT_THAT(ids.err, EndsWith("; without a tokenizer there is no text\n"));
  const std::string other = model_with_other_tokenizer("rwkv").write();
  EXPECT_EQ(run({"run", "-m", other, "--prompt-tokens", "1,2", "-n", "5", "--output", "json"}).err, "");
}

TEST(OddModels, ModelWithoutTokenizerTakesEndTokenFromFile) {
  models::SyntheticModel model = model_with_other_tokenizer("rwkv");
  const std::vector<std::string> args{"-n", "40", "--temp", "0", "--prompt-tokens", "1,2", "--output", "json"};
  const auto generated = [&](const std::string& path) {
    std::vector<std::string> all{"run", "-m", path};
    all.insert(all.end(), args.begin(), args.end());
    return nlohmann::json::parse(run(all).out);
  };
  std::string path = model.write();
  const int32_t first = generated(path)["tokens"][0];
  model.keys = [first](test::GgufWriter& writer) {
    writer.add<uint32_t>("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(first));
  };
  path = model.write();
  const auto ended = generated(path);
  EXPECT_EQ(ended["stop"], "end_of_text");
  EXPECT_EQ(ended["tokens"].size(), 0u);
}

TEST(OddModels, CompareDetectsDamagedWeights) {
  std::string path = model_with_tokenizer().write();
  poison(path, "output.weight", 7, 8);
  Finished finished = run({"compare", "-m", path, "-p", "x", "-dev", "CPU0,CPU1", "--output", "json"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, HasSubstr("logits (prompt) is not finite on CPU0 alone: the model's weights are"));
  auto result = nlohmann::json::parse(finished.out);
  EXPECT_TRUE(result["worst"]["nmse"].is_null());
  EXPECT_EQ(result["worst"]["name"], "logits");
}

TEST(OddModels, EscapesControlCharacters) {
  std::string path = model_with_tokenizer().write();
  Finished table = run({"tokenize", "-m", path, "-p", "\x1b[31m\n"});
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, HasSubstr("   299  \\x1b[31m\\n\n"));
  Finished file = run({"run", "-m", path, "-p", "x", "-ts", "\x1b[31m"});
  EXPECT_EQ(file.code, 2);
  EXPECT_THAT(file.err, HasSubstr("bad ratio '\\x1b[31m'"));
}

}  // namespace
}  // namespace shoal::tools
