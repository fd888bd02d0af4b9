// Where plug-ins are looked for.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace shoal {

/// The directories that SHOAL_PLUGIN_PATH names (separated by colons), and those of the program: its own, and
/// ../lib/shoal beside it. They need not exist.
std::vector<std::filesystem::path> plugin_directories_from_environment();
std::vector<std::filesystem::path> plugin_directories_of_program();
/// Both, in this order.
std::vector<std::filesystem::path> plugin_directories();

/// A plug-in that lies among them and brings no devices (processes/join.h).
inline constexpr std::string_view kTransportFile = "libshoal-mpi.so";

}  // namespace shoal
