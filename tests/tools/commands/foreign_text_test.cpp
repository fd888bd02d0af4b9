// A model file contains long texts with control characters. Messages cut these texts and escape the control characters,
// so the texts cannot control the terminal.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tests/models/synthetic_model.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kTokens = 300;
constexpr size_t kLongestLine = 1500;

std::string hostile() {
  return "\u202e\x1b[31m\n\u2066" + std::string(60'000, 'x');
}

struct Texts {
  std::string architecture = "llama", name = "name", model = "llama", pre = "default", scaling = "none", token = "word",
              key = "general.author", chat_template = "{{ messages[0].content }}", merge = "a b";
};

/// Writes a model with these texts. The tokenizer has one token for each byte, and tokens that start with
/// `texts.token`.
std::string write_model(const Texts& texts) {
  models::SyntheticModel model;
  model.h.vocab = kTokens;
  model.without_keys = {"general.architecture"};
  model.keys = [&texts](test::GgufWriter& writer) {
    std::vector<std::string> pieces{"<unk>", "<s>", "</s>"};
    std::vector<int32_t> kinds{2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) pieces.push_back(fmt::format("<0x{:02X}>", byte)), kinds.push_back(6);
    while (pieces.size() < kTokens)
      pieces.push_back(fmt::format("{}{}", texts.token, pieces.size())), kinds.push_back(1);
    writer.add("general.architecture", texts.architecture).add("general.name", texts.name);
    writer.add("llama.rope.scaling.type", texts.scaling).add("tokenizer.chat_template", texts.chat_template);
    writer.add(texts.key, "value").add("tokenizer.ggml.model", texts.model).add("tokenizer.ggml.pre", texts.pre);
    writer.add_array("tokenizer.ggml.tokens", pieces).add_array("tokenizer.ggml.token_type", kinds);
    writer.add_array("tokenizer.ggml.scores", std::vector<float>(pieces.size(), 0.0f));
    writer.add_array("tokenizer.ggml.merges", std::vector<std::string>{texts.merge});
  };
  return model.write();
}

void expect_harmless(const std::string& text, const std::string& what) {
  for (const char* raw : {"\u202e", "\u2066", "\x1b"}) EXPECT_THAT(text, Not(HasSubstr(raw))) << what;
  for (const std::string& line : lines(text))
    EXPECT_LT(line.size(), kLongestLine) << what << ": " << line.substr(0, 300);
}

TEST(ForeignText, IsCutAndEscapedInMessages) {
  const std::map<std::string, std::function<void(Texts&)>> cases{
      {"architecture", [](Texts& texts) { texts.architecture = hostile(); }},
      {"name", [](Texts& texts) { texts.name = hostile(); }},
      {"tokenizer", [](Texts& texts) { texts.model = hostile(); }},
      {"pretokenizer", [](Texts& texts) { texts.model = "gpt2", texts.pre = hostile(); }},
      {"merge", [](Texts& texts) { texts.model = "gpt2", texts.merge = hostile(); }},
      {"scaling", [](Texts& texts) { texts.scaling = hostile(); }},
      {"token", [](Texts& texts) { texts.token = hostile(); }},
      {"key", [](Texts& texts) { texts.key = "llama.attention." + hostile(); }},
      {"template", [](Texts& texts) { texts.chat_template = "{{ raise_exception('" + hostile() + "') }}"; }},
      {"broken template", [](Texts& texts) { texts.chat_template = "{% " + hostile(); }},
  };
  for (const auto& [what, change] : cases) {
    Texts texts;
    change(texts);
    const std::string path = write_model(texts);
    for (const char* command : {"info", "plan", "run --chat -p x -n 1 --top-logits 3", "tokenize -p x"}) {
      std::vector<std::string> args = words(command);
      args.insert(args.end(), {"-m", path});
      const Finished finished = run(args);
      expect_harmless(finished.err, what + " of " + command);
      if (args[0] != "run")
        expect_harmless(finished.out, what + " of " + command);  // `shoal run` prints generated text unchanged
    }
  }
}

}  // namespace
}  // namespace shoal::tools
