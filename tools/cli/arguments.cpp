#include "tools/cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tools/cli/help.h"

namespace shoal::tools {
namespace {

/// Short flags of llama.cpp that have several letters. CLI11 would read each letter as a flag.
struct ShortFlag {
  std::string_view brief;
  std::string_view full;
};
constexpr std::array<ShortFlag, 16> kShortFlags{{
    {"-hf", "--hf-repo"},
    {"-dev", "--devices"},
    {"-ts", "--tensor-split"},
    {"-ub", "--ubatch-size"},
    {"-sm", "--split-mode"},
    {"-np", "--parallel"},
    {"-ngl", "--n-gpu-layers"},
    {"-nkvo", "--no-kv-offload"},
    {"-ot", "--override-tensor"},
    {"-cmoe", "--cpu-moe"},
    {"-ncmoe", "--n-cpu-moe"},
    {"-fit", "--fit"},
    {"-fitc", "--fit-ctx"},
    {"-fitt", "--fit-target"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
}};

/// Other names that llama.cpp uses for flags of shoal. If the second name is "", the flag is ignored, because the flag
/// would not change the result.
constexpr std::pair<std::string_view, std::string_view> kForeignFlags[] = {
    {"-s", "--seed"},
    {"--temperature", "--temp"},
    {"--n-predict", "--predict"},
    {"--device", "--devices"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"--chat-template-file", "--template"},
    {"--repeat-last-n", "--penalty-last-n"},
    {"-l", "--logit-bias"},
    {"-ctxcp", "--ctx-checkpoints"},
    {"-kvo", "--no-kv-offload=0"},
    {"--kv-offload", "--no-kv-offload=0"},
    {"--op-offload", "--no-op-offload=0"},
    {"-nopo", "--no-op-offload"},
    {"-nr", "--no-repack"},
    {"-mmp", "--mmap"},
    {"-fa", ""},  // may be followed by on, auto or 1
    {"--flash-attn", ""},
    {"--jinja", ""},
    {"--no-display-prompt", ""},
};

/// Whether a number is attached to a one-letter flag: true for "-c64" and "-n-1", false for "-ngl".
bool is_number_attached(std::string_view arg) {
  return arg.find_first_not_of("0123456789+-.", 2) == std::string_view::npos;
}

/// All names of the command's flags, including the short ones of kShortFlags.
std::vector<std::string> all_names(const CLI::App& command) {
  std::vector<std::string> all;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> names = names_of(*option);
    all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

/// The name under which CLI11 knows a flag, without "=value". Returns "" for a flag without effect, and nullopt if the
/// command has no such flag.
std::optional<std::string> full_name(const CLI::App& command, const std::string& flag, bool has_value) {
  const auto has = [&command](std::string_view name) {
    return command.get_option_no_throw(std::string(name.substr(0, name.find('=')))) != nullptr;
  };
  for (const ShortFlag& known : kShortFlags) {
    if (flag == known.brief && has(known.full)) return std::string(known.full);
  }
  const bool attached = flag.size() > 2 && !flag.starts_with("--") && !has_value && is_number_attached(flag);
  if (has(attached ? flag.substr(0, 2) : flag)) return flag;
  for (const auto& [foreign, own] : kForeignFlags) {
    if (flag == foreign && (own.empty() || has(own))) return std::string(own);
  }
  return std::nullopt;
}

/// Translates the arguments in one pass.
class Speller {
 public:
  Speller(const CLI::App& command, const std::vector<std::string>& args) : command_(command), args_(args) {}

  std::vector<std::string> run() {
    for (; next_ < args_.size(); ++next_) {
      if (args_[next_] == "--") break;
      args_[next_].starts_with('-') ? take_flag() : others_.push_back(args_[next_]);
    }
    take_others();
    out_.insert(out_.end(), args_.begin() + static_cast<std::ptrdiff_t>(next_), args_.end());
    return std::move(out_);
  }

 private:
  void take_flag() {
    const size_t equals = args_[next_].find('=');
    const std::string flag = args_[next_].substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = args_[next_].substr(equals + 1);
    const std::string* const following = next_ + 1 < args_.size() ? &args_[next_ + 1] : nullptr;
    const std::optional<std::string> name = full_name(command_, flag, value.has_value());
    if (!name) fail<InvalidArgument>("there is no flag {}{}", flag, did_you_mean(flag, all_names(command_)));
    if (name->empty()) return pass_over(flag, value ? &*value : following, value.has_value());
    has_model_ |= *name == "-m" || *name == "--model" || *name == "--hf-repo";
    const CLI::Option* const option = command_.get_option_no_throw(*name);
    const bool needs_value = option != nullptr && option->get_items_expected_min() > 0;
    // llama-bench accepts a number after a switch: "-nkvo 0".
    const bool is_switch = option != nullptr && !needs_value;
    const bool is_switched = is_switch && following != nullptr && (*following == "0" || *following == "1");
    if (!value && following != nullptr && (needs_value || is_switched)) value = args_[++next_];
    out_.push_back(value && !needs_value ? fmt::format("{}={}", *name, *value) : *name);
    if (value && needs_value) out_.push_back(*value);
  }

  void pass_over(const std::string& flag, const std::string* value, bool is_attached) {
    if (flag != "-fa" && flag != "--flash-attn") return;
    const bool is_on = value != nullptr && (*value == "on" || *value == "auto" || *value == "1");
    const bool stands_alone = !is_attached && (value == nullptr || value->starts_with('-'));
    require<InvalidArgument>(is_on || stands_alone,
                             "{} {} is not supported, because attention is always flash attention; omit the flag", flag,
                             value != nullptr ? *value : "");
    if (is_on && !is_attached) ++next_;
  }

  /// A single argument that belongs to no flag is the model file, unless -m is given. For commands without -m, this
  /// argument is the value of -hf.
  void take_others() {
    if (others_.empty()) return;
    const char* const flag = command_.get_option_no_throw("--model") != nullptr ? "--model" : "--hf-repo";
    if (others_.size() != 1 || has_model_ || command_.get_option_no_throw(flag) == nullptr) {
      fail<InvalidArgument>("unexpected argument '{}'; a value with blanks needs quotes, as in -p \"two words\"",
                            fmt::join(others_, " "));
    }
    out_.insert(out_.end(), {flag, others_.front()});
  }

  const CLI::App& command_;
  const std::vector<std::string>& args_;
  size_t next_ = 0;
  bool has_model_ = false;
  std::vector<std::string> out_, others_;
};

}  // namespace

std::string short_form(const std::string& flag) {
  for (const ShortFlag& known : kShortFlags) {
    if (flag == known.full) return std::string(known.brief);
  }
  return {};
}

std::vector<std::string> spell_out(const CLI::App& command, const std::vector<std::string>& args) {
  return Speller(command, args).run();
}

namespace {

std::string_view without_dashes(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('-'), text.size()));
}

/// Number of edits between two texts. The distance between "tmep" and "temp" is 1.
size_t edit_distance(std::string_view one, std::string_view other) {
  // Row i contains the distances from the first i characters of `one` to each prefix of `other`. Only the last three
  // rows are needed.
  std::vector<size_t> before, last, row(other.size() + 1);
  for (size_t j = 0; j <= other.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= one.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= other.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view text, std::span<const std::string> known) {
  const std::string_view bare = without_dashes(text);
  if (bare.size() < 3) return "";
  size_t least = bare.size() < 6 ? 2 : 3;
  std::string best, begun;
  int beginnings = 0;
  for (const std::string& name : known) {
    const std::string_view other = without_dashes(name);
    const size_t distance = edit_distance(bare, other);
    if (distance < least) least = distance, best = name;
    if (other.starts_with(bare)) ++beginnings, begun = name;
  }
  if (beginnings > 0) best = beginnings == 1 ? begun : "";
  return best.empty() ? "" : fmt::format(" (did you mean {}?)", best);
}

}  // namespace shoal::tools
