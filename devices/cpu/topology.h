// The machine as CPU devices see it: NUMA nodes with their cores and memory, read once through hwloc. Cores are
// named by the number of the first hardware thread that this process may use: what taskset and the like leave it, all
// places of OpenMP where OMP_PROC_BIND has bound the first thread to one of them. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

struct Node {
  int number = 0;          ///< of the operating system
  std::vector<int> cores;  ///< one hardware thread of each core
};

/// What one device gets. Example: 2 nodes of 4 cores for 3 devices are cores 0-1 (node 0), 2-4 (both nodes, hence
/// node -1: memory is not bound), 5-7 (node 1).
struct CoreSet {
  int node = 0;  ///< -1 when the cores belong to several nodes
  std::vector<int> cores;
  bool shared = false;  ///< other devices have the same core: there are more devices than cores
};

/// Divides the cores; 0 devices = one per node. Where there is a number of threads for each device, in proportion to
/// these (each gets one core at least, as long as there are enough), otherwise evenly. Pure.
std::vector<CoreSet> divide_cores(std::span<const Node> nodes, int devices, std::span<const int> threads = {});

/// Nodes with at least one core that this process may run on; never empty.
std::span<const Node> machine_nodes();
/// All hardware threads of these cores that this process may use: the cores first.
std::vector<int> hardware_threads(std::span<const int> cores);
/// Where all threads of a team of a device run: on the device's cores, a team with more threads than these on their
/// other hardware threads too. What is more than that, or shares cores with other devices, runs wherever the process
/// may. No thread is held on one core of several: whenever another process has that core, the team would wait for it
/// for a whole time slice at every step.
std::vector<int> cores_of_team(const CoreSet& set, int threads);
/// Cores that this process may keep busy at a time: a quota of a container may be less than the nodes have.
int usable_cores();
/// Bytes of the last caches that these cores have, some of which others may use too; 0 when unknown.
size_t cache_bytes(std::span<const int> cores);
/// "Intel(R) Xeon(R) Platinum 8480+"; "CPU" when unknown.
const std::string& cpu_model();

/// Live figures of a node (-1: of the machine), no more than the process is allowed. What the page cache holds counts
/// as free.
DeviceMemory node_memory(int node);

/// Binds the calling thread to these cores; threads it creates inherit that. False when not permitted.
bool bind_thread(std::span<const int> cores) noexcept;

/// 64-byte aligned memory; from 64 KiB on, on the node when there are several (wherever the thread runs that touches it
/// first). From 4 MiB on it comes fresh from the system, in huge pages where it has them: weights are read from one end
/// to the other all the time, and the system clears and maps 2 MiB in a tenth of the time of 512 small pages. nullptr
/// on failure.
void* allocate_on_node(size_t size, int node) noexcept;
/// Of the same size as it was allocated with.
void free_memory(void* data, size_t size) noexcept;
/// Zeros in all of it. Mapped memory goes back to the system, which gives zeros where it is touched again: what is not
/// used, such as a KV cache's rows for tokens that never come, takes no memory.
void zero_memory(void* data, size_t size) noexcept;

}  // namespace shoal::cpu
