// How hyper-parameters are read from a file: keys below the prefix of the architecture, with their ranges checked. What
// architectures add (Architecture::read) is written with it. Refers to the file; a value for as long as one is read.
// It remembers which keys were asked for, so that the others can be named (unread_keys).
//
//   void read_gemma2(const HparamsReader& in, Hparams& h) {
//     read_windows(in, h, 4096, 2);
//     h.logit_softcap = in.not_negative_or("final_logit_softcapping", 30.0f);
//   }
#pragma once

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "models/arch/hparams.h"

namespace shoal::models {

/// Reads keys below one prefix and checks their ranges.
class HparamsReader {
 public:
  /// Counts are kept below 2^30 so that the product of any two of them fits into int64.
  static constexpr int64_t kLargest = int64_t{1} << 30;

  HparamsReader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string key(std::string_view name) const {
    asked_.emplace(name);
    return prefix_ + "." + std::string(name);
  }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  /// The same with a value other than zeros, which mean "none".
  bool is_set(std::string_view name) const;

  int64_t count(std::string_view name, int64_t most = kLargest) const {
    int64_t value = file_.get_positive(key(name));
    within(name, value, most);
    return value;
  }
  int64_t count_or(std::string_view name, int64_t fallback) const { return has(name) ? count(name) : fallback; }

  /// Of each layer: the file has one number for all of them, or an array.
  /// `least` is 1 or, where layers may have none of it, 0.
  std::vector<int64_t> counts(std::string_view name, int64_t layers, int64_t least = 1) const {
    const GgufValue* value = file_.find_value(key(name));
    if (value == nullptr || value->type != GgufType::kArray) {
      return std::vector<int64_t>(static_cast<size_t>(layers), count(name));
    }
    const std::vector<int64_t> all = numbers(name, *value);
    need_layers(name, all.size(), layers);
    for (const int64_t one : all) {
      need(one >= least, name, "should be at least {} in every layer, found {}", least, one);
      within(name, one, kLargest);
    }
    return all;
  }

  /// Absent counts as 0, which means "none of these".
  int64_t count_or_zero(std::string_view name) const {
    return file_.get_or<uint32_t>(key(name), 0) == 0 ? 0 : count(name);
  }

  /// The same, but absent or 0 means `fallback`.
  int64_t set_count_or(std::string_view name, int64_t fallback) const {
    const int64_t value = count_or_zero(name);
    return value == 0 ? fallback : value;
  }
  /// 0 is a number that files use for "none"; absent means `fallback`.
  int64_t count_or_zero_or(std::string_view name, int64_t fallback) const {
    return has(name) ? count_or_zero(name) : fallback;
  }
  /// A flag for each layer: an array of flags or of numbers, or a period n of which all but the last are "yes". Absent:
  /// period `fallback`; 0: no for all.
  std::vector<bool> pattern_or(std::string_view name, int64_t layers, int64_t fallback) const;

  float positive(std::string_view name) const { return checked(name, file_.get<float>(key(name))); }
  float positive_or(std::string_view name, float fallback) const {
    return checked(name, file_.get_or<float>(key(name), fallback));
  }
  /// 0 is a number that files use for "none".
  float not_negative_or(std::string_view name, float fallback) const {
    const float value = file_.get_or<float>(key(name), fallback);
    need(std::isfinite(value) && value >= 0.0f, name, "should be a number from 0 on, found {}", value);
    return value;
  }
  /// A factor; 1 where the file has none, or 0 for "none".
  float factor(std::string_view name) const {
    const float value = not_negative_or(name, 0.0f);
    return value == 0.0f ? 1.0f : value;
  }
  /// -1 is a number that files use for "not set".
  float set_or(std::string_view name, float fallback) const {
    return file_.get_or<float>(key(name), -1.0f) == -1.0f ? fallback : not_negative_or(name, fallback);
  }
  bool flag_or(std::string_view name, bool fallback) const { return file_.get_or<bool>(key(name), fallback); }
  std::string text_or(std::string_view name, std::string fallback) const {
    return file_.get_or<std::string>(key(name), std::move(fallback));
  }

  /// Keys of the file that should say how attention, rope, experts or states work, but that were not asked for. Zeros
  /// are left out, as they mean "none of these", and so are keys that change nothing.
  std::vector<std::string> unread_keys() const;

  template <class... Args>
  void need(bool condition, std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail<InvalidArgument>("{}: key '{}' {}; convert the model again", file_.path(), printable(key(name)),
                          fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  /// Of an array of i32 or u32.
  std::vector<int64_t> numbers(std::string_view name, const GgufValue& value) const {
    return value.element == GgufType::kI32 ? widened<int32_t>(name) : widened<uint32_t>(name);
  }
  template <class T>
  std::vector<int64_t> widened(std::string_view name) const {
    const std::vector<T> stored = file_.get_array<T>(key(name));
    return {stored.begin(), stored.end()};
  }
  /// Arrays have entries for layers of draft heads, too.
  void need_layers(std::string_view name, size_t found, int64_t layers) const {
    const bool fits = found == static_cast<size_t>(layers) || found == file_.get<uint32_t>(key("block_count"));
    need(fits, name, "has {} entries for {} layers", found, layers);
  }
  void within(std::string_view name, int64_t value, int64_t most) const {
    need(value <= most, name, "is {}, more than the {} that can be right", value, most);
  }
  float checked(std::string_view name, float value) const {
    need(std::isfinite(value) && value > 0.0f, name, "should be a positive number, found {}", value);
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> asked_;
};

/// Of the convolution of a recurrent layer; models have 3 or 4.
inline constexpr int64_t kMostTaps = 1024;

/// What the rotation multiplies by itself; files have the whole magnitude (attention_factor of transformers).
float yarn_magnitude(const RopeParams& rope);

/// YaRN's keys, whatever rope.scaling.type says. Sets h.rope.
void scale_yarn(const HparamsReader& in, Hparams& h);

/// Queries grow by attention.temperature_scale for each attention.temperature_length positions.
void read_temperature(const HparamsReader& in, Hparams& h);

/// Which layers attend to the last attention.sliding_window positions only: sliding_window_pattern says so for each, or
/// is a period n, of which the last layer sees everything. `window` and `period` are what absent keys mean; without a
/// window, or with a period of 0, no layer has one.
void read_windows(const HparamsReader& in, Hparams& h, int64_t window, int64_t period);

/// Layers have the width of one expert: expert_feed_forward_length or, in files without, what the experts used by a
/// token have of feed_forward_length. Throws for a model without experts.
void read_expert_width(const HparamsReader& in, Hparams& h);

/// The first leading_dense_block_count layers have no experts, and a width of feed_forward_length.
void read_leading_dense(const HparamsReader& in, Hparams& h);

}  // namespace shoal::models
