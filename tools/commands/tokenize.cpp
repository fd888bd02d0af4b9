// shoal tokenize, shoal detokenize: convert text to token ids and back, without loading weights.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "models/tokenizer/tokenizer.h"
#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/prompt.h"

namespace shoal::tools {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  OutputFlag output;
  PromptFlags prompt;
  std::vector<int32_t> ids;
};

int tokenize(const TokenizeFlags& flags) {
  if (!flags.prompt.given()) {
    throw UsageError("no text; give a text with -p, a file with -f, or standard input with -f -");
  }
  const std::string prompt = flags.prompt.read();
  const models::GgufFile file(flags.model.path);
  const models::Tokenizer tokenizer(file);
  warn_of_tokenizer(file, tokenizer);
  std::vector<models::Token> tokens = tokenizer.encode(prompt);
  if (flags.output.json()) {
    nlohmann::json pieces = nlohmann::json::array();
    for (models::Token token : tokens) pieces.push_back(tokenizer.vocabulary().piece(token));
    print_json({{"prompt", prompt}, {"tokens", tokens}, {"pieces", pieces}});
    return kSuccess;
  }
  std::string text;
  for (models::Token token : tokens) {
    text += fmt::format("{:>6}  {}\n", token, escaped(tokenizer.vocabulary().piece(token)));
  }
  write_out(text);
  return kSuccess;
}

int detokenize(const TokenizeFlags& flags) {
  models::Tokenizer tokenizer(models::GgufFile(flags.model.path));
  check_ids("--ids", flags.ids, tokenizer.vocabulary().size());
  std::string text = tokenizer.decode(flags.ids);
  if (flags.output.json()) {
    print_json({{"tokens", flags.ids}, {"text", text}});
  } else {
    write_out(text + "\n");
  }
  return kSuccess;
}

}  // namespace

CommandBody define_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  flags->model.add_to(app);
  flags->prompt.add_to(app);
  flags->output.add_to(app);
  return [flags] { return tokenize(*flags); };
}

CommandBody define_detokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  flags->model.add_to(app);
  auto read = [flags = flags.get()](const std::string& flag, const std::string& text) {
    flags->ids = parse_ids(flag, text);
  };
  add_parsed(app, "--ids", "IDS", read, "Token ids, such as 1,527,261")->required();
  flags->output.add_to(app);
  return [flags] { return detokenize(*flags); };
}

}  // namespace shoal::tools
