// Times a network that scripts/reference/write_nets.py has written, on CPU devices. Writes the output to a file, so
// that scripts/reference/bench_nets.py can verify it. Prints the median, smallest and largest time of a run in ms.
//
//   net_bench build/nets unet noise --shares 1,1 --threads 1 --runs 5 --out noise.bin
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "devices/cpu/cpu_device.h"
#include "tests/models/nets/net.h"

namespace shoal::models {
namespace {

double milliseconds(Net& net) {
  const auto begin = std::chrono::steady_clock::now();
  net.run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

int run(int argc, char** argv) {
  CLI::App app("Times a network on CPU devices");
  std::string folder, name, output, out;
  std::vector<int64_t> shares{1};
  int threads = 1, runs = 5;
  app.add_option("folder", folder, "folder of the network")->required();
  app.add_option("net", name, "name of the network")->required();
  app.add_option("output", output, "name of the output")->required();
  app.add_option("--shares", shares, "share of each device, such as 3,1")
      ->delimiter(',')
      ->check(CLI::Range(0, 1000000));
  app.add_option("--threads", threads, "threads of each device")->check(CLI::Range(1, 1024));
  app.add_option("--runs", runs, "timed runs, after one run without timing")->check(CLI::Range(1, 1000000));
  app.add_option("--out", out, "file to write the output to, as f32");
  CLI11_PARSE(app, argc, argv);

  cpu::configure(fmt::format("devices={},threads={}", shares.size(), threads));
  std::vector<Device*> members;
  for (size_t i = 0; i < shares.size(); ++i) members.push_back(&Registry::instance().device(fmt::format("CPU{}", i)));
  const NetFiles files(folder, name);
  const auto meta = shares.size() > 1 ? meta::MetaDevice::create(members, files.callback(shares)) : nullptr;
  Net net(files, meta ? *meta : *members[0]);
  milliseconds(net);
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) times.push_back(milliseconds(net));
  std::sort(times.begin(), times.end());
  fmt::print("{:.2f} {:.2f} {:.2f}\n", times[times.size() / 2], times.front(), times.back());
  if (!out.empty()) {
    const std::vector<float> values = net.read(output);
    std::ofstream(out, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  return 0;
}

}  // namespace
}  // namespace shoal::models

int main(int argc, char** argv) {
  try {
    return shoal::models::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "net_bench: {}\n", error.what());
    return 1;
  }
}
