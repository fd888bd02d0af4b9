// Reads the hyper-parameters of one architecture from a file and checks their ranges. The keys of an architecture have
// its name as prefix. Functions of the type ReadHparams use a reader. A reader refers to the file and exists only
// during one call of read_hparams(). The reader records which keys were read, so that unread_keys() can name all other
// keys.
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

class HparamsReader {
 public:
  /// Counts are at most 2^30, so that the product of two counts fits into int64.
  static constexpr int64_t kLargest = int64_t{1} << 30;

  HparamsReader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string key(std::string_view name) const {
    asked_.emplace(name);
    return prefix_ + "." + std::string(name);
  }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  /// Whether the key is present and its value is not zero. Zero means "none".
  bool is_set(std::string_view name) const;

  int64_t count(std::string_view name, int64_t most = kLargest) const {
    int64_t value = file_.get_positive(key(name));
    within(name, value, most);
    return value;
  }
  int64_t count_or(std::string_view name, int64_t fallback) const { return has(name) ? count(name) : fallback; }

  /// Returns one count per layer. The file stores one number for all layers, or an array. `least` is the smallest valid
  /// count. It is 0 for counts that may be 0 in some layers.
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

  /// Returns 0 if the key is absent. 0 means "none".
  int64_t count_or_zero(std::string_view name) const {
    return file_.get_or<uint32_t>(key(name), 0) == 0 ? 0 : count(name);
  }

  /// Returns `fallback` if the key is absent or 0.
  int64_t set_count_or(std::string_view name, int64_t fallback) const {
    const int64_t value = count_or_zero(name);
    return value == 0 ? fallback : value;
  }
  /// Returns `fallback` if the key is absent. 0 in the file means "none".
  int64_t count_or_zero_or(std::string_view name, int64_t fallback) const {
    return has(name) ? count_or_zero(name) : fallback;
  }
  /// Returns one flag per layer. The file stores an array of flags, or a period of n layers. With a period, the flag of
  /// the last layer of each period is false, and all other flags are true. If the key is absent, `fallback` is the
  /// period. With period 0, all flags are false.
  std::vector<bool> pattern_or(std::string_view name, int64_t layers, int64_t fallback) const;

  float positive(std::string_view name) const { return checked(name, file_.get<float>(key(name))); }
  float positive_or(std::string_view name, float fallback) const {
    return checked(name, file_.get_or<float>(key(name), fallback));
  }
  /// 0 in the file means "none".
  float not_negative_or(std::string_view name, float fallback) const {
    const float value = file_.get_or<float>(key(name), fallback);
    need(std::isfinite(value) && value >= 0.0f, name, "should be a number >= 0, found {}", value);
    return value;
  }
  /// A factor; 1 if the key is absent or 0.
  float factor(std::string_view name) const {
    const float value = not_negative_or(name, 0.0f);
    return value == 0.0f ? 1.0f : value;
  }
  /// Returns `fallback` if the key is absent or -1, which means "not set".
  float set_or(std::string_view name, float fallback) const {
    return file_.get_or<float>(key(name), -1.0f) == -1.0f ? fallback : not_negative_or(name, fallback);
  }
  bool flag_or(std::string_view name, bool fallback) const { return file_.get_or<bool>(key(name), fallback); }
  std::string text_or(std::string_view name, std::string fallback) const {
    return file_.get_or<std::string>(key(name), std::move(fallback));
  }

  /// Returns the keys about attention, RoPE, experts and states that were not read. Omits keys with the value 0, which
  /// means "none", and keys without effect.
  std::vector<std::string> unread_keys() const;

  template <class... Args>
  void need(bool condition, std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail<InvalidArgument>("{}: key '{}' {}; convert the model again", file_.path(), printable(key(name)),
                          fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  /// Reads an array of i32 or u32 as int64.
  std::vector<int64_t> numbers(std::string_view name, const GgufValue& value) const {
    return value.element == GgufType::kI32 ? widened<int32_t>(name) : widened<uint32_t>(name);
  }
  template <class T>
  std::vector<int64_t> widened(std::string_view name) const {
    const std::vector<T> stored = file_.get_array<T>(key(name));
    return {stored.begin(), stored.end()};
  }
  /// Checks the number of entries of an array. The array may also have entries for draft layers.
  void need_layers(std::string_view name, size_t found, int64_t layers) const {
    const bool fits = found == static_cast<size_t>(layers) || found == file_.get<uint32_t>(key("block_count"));
    need(fits, name, "has {} entries for {} layers", found, layers);
  }
  void within(std::string_view name, int64_t value, int64_t most) const {
    need(value <= most, name, "is {}; the largest valid value is {}", value, most);
  }
  float checked(std::string_view name, float value) const {
    need(std::isfinite(value) && value > 0.0f, name, "should be a positive number, found {}", value);
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> asked_;
};

/// Maximum number of taps of the convolution in a recurrent layer. Models have 3 or 4 taps.
inline constexpr int64_t kMostTaps = 1024;

/// The magnitude that the rope op itself applies. Files store the total magnitude (attention_factor of transformers).
float yarn_magnitude(const RopeParams& rope);

/// Reads YaRN's keys for any rope.scaling.type. Sets h.rope.
void scale_yarn(const HparamsReader& in, Hparams& h);

/// Reads attention.temperature_scale and attention.temperature_length (AttentionTemperature).
void read_temperature(const HparamsReader& in, Hparams& h);

/// Sets the windows of layers that attend only to the last attention.sliding_window positions. sliding_window_pattern
/// is a flag per layer or a period n. With a period, the last layer of each period has no window. `window` and `period`
/// are the defaults for absent keys. If the window or the period is 0, no layer has a window.
void read_windows(const HparamsReader& in, Hparams& h, int64_t window, int64_t period);

/// Sets `ff` of all layers to the number of columns of one expert. This number is expert_feed_forward_length if the
/// file has this key. Otherwise, the number is feed_forward_length divided by the number of experts that a token uses.
/// Throws for a model without experts.
void read_expert_width(const HparamsReader& in, Hparams& h);

/// Makes the first leading_dense_block_count layers dense. These layers have feed_forward_length columns and no
/// experts.
void read_leading_dense(const HparamsReader& in, Hparams& h);

}  // namespace shoal::models
