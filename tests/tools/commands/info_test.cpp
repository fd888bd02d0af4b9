// Tests of shoal info: the description of a file, and the devices on which the model fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/models/model_parts.h"
#include "tests/models/synthetic_model.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kSmall = SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q4_k_m.gguf";

TEST(Info, DescribesTheFile) {
  const json info = run_json({"info", "-m", kSmall});
  EXPECT_EQ(info["architecture"], "llama");
  EXPECT_EQ(info["files"], 1);
  EXPECT_EQ(info["bytes"], std::filesystem::file_size(kSmall));
  EXPECT_EQ(info["numbers"]["block_count"], 6);
  EXPECT_EQ(info["numbers"]["attention.head_count_kv"], 4);
  EXPECT_EQ(info["tokenizer"], json({{"model", "llama"}, {"pre", "default"}, {"tokens", 1024}}));
  EXPECT_EQ(info["special_tokens"]["eos"], json({{"id", 2}, {"text", "</s>"}}));
  EXPECT_EQ(info["chat_template"], json());
  EXPECT_EQ(info["refusal"], json());
  // The totals must equal the sums over the tensors in the file.
  const models::GgufFile file(kSmall);
  size_t bytes = 0;
  int64_t parameters = 0, tensors = 0;
  for (const auto& [name, type] : info["types"].items())
    bytes += type["bytes"].get<size_t>(), tensors += type["tensors"].get<int64_t>();
  for (const models::GgufTensor& tensor : file.tensors()) parameters += tensor.shape[0] * tensor.shape[1];
  EXPECT_EQ(bytes, file.tensor_bytes());
  EXPECT_EQ(info["tensor_bytes"], bytes);
  EXPECT_EQ(info["parameters"], parameters);
  EXPECT_EQ(tensors, static_cast<int64_t>(file.tensors().size()));
}

TEST(Info, ListsDevicesOnWhichTheModelFits) {
  const json fits = run_json({"info", "-m", kSmall})["fits"];
  ASSERT_EQ(fits.size(), 2);  // first the default device CPU0, then all four devices
  EXPECT_EQ(fits[0]["devices"], "CPU0");
  EXPECT_EQ(fits[1]["devices"], "CPU0,CPU1,CPU2,CPU3");
  for (const json& fit : fits) {
    EXPECT_EQ(fit["fits"], true);
    EXPECT_EQ(fit["context"], 512);
    EXPECT_EQ(fit["missing"], 0);
  }
  // `plan` reports the same memory for these devices.
  const json plan = run_json({"plan", "-m", kSmall, "--devices", "CPU0,CPU1"});
  const json two = run_json({"info", "-m", kSmall, "--devices", "CPU0,CPU1"})["fits"];
  ASSERT_EQ(two.size(), 1);
  ASSERT_EQ(two[0]["memory"].size(), 2);
  EXPECT_EQ(two[0]["memory"][0]["needed"], plan["memory"][0]["total"]);
  EXPECT_EQ(two[0]["needed"],
            two[0]["memory"][0]["needed"].get<size_t>() + two[0]["memory"][1]["needed"].get<size_t>());
}

TEST(Info, ReportsMissingMemory) {
  const json fit = run_json({"info", "-m", kSmall, "--devices", "CPU0", "-c", "1000000000"})["fits"][0];
  EXPECT_EQ(fit["fits"], false);
  const json& memory = fit["memory"][0];
  EXPECT_EQ(fit["missing"], memory["needed"].get<size_t>() - memory["free"].get<size_t>());
  const Finished text = run({"info", "-m", kSmall, "--devices", "CPU0", "-c", "1000000000"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("does not fit         on CPU0: "), HasSubstr(" are missing")));
}

TEST(Info, DescribesUnsupportedModels) {
  models::SyntheticModel model;
  model.h.architecture = "mamba";
  std::string chat = "{% for message in messages %}\x1b[2J\n";
  for (int line = 2; line < 10; ++line) chat += "line " + std::to_string(line) + "\n";
  model.keys = [&](test::GgufWriter& writer) {
    writer.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "llama-bpe");
    writer.add_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "<|end|>"});
    writer.add<uint32_t>("tokenizer.ggml.eos_token_id", 1).add<uint32_t>("tokenizer.ggml.bos_token_id", 77);
    writer.add("tokenizer.chat_template", chat);
    writer.add_array("mamba.attention.head_count", std::vector<uint32_t>{4, 8});
  };
  model.without_keys = {"attention.head_count"};
  const std::string path = model.write();
  const Finished text = run({"info", "-m", path});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("architecture         mamba\n"), HasSubstr("gpt2 llama-bpe, 2 tokens\n"),
                              HasSubstr("bos 77, eos 1 <|end|>"), HasSubstr("{% for message in messages %}\\x1b[2J"),
                              HasSubstr("line 5\n    ...\n"), Not(HasSubstr("line 6")), Not(HasSubstr("\nfits")),
                              HasSubstr("cannot be run        " + path + ": architecture 'mamba' is not supported")));
  const json info = run_json({"info", "-m", path});
  EXPECT_EQ(info["chat_template"], chat);
  EXPECT_EQ(info["fits"], json::array());
  EXPECT_THAT(info["refusal"].get<std::string>(), HasSubstr("'mamba' is not supported"));
}

TEST(Info, DescribesAModelInSeveralFiles) {
  const models::GgufFile whole(kSmall);
  const test::TemporaryFolder folder;
  const std::vector<std::string> parts = models::write_parts(whole, (folder.path() / "m").string(), {0, 30, 27});
  const json info = run_json({"info", "-m", parts[0]}), expected = run_json({"info", "-m", kSmall});
  EXPECT_EQ(info["files"], 3);
  for (const char* key : {"parameters", "types", "numbers", "refusal"}) EXPECT_EQ(info[key], expected[key]) << key;
  EXPECT_EQ(info["fits"][0]["needed"], expected["fits"][0]["needed"]);
  // A model in several parts generates the same text as the model in one file.
  const auto text = [](const std::string& model) {
    return run_json({"run", "-m", model, "-p", kPrompt, "-n", "16", "--temp", "0"})["text"];
  };
  EXPECT_EQ(text(parts[0]), text(kSmall));
  const Finished later = run({"info", "-m", parts[1]});
  EXPECT_EQ(later.code, 1);
  EXPECT_THAT(later.err, EndsWith("is part 2 of the 3 parts of a model; open the first: " + parts[0] + "\n"));
}

}  // namespace
}  // namespace shoal::tools
