// The flags that decide how a server's engine runs. `shoal serve` passes the given flags on to the Python package, and
// the package parses them again with the same definitions:
//
//   EngineFlags flags;
//   flags.add_to(app);
//   app.parse(...);            shoal serve -m model.gguf -np 4 --port 9000
//   flags.given()              {"--model", "model.gguf", "--parallel", "4"}
//   EngineFlags().parse(...)   the package reads this list
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cli/flags.h"

namespace shoal::tools {

/// The flags of ChoiceFlags, and -np --draft --ctx-checkpoints
struct EngineFlags {
  ChoiceFlags choice;
  int64_t parallel = 8;  ///< maximum number of requests that run at the same time
  int64_t draft = 0;     ///< maximum number of guessed tokens of a request per step

  void add_to(CLI::App& app);
  /// The flags of add_to() that the command line contains, by their long names and with their values. A repeated flag
  /// that counts once appears once. The parsed app must still exist.
  std::vector<std::string> given() const;
  /// Parses a list of flags. Accepts every spelling that the program accepts, such as -np and -dev. Throws
  /// InvalidArgument for unknown flags and wrong values. Does not check the devices (DeviceFlags::check()), and does
  /// not download the model of -hf (ModelFlags::resolve()).
  void parse(const std::vector<std::string>& arguments);

 private:
  std::vector<const CLI::Option*> options_ = {};  ///< the options of add_to()
};

}  // namespace shoal::tools
