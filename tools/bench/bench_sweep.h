// Flags of `shoal bench` and `shoal simulate` that accept lists. Each combination of the values is a setup and a test.
// bench measures each combination, and simulate predicts its speed.
//
//   --devices "CPU0;CPU0,CPU1" --tensor-split "1,1;3,1"      3 setups: CPU0; CPU0,CPU1 with 1,1; CPU0,CPU1 with 3,1
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_report.h"
#include "tools/cli/flags.h"
#include "tools/cli/split_profile.h"
#include "tuning/choose/chooser.h"

namespace shoal::tools {

struct BenchLists {
  std::vector<std::string> models;
  std::vector<std::string> devices{"CPU0"};  ///< each entry contains one or more lists, separated by semicolons
  std::vector<std::string> ratios;           ///< lists of shares; each list applies to device lists of the same length
  std::vector<int64_t> threads{0};
  std::vector<int64_t> prompts{512}, generates{128}, depths{0}, batches{2048}, ubatches{512};
  std::vector<int64_t> parallels;  ///< numbers of requests that run at the same time
};

/// Adds a flag that accepts a list of whole numbers, such as "512, 1024". `counts` must outlive the parsing.
CLI::Option* add_counts(CLI::App& app, const std::string& names, std::vector<int64_t>& counts, int64_t min, int64_t max,
                        const std::string& help);

/// Replaces each list "all" with the result of `all`. With several processes, then replaces each list with the result
/// of of_all_processes(list, own).
void spell_out_devices(BenchLists& lists, const std::function<std::string()>& all,
                       const std::function<std::string()>& own = {});

/// Combines every model, every device list, every ratio of the same length as the device list, and every number of
/// threads. A device list without a ratio of the same length gets even shares. The ratio "" means even shares, and
/// "auto" applies to all device lists. Throws UsageError for invalid lists or ratios, and for a ratio that fits no
/// list.
std::vector<BenchSetup> make_setups(const BenchLists& lists, models::SplitMode mode);

/// Maximum of devices_together() over all setups.
int most_together(const std::vector<BenchSetup>& setups, models::SplitMode mode);

/// The tests for each batch size and each depth: prompts first, then generations. Token counts of 0 are skipped. With
/// numbers of requests, each test is a combination of a prompt, a generation and a number of requests. Throws
/// UsageError in these cases:
/// - no test remains
/// - a test needs more than kMostTokens positions
/// - requests have no prompt or generate no tokens
/// - there are more requests than tokens in a batch
std::vector<BenchTest> make_tests(const BenchLists& lists);

/// Maximum prompt length, number of generated tokens, depth and number of requests over all tests.
tuning::Workload most_of(const std::vector<BenchTest>& tests);

/// -m -dev -ts -p -n -d -np -b -ub -sm --expert-split --latent-split --comm -o, and the flags of HostFlags
struct BenchFlags {
  BenchLists lists;
  DeviceFlags devices;  ///< all setups have the same values of these flags
  ContextFlags context;
  /// Number of candidates that the devices select for each output, as in `shoal run`; 0: all logits are copied to the
  /// host.
  int64_t candidates = models::candidates_needed({});
  BenchFormat format = BenchFormat::kMarkdown;

  /// `devices_help`: help text of --devices. Without --devices, the list of devices is empty.
  void add_to(CLI::App& app, const std::string& devices_help);
  /// Session options for a test, with the context of -c and the cache types.
  models::SessionOptions session(const BenchTest& test) const;
  /// Options of a session or, for requests, of an engine (engine_options()). Without -c, the cache has room for all
  /// requests on a number of devices.
  models::SessionOptions session(const BenchTest& test, const models::Hparams& hparams, size_t devices) const;
  DeviceFlags devices_of(const BenchSetup& setup) const;
  /// Returns the request to the chooser for a setup. The chooser chooses the modes of --expert-split and --latent-split
  /// for the generation tests, with one token of each request. If there are no generation tests, the chooser chooses
  /// these modes for the prompt tests.
  tuning::Asked asked(const BenchSetup& setup, models::DeviceGroups groups, const std::vector<BenchTest>& tests) const;
  /// Table columns for these setups and tests. Opens every model, so that an invalid file is reported before the first
  /// row. Also warns of flags without effect.
  BenchColumns columns(const std::vector<BenchSetup>& setups, const std::vector<BenchTest>& tests) const;
};

/// The result of a setup. The caller sets the test, samples, time and backends of the result.
BenchResult result_of(const BenchFlags& flags, const BenchSetup& setup, const models::Model& model,
                      const tuning::Asked& asked, std::span<Device* const> everything);

}  // namespace shoal::tools
