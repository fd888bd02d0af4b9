#include "tests/cuda/nccl_standin/lines.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/cuda/nccl_standin/world.h"

namespace shoal::nccl_standin {
namespace {

struct Header {
  uint32_t what;
  int32_t rank, kind, type, root;
  uint64_t number, count, size;
};

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
  /// No file: the system forgets it with the process.
  explicit Address(const std::string& text) {
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

bool write_all(int socket, const void* data, size_t size) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(socket, from, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    from += sent, size -= static_cast<size_t>(sent);
  }
  return true;
}

bool read_all(int socket, void* data, size_t size) {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::recv(socket, to, size, 0);
    if (got <= 0) return false;
    to += got, size -= static_cast<size_t>(got);
  }
  return true;
}

/// Of data on their way: SHOAL_NCCL_STANDIN_DELAY, in milliseconds.
std::chrono::milliseconds delay() {
  const char* text = std::getenv("SHOAL_NCCL_STANDIN_DELAY");
  return std::chrono::milliseconds(text != nullptr ? std::atoi(text) : 0);
}

void welcome(int socket) {
  const auto line = std::make_shared<Line>(socket);
  Parcel parcel;
  if (!line->read(parcel) || parcel.what != Parcel::kJoin) return;
  const std::string id(reinterpret_cast<const char*>(parcel.data.data()), parcel.data.size());
  const std::shared_ptr<World> world = world_of(id, static_cast<int>(parcel.count));
  world->add(line);
  line->start(world);
}

std::string listen_here() {
  std::string address = "shoal-nccl-standin-" + std::to_string(getpid());
  const Address name(address);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(socket, name.get(), name.size) != 0 || listen(socket, 64) != 0) return address;
  std::thread([socket] {
    for (int one; (one = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) std::thread(welcome, one).detach();
  }).detach();
  return address;
}

std::string address_of(const std::string& id) {
  return id.substr(0, id.find(' '));
}

}  // namespace

const std::string& own_address() {
  static const std::string& address = *new std::string(listen_here());
  return address;
}

bool is_own(const std::string& id) {
  return address_of(id) == "shoal-nccl-standin-" + std::to_string(getpid());
}

std::shared_ptr<Line> join(const std::string& id, size_t ranks) {
  const Address name(address_of(id));
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(socket, name.get(), name.size) != 0) {
    close(socket);
    return nullptr;
  }
  auto line = std::make_shared<Line>(socket);
  const auto* begin = reinterpret_cast<const std::byte*>(id.data());
  line->outbox.push_back({.what = Parcel::kJoin, .count = ranks, .data = Bytes(begin, begin + id.size())});
  return line;
}

// The threads end with the other process, or with this one.
void Line::start(std::shared_ptr<World> world) {
  std::thread([self = shared_from_this(), world] { self->send_all(*world); }).detach();
  std::thread([self = shared_from_this(), world] {
    Parcel parcel;
    while (self->read(parcel)) world->take(std::move(parcel), self.get());
    world->lose(*self);
  }).detach();
}

void Line::send_all(World& world) {
  for (;;) {
    std::unique_lock lock(world.mutex);
    is_sending = false;
    world.changed.notify_all();
    world.changed.wait(lock, [this] { return !outbox.empty(); });
    // While it is delayed it can still be dropped.
    if (outbox.front().what == Parcel::kPart && delay().count() > 0) {
      lock.unlock();
      std::this_thread::sleep_for(delay());
      lock.lock();
      if (outbox.empty()) continue;
    }
    const Parcel parcel = std::move(outbox.front());
    outbox.pop_front();
    is_sending = true;
    lock.unlock();
    if (!write(parcel)) return;
  }
}

bool Line::write(const Parcel& parcel) const {
  const Header header{parcel.what, parcel.rank,   parcel.kind,  parcel.type,
                      parcel.root, parcel.number, parcel.count, parcel.data.size()};
  return write_all(socket_, &header, sizeof(header)) && write_all(socket_, parcel.data.data(), parcel.data.size());
}

bool Line::read(Parcel& parcel) const {
  Header header{};
  if (!read_all(socket_, &header, sizeof(header))) return false;
  parcel = {static_cast<Parcel::What>(header.what),
            header.rank,
            header.kind,
            header.type,
            header.root,
            header.number,
            header.count,
            Bytes(header.size)};
  return read_all(socket_, parcel.data.data(), parcel.data.size());
}

}  // namespace shoal::nccl_standin
