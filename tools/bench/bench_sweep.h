// The sweep of `shoal bench` and `shoal simulate`: flags, and the setups and tests that their lists make. The two
// differ in the source of a row's time, a measurement or a prediction.
//
//   --devices "CPU0;CPU0,CPU1" --tensor-split "1,1;3,1"      CPU0; CPU0,CPU1 by 1,1; CPU0,CPU1 by 3,1
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
  std::vector<std::string> devices{"CPU0"};  ///< each several lists with semicolons between them
  std::vector<std::string> ratios;           ///< likewise; a ratio is of the device lists that have as many entries
  std::vector<int64_t> threads{0};
  std::vector<int64_t> prompts{512}, generates{128}, depths{0}, batches{2048}, ubatches{512};
};

/// A flag with a list of whole numbers, "512, 1024". `counts` must live as long as the app is parsed.
CLI::Option* add_counts(CLI::App& app, const std::string& names, std::vector<int64_t>& counts, int64_t min, int64_t max,
                        const std::string& help);

/// Puts what `all` gives in place of each list that is "all"; of several processes lists are spelt out for all of them
/// (of_all_processes), with the devices that `own` gives.
void spell_out_devices(BenchLists& lists, const std::function<std::string()>& all,
                       const std::function<std::string()>& own = {});

/// Every model on every list of devices with every ratio that has as many entries (even, where there is none; ""
/// is even too; "auto" is for all lists) and every number of threads. Throws UsageError for lists or ratios that are
/// none, and for a ratio that fits no list.
std::vector<BenchSetup> make_setups(const BenchLists& lists, models::SplitMode mode);

/// devices_together() of all.
int most_together(const std::vector<BenchSetup>& setups, models::SplitMode mode);

/// For each size of batches and each depth the prompts, then the generations; counts of 0 are no tests. Throws
/// UsageError when none is left or a test has more tokens than positions can count.
std::vector<BenchTest> make_tests(const BenchLists& lists);

/// The most that a test does of each.
tuning::Workload most_of(const std::vector<BenchTest>& tests);

/// -m -dev -ts -p -n -d -b -ub -sm --expert-split --latent-split --comm -o, and the flags of HostFlags
struct BenchFlags {
  BenchLists lists;
  DeviceFlags devices;  ///< the same for all setups
  ContextFlags context;
  /// Selected by the devices of each output, as for `shoal run`; 0: all logits come to the host.
  int64_t candidates = models::candidates_needed({});
  BenchFormat format = BenchFormat::kMarkdown;

  /// `devices_help`: of --devices, whose list is empty if it is not given.
  void add_to(CLI::App& app, const std::string& devices_help);
  /// Of a test, with the context of -c and the cache types.
  models::SessionOptions session(const BenchTest& test) const;
  DeviceFlags devices_of(const BenchSetup& setup) const;
  /// The choice of a setup. Ways of experts and latent caches are for these tests: for generation, if there is any.
  tuning::Asked asked(const BenchSetup& setup, models::DeviceGroups groups, const std::vector<BenchTest>& tests) const;
  /// Opens every model, so that a bad file is reported before the first row, and warns of flags without effect.
  BenchColumns columns(const std::vector<BenchSetup>& setups, const std::vector<BenchTest>& tests) const;
};

/// A row without test, samples, time and backends.
BenchResult result_of(const BenchFlags& flags, const BenchSetup& setup, const models::Model& model,
                      const tuning::Asked& asked, std::span<Device* const> everything);

}  // namespace shoal::tools
