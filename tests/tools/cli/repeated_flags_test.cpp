// A repeated list flag collects all values. Any other repeated flag keeps only the last value.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/tools/child.h"
#include "tools/cli/command.h"
#include "tools/cli/help.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Values = std::vector<std::string>;

/// The long names of all flags that take lists.
const std::set<std::string> kLists{"--override-tensor", "--stop",        "--logit-bias",  "--template-var",
                                   "--plugin",          "--cors-origin", "--allowed-host"};
const std::map<std::string, std::set<std::string>> kListsOfCommands{
    {"bench",
     {"--model", "--hf-repo", "--devices", "--tensor-split", "--n-prompt", "--n-gen", "--n-depth", "--parallel",
      "--batch-size", "--ubatch-size", "--threads"}},
    {"simulate",
     {"--model", "--hf-repo", "--devices", "--device-counts", "--tensor-split", "--n-prompt", "--n-gen", "--n-depth",
      "--parallel", "--batch-size", "--ubatch-size"}},
    {"bench-comm", {"--op", "--dtype", "--comm"}},
    {"probe", {"--dtypes"}}};

bool is_list(const std::string& command, const std::string& name) {
  const auto own = kListsOfCommands.find(command);
  return kLists.contains(name) || (own != kListsOfCommands.end() && own->second.contains(name));
}

/// Two valid values of a flag. If the flag's name is not in `kByName`, the values come from `kByType`.
Values two_values(const std::string& name, const std::string& type) {
  static const std::map<std::string, Values> kByName{
      {"--comm", {"host", "auto"}},   {"--op", {"all_reduce", "all_gather"}},  {"--dtype", {"f32", "f16"}},
      {"--output", {"json", "text"}}, {"--expert-split", {"inside", "whole"}}, {"--check", {"1", "0"}},
      {"--hf-repo", {"a/b", "c/d"}},  {"--objective", {"prompt", "mix"}},      {"--latent-split", {"rows", "mirrored"}},
      {"--step-factor", {"2", "3"}}};
  static const std::map<std::string, Values> kByType{{"FILE", {"a", "b"}},
                                                     {"TEXT", {"a", "b"}},
                                                     {"IDS", {"1", "2"}},
                                                     {"INT", {"1", "2"}},
                                                     {"INTS", {"1", "2"}},
                                                     {"NUMBER", {"0.5", "1"}},
                                                     {"BYTES", {"1K", "2K"}},
                                                     {"TYPE", {"f16", "f32"}},
                                                     {"TYPES", {"q4_0", "q6_K"}},
                                                     {"NAME", {"a", "b"}},
                                                     {"NAMES", {"CPU0", "CPU1"}},
                                                     {"SHARES", {"1", "2"}},
                                                     {"MODE", {"layer", "tensor"}},
                                                     {"PATTERN=DEVICE", {"a=CPU", "b=CPU"}},
                                                     {"ID=VALUE", {"1=2", "2=3"}},
                                                     {"NAME=VALUE", {"a=1", "b=2"}},
                                                     {"on|off", {"on", "off"}},
                                                     {"ADDRESS", {"127.0.0.1", "::1"}},
                                                     {"ORIGIN", {"http://a", "https://b"}},
                                                     {"PP,TG", {"1,2", "3,4"}},
                                                     {"RATE,DELAY", {"10gbit,20us", "100gbit,20us"}}};
  const auto named = kByName.find(name);
  if (named != kByName.end()) return named->second;
  const auto typed = kByType.find(type);
  if (typed == kByType.end()) ADD_FAILURE() << name << ": no values of type " << type << "; add two values to kByType";
  return typed == kByType.end() ? Values{"a", "b"} : typed->second;
}

/// Parses a command line without running the command.
struct Parsed {
  CLI::App app;
  CLI::App* command;
  explicit Parsed(const std::string& name) {
    define_program(app, [](const CommandBody&) {});
    command = app.get_subcommand(name);
    for (CLI::Option* option : command->get_options()) option->required(false);
  }
  Values values(const std::string& flag, const Values& given) {
    Values args{command->get_name()};
    for (const std::string& value : given) args.insert(args.end(), {flag, value});
    return parse(flag, args);
  }
  Values parse(const std::string& flag, Values args) {
    std::reverse(args.begin(), args.end());
    app.parse(args);
    return command->get_option(flag)->reduced_results();
  }
};

std::vector<std::string> commands() {
  CLI::App app;
  define_program(app, [](const CommandBody&) {});
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

TEST(RepeatedFlags, OnlyListFlagsKeepEarlierValues) {
  int seen = 0;
  for (const std::string& name : commands()) {
    const Parsed all(name);
    for (const CLI::Option* option : all.command->get_options()) {
      if (option->get_lnames().empty() || option->get_lnames().back() == "help") continue;
      const std::string flag = "--" + option->get_lnames().back();
      SCOPED_TRACE(fmt::format("shoal {} {}", name, flag));
      ++seen;
      if (option->get_items_expected_min() == 0) {
        for (const std::string& first : option->get_lnames()) {
          const Values once = Parsed(name).parse(flag, {name, flag});
          EXPECT_EQ(Parsed(name).parse(flag, {name, "--" + first, flag}), once);
        }
        continue;
      }
      Values given = two_values(flag, option->get_type_name());
      const bool is_table = name == "bench" || name == "simulate";
      if (flag == "--output" && is_table) given.back() = "md";
      const Values expected = is_list(name, flag) ? given : Values{given.back()};
      EXPECT_EQ(Parsed(name).values(flag, given), expected);
    }
  }
  EXPECT_GT(seen, 150);
}

TEST(RepeatedFlags, BenchMeasuresTestsOfAllRepeatedFlags) {
  const Finished finished = run({"bench", "-m", kModel, "-p", "4", "-p", "8,16", "-n", "0", "-n", "2", "-r", "3", "-r",
                                 "1", "-o", "md", "-o", "jsonl"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::vector<std::string> rows = lines(finished.out);
  ASSERT_EQ(rows.size(), 4u) << finished.out;
  for (const auto& [row, test] : {std::pair(0, "\"pp4\""), {1, "\"pp8\""}, {2, "\"pp16\""}, {3, "\"tg2\""}}) {
    EXPECT_THAT(rows[static_cast<size_t>(row)], HasSubstr(test));
  }
}

TEST(RepeatedFlags, AllRepeatedTensorOverridesApply) {
  const auto bytes_on_host = [](const std::vector<std::string>& more) {
    std::vector<std::string> args{"plan", "-m", kModel, "-dev", "CPU1"};
    args.insert(args.end(), more.begin(), more.end());
    const auto plan = run_json(args);
    for (const auto& use : plan["memory"]) {
      if (use["device"] == "CPU0") return use["weights"].get<int64_t>();
    }
    return int64_t{0};
  };
  const int64_t up = bytes_on_host({"-ot", "ffn_up=CPU"}), down = bytes_on_host({"-ot", "ffn_down=CPU"});
  EXPECT_GT(up, 0);
  const int64_t both = bytes_on_host({"-ot", "ffn_up=CPU", "-ot", "ffn_down=CPU"});
  EXPECT_GT(both, std::max(up, down));
  EXPECT_EQ(both, bytes_on_host({"-ot", "ffn_up=CPU,ffn_down=CPU"}));
}

}  // namespace
}  // namespace shoal::tools
