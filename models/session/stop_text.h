// Stop strings: a text that comes in pieces ends where one of them is complete. What may be the beginning of one is
// held back until that is decided, so that nothing that was shown has to be taken back.
//
//   StopText text({"\n\n", "User:"});
//   text.push("Yes.\nUs")  ->  "Yes.\n"      text.push("ers")  ->  "Users"      text.push(" User:x")  ->  " ", found()
//
// The string that is complete first ends the text, however the text is cut into pieces. Single-threaded value type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::models {

class StopText {
 public:
  /// Throws InvalidArgument for an empty string, which would be everywhere.
  explicit StopText(std::vector<std::string> stops);
  /// What can be shown now; after found() nothing.
  std::string push(std::string_view text);
  /// The text has ended: what was held back.
  std::string finish();
  bool found() const { return found_; }

 private:
  size_t first_possible() const;

  std::vector<std::string> stops_;
  std::string held_;  // shorter than the longest stop string, between calls
  bool found_ = false;
};

}  // namespace shoal::models
