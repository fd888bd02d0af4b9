#include <exception>
#include <string>
#include <vector>

#include "tools/program.h"

int main(int argc, char** argv) {
  try {
    return shoal::tools::run_program(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    return shoal::tools::report(error.what(), shoal::tools::kFailed);
  }
}
