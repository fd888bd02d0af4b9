// shoal tokenize, shoal detokenize: text to token ids and back, without loading weights.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "models/tokenizer.h"
#include "tools/command.h"
#include "tools/flags.h"
#include "tools/output.h"
#include "tools/program.h"

namespace shoal::tools {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  OutputFlag output;
  std::string text;
  std::string ids;
};

int tokenize(const TokenizeFlags& flags) {
  models::Tokenizer tokenizer(models::GgufFile(flags.model.path));
  std::vector<models::Token> tokens = tokenizer.encode(flags.text);
  nlohmann::json pieces = nlohmann::json::array();
  for (models::Token token : tokens) pieces.push_back(tokenizer.vocabulary().piece(token));
  if (flags.output.json()) {
    print_json({{"prompt", flags.text}, {"tokens", tokens}, {"pieces", pieces}});
    return kSuccess;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    fmt::print("{:>6}  {}\n", tokens[i], pieces[i].get<std::string>());
  }
  return kSuccess;
}

int detokenize(const TokenizeFlags& flags) {
  models::Tokenizer tokenizer(models::GgufFile(flags.model.path));
  std::vector<int32_t> ids = parse_ids("--ids", flags.ids);
  std::string text = tokenizer.decode(ids);
  if (flags.output.json()) {
    print_json({{"tokens", ids}, {"text", text}});
  } else {
    fmt::print("{}\n", text);
  }
  return kSuccess;
}

}  // namespace

CommandBody define_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  flags->model.add_to(app);
  app.add_option("-p,--prompt", flags->text, "The text")->required();
  flags->output.add_to(app);
  return [flags] { return tokenize(*flags); };
}

CommandBody define_detokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  flags->model.add_to(app);
  app.add_option("--ids", flags->ids, "Token ids, such as 1,527,261")->required();
  flags->output.add_to(app);
  return [flags] { return detokenize(*flags); };
}

}  // namespace shoal::tools
