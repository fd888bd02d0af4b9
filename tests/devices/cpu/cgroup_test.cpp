// Tests of control groups (versions 1 and 2). The test creates the files of the groups in a temporary folder.
#include "devices/cpu/cgroup.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary.h"

namespace shoal::cpu {
namespace {

namespace fs = std::filesystem;

/// The files of a process in a version 2 control group.
struct Cgroup : testing::Test {
  Cgroup() {
    fs::create_directories(root / "app" / "web");
    write("self", "1:name=systemd:/\n0::/app/web\n");
    mount("/", root, "cgroup2 cgroup2 rw");
  }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
  /// Adds a line to the mountinfo file. The line says that `group` and its child groups are mounted at `point`.
  void mount(const char* group, const fs::path& point, const char* type) const {
    std::ofstream(root / "mounts", std::ios::app)
        << fmt::format("31 23 0:28 {} {} rw,relatime shared:9 - {}\n", group, point.string(), type);
  }
  CgroupLimits read() const { return read_cgroup(cgroup_folders(root / "self", root / "mounts")); }
  const test::TemporaryFolder folder;
  const fs::path& root = folder.path();
};

TEST_F(Cgroup, WithoutFilesThereAreNoLimits) {
  EXPECT_FALSE(read().cores);
  EXPECT_FALSE(read().memory);
  EXPECT_TRUE(cgroup_folders(root / "absent", root / "mounts").empty());
  EXPECT_TRUE(cgroup_folders(root / "self", root / "absent").empty());
  write("app/web/cpu.max", "max 100000\n");
  write("app/web/memory.max", "max\n");
  write("app/web/memory.current", "1000\n");
  EXPECT_FALSE(read().cores);
  EXPECT_FALSE(read().memory);
}

TEST_F(Cgroup, RoundsQuotaUpToCores) {
  write("app/web/cpu.max", "400000 100000\n");
  EXPECT_EQ(read().cores, 4);
  write("app/web/cpu.max", "150000 100000\n");
  EXPECT_EQ(read().cores, 2) << "rounded up";
  write("app/web/cpu.max", "1000 100000\n");
  EXPECT_EQ(read().cores, 1);
  write("app/web/cpu.max", "1000 0\n");
  EXPECT_FALSE(read().cores);
}

TEST_F(Cgroup, UnescapesPathsInMountinfo) {
  write("a b\\c/cpu.max", "200000 100000\n");
  write("self", "0::/my web\n");
  fs::remove(root / "mounts");
  mount("/my\\040web", root / "a\\040b\\134c", "cgroup2 cgroup2 rw");
  EXPECT_EQ(read().cores, 2);
}

TEST_F(Cgroup, StricterLimitsOfParentsApply) {
  write("app/web/cpu.max", "400000 100000\n");
  write("app/cpu.max", "300000 100000\n");
  write("cpu.max", "800000 100000\n");
  EXPECT_EQ(read().cores, 3);
}

TEST_F(Cgroup, PageCacheCountsAsFree) {
  write("app/web/memory.max", "1000\n");
  write("app/web/memory.current", "900\n");
  write("app/web/memory.stat", "anon 300\nfile 600\ninactive_file 400\nactive_file 200\n");
  ASSERT_TRUE(read().memory);
  EXPECT_EQ(read().memory->total, 1000U);
  EXPECT_EQ(read().memory->free, 700U);
  write("app/memory.max", "5000\n");
  write("app/memory.current", "4900\n");
  EXPECT_EQ(read().memory->total, 1000U);
  EXPECT_EQ(read().memory->free, 100U) << "the parent has no more";
}

/// The files of a process in version 1 control groups. An empty version 2 hierarchy is also mounted.
struct CgroupV1 : Cgroup {
  CgroupV1() {
    write("self", "12:cpuset:/other\n5:memory:/app/web\n3:cpu,cpuacct:/app/web\n1:name=systemd:/x\n0::/\n");
    fs::remove(root / "mounts");
    mount("/", root / "cpuset", "cgroup cgroup rw,cpuset");
    mount("/", root / "cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct");
    mount("/", root / "memory", "cgroup cgroup rw,memory");
    mount("/", root / "unified", "cgroup2 cgroup2 rw");
  }
  void set_quota(const fs::path& group, int quota) const {
    write(group / "cpu.cfs_quota_us", fmt::format("{}\n", quota));
    write(group / "cpu.cfs_period_us", "100000\n");
  }
  void set_memory(const fs::path& group, uint64_t limit, uint64_t used) const {
    write(group / "memory.limit_in_bytes", fmt::format("{}\n", limit));
    write(group / "memory.usage_in_bytes", fmt::format("{}\n", used));
  }
};

TEST_F(CgroupV1, GroupsMayBeUnlimited) {
  set_quota("cpu,cpuacct/app/web", -1);
  set_memory("memory/app/web", 9223372036854771712U, 1000);
  EXPECT_FALSE(read().cores);
  EXPECT_FALSE(read().memory);
}

TEST_F(CgroupV1, SmallestQuotaOfAllLevelsApplies) {
  set_quota("cpu,cpuacct/app/web", 350000);
  EXPECT_EQ(read().cores, 4);
  set_quota("cpu,cpuacct", -1);
  set_quota("cpu,cpuacct/app", 100000);
  EXPECT_EQ(read().cores, 1);
}

TEST_F(CgroupV1, PageCacheOfChildGroupsCountsAsFree) {
  set_memory("memory/app/web", 400 << 20, 300 << 20);
  write("memory/app/web/memory.stat",
        fmt::format("inactive_file 1\nactive_file 1\ntotal_inactive_file {}\ntotal_active_file {}\n", 100 << 20,
                    50 << 20));
  ASSERT_TRUE(read().memory);
  EXPECT_EQ(read().memory->total, size_t{400} << 20);
  EXPECT_EQ(read().memory->free, size_t{250} << 20);
  set_memory("memory/app", 200 << 20, 190 << 20);
  EXPECT_EQ(read().memory->total, size_t{200} << 20);
  EXPECT_EQ(read().memory->free, size_t{10} << 20);
}

TEST_F(CgroupV1, ControllersMayUseDifferentVersions) {
  set_memory("memory/app/web", 400 << 20, 0);
  write("self", "5:memory:/app/web\n0::/app\n");
  write("unified/app/cpu.max", "200000 100000\n");
  EXPECT_EQ(read().cores, 2);
  ASSERT_TRUE(read().memory);
  EXPECT_EQ(read().memory->total, size_t{400} << 20);
}

TEST_F(CgroupV1, HiddenMountsAreIgnored) {
  fs::remove(root / "mounts");
  mount("/", root / "hidden", "cgroup cgroup rw,memory");
  mount("/", root / "memory", "cgroup cgroup rw,memory");
  set_memory("memory/app", 400 << 20, 0);
  ASSERT_TRUE(read().memory);
  EXPECT_EQ(read().memory->total, size_t{400} << 20);
}

// In a container, the group of the process is at the root of the mount. Without a cgroup namespace, /proc/self/cgroup
// contains the path of the group on the host. With a cgroup namespace, the path can begin with "/..".
TEST_F(CgroupV1, ContainersFindTheirGroupAtTheMountRoot) {
  for (const char* group : {"/docker/42", "/docker/42/inner", "/", "/../other"}) {
    fs::remove(root / "mounts");
    mount("/docker/42", root / "memory", "cgroup cgroup rw,memory");
    mount("/docker/42", root / "cpu", "cgroup cgroup rw,cpu");
    write("self", fmt::format("5:memory:{0}\n3:cpu:{0}\n", group));
    set_memory("memory", 400 << 20, 0);
    set_quota("cpu", 100000);
    EXPECT_EQ(read().cores, 1) << group;
    ASSERT_TRUE(read().memory) << group;
    EXPECT_EQ(read().memory->total, size_t{400} << 20) << group;
  }
}

}  // namespace
}  // namespace shoal::cpu
