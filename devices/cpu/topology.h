// The machine as CPU devices see it: NUMA nodes with their cores and memory, read once through hwloc. A core is
// identified by the number of its first hardware thread that this process may use. taskset and similar tools restrict
// the usable hardware threads. If OMP_PROC_BIND has bound the first thread to one place, the process may still use all
// places of OpenMP. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

struct Node {
  int number = 0;          ///< number given by the operating system
  std::vector<int> cores;  ///< one hardware thread of each core
};

/// The cores of one device. Example: with 2 nodes of 4 cores, 3 devices get cores 0-1 (node 0), 2-4 (both nodes, so
/// node is -1 and memory is not bound) and 5-7 (node 1).
struct CoreSet {
  int node = 0;  ///< -1 when the cores belong to several nodes
  std::vector<int> cores;
  bool shared = false;  ///< whether another device uses one of these cores, because there are more devices than cores
};

/// Divides the cores among the devices. 0 devices mean one per node. If `threads` gives a number for each device, the
/// cores are divided in proportion to these numbers, and each device gets at least one core if there are enough.
/// Otherwise the cores are divided evenly. Pure.
std::vector<CoreSet> divide_cores(std::span<const Node> nodes, int devices, std::span<const int> threads = {});

/// Nodes with at least one core that this process may run on; never empty.
std::span<const Node> machine_nodes();
/// All hardware threads of these cores that this process may use. The given cores come first.
std::vector<int> hardware_threads(std::span<const int> cores);
/// Hardware threads on which all threads of a device's team run. Usually these are the device's cores. If the team has
/// more threads than cores, the other hardware threads of these cores are included. A team with even more threads, or a
/// team that shares cores with other devices, may run on all hardware threads of the process. Threads are not bound to
/// one core each: if another process used the core of one thread, the team would wait for a whole time slice at every
/// step.
std::vector<int> cores_of_team(const CoreSet& set, int threads);
/// Number of cores that this process may keep busy at a time. A container's quota may be lower than the cores of the
/// nodes.
int usable_cores();
/// Bytes of the last-level caches of these cores. Other cores may share these caches. 0 if unknown.
size_t cache_bytes(std::span<const int> cores);
/// "Intel(R) Xeon(R) Platinum 8480+"; "CPU" if unknown.
const std::string& cpu_model();

/// Current memory of a node, or of the machine if `node` is -1, limited to the memory that the process may use. Page
/// cache counts as free.
DeviceMemory node_memory(int node);

/// Binds the calling thread to these cores. Threads that it creates inherit the binding. Returns false if binding is
/// not permitted.
bool bind_thread(std::span<const int> cores) noexcept;

/// Allocates 64-byte aligned memory; nullptr on failure. If there are several nodes, memory of 64 KiB or more is on
/// `node`, whichever thread touches it first. Memory of 4 MiB or more comes fresh from the system, in huge pages if
/// available. Huge pages help because weights are read sequentially all the time. The system also clears and maps a
/// huge page of 2 MiB in a tenth of the time of 512 small pages.
void* allocate_on_node(size_t size, int node) noexcept;
/// `size` must be the size passed to allocate_on_node().
void free_memory(void* data, size_t size) noexcept;
/// Fills the memory with zeros. Mapped memory returns to the system, which provides zeros at the next access. So unused
/// memory, such as KV cache rows that no token ever uses, is not occupied.
void zero_memory(void* data, size_t size) noexcept;

}  // namespace shoal::cpu
