// -hf: models that are named by their repository on a hub (huggingface.co, or HF_ENDPOINT) instead of a file. The
// Python package finds and downloads the files (python_package.h).
//
//   -hf bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M     the quantization is a part of the file's name
//   -hf bartowski/Llama-3.2-1B-Instruct-GGUF            Q4_K_M, else Q4_0, else the smallest other file
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "tools/cli/options.h"

namespace shoal::tools {

/// Adds -hf for one model; `read` receives the name. Throws InvalidArgument during the parsing if the name is not
/// OWNER/REPO or OWNER/REPO:QUANT.
CLI::Option* add_repository(CLI::App& app, const ValueReader& read, const std::string& help);
/// Adds -hf to a command whose -m may be repeated.
CLI::Option* add_repositories(CLI::App& app, const std::string& help);

/// Replaces each -hf of a parsed command line by -m with the path of the file. Downloads missing files. No-op for
/// commands without -m. Throws UsageError if the command line contains neither -m nor -hf.
void resolve_repositories(CLI::App& command);

}  // namespace shoal::tools
