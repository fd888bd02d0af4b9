// Hardware topology for CPU devices: NUMA nodes with their cores and memory, which hwloc reads once. The identifier of
// a core is the number of its first hardware thread that this process may use. taskset and similar tools restrict the
// usable hardware threads. All OpenMP places count as usable, even if OMP_PROC_BIND has bound the first thread to one
// place. All functions are thread-safe.
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

/// The cores of one device. Example: 3 devices divide 2 nodes of 4 cores. The first device gets cores 0-1 of node 0.
/// The second device gets cores 2-4 of both nodes, so its `node` is -1 and its memory is not bound. The third device
/// gets cores 5-7 of node 1.
struct CoreSet {
  int node = 0;  ///< -1 if the cores belong to several nodes
  std::vector<int> cores;
  bool shared = false;  ///< whether another device uses one of these cores, because there are more devices than cores
};

/// Divides the cores among the devices. If `devices` is 0, each node becomes one device. If `threads` contains a number
/// for each device, each device gets cores in proportion to its number, and at least one core if there are enough
/// cores. Otherwise the cores are divided evenly.
std::vector<CoreSet> divide_cores(std::span<const Node> nodes, int devices, std::span<const int> threads = {});

/// Nodes with at least one core on which this process may run. The list is never empty.
std::span<const Node> machine_nodes();
/// All hardware threads of these cores that this process may use. The given cores come first.
std::vector<int> hardware_threads(std::span<const int> cores);
/// Hardware threads on which all threads of a device's team run. Usually these are the device's cores. If the team has
/// more threads than cores, the result includes the other hardware threads of these cores. The team may run on all
/// hardware threads of the process in two cases: its threads outnumber the hardware threads of its cores, or it shares
/// cores with other devices. No thread is bound to a single core. If a thread were bound to a core that another process
/// uses, the team would wait for a whole time slice in every step.
std::vector<int> cores_of_team(const CoreSet& set, int threads);
/// Number of cores that this process may keep busy at a time. A container's quota may be less than the number of cores
/// of the nodes.
int usable_cores();
/// Bytes of the last-level caches of these cores; 0 if unknown. Other cores may share these caches.
size_t cache_bytes(std::span<const int> cores);
/// Name such as "Intel(R) Xeon(R) Platinum 8480+"; "CPU" if unknown.
const std::string& cpu_model();

/// Current memory of a node, or of the machine if `node` is -1. The result is limited to the memory that the process
/// may use. Page cache counts as free.
DeviceMemory node_memory(int node);

/// Binds the calling thread to these cores. Threads that the calling thread creates later inherit the binding. Returns
/// false if binding is not permitted.
bool bind_thread(std::span<const int> cores) noexcept;

/// Allocates memory with an alignment of 64 bytes. Returns nullptr on failure. If there are several nodes, memory of 64
/// KiB or more is on `node`, regardless of the thread that touches it first. Memory of 4 MiB or more is newly mapped,
/// in huge pages if available. Huge pages help because kernels read weights sequentially all the time. The system also
/// clears and maps a huge page of 2 MiB ten times as fast as 512 small pages.
void* allocate_on_node(size_t size, int node) noexcept;
/// `size` must be the size passed to allocate_on_node().
void free_memory(void* data, size_t size) noexcept;
/// Fills the memory with zeros. If the memory has its own mapping, its pages are returned to the system. The next
/// access to such a page gets zeros from the system. So memory that is not accessed again needs no pages. For example,
/// KV cache rows that no token uses need no pages.
void zero_memory(void* data, size_t size) noexcept;

}  // namespace shoal::cpu
