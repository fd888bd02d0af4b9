// Sets environment variables for the lifetime of an object.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace shoal::test {

/// Sets variables. A variable without a value is removed from the environment. The destructor restores the old values.
/// While the constructor or destructor runs, no other thread may read the environment.
class Environment {
 public:
  using Value = std::optional<std::string>;

  Environment(const std::string& name, const Value& value) { set(name, value); }
  explicit Environment(std::initializer_list<std::pair<std::string, Value>> all) {
    for (const auto& [name, value] : all) set(name, value);
  }
  ~Environment() {
    for (const auto& [name, value] : before_) put(name, value);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  void set(const std::string& name, const Value& value) {
    const char* before = std::getenv(name.c_str());
    before_.emplace(name, before != nullptr ? Value(before) : std::nullopt);
    put(name, value);
  }

 private:
  static void put(const std::string& name, const Value& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }

  std::map<std::string, Value> before_;
};

}  // namespace shoal::test
