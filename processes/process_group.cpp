#include "processes/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shoal {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Channel 0 contains the tags of the group's own messages.
constexpr int kControlTag = 0, kLengthTag = 1, kTextTag = 2;
constexpr int kFirstChannel = 1, kPassages = 1 << 20, kMostPassages = 1 << 16;

enum : uint32_t { kAlive, kFailure, kGoodbye };

constexpr milliseconds kPollInterval{10}, kHeartbeat{500}, kFinalMessages{1000};

/// The back-off of a thread that polls for another process. The first few polls have no pauses. Between the next polls
/// the thread yields, because the other process may need this core. Between all later polls the thread sleeps: 20 us
/// per poll, or 500 us after it has waited for 200 ms.
class Waiting {
 public:
  void step() {
    constexpr int kLooks = 4;
    constexpr milliseconds kYields{2}, kShortSleeps{200};
    if (++looks_ < kLooks) return;
    const auto waited = std::chrono::steady_clock::now() - begin_;
    if (waited < kYields) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(waited < kShortSleeps ? 20 : 500));
  }

 private:
  int looks_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// A time limit that counts only the time during which this process runs. For example, an hour during which the process
/// is stopped does not count.
class Patience {
 public:
  explicit Patience(nanoseconds left) : left_(left) {}
  bool is_over() {
    constexpr nanoseconds kSlice = std::chrono::seconds(1);
    const auto now = std::chrono::steady_clock::now();
    left_ -= std::min<nanoseconds>(now - last_, kSlice);
    last_ = now;
    return left_.count() <= 0;
  }

 private:
  nanoseconds left_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

/// A message from one listener to another.
struct ProcessGroup::Control {
  uint32_t kind = kAlive;
  std::array<char, 1020> text{};
};

struct ProcessGroup::Line {
  Control news;                  ///< buffer for the peer's next message
  void* receive = nullptr;       ///< handle of the pending receive; nullptr after the peer's goodbye message
  std::array<Control, 3> said;   ///< for each kind, the latest message sent to the peer
  std::array<void*, 3> sends{};  ///< for each kind, the handle of the pending send
  nanoseconds silence{0};

  bool is_quiet() const {
    return receive == nullptr && std::all_of(sends.begin(), sends.end(), [](void* one) { return one == nullptr; });
  }
};

ProcessGroup::ProcessGroup(std::unique_ptr<Transport> transport, milliseconds silence, size_t longest_piece)
    : transport_(std::move(transport)),
      silence_(silence),
      longest_piece_(longest_piece),
      own_(transport_->own()),
      processes_(static_cast<size_t>(transport_->size())),
      has_left_(processes_.size()),
      next_channel_(kFirstChannel),
      passages_(processes_.size(), 0) {
  const std::string own_host = transport_->host();
  for (int peer = 0; peer < size(); ++peer) {
    lines_.push_back(std::make_unique<Line>());
    Line& line = *lines_.back();
    // a peer reports its host later
    processes_[static_cast<size_t>(peer)].host = peer == own_ ? own_host : "unknown host";
    if (peer == own_) continue;
    auto* next = reinterpret_cast<std::byte*>(&line.news);
    line.receive = transport_->start({false, peer, kControlTag, next, sizeof(line.news)});
  }
  listener_ = std::thread([this] { listen(); });
  try {
    meet_others();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    wake_.notify_all();
    listener_.join();
    throw;
  }
}

ProcessGroup::~ProcessGroup() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  if (listener_.joinable()) listener_.join();
  for (const auto& line : lines_) {
    if (line->receive != nullptr) transport_->cancel(line->receive);
    for (void* sends : line->sends) {
      if (sends != nullptr) transport_->cancel(sends);
    }
  }
}

// The processes exchange their host names and the numbers of their nodes. Each process joins the node of the first
// process whose memory it can see.
void ProcessGroup::meet_others() {
  uint64_t mark = std::random_device()();
  mark = mark << 32 | std::random_device()();
  const SharedMemory own(sizeof(mark));
  std::memcpy(own.data(), &mark, sizeof(mark));
  const nlohmann::json about{
      {"host", transport_->host()}, {"pid", getpid()}, {"memory", own.address()}, {"mark", mark}};
  const std::vector<std::string> texts = gather(about.dump(), "start of the processes");
  int node = own_;
  std::vector<int> pids;
  for (int peer = 0; peer < size(); ++peer) {
    const nlohmann::json told = nlohmann::json::parse(texts[static_cast<size_t>(peer)]);
    const std::string host = told["host"];
    pids.push_back(told["pid"]);
    {
      const std::lock_guard lock(mutex_);  // the listener may already read host names
      processes_[static_cast<size_t>(peer)].host = host;
    }
    if (peer >= own_ || node != own_ || host != about["host"]) continue;
    const auto seen = SharedMemory::open(told["memory"], sizeof(mark));
    const uint64_t its_mark = told["mark"];
    if (seen && std::memcmp(seen->data(), &its_mark, sizeof(mark)) == 0) node = peer;
  }
  const std::vector<std::string> nodes = gather(std::to_string(node), "start of the processes");
  std::vector<int> first;
  const std::lock_guard lock(mutex_);  // the listener needs the pids to watch the processes of this node
  for (int peer = 0; peer < size(); ++peer) {
    const int of = std::stoi(nodes[static_cast<size_t>(peer)]);
    if (of == peer) first.push_back(peer);
    Process& process = processes_[static_cast<size_t>(peer)];
    process.node = static_cast<int>(std::find(first.begin(), first.end(), of) - first.begin());
    process.pid = pids[static_cast<size_t>(peer)];
  }
}

std::string ProcessGroup::describe(int process) const {
  return fmt::format("process {} ({})", process, host(process));
}

std::vector<int> ProcessGroup::processes_of(int of) const {
  std::vector<int> found;
  for (int process = 0; process < size(); ++process) {
    if (node(process) == of) found.push_back(process);
  }
  return found;
}

int ProcessGroup::nodes() const {
  int last = 0;
  for (const Process& process : processes_) last = std::max(last, process.node);
  return last + 1;
}

void ProcessGroup::exchange(std::span<const Message> messages, std::string_view what,
                            std::optional<milliseconds> limit) {
  throw_if_failed();
  struct Piece {
    void* handle;
    int peer;
  };
  thread_local std::vector<Piece> pieces;
  pieces.clear();
  Waiting waiting;
  Patience patience(limit.value_or(milliseconds(0)));
  try {
    for (const Message& message : messages) {
      size_t done = 0;
      do {  // an empty message also consists of one piece
        Message piece = message;
        piece.data += done;
        piece.size = std::min(message.size - done, longest_piece_);
        pieces.push_back({transport_->start(piece), message.peer});
        done += piece.size;
      } while (done < message.size);
    }
    for (size_t open = pieces.size(); open > 0;) {
      for (Piece& piece : pieces) {
        if (piece.handle != nullptr && transport_->finished(piece.handle)) piece.handle = nullptr, --open;
      }
      if (open == 0) break;
      throw_if_failed();
      if (limit && patience.is_over()) {
        const auto late =
            std::find_if(pieces.begin(), pieces.end(), [](const Piece& one) { return one.handle != nullptr; });
        fail(
            fmt::format("[{}] {} did not answer within {:.3f} s; check whether it is busy or stopped, or raise the "
                        "time-out (SHOAL_COMM_TIMEOUT, in seconds)",
                        what, describe(late->peer), std::chrono::duration<double>(*limit).count()));
      }
      waiting.step();
    }
  } catch (...) {
    for (const Piece& piece : pieces) {
      if (piece.handle != nullptr) transport_->cancel(piece.handle);
    }
    throw;
  }
}

void ProcessGroup::send(int peer, int tag, std::span<const std::byte> bytes, std::string_view what) {
  exchange({{{true, peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size()}}}, what);
}

void ProcessGroup::receive(int peer, int tag, std::span<std::byte> bytes, std::string_view what) {
  exchange({{{false, peer, tag, bytes.data(), bytes.size()}}}, what);
}

std::vector<std::string> ProcessGroup::gather(std::string_view text, std::string_view what) {
  /// A message that is sent before each text. It contains the length of the text and the name of the call. If two
  /// processes are in different calls, both processes fail.
  struct Announced {
    uint64_t length = 0;
    std::array<char, 56> call{};
  };
  Announced own_announced{text.size(), {}};
  std::copy_n(what.begin(), std::min(what.size(), own_announced.call.size() - 1), own_announced.call.begin());
  const auto bytes_of = [](Announced& one) { return reinterpret_cast<std::byte*>(&one); };
  std::vector<Announced> announced(processes_.size(), own_announced);
  std::vector<Message> messages;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == own_) continue;
    messages.push_back({true, peer, kLengthTag, bytes_of(own_announced), sizeof(Announced)});
    messages.push_back({false, peer, kLengthTag, bytes_of(announced[static_cast<size_t>(peer)]), sizeof(Announced)});
  }
  exchange(messages, what);
  for (int peer = 0; peer < size(); ++peer) {
    const auto& call = announced[static_cast<size_t>(peer)].call;
    if (call == own_announced.call) continue;
    fail(fmt::format("reached \"{}\", but {} reached \"{}\"; use the same command line and shoal version everywhere",
                     what, describe(peer), call.data()));
  }
  std::vector<std::string> texts(processes_.size());
  messages.clear();
  std::string own_text(text);
  for (int peer = 0; peer < size(); ++peer) {
    std::string& its = texts[static_cast<size_t>(peer)];
    its.resize(announced[static_cast<size_t>(peer)].length);
    if (peer == own_) {
      its = own_text;
      continue;
    }
    messages.push_back({true, peer, kTextTag, reinterpret_cast<std::byte*>(own_text.data()), own_text.size()});
    messages.push_back({false, peer, kTextTag, reinterpret_cast<std::byte*>(its.data()), its.size()});
  }
  exchange(messages, what);
  return texts;
}

std::string ProcessGroup::broadcast(std::string text, std::string_view what) {
  return gather(own_ == 0 ? text : std::string(), what).front();
}

int ProcessGroup::passage_tag(int peer) {
  return kPassages + static_cast<int>(passages_[static_cast<size_t>(peer)]++ % kMostPassages);
}

SharedMemory ProcessGroup::share(size_t bytes) {
  const std::vector<int> neighbours = processes_of(node(own_));
  SharedMemory made(own_ == neighbours.front() ? bytes : 0);
  const std::string address = gather(made.address(), "shared memory")[static_cast<size_t>(neighbours.front())];
  auto opened = own_ == neighbours.front() ? std::nullopt : SharedMemory::open(address, bytes);
  const bool is_there = own_ == neighbours.front() || opened.has_value();
  if (!is_there) fail("cannot open the memory that " + describe(neighbours.front()) + " shares");
  gather("", "shared memory");  // `made` must live until all processes have opened it
  return opened ? std::move(*opened) : std::move(made);
}

void ProcessGroup::fail(std::string_view message) {
  take_failure(fmt::format("{}: {}", describe(own_), message), true);
  throw_if_failed();
}

void ProcessGroup::throw_if_failed() const {
  if (!has_failed()) return;
  const std::lock_guard lock(mutex_);
  throw CommError(failure_);
}

void ProcessGroup::take_failure(const std::string& message, bool broadcasts) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = message;
  broadcasts_failure_ = broadcasts;
  failed_.store(true, std::memory_order_release);
  caller_ = std::this_thread::get_id();
  const int end = next_callback_;  // callbacks registered from now on are called by on_failure()
  for (auto next = callbacks_.begin(); next != callbacks_.end() && next->first < end;) {
    called_ = next->first;
    const auto callback = next->second;
    lock.unlock();
    wake_.notify_all();
    callback(message);
    lock.lock();
    next = callbacks_.upper_bound(called_);
  }
  called_ = 0;
  lock.unlock();
  wake_.notify_all();
}

int ProcessGroup::on_failure(std::function<void(const std::string&)> callback) {
  std::unique_lock lock(mutex_);
  const int number = next_callback_++;
  callbacks_[number] = callback;
  const std::string message = failure_;
  lock.unlock();
  if (!message.empty()) callback(message);
  return number;
}

void ProcessGroup::remove_callback(int callback) {
  std::unique_lock lock(mutex_);
  callbacks_.erase(callback);
  if (caller_ != std::this_thread::get_id()) wake_.wait(lock, [&] { return called_ != callback || callback == 0; });
}

// The loop of the listener. The loop ends when the group is destroyed or all processes have left.
void ProcessGroup::listen() {
  auto last = Clock::now(), last_sign = Clock::time_point{};
  bool told = false, sent_goodbye = false;
  std::unique_lock lock(mutex_);
  while (!stops_) {
    const bool tells = broadcasts_failure_ && !told, leaves = leaves_ && !sent_goodbye;
    lock.unlock();
    try {
      for (int peer = 0; peer < size(); ++peer) receive_control(peer);
      const auto now = Clock::now();
      if (tells) {
        const std::lock_guard again(mutex_);
        send_control(kFailure, failure_);
        told = true;
      } else if (leaves) {
        send_control(kGoodbye, "");
        sent_goodbye = true;
      } else if (now - last_sign >= kHeartbeat && !sent_goodbye) {
        send_control(kAlive, "");
        last_sign = now;
      }
      for (int peer = 0; peer < size(); ++peer) check_liveness(peer, now - last);
      last = now;
      if (sent_goodbye)
        all_left_ = std::all_of(lines_.begin(), lines_.end(), [](const auto& line) { return line->is_quiet(); });
    } catch (const std::exception& error) {
      take_failure(fmt::format("{}: {}", describe(own_), error.what()), true);
    }
    lock.lock();
    wake_.wait_for(lock, kPollInterval);
  }
}

void ProcessGroup::receive_control(int peer) {
  Line& line = *lines_[static_cast<size_t>(peer)];
  for (size_t kind = 0; kind < line.sends.size(); ++kind) {
    if (line.sends[kind] == nullptr || !transport_->finished(line.sends[kind])) continue;
    line.sends[kind] = nullptr;
    if (kind == kFailure) ++told_;
  }
  while (line.receive != nullptr && transport_->finished(line.receive)) {
    const Control news = line.news;
    line.silence = nanoseconds(0);
    line.receive = nullptr;
    has_left_[static_cast<size_t>(peer)] = news.kind == kGoodbye;
    if (news.kind != kGoodbye) {
      auto* next = reinterpret_cast<std::byte*>(&line.news);
      line.receive = transport_->start({false, peer, kControlTag, next, sizeof(line.news)});
    }
    if (news.kind == kFailure) take_failure(std::string(news.text.data()), false);
  }
}

void ProcessGroup::send_control(uint32_t kind, std::string_view text) {
  for (int peer = 0; peer < size(); ++peer) {
    Line& line = *lines_[static_cast<size_t>(peer)];
    if (peer == own_ || line.sends[kind] != nullptr) continue;
    Control& said = line.said[kind];
    said.kind = kind;
    said.text.fill('\0');
    std::memcpy(said.text.data(), text.data(), std::min(text.size(), said.text.size() - 1));
    line.sends[kind] = transport_->start({true, peer, kControlTag, reinterpret_cast<std::byte*>(&said), sizeof(said)});
  }
}

void ProcessGroup::check_liveness(int peer, nanoseconds passed) {
  Line& line = *lines_[static_cast<size_t>(peer)];
  if (peer == own_ || line.receive == nullptr || has_failed()) return;
  const Process& process = processes_[static_cast<size_t>(peer)];
  std::unique_lock lock(mutex_);
  const bool is_near = process.pid != 0 && process.node == processes_[static_cast<size_t>(own_)].node;
  const std::string name = describe(peer);
  lock.unlock();
  if (is_near && kill(process.pid, 0) != 0 && errno == ESRCH) {
    take_failure(fmt::format("{} has died; check its output, signals and memory for the cause", name), true);
  }
  line.silence += std::min<nanoseconds>(passed, std::chrono::seconds(1));
  if (line.silence < silence_) return;
  take_failure(fmt::format("{} has been silent for {:.1f} s; check whether it runs and can be reached over the "
                           "network, or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)",
                           name, std::chrono::duration<double>(silence_).count()),
               true);
}

// Returns the name of a process that has sent no goodbye message. If every process has sent a goodbye message, returns
// the name of a stopped process of this computer.
std::string ProcessGroup::late_process() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != own_ && !has_left_[static_cast<size_t>(peer)]) return describe(peer);
  }
  for (const int peer : processes_of(node(own_))) {
    std::ifstream file(fmt::format("/proc/{}/stat", processes_[static_cast<size_t>(peer)].pid));
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] == 'T') return describe(peer);
  }
  return "another process";
}

void ProcessGroup::leave() {
  gather("", "end of the run");
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  wake_.notify_all();
  const auto wait_until = [&](const auto& is_done) {
    for (Patience patience(silence_); !is_done();) {
      throw_if_failed();
      if (patience.is_over()) {
        fail(
            fmt::format("{} did not reach the end of the run within {:.3f} s; check whether it is stopped, or raise "
                        "the time-out (SHOAL_COMM_TIMEOUT, in seconds)",
                        late_process(), std::chrono::duration<double>(silence_).count()));
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  wait_until([&] { return all_left_.load(); });
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  listener_.join();
  // close() waits for all processes without a time-out, so a separate thread calls it. The separate thread keeps the
  // transport alive until close() returns or the program ends.
  std::shared_ptr<std::atomic<bool>> is_closed = std::make_shared<std::atomic<bool>>(false);
  std::thread([transport = transport_, is_closed] {
    transport->close();
    *is_closed = true;
  }).detach();
  wait_until([&] { return is_closed->load(); });
}

void ProcessGroup::leave_failed() noexcept {
  const auto end = Clock::now() + kFinalMessages;
  while (broadcasts_failure_ && told_ < size() - 1 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
}

}  // namespace shoal
