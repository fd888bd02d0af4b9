// An Ethernet switch with a delay, for kernels without netem. The switch forwards each frame a fixed time after its
// arrival. scripts/hosts_up builds the switch and starts it in the namespace that has one end of every cable.
//
//   relay 50 shoal0 shoal1 shoal2      delay in microseconds, interfaces
//
// One thread reads packet sockets and sends the frames that are due. The delay of a frame starts at the arrival time
// that the kernel reports, so late wake-ups do not add up. To reach gigabits per second, the switch forwards large
// frames before their segmentation, with the offload header of the sender (PACKET_VNET_HDR). The program needs root. A
// signal ends the program.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSpin = 8'000;        // ns of busy waiting before a frame is due, because a sleep would end too late
constexpr size_t kOffload = 10;         // bytes of a virtio_net_hdr; the Linux header with this type is not valid C++
constexpr size_t kLargest = 80 * 1024;  // bytes of the largest frame before segmentation, with its headers
constexpr size_t kMost = 8192;          // maximum number of frames in flight; the switch drops further frames
constexpr int kSocketBuffer = 32 << 20;

using Address = std::array<unsigned char, ETH_ALEN>;

struct Frame {
  int64_t due = 0;
  size_t port = 0;
  size_t size = 0;  // bytes, including the virtio header
  std::unique_ptr<unsigned char[]> bytes = std::make_unique_for_overwrite<unsigned char[]>(kLargest);
  Address address(size_t offset) const {
    Address address;
    std::memcpy(address.data(), bytes.get() + kOffload + offset, ETH_ALEN);
    return address;
  }
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "relay: error: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

int64_t now() {  // uses the clock of the kernel's timestamps
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

void set(int socket, int level, int option, int value, const char* name) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) != 0) fail(name);
}

int open_port(const char* interface) {
  const int port = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (port < 0) fail("packet socket");
  set(port, SOL_PACKET, PACKET_VNET_HDR, 1, "PACKET_VNET_HDR");
  set(port, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING");
  set(port, SOL_SOCKET, SO_TIMESTAMPNS, 1, "SO_TIMESTAMPNS");
  set(port, SOL_SOCKET, SO_RCVBUFFORCE, kSocketBuffer, "SO_RCVBUFFORCE");
  set(port, SOL_SOCKET, SO_SNDBUFFORCE, kSocketBuffer, "SO_SNDBUFFORCE");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
  if (address.sll_ifindex == 0 || bind(port, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    fail(interface);
  return port;
}

class Relay {
 public:
  Relay(int64_t delay, int count, char** interfaces) : delay_(delay) {
    for (int i = 0; i < count; ++i) ports_.push_back({open_port(interfaces[i]), POLLIN, 0});
  }

  [[noreturn]] void run() {
    while (true) {
      wait();
      for (size_t port = 0; port < ports_.size(); ++port) {
        while (receive(port)) send_due();
      }
      send_due();
    }
  }

 private:
  void wait() {
    if (on_way_.empty()) {
      poll(ports_.data(), ports_.size(), -1);
      return;
    }
    const int64_t left = on_way_.front()->due - now() - kSpin;
    if (left <= 0) return;
    const timespec limit{left / kSecond, left % kSecond};
    ppoll(ports_.data(), ports_.size(), &limit, nullptr);
  }

  bool receive(size_t port) {
    if (free_.empty()) free_.push_back(std::make_unique<Frame>());
    Frame& frame = *free_.back();
    iovec bytes{frame.bytes.get(), kLargest};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
    msghdr message{};
    message.msg_iov = &bytes, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof(control);
    const ssize_t size = recvmsg(ports_[port].fd, &message, MSG_DONTWAIT);
    if (size < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN) fail("recvmsg");
    if (size < 0) return false;
    if (static_cast<size_t>(size) < kOffload + ETH_HLEN || (message.msg_flags & MSG_TRUNC) != 0 ||
        on_way_.size() == kMost) {
      return true;  // drops the frame
    }
    frame.due = delay_ + now();
    if (const cmsghdr* stamp = CMSG_FIRSTHDR(&message); stamp != nullptr && stamp->cmsg_type == SCM_TIMESTAMPNS) {
      timespec time{};
      std::memcpy(&time, CMSG_DATA(stamp), sizeof(time));
      frame.due = delay_ + time.tv_sec * kSecond + time.tv_nsec;
    }
    frame.port = port, frame.size = static_cast<size_t>(size);
    on_way_.push_back(std::move(free_.back()));
    free_.pop_back();
    return true;
  }

  void send_due() {
    while (!on_way_.empty() && on_way_.front()->due <= now()) {
      const Frame& frame = *on_way_.front();
      home_[frame.address(ETH_ALEN)] = frame.port;
      const auto known = home_.find(frame.address(0));
      for (size_t port = 0; port < ports_.size(); ++port) {
        // If the cable is disconnected or full, send() fails, and the frame is dropped.
        if (port != frame.port && (known == home_.end() || known->second == port)) {
          [[maybe_unused]] const ssize_t sent = ::send(ports_[port].fd, frame.bytes.get(), frame.size, MSG_DONTWAIT);
        }
      }
      free_.push_back(std::move(on_way_.front()));
      on_way_.pop_front();
    }
  }

  int64_t delay_;
  std::vector<pollfd> ports_;
  std::deque<std::unique_ptr<Frame>> on_way_;
  std::vector<std::unique_ptr<Frame>> free_;
  std::map<Address, size_t> home_;  // port of each address
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "relay: error: expected a delay in microseconds and two interfaces or more\n");
    return 2;
  }
  // Gives the switch a higher priority than programs that compute. Those programs may spin, but the switch mostly
  // sleeps.
  const sched_param first{1};
  if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) fail("SCHED_FIFO");
  Relay(static_cast<int64_t>(std::strtod(arguments[1], nullptr) * 1000), count - 2, arguments + 2).run();
}
