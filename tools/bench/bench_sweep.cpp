#include "tools/bench/bench_sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/place/split_policy.h"
#include "tools/bench/parallel_bench.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/hub_flags.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/prompt.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

/// {"a;b", "c"} -> {"a", "b", "c"}.
std::vector<std::string> split_lists(const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  for (const std::string& text : texts) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(';', begin), text.size());
      out.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return out;
}

size_t count_entries(const std::string& ratio) {
  constexpr std::string_view kSeparators = ",:/";
  const auto separates = [&](char c) { return kSeparators.find(c) != std::string_view::npos; };
  return 1 + static_cast<size_t>(std::count_if(ratio.begin(), ratio.end(), separates));
}

/// An empty ratio means even shares and fits any list.
bool fits(const std::string& ratio, const DeviceList& devices, models::SplitMode mode) {
  if (ratio == kAutoRatio) return true;
  const size_t shares = mode == models::SplitMode::kLayer ? devices.group_sizes.size() : devices.names.size();
  return ratio.empty() || count_entries(ratio) == shares;
}

/// Throws UsageError if the ratio fits no list of devices.
void check_ratio(const std::string& ratio, const std::vector<DeviceList>& devices, models::SplitMode mode) {
  if (ratio == kAutoRatio) return;
  require<InvalidArgument>(
      !names_profile(ratio),
      "--tensor-split {}: only run, chat, plan and compare read profiles; give the shares, such as 3,1", ratio);
  const bool some =
      std::any_of(devices.begin(), devices.end(), [&](const DeviceList& list) { return fits(ratio, list, mode); });
  models::parse_ratio(ratio, static_cast<int>(count_entries(ratio)));
  require<InvalidArgument>(some,
                           "--tensor-split: there are {} shares in '{}', but no list of --devices has as many devices; "
                           "give one share for each device",
                           count_entries(ratio), ratio);
}

std::vector<BenchSetup> combine(const BenchLists& lists, models::SplitMode mode) {
  std::vector<DeviceList> devices;
  for (const std::string& text : split_lists(lists.devices)) {
    devices.push_back({split_device_names(text), device_group_sizes(text)});
  }
  const std::vector<std::string> ratios = split_lists(lists.ratios);
  for (const std::string& ratio : ratios) check_ratio(ratio, devices, mode);
  std::vector<BenchSetup> setups;
  for (const std::string& model : lists.models) {
    for (const DeviceList& list : devices) {
      std::vector<std::string> fitting;
      std::copy_if(ratios.begin(), ratios.end(), std::back_inserter(fitting),
                   [&](const std::string& ratio) { return fits(ratio, list, mode); });
      if (fitting.empty()) fitting.emplace_back();
      for (const std::string& ratio : fitting) {
        for (const int64_t threads : lists.threads) setups.push_back({model, list, ratio, static_cast<int>(threads)});
      }
    }
  }
  return setups;
}

/// Combines every prompt, every generation and every number of requests.
std::vector<BenchTest> request_tests(const BenchLists& lists) {
  std::vector<BenchTest> tests;
  for (const int64_t prompt : lists.prompts) {
    for (const int64_t generate : lists.generates) {
      for (const int64_t parallel : lists.parallels) {
        if (prompt == 0 || generate == 0) {
          throw UsageError("with -np, each request has a prompt and an answer; use -p and -n above 0");
        }
        tests.push_back({.prompt = prompt, .generate = generate, .parallel = parallel});
      }
    }
  }
  return tests;
}

/// Throws UsageError if no session or no engine can run the test.
void check_test(const BenchTest& test) {
  if (test.length() > kMostTokens) {
    throw UsageError(fmt::format("{}: a sequence has at most {} positions; use fewer tokens (-p, -n, -d)", test.name(),
                                 kMostTokens));
  }
  const int64_t batch = std::min(test.batch, test.ubatch);
  if (test.parallel > batch) {
    throw UsageError(
        fmt::format("{}: a batch of {} tokens has at most {} requests; use a larger -b and -ub, or a "
                    "smaller -np",
                    test.name(), batch, batch));
  }
  if (test.parallel > kMostTokens / test.length()) {
    throw UsageError(
        fmt::format("{}: a cache has at most {} positions; use fewer tokens (-p, -n, -d) or requests (-np)",
                    test.name(), kMostTokens));
  }
}

}  // namespace

void spell_out_devices(BenchLists& lists, const std::function<std::string()>& all,
                       const std::function<std::string()>& own) {
  std::vector<std::string> found;
  for (const std::string& list : split_lists(lists.devices)) {
    found.push_back(of_all_processes(names_all(list) ? all() : list, own));
  }
  lists.devices = std::move(found);
}

CLI::Option* add_counts(CLI::App& app, const std::string& names, std::vector<int64_t>& counts, int64_t min, int64_t max,
                        const std::string& help) {
  const auto read = [&counts, min, max](const std::string& flag, const std::string& text) {
    counts.clear();
    for (const std::string& part : split_list(text)) counts.push_back(parse_integer(flag, part, min, max));
  };
  return add_list(app, names, "INTS", read, help)->default_str(fmt::format("{}", fmt::join(counts, ",")));
}

std::vector<BenchSetup> make_setups(const BenchLists& lists, models::SplitMode mode) {
  try {
    return combine(lists, mode);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

int most_together(const std::vector<BenchSetup>& setups, models::SplitMode mode) {
  int most = 1;
  for (const BenchSetup& setup : setups) most = std::max(most, devices_together(mode, setup.devices.group_sizes));
  return most;
}

std::vector<BenchTest> make_tests(const BenchLists& lists) {
  std::vector<BenchTest> tests;
  const auto add = [&](const BenchTest& test) {
    if (test.prompt + test.generate == 0) return;
    check_test(test);
    tests.push_back(test);
  };
  for (const int64_t batch : lists.batches) {
    for (const int64_t ubatch : lists.ubatches) {
      for (const int64_t depth : lists.depths) {
        for (const BenchTest& test : request_tests(lists)) {
          add({test.prompt, test.generate, depth, batch, ubatch, test.parallel});
        }
        if (!lists.parallels.empty()) continue;
        for (const int64_t count : lists.prompts) add({count, 0, depth, batch, ubatch});
        for (const int64_t count : lists.generates) add({0, count, depth, batch, ubatch});
      }
    }
  }
  if (tests.empty()) throw UsageError("nothing to measure; give a number of tokens above 0 with -p or -n");
  return tests;
}

tuning::Workload most_of(const std::vector<BenchTest>& tests) {
  tuning::Workload most{0, 0, 0};
  for (const BenchTest& test : tests) {
    most = {std::max(most.prompt, test.prompt), std::max(most.generate, test.generate),
            std::max(most.depth, test.depth), std::max(most.sequences, test.parallel)};
  }
  return most;
}

void BenchFlags::add_to(CLI::App& app, const std::string& devices_help) {
  lists.devices.clear();
  app.add_option("-m,--model", lists.models, "GGUF file of a model; may be repeated; -m or -hf is required")
      ->each([](const std::string& text) { check_file_name("--model", text); })
      ->type_name("FILE")
      ->allow_extra_args(false);
  add_repositories(app,
                   "Repository of a model on huggingface.co, OWNER/REPO or OWNER/REPO:QUANT, instead of -m; may "
                   "be repeated; missing files are downloaded");
  app.add_option("--devices", lists.devices, devices_help)->type_name("NAMES")->allow_extra_args(false);
  app.add_option("--tensor-split", lists.ratios,
                 "Share of the model for each device, such as 3,1 (default: even); auto: the shares predicted to be "
                 "fastest. Separate several lists by semicolons, or repeat the flag; each list applies to device lists "
                 "of the same length")
      ->type_name("SHARES")
      ->allow_extra_args(false);
  add_counts(app, "-p,--n-prompt", lists.prompts, 0, kMostTokens,
             "Prompt lengths in tokens, such as 512,1024; 0: no prompt");
  add_counts(app, "-n,--n-gen", lists.generates, 0, kMostTokens,
             "Numbers of tokens to generate, such as 128,256; 0: no generation");
  add_counts(app, "-d,--n-depth", lists.depths, 0, kMostTokens,
             "Numbers of tokens already in the KV cache, such as 0,4096");
  add_counts(app, "-b,--batch-size", lists.batches, 1, kMostTokens,
             "Maximum numbers of tokens per batch, such as 512,2048; the smaller of -b and -ub applies");
  add_counts(app, "--ubatch-size", lists.ubatches, 1, kMostTokens,
             "Maximum numbers of tokens per batch, such as 128,512; the smaller of -b and -ub applies");
  add_counts(app, "--parallel", lists.parallels, 1, kMostTokens,
             "Numbers of simultaneous requests, such as 1,8,32; each has -p and -n tokens")
      ->default_str("");
  devices.split.add_to(app);
  devices.host.add_to(app);
  const auto read_format = [this](const std::string& flag, const std::string& text) {
    format = parse_bench_format(flag, text);
  };
  add_parsed(app, "-o,--output", "FORMAT", read_format, "Output format: md, json or jsonl")->default_str("md");
}

models::SessionOptions BenchFlags::session(const BenchTest& test) const {
  models::SessionOptions session = context.session();
  if (context.context == 0) session.context = test.length();
  session.batch = std::min(test.batch, test.ubatch);
  session.candidates = candidates;
  return session;
}

models::SessionOptions BenchFlags::session(const BenchTest& test, const models::Hparams& hparams,
                                           size_t devices) const {
  models::SessionOptions options = session(test);
  if (test.parallel == 0) return options;
  if (context.context == 0) options.context = cache_tokens(test, hparams, devices);
  options.sequences = test.parallel;
  return models::engine_options(options);
}

DeviceFlags BenchFlags::devices_of(const BenchSetup& setup) const {
  DeviceFlags one = devices;
  one.names = setup.devices.names;
  one.group_sizes = setup.devices.group_sizes;
  one.ratio = setup.ratio;
  one.threads = setup.threads;
  return one;
}

tuning::Asked BenchFlags::asked(const BenchSetup& setup, models::DeviceGroups groups,
                                const std::vector<BenchTest>& tests) const {
  tuning::Asked asked = devices_of(setup).asked(std::move(groups));
  const tuning::Workload most = most_of(tests);
  asked.way_rows = tuning::rows_seen(most);
  for (const BenchTest& test : tests) asked.way_tokens = std::max(asked.way_tokens, test.parallel);
  if (most.generate > 0) return asked;
  for (const BenchTest& test : tests) {
    asked.way_tokens = std::max(asked.way_tokens, std::min({test.batch, test.ubatch, test.prompt}));
  }
  return asked;
}

BenchColumns BenchFlags::columns(const std::vector<BenchSetup>& setups, const std::vector<BenchTest>& tests) const {
  BenchColumns columns;
  const BenchTest& deepest = *std::max_element(
      tests.begin(), tests.end(), [](const BenchTest& a, const BenchTest& b) { return a.length() < b.length(); });
  for (const std::string& path : lists.models) {
    const auto model = models::open_model(path);
    columns.model_width = std::max(columns.model_width, describe_model(*model).size());
    devices.split.warn_of_ways(*model, most_together(setups, devices.split.mode));
    const int64_t context = models::session_size(model->hparams, session(deepest)).context;
    warn_of_context(model->hparams, deepest.parallel > 0 ? deepest.length() : context);
  }
  columns.threads = lists.threads != BenchLists().threads;
  columns.batch = lists.batches != BenchLists().batches;
  columns.ubatch = lists.ubatches != BenchLists().ubatches;
  columns.cache_types = context.dtype_k != ContextFlags().dtype_k || context.dtype_v != ContextFlags().dtype_v;
  columns.split_mode = devices.split.mode != models::SplitMode::kTensor;
  columns.layers = devices.host.device_layers >= 0;
  columns.ratio_width = width_of_shares(setups);
  for (const BenchSetup& setup : setups) {
    columns.devices_width = std::max(columns.devices_width, setup.devices.shown().size());
    columns.shares_follow = columns.shares_follow || setup.ratio == kAutoRatio;
  }
  for (const BenchTest& test : tests) columns.test_width = std::max(columns.test_width, test.name().size());
  return columns;
}

BenchResult result_of(const BenchFlags& flags, const BenchSetup& setup, const models::Model& model,
                      const tuning::Asked& asked, std::span<Device* const> everything) {
  BenchResult result;
  result.setup = setup;
  result.model_type = describe_model(model);
  result.model_bytes = model.file.tensor_bytes();
  result.model_parameters = count_parameters(model.file);
  result.cpu_info = describe(everything, true);
  result.gpu_info = describe(everything, false);
  result.session = flags.session({});
  result.placement = tuning::placement_options(asked.fixed, asked.placement);
  result.mmap = asked.load.use_mapping;
  result.repack = asked.load.repack;
  return result;
}

}  // namespace shoal::tools
