// StopText ends a generated text before the first stop string. The text arrives in pieces. StopText holds back text
// that may be the beginning of a stop string, so printed text never has to be removed.
//
//   StopText text({"\n\n", "User:"});
//   text.push("Yes.\nUs")  ->  "Yes.\n"      text.push("ers")  ->  "Users"      text.push(" User:x")  ->  " ", found()
//
// The concatenated results do not depend on the lengths of the pieces. Single-threaded value type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::models {

class StopText {
 public:
  /// Throws InvalidArgument if a stop string is empty, because an empty string matches everywhere.
  explicit StopText(std::vector<std::string> stops);
  /// Adds text and returns the text that can be printed now. Returns "" once found() is true.
  std::string push(std::string_view text);
  /// Marks the end of the text. Returns the text that push() held back.
  std::string finish();
  bool found() const { return found_; }

 private:
  size_t first_possible() const;

  std::vector<std::string> stops_;
  std::string held_;  // text held back; after each call, it is shorter than the longest stop string
  bool found_ = false;
};

}  // namespace shoal::models
