#include "tools/cli/hub_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "tools/cli/command.h"
#include "tools/cli/python_package.h"

namespace shoal::tools {
namespace {

constexpr const char* kNames = "--hf-repo";
constexpr const char* kType = "NAME";

void check_repository(const std::string& flag, const std::string& name) {
  const size_t colon = name.find(':');
  const std::string repository = name.substr(0, colon);
  const size_t slash = repository.find('/');
  const bool has_parts = slash != std::string::npos && slash == repository.rfind('/') && slash > 0 &&
                         slash + 1 < repository.size() && colon != name.size() - 1;
  const auto is_plain = [](unsigned char c) { return c >= ' ' && c != 0x7f; };
  const bool is_one_line = std::ranges::all_of(name, is_plain) && repository.find(' ') == std::string::npos;
  require<InvalidArgument>(has_parts && is_one_line && !name.starts_with('-'),
                           "{}: '{}' is not OWNER/REPO or OWNER/REPO:QUANT, such as "
                           "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
                           flag, name);
}

}  // namespace

CLI::Option* add_repository(CLI::App& app, const ValueReader& read, const std::string& help) {
  const auto check = [read](const std::string& flag, const std::string& name) {
    check_repository(flag, name);
    read(flag, name);
  };
  return add_parsed(app, kNames, kType, check, help);
}

CLI::Option* add_repositories(CLI::App& app, const std::string& help) {
  return add_repeated(app, kNames, kType, check_repository, help);
}

void resolve_repositories(CLI::App& command) {
  CLI::Option* const model = command.get_option_no_throw("--model");
  CLI::Option* const repository = command.get_option_no_throw(kNames);
  if (model == nullptr || repository == nullptr) return;
  if (model->count() + repository->count() == 0) {
    throw UsageError(fmt::format("--model or --hf-repo is required; see shoal {} --help", command.get_name()));
  }
  if (repository->count() == 0) return;
  for (const std::string& name : repository->reduced_results()) model->add_result(find_model_file(name));
  model->run_callback();
  repository->clear();
}

}  // namespace shoal::tools
