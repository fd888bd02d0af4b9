// Tests of shoal bench-comm: the check of results, the measurements, and the text and JSON output.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "processes/remote_device.h"
#include "tests/support/faulty_communicator.h"
#include "tests/support/thread_processes.h"
#include "tests/tools/child.h"
#include "tools/bench/bench_comm.h"
#include "tools/cli/device_names.h"
#include "tools/cli/interrupt.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Bytes = std::vector<std::byte>;

constexpr Collective kOps[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                               Collective::kAllToAll, Collective::kBroadcast};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32};

/// Input of a rank, as the benchmark generates it.
Bytes input_of(const CommCase& c, int rank) {
  Bytes bytes(c.bytes(c.elements_in()));
  fill_values(c.dtype, rank, 0, bytes);
  return bytes;
}

Bytes element(const CommCase& c, const Bytes& bytes, int64_t index) {
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(c.bytes(index));
  return {begin, begin + static_cast<std::ptrdiff_t>(c.bytes(1))};
}

/// Sum of one element over all ranks, rounded after each addition. The addends are in ascending order of ranks, or in
/// descending order if `backwards` is true.
Bytes sum_of(const CommCase& c, const std::vector<Bytes>& inputs, int64_t index, bool backwards = false) {
  Bytes out(c.bytes(1));
  int32_t whole = 0;
  float real = 0.0f;
  for (int i = 0; i < c.ranks; ++i) {
    const Bytes one = element(c, inputs[static_cast<size_t>(backwards ? c.ranks - 1 - i : i)], index);
    float value = 0.0f;
    int32_t integer = 0;
    if (c.dtype == DType::kI32) std::memcpy(&integer, one.data(), 4);
    if (c.dtype != DType::kI32) traits(c.dtype).to_f32(one.data(), &value, 1);
    whole = static_cast<int32_t>(static_cast<uint32_t>(whole) + static_cast<uint32_t>(integer));
    real = i == 0 ? value : real + value;
    if (!backwards || c.dtype == DType::kI32) continue;
    traits(c.dtype).from_f32(&real, out.data(), 1);
    traits(c.dtype).to_f32(out.data(), &real, 1);
  }
  if (c.dtype == DType::kI32) std::memcpy(out.data(), &whole, 4);
  if (c.dtype != DType::kI32) traits(c.dtype).from_f32(&real, out.data(), 1);
  return out;
}

/// Expected output of a rank, computed from the inputs of all ranks.
Bytes output_of(const CommCase& c, int rank, bool backwards = false) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < c.ranks; ++r) inputs.push_back(input_of(c, r));
  Bytes out;
  for (int64_t i = 0; i < c.elements_out(); ++i) {
    const size_t from = static_cast<size_t>(i / c.part);
    Bytes one;
    if (c.kind == Collective::kAllReduce) one = sum_of(c, inputs, i, backwards);
    if (c.kind == Collective::kReduceScatter) one = sum_of(c, inputs, rank * c.part + i, backwards);
    if (c.kind == Collective::kAllGather) one = element(c, inputs[from], i % c.part);
    if (c.kind == Collective::kAllToAll) one = element(c, inputs[from], rank * c.part + i % c.part);
    if (c.kind == Collective::kBroadcast) one = element(c, inputs[static_cast<size_t>(c.root)], i);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

TEST(BenchCommCases, HaveMessageSizesOfNcclTests) {
  const auto sizes = [](Collective kind) {
    const CommCase c = case_of_size(kind, DType::kF32, 4, 1000);
    return std::vector<int64_t>{c.part, c.elements_in(), c.elements_out(), static_cast<int64_t>(c.size())};
  };
  EXPECT_THAT(sizes(Collective::kAllReduce), ElementsAre(250, 250, 250, 1000));
  EXPECT_THAT(sizes(Collective::kBroadcast), ElementsAre(250, 250, 250, 1000));
  EXPECT_THAT(sizes(Collective::kAllGather), ElementsAre(62, 62, 248, 992));
  EXPECT_THAT(sizes(Collective::kReduceScatter), ElementsAre(62, 248, 62, 992));
  EXPECT_THAT(sizes(Collective::kAllToAll), ElementsAre(62, 248, 248, 992));
  EXPECT_EQ(case_of_size(Collective::kAllGather, DType::kF16, 4, 1).size(), 8u);  // each rank has at least one element
  EXPECT_EQ(case_of_size(Collective::kAllReduce, DType::kBF16, 4, 1000).part, 500);
}

TEST(BenchCommCases, ValuesDependOnlyOnRankAndIndex) {
  std::vector<float> whole(10000), end(5000), other(10000);
  fill_values(DType::kF32, 3, 0, std::as_writable_bytes(std::span(whole)));
  fill_values(DType::kF32, 3, 5000, std::as_writable_bytes(std::span(end)));
  fill_values(DType::kF32, 4, 0, std::as_writable_bytes(std::span(other)));
  EXPECT_TRUE(std::equal(end.begin(), end.end(), whole.begin() + 5000));
  const auto [low, high] = std::minmax_element(whole.begin(), whole.end());
  EXPECT_GE(*low, -1.0f);
  EXPECT_LT(*low, -0.99f);
  EXPECT_LT(*high, 1.0f);
  EXPECT_GT(*high, 0.99f);
  int same = 0;
  for (size_t i = 0; i < whole.size(); ++i) same += whole[i] == other[i] ? 1 : 0;
  EXPECT_LT(same, 10);
  std::sort(whole.begin(), whole.end());
  EXPECT_GT(std::unique(whole.begin(), whole.end()) - whole.begin(), 9900);
}

TEST(BenchCommWrong, CountsDifferingElements) {
  for (const Collective kind : kOps) {
    for (const DType dtype : kDTypes) {
      for (const int64_t part : {1, 7, 5000}) {  // the comparison runs in blocks of 4096 elements
        const CommCase c{kind, dtype, 3, part, kind == Collective::kBroadcast ? 2 : 0};
        for (int rank = 0; rank < c.ranks; ++rank) {
          Bytes out = output_of(c, rank);
          EXPECT_EQ(count_wrong(c, rank, out), 0) << name_of(kind) << " " << name_of(dtype) << " " << part;
          out.front() ^= std::byte{1};
          EXPECT_EQ(count_wrong(c, rank, out), 1) << name_of(kind) << " " << name_of(dtype) << " " << part;
          if (part < 7) continue;
          out.back() ^= std::byte{0x40};
          for (size_t i = c.bytes(3); i < c.bytes(5); ++i) out[i] = ~out[i];
          EXPECT_EQ(count_wrong(c, rank, out), 4) << name_of(kind) << " " << name_of(dtype) << " " << part;
        }
      }
    }
  }
}

TEST(BenchCommWrong, OnlyNcclMaySumInAnotherOrder) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const CommCase c{Collective::kAllReduce, dtype, 5, 4000, 0};
    const Bytes backwards = output_of(c, 0, true);
    EXPECT_GT(count_wrong(c, 0, backwards, allowed_error("host", c)), 100) << name_of(dtype);
    EXPECT_EQ(count_wrong(c, 0, backwards, allowed_error("nccl", c)), 0) << name_of(dtype);
  }
  EXPECT_EQ(allowed_error("nccl", {Collective::kAllReduce, DType::kI32, 4, 1, 0}), 0.0);
  EXPECT_EQ(allowed_error("nccl", {Collective::kAllGather, DType::kF32, 4, 1, 0}), 0.0);
}

TEST(BenchCommWrong, CountsValuesBeyondTheAllowedError) {
  const CommCase c{Collective::kAllReduce, DType::kF32, 2, 3, 0};
  Bytes out = output_of(c, 0);
  float values[3];
  std::memcpy(values, out.data(), sizeof(values));
  values[0] += 1e-5f;
  values[1] = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(out.data(), values, sizeof(values));
  EXPECT_EQ(count_wrong(c, 0, out, allowed_error("nccl", c)), 2);
}

std::vector<Device*> cpus(int count) {
  cpu::configure(fmt::format("devices={},threads=1", count));
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("CPU{}", i));
  return find_devices(names);
}

constexpr CommBenchOptions kFew{.iterations = 3, .warmup = 2, .check = true};

TEST(BenchComm, MeasuresEveryCollectiveAndType) {
  CommBench bench(cpus(3));
  for (const Collective kind : kOps) {
    for (const DType dtype : kDTypes) {
      for (const size_t size : {1, 20000}) {
        const CommCase c = case_of_size(kind, dtype, 3, size);
        for (const CommImplementation& one : bench.implementations()) {
          const CommResult result = bench.measure(one, c, kFew);
          EXPECT_EQ(result.wrong, 0) << name_of(kind) << " " << name_of(dtype) << " " << size;
          EXPECT_EQ(result.communicator, one.name == "staged" ? "staged" : "host");
          EXPECT_GT(result.us, 0.0);
          EXPECT_NEAR(result.algbw() * result.us * 1e3, static_cast<double>(c.size()), 1e-6);
          EXPECT_NEAR(result.busbw(), result.algbw() * bus_factor(kind, 3), 1e-9);
        }
      }
    }
  }
}

/// A communicator implementation named "faulty". Its communicators are host communicators that inject `fault`.
CommImplementation faulty(const Fault& fault) {
  return {"faulty", [fault](std::span<Backend* const> ranks, const collectives::Options& options) {
            return std::make_unique<FaultyCommunicator>(collectives::make_host_communicator(ranks, options), ranks,
                                                        fault);
          }};
}

TEST(BenchComm, CheckFindsOneWrongBit) {
  const CommCase c = case_of_size(Collective::kAllReduce, DType::kF32, 2, 8000);
  // The benchmark runs the collective six times: 2 warm-up runs, 3 timed runs and 1 checked run.
  const auto wrong = [&](int call) {
    CommBench bench(cpus(2));
    return bench.measure(faulty({Fault::kCorrupt, 1, call}), c, kFew).wrong;
  };
  EXPECT_EQ(wrong(5), 1);
  EXPECT_EQ(wrong(2), 0) << "the checked run uses new data, so an earlier error has no effect";
}

/// Results of a measurement in three processes. The first process has two ranks. Each other process has one rank.
std::vector<CommResult> in_processes(const Fault& fault = {}, Collective kind = Collective::kAllReduce) {
  const std::vector<Device*> devices = cpus(2);
  std::vector<CommResult> results(3);
  const auto ends = test::in_processes({"a", "a", "b"}, [&](ProcessGroup& group) {
    const auto own = std::span(devices).first(group.own() == 0 ? 2 : 1);
    CommBench bench(gather_devices(group, own), &group);
    const auto make = [&fault](std::span<Backend* const> ranks, const collectives::Options& with) {
      return std::make_unique<FaultyCommunicator>(collectives::make_mpi_communicator(ranks, with), ranks, fault);
    };
    const CommCase c = case_of_size(kind, DType::kF32, bench.ranks(), 8000);
    results[static_cast<size_t>(group.own())] = bench.measure(
        fault.kind == Fault::kNone ? bench.implementation("auto") : CommImplementation{"faulty", make}, c, kFew);
  });
  for (const auto& end : ends) EXPECT_EQ(end.what(), "");
  return results;
}

TEST(BenchCommProcesses, AllProcessesGetTheSameResults) {
  const std::vector<CommResult> results = in_processes();
  for (const CommResult& result : results) {
    EXPECT_EQ(result.communicator, "mpi");
    EXPECT_EQ(result.which.ranks, 4);
    EXPECT_EQ(result.wrong, 0);
    EXPECT_GT(result.us, 0.0);
    EXPECT_EQ(result.us, results[0].us);
  }
}

TEST(BenchCommProcesses, CountWrongElementsOfAllProcesses) {
  for (const int rank : {0, 1, 2, 3}) {
    for (const CommResult& result : in_processes({Fault::kCorrupt, rank, 5})) {
      EXPECT_EQ(result.wrong, 1) << rank;
    }
  }
}

TEST(BenchCommProcesses, ReportTimeOfSlowestProcess) {
  // In a broadcast, no rank waits for the late rank, so only the process of the late rank is slow.
  const Fault late{Fault::kStall, 3, 4, std::chrono::milliseconds(60)};
  for (const CommResult& result : in_processes(late, Collective::kBroadcast)) {
    EXPECT_GT(result.us, 18000.0);
  }
}

TEST(BenchComm, NumberOfWrongElementsIsUnknownWithoutCheck) {
  CommBench bench(cpus(2));
  CommBenchOptions options = kFew;
  options.check = false;
  const CommResult result =
      bench.measure(faulty({Fault::kCorrupt, 1, 4}), case_of_size(Collective::kAllReduce, DType::kF32, 2, 64), options);
  EXPECT_EQ(result.wrong, std::nullopt);
}

TEST(BenchComm, WorksAgainAfterAFailure) {
  CommBench bench(cpus(2));
  const CommCase c = case_of_size(Collective::kAllGather, DType::kF32, 2, 1 << 16);
  EXPECT_THROW(bench.measure(faulty({Fault::kFail, 0, 3}), c, kFew), DeviceError);
  EXPECT_EQ(bench.measure(bench.implementation("host"), c, kFew).wrong, 0);
}

TEST(BenchComm, StopCallbackEndsMeasurementBetweenRuns) {
  CommBench bench(cpus(2));
  int asked = 0;
  const auto stop = [&] { return ++asked == 2; };
  EXPECT_THROW(
      bench.measure(bench.implementation("auto"), case_of_size(Collective::kAllReduce, DType::kF32, 2, 64), kFew, stop),
      Interrupted);
  EXPECT_EQ(asked, 2);
}

TEST(BenchComm, ErrorListsUsableImplementations) {
  CommBench bench(cpus(2));
  try {
    bench.implementation("nccl");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), StartsWith("--comm nccl: collectives by 'nccl' are for CUDA devices"));
    EXPECT_THAT(error.what(), EndsWith("; these implementations work: auto, host, staged"));
  }
}

std::vector<std::string> comm_args(const std::string& args) {
  std::vector<std::string> all = words(args);
  all.insert(all.begin(), {"bench-comm", "-dev", "CPU0,CPU1", "-n", "2", "-w", "1"});
  return all;
}

Finished succeeded(const std::string& args) {
  Finished finished = run(comm_args(args));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  return finished;
}

TEST(BenchCommProgram, TextHasTheColumnsOfNcclTests) {
  const std::string text = succeeded("-b 1K -e 4K --op all_reduce,reduce_scatter").out;
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : lines(text)) {
    EXPECT_FALSE(line.ends_with(' ')) << "'" << line << "'";
    if (!line.starts_with('#')) rows.push_back(words(line));
  }
  ASSERT_EQ(rows.size(), 6u) << text;
  for (const auto& row : rows) ASSERT_EQ(row.size(), 7u);
  EXPECT_EQ(rows[0][0], "1024");
  EXPECT_EQ(rows[0][1], "256");
  EXPECT_EQ(rows[2][0], "4096");
  EXPECT_EQ(rows[1][2], "f32");
  EXPECT_EQ(rows[0][6], "0");
  EXPECT_EQ(rows[3][1], "128");
  EXPECT_THAT(text, HasSubstr("#  rank  1  CPU1"));
  EXPECT_THAT(text, HasSubstr("# all_reduce by auto (the host communicator)\n"));
  EXPECT_THAT(text, ContainsRegex("size +count +type +time +algbw +busbw +#wrong\n"));
  EXPECT_THAT(text, HasSubstr("# Wrong elements    : 0 OK\n"));
  EXPECT_THAT(text, ContainsRegex("# Avg bus bandwidth : [0-9.]+\n$"));
}

TEST(BenchCommProgram, JsonHasAllFields) {
  const json result =
      json::parse(succeeded("-b 64 -e 256 -f 4 --op all --dtype bf16,i32 --comm all -o json").out, nullptr, false);
  ASSERT_FALSE(result.is_discarded());
  EXPECT_EQ(result["iterations"], 2);
  EXPECT_EQ(result["warmup"], 1);
  EXPECT_EQ(result["wrong"], 0);
  EXPECT_EQ(result["devices"][1]["name"], "CPU1");
  EXPECT_THAT(result["time"].get<std::string>(), ContainsRegex("^20..-..-..T..:..:..Z$"));
  EXPECT_GT(result["average_busbw_gbps"].get<double>(), 0.0);
  ASSERT_EQ(result["results"].size(), 5u * 3 * 2 * 2);  // 5 collectives, 3 communicators, 2 types, 2 sizes
  for (const json& one : result["results"]) {
    EXPECT_EQ(one["ranks"], 2);
    EXPECT_EQ(one["communicator"], one["comm"] == "staged" ? "staged" : "host");
    EXPECT_GT(one["time_us"].get<double>(), 0.0);
    EXPECT_EQ(one["wrong"], 0);
  }
  EXPECT_EQ(result["results"][0]["comm"], "auto");
  EXPECT_EQ(result["results"][4]["comm"], "host");
  EXPECT_EQ(result["results"][1]["size"], 256);
  EXPECT_EQ(result["results"][1]["count"], 128);
}

TEST(BenchCommProgram, SizesThatRoundToSameValueAreMeasuredOnce) {
  const json result = json::parse(succeeded("-b 1 -e 32 --op all_gather -o json").out);
  std::vector<int> sizes;
  for (const json& one : result["results"]) sizes.push_back(one["size"]);
  EXPECT_THAT(sizes, ElementsAre(8, 16, 32));
}

TEST(BenchCommProgram, BadInputGivesAOneLineError) {
  const auto expect = [](const std::string& args, int code, const std::string& message) {
    const Finished finished = run(words("bench-comm " + args));
    EXPECT_EQ(finished.code, code) << args;
    EXPECT_EQ(finished.out, "") << args;
    EXPECT_THAT(finished.err, StartsWith("shoal: error: "));
    EXPECT_THAT(finished.err, HasSubstr(message));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  };
  expect("", 2, "--devices is required");
  expect("-dev CPU0,CPU9", 1, "there is no device 'CPU9'");
  expect("-dev CPU0,CPU0", 2, "device CPU0 is named twice");
  expect("-dev CPU0+CPU1", 2, "--devices: 'CPU0+CPU1' contains a group (+); name single devices");
  expect("-dev CPU0,NULL0", 1, "there is no device 'NULL0'");
  for (const char* comm : {"p2p", "nccl"}) {
    expect(fmt::format("-dev CPU0,CPU1 --comm {}", comm), 1,
           fmt::format("--comm {0}: collectives by '{0}' are for CUDA devices", comm));
  }
  expect("-dev CPU0,CPU1 --comm tcp", 2,
         "--comm must be one or more of all, auto, host, mpi, p2p, nccl, staged; got 'tcp'");
  expect("-dev CPU0,CPU1 --op reduce", 2,
         "--op must be one or more of all, all_reduce, all_gather, reduce_scatter, all_to_all, "
         "broadcast; got 'reduce'");
  expect("-dev CPU0,CPU1 --op all_reduce,", 2, "got ''");
  expect("-dev CPU0,CPU1 --dtype f64", 2, "--dtype must be one or more of all, f32, f16, bf16, i32; got 'f64'");
  for (const char* size : {"0", "-1", "1X", "x", "99999999999999999999"}) {
    expect(fmt::format("-dev CPU0,CPU1 -b {}", size), 2, "--min-bytes must be a number of bytes above 0");
    expect(fmt::format("-dev CPU0,CPU1 -e {}", size), 2, "--max-bytes must be a number of bytes above 0");
  }
  expect("-dev CPU0,CPU1 -b 2M -e 1M", 2, "--min-bytes 2097152 is more than --max-bytes 1048576");
  expect("-dev CPU0,CPU1 -f 1", 2, "--step-factor must be a number from 1.1 to");
  expect("-dev CPU0,CPU1 -n 0", 2, "--iters must be a whole number from 1 to");
  expect("-dev CPU0,CPU1 -w -1", 2, "--warmup-iters must be a whole number from 0 to");
  expect("-dev CPU0,CPU1 -c 2", 2, "--check must be a whole number from 0 to 1, got '2'");
  expect("-dev CPU0,CPU1 -o xml", 2, "--output must be text or json, got 'xml'");
  expect("-dev CPU0,CPU1 -g 2", 2, "there is no flag -g");
}

TEST(BenchCommProgram, FailureKeepsEarlierResults) {
  const Finished finished = run(comm_args("-b 1K -e 1024G -f 1e9 -o json"));
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, StartsWith("shoal: error: "));
  EXPECT_THAT(finished.err, HasSubstr("CPU0"));
  const json result = json::parse(finished.out, nullptr, false);
  ASSERT_EQ(result["results"].size(), 1u) << finished.out;
  EXPECT_EQ(result["results"][0]["size"], 1024);
  EXPECT_THAT(finished.err, HasSubstr(result["error"].get<std::string>()));
}

TEST(BenchCommProgram, InterruptPrintsResultsSoFar) {
  const auto result_of = [](const Finished& run) { return json::parse(run.out, nullptr, false); };
  const Finished ended = run_interrupted(words("bench-comm -dev CPU0,CPU1 -b 1K -e 256M -f 1.2 -n 200 -o json"), SIGINT,
                                         [&](const Finished& run) {
                                           const json result = result_of(run);
                                           return result.is_object() && !result["results"].empty();
                                         });
  EXPECT_EQ(ended.code, 130);
  EXPECT_FALSE(ended.killed);
  const json result = result_of(ended);
  ASSERT_FALSE(result.is_discarded());
  EXPECT_EQ(result["error"], "interrupted");
  EXPECT_GT(result["results"].size(), 0u);
}

}  // namespace
}  // namespace shoal::tools
