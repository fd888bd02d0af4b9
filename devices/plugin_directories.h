// The directories that are searched for plug-ins.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace shoal {

/// The first function returns the directories in SHOAL_PLUGIN_PATH (separated by colons). The second function returns
/// the program's own directory, ../lib/shoal relative to that directory, and the folder "bin" next to the shared object
/// with this code. The directories need not exist.
std::vector<std::filesystem::path> plugin_directories_from_environment();
std::vector<std::filesystem::path> plugin_directories_of_program();
/// The directories from both functions above, in this order.
std::vector<std::filesystem::path> plugin_directories();

/// A file in these directories that is a shared object but provides no devices (processes/join.h).
inline constexpr std::string_view kTransportFile = "libshoal-mpi.so";

}  // namespace shoal
