// The directories in which plug-ins are searched.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace shoal {

/// The first function returns the directories in SHOAL_PLUGIN_PATH (separated by colons). The second function returns
/// the program's own directory, and ../lib/shoal relative to that directory. The directories need not exist.
std::vector<std::filesystem::path> plugin_directories_from_environment();
std::vector<std::filesystem::path> plugin_directories_of_program();
/// All of these directories, in this order.
std::vector<std::filesystem::path> plugin_directories();

/// A file in these directories that is a plug-in but provides no devices (processes/join.h).
inline constexpr std::string_view kTransportFile = "libshoal-mpi.so";

}  // namespace shoal
