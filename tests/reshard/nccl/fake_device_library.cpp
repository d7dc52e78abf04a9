// The fake shared library, see fake_device_library.hpp. One lock guards all of it; streams are
// queues that `pump` works off as far as it gets.

#include "tests/reshard/nccl/fake_device_library.hpp"

#include "reshard/nccl/cuda_abi.hpp"
#include "reshard/nccl/nccl_abi.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace troupe::reshard::nccl::testing {
namespace {

struct FakeComm;

/// One send or receive of a group.
struct FakeTransfer {
  bool is_send = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  bool over = false;
  int corrupt_at = -1;
};

struct FakeGroup {
  FakeComm* comm = nullptr;
  std::vector<std::shared_ptr<FakeTransfer>> transfers;
  bool posted = false;
  bool hangs = false;
  bool dropped = false;
  std::int64_t queries_left = 0;
  bool over() const {
    return dropped || (posted && std::all_of(transfers.begin(), transfers.end(),
                                             [](const auto& one) { return one->over; }));
  }
};

struct FakeEvent;
struct StreamItem {
  // A copy, a group or a mark, by what is set.
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::size_t target_pitch = 0, source_pitch = 0, width = 0, height = 0;
  std::shared_ptr<FakeGroup> group;
  FakeEvent* event = nullptr;
  std::uint64_t serial = 0;
};
struct FakeStream {
  int device = 0;
  std::deque<StreamItem> items;
};
struct FakeEvent {
  int device = 0;
  std::uint64_t wanted = 0, reached = 0;
};

struct Queue {
  std::deque<std::pair<FakeComm*, std::shared_ptr<FakeTransfer>>> sends, receives;
};
struct Session {
  int ranks = 0;
  std::map<int, int> joined;  // rank → device; a rank that was aborted had joined all the same
  std::map<std::pair<int, int>, Queue> queues;  // by sender and receiver
  bool doubled_device = false;
};
struct FakeComm {
  std::shared_ptr<Session> session;
  int rank = 0;
  int device = 0;
  Code error = Code::kSuccess;
  int polls_left = 0;
  int groups = 0;
  bool takes_part = true;
  std::string last;
};

struct Allocation {
  std::byte* real = nullptr;
  std::size_t bytes = 0;
};

struct Injected {
  Fault fault;
  int rank, at, value;
};

thread_local int current_device = 0;
thread_local int group_depth = 0;
struct Posted {
  FakeComm* comm;
  FakeStream* stream;
  std::shared_ptr<FakeTransfer> transfer;
};
thread_local std::vector<Posted> group_posts;

class Fake final : public FakeDesk {
 public:
  void reset(const FakeFaults& faults) override {
    const std::lock_guard lock(mutex_);
    faults_ = faults;
    injected_.clear();
    violations_.clear();
    const FakeCounts old = counts_;
    counts_ = {};
    counts_.comms = old.comms;
    counts_.allocations = old.allocations;
    counts_.device_bytes = old.device_bytes;
    released_ = false;
  }
  void inject(Fault fault, int rank, int at, int value) override {
    const std::lock_guard lock(mutex_);
    injected_.push_back({fault, rank, at, value});
  }
  void clear_faults() override {
    const std::lock_guard lock(mutex_);
    injected_.clear();
  }
  void release() override {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  FakeCounts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  std::vector<std::string> violations() const override {
    const std::lock_guard lock(mutex_);
    return violations_;
  }
  std::vector<std::uint8_t> peek(const void* data, std::size_t bytes) const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint8_t> out(bytes);
    if (bytes > 0) std::memcpy(out.data(), real(static_cast<const std::byte*>(data)), bytes);
    return out;
  }
  void poke(void* data, const std::uint8_t* from, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (bytes > 0) std::memcpy(real(static_cast<std::byte*>(data)), from, bytes);
  }

  // CUDA.
  int device_count(int* count) {
    const std::lock_guard lock(mutex_);
    *count = faults_.devices;
    return faults_.devices == 0 ? 100 : 0;  // cudaErrorNoDevice
  }
  int allocate(void** data, std::size_t bytes);
  int free_device(void* data);
  int allocate_pinned(void** data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ++counts_.allocations;
    *data = ::operator new(bytes);
    return 0;
  }
  int free_pinned(void* data) {
    const std::lock_guard lock(mutex_);
    --counts_.allocations;
    ::operator delete(data);
    return 0;
  }
  int enqueue(void* stream, StreamItem item) {
    const std::lock_guard lock(mutex_);
    if (current_device != static_cast<FakeStream*>(stream)->device)
      violations_.push_back("work on a stream of another device");
    static_cast<FakeStream*>(stream)->items.push_back(std::move(item));
    return 0;
  }
  int make_stream(void** stream) {
    const std::lock_guard lock(mutex_);
    auto one = std::make_unique<FakeStream>();
    one->device = current_device;
    *stream = one.get();
    streams_.push_back(std::move(one));
    return 0;
  }
  int destroy_stream(void* stream) {
    const std::lock_guard lock(mutex_);
    pump();
    if (!static_cast<FakeStream*>(stream)->items.empty())
      violations_.push_back("a stream destroyed with work on it");
    std::erase_if(streams_, [&](const auto& one) { return one.get() == stream; });
    return 0;
  }
  int make_event(void** event) {
    const std::lock_guard lock(mutex_);
    auto one = std::make_unique<FakeEvent>();
    one->device = current_device;
    *event = one.get();
    events_.push_back(std::move(one));
    return 0;
  }
  int destroy_event(void* event) {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_)
      std::erase_if(stream->items, [&](const StreamItem& one) { return one.event == event; });
    std::erase_if(events_, [&](const auto& one) { return one.get() == event; });
    return 0;
  }
  int record(void* event, void* stream) {
    StreamItem item;
    item.event = static_cast<FakeEvent*>(event);
    {
      const std::lock_guard lock(mutex_);
      item.serial = ++item.event->wanted;
    }
    return enqueue(stream, std::move(item));
  }
  int query(void* event) {
    const std::lock_guard lock(mutex_);
    const auto* one = static_cast<const FakeEvent*>(event);
    for (const Injected& fault : injected_)
      if (fault.fault == Fault::kEventFails && fault.rank == one->device) return fault.value;
    pump();
    return one->reached == one->wanted ? kCudaSuccess : kCudaNotReady;
  }

  // NCCL.
  Code version(int* version) {
    const std::lock_guard lock(mutex_);
    *version = faults_.version;
    return Code::kSuccess;
  }
  Code unique_id(UniqueId* id) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = ++ids_;
    for (std::size_t i = 0; i < id->internal.size(); ++i)
      id->internal[i] = static_cast<char>((number * 31 + i * 7) & 0x7F);
    std::memcpy(id->internal.data(), &number, sizeof number);
    return Code::kSuccess;
  }
  Code init(Comm** comm, int ranks, const UniqueId& id, int rank, const Config& config);
  Code async_error(Comm* comm, Code* code);
  Code abort(Comm* comm);
  Code post(bool is_send, std::byte* data, std::size_t bytes, int type, int peer, Comm* comm,
            void* stream);
  Code end_group();
  const char* last_error(Comm* comm) {
    const std::lock_guard lock(mutex_);
    FakeComm* one = alive(comm, "last error");
    return one == nullptr ? "" : one->last.c_str();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  const Injected* find(Fault fault, int rank, int at = -1) const {
    for (const Injected& one : injected_)
      if (one.fault == fault && one.rank == rank && (at < 0 || one.at == at)) return &one;
    return nullptr;
  }
  std::byte* real(const std::byte* data) const {
    auto place = memory_.upper_bound(data);
    if (place != memory_.begin()) {
      --place;
      if (data < place->first + place->second.bytes)
        return place->second.real + (data - place->first);
    }
    return const_cast<std::byte*>(data);
  }
  FakeComm* alive(Comm* comm, const char* doing) {
    auto* one = reinterpret_cast<FakeComm*>(comm);
    if (comms_.count(one) != 0) return one;
    violations_.push_back(std::string(doing) + " on a communicator that is gone");
    return nullptr;
  }
  void pump();
  bool advance(FakeStream& stream);
  bool match(Session& session);
  void check_config(const Config& config);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FakeFaults faults_;
  std::vector<Injected> injected_;
  std::vector<std::string> violations_;
  FakeCounts counts_;
  bool released_ = false;
  std::uint64_t ids_ = 0;
  std::map<const std::byte*, Allocation> memory_;
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::vector<std::unique_ptr<FakeEvent>> events_;
  std::map<std::string, std::shared_ptr<Session>> sessions_;
  std::map<FakeComm*, std::unique_ptr<FakeComm>> comms_;
  std::int64_t aborting_ = 0;
};

int Fake::allocate(void** data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const int file = memfd_create("fake device memory", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) return 2;
  void* readable = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  void* shown = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (readable == MAP_FAILED || shown == MAP_FAILED) return 2;
  memory_[static_cast<std::byte*>(shown)] = {static_cast<std::byte*>(readable), size};
  ++counts_.allocations;
  counts_.device_bytes += static_cast<std::int64_t>(size);
  *data = shown;
  return 0;
}

int Fake::free_device(void* data) {
  const std::lock_guard lock(mutex_);
  pump();
  const auto place = memory_.find(static_cast<const std::byte*>(data));
  if (place == memory_.end()) {
    violations_.push_back("freed what was not allocated");
    return 1;
  }
  const std::byte* end = place->first + place->second.bytes;
  const auto inside = [&](const std::byte* at) { return at >= place->first && at < end; };
  for (const auto& stream : streams_) {
    for (const StreamItem& item : stream->items) {
      bool used = inside(item.target) || inside(item.source);
      if (item.group != nullptr && !item.group->dropped)
        for (const auto& one : item.group->transfers) used = used || inside(one->data);
      if (used) violations_.push_back("memory freed while the device uses it");
    }
  }
  munmap(place->second.real, place->second.bytes);
  munmap(data, place->second.bytes);
  --counts_.allocations;
  counts_.device_bytes -= static_cast<std::int64_t>(place->second.bytes);
  memory_.erase(place);
  return 0;
}

void Fake::pump() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& stream : streams_) moved = advance(*stream) || moved;
    std::set<Session*> sessions;
    for (const auto& [comm, owned] : comms_) sessions.insert(comm->session.get());
    for (Session* session : sessions) moved = match(*session) || moved;
  }
}

bool Fake::advance(FakeStream& stream) {
  bool moved = false;
  while (!stream.items.empty()) {
    StreamItem& item = stream.items.front();
    if (item.group != nullptr) {
      FakeGroup& group = *item.group;
      if (!group.posted && !group.dropped) {
        if (group.hangs || group.queries_left-- > 0) return moved;
        group.posted = true;
        moved = true;
        for (const auto& one : group.transfers) {
          const int own = group.comm->rank;
          auto& queues = group.comm->session->queues;
          if (one->is_send)
            queues[{own, one->peer}].sends.emplace_back(group.comm, one);
          else
            queues[{one->peer, own}].receives.emplace_back(group.comm, one);
        }
      }
      if (!group.over()) return moved;
    } else if (item.event != nullptr) {
      item.event->reached = std::max(item.event->reached, item.serial);
    } else {
      for (std::size_t row = 0; row < item.height; ++row)
        std::memcpy(real(item.target) + row * item.target_pitch,
                    real(item.source) + row * item.source_pitch, item.width);
    }
    stream.items.pop_front();
    moved = true;
  }
  return moved;
}

bool Fake::match(Session& session) {
  bool moved = false;
  for (auto& [pair, queue] : session.queues) {
    while (!queue.sends.empty() && !queue.receives.empty()) {
      auto& [sender, out] = queue.sends.front();
      auto& [receiver, in] = queue.receives.front();
      if (sender->error != Code::kSuccess || receiver->error != Code::kSuccess) break;
      if (out->bytes != in->bytes) {
        for (FakeComm* one : {sender, receiver}) {
          one->error = Code::kInvalidUsage;
          one->last = "rank " + std::to_string(pair.first) + " sends " +
                      std::to_string(out->bytes) + " bytes, rank " + std::to_string(pair.second) +
                      " receives " + std::to_string(in->bytes);
        }
        break;
      }
      std::memcpy(real(in->data), real(out->data), out->bytes);
      if (out->corrupt_at >= 0 && static_cast<std::size_t>(out->corrupt_at) < out->bytes)
        real(in->data)[out->corrupt_at] ^= std::byte{0x40};
      out->over = in->over = true;
      counts_.transfers += 1;
      counts_.bytes += static_cast<std::int64_t>(out->bytes);
      queue.sends.pop_front();
      queue.receives.pop_front();
      moved = true;
    }
  }
  return moved;
}

void Fake::check_config(const Config& config) {
  const std::size_t wanted = config_bytes(faults_.version);
  if (config.size != wanted)
    violations_.push_back("config of " + std::to_string(config.size) + " bytes, wanted " +
                          std::to_string(wanted));
  if (config.magic != kConfigMagic) violations_.push_back("config without its magic");
  if (config.version > static_cast<unsigned int>(faults_.version))
    violations_.push_back("config newer than the library");
  if (config.blocking != 0) violations_.push_back("a blocking communicator");
  if (config.cga_cluster_size != kUndefined || config.net_name != nullptr ||
      config.split_share != kUndefined || config.traffic_class != kUndefined)
    violations_.push_back("config with fields that are not undefined");
}

Code Fake::init(Comm** comm, int ranks, const UniqueId& id, int rank, const Config& config) {
  Lock lock(mutex_);
  check_config(config);
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal.data(), sizeof number);
  for (std::size_t i = sizeof number; i < id.internal.size(); ++i)
    if (id.internal[i] != static_cast<char>((number * 31 + i * 7) & 0x7F)) {
      violations_.push_back("a unique id with foreign bytes");
      return Code::kInvalidArgument;
    }
  if (rank < 0 || rank >= ranks) return Code::kInvalidArgument;
  if (const Injected* one = find(Fault::kInitFails, rank)) return static_cast<Code>(one->value);
  if (find(Fault::kInitCallBlocks, rank) != nullptr)
    changed_.wait(lock, [this] { return released_; });
  auto owned = std::make_unique<FakeComm>();
  FakeComm& made = *owned;
  std::shared_ptr<Session>& session = sessions_[std::string(id.internal.data(), 128)];
  if (session == nullptr) session = std::make_shared<Session>();
  session->ranks = ranks;
  made.session = session;
  made.rank = rank;
  made.device = current_device;
  made.polls_left = faults_.in_progress_polls;
  made.takes_part = find(Fault::kInitHangs, rank) == nullptr;
  if (const Injected* one = find(Fault::kInitFailsLater, rank)) {
    made.error = static_cast<Code>(one->value);
    made.last = "told to fail";
  }
  for (const auto& [other, device] : session->joined)
    session->doubled_device = session->doubled_device || device == current_device;
  if (made.takes_part) session->joined[rank] = current_device;
  comms_.emplace(&made, std::move(owned));
  ++counts_.comms;
  *comm = reinterpret_cast<Comm*>(&made);
  return Code::kInProgress;
}

Code Fake::async_error(Comm* comm, Code* code) {
  const std::lock_guard lock(mutex_);
  FakeComm* one = alive(comm, "async error");
  if (one == nullptr) return Code::kInvalidArgument;
  pump();
  if (const Injected* now = find(Fault::kErrorNow, one->rank)) {
    one->error = static_cast<Code>(now->value);
    one->last = "told to fail now";
  }
  *code = one->error;
  if (one->error != Code::kSuccess) return Code::kSuccess;
  const Session& session = *one->session;
  const bool whole =
      static_cast<int>(session.joined.size()) == session.ranks && !session.doubled_device;
  if (!whole || !one->takes_part || one->polls_left-- > 0) *code = Code::kInProgress;
  return Code::kSuccess;
}

Code Fake::abort(Comm* comm) {
  Lock lock(mutex_);
  FakeComm* one = alive(comm, "abort");
  if (one == nullptr) return Code::kInvalidArgument;
  ++counts_.aborts;
  ++aborting_;
  counts_.aborts_at_once = std::max(counts_.aborts_at_once, aborting_);
  if (find(Fault::kAbortBlocks, one->rank) != nullptr)
    changed_.wait(lock, [this] { return released_; });
  else if (faults_.abort_ms > 0)
    changed_.wait_for(lock, std::chrono::milliseconds(faults_.abort_ms), [] { return false; });
  // Its own work ends; what peers wait for from it never comes.
  for (const auto& stream : streams_)
    for (StreamItem& item : stream->items)
      if (item.group != nullptr && item.group->comm == one) item.group->dropped = true;
  const auto own = [one](const auto& entry) { return entry.first == one; };
  for (auto& [pair, queue] : one->session->queues) {
    std::erase_if(queue.sends, own);
    std::erase_if(queue.receives, own);
  }
  comms_.erase(one);
  --counts_.comms;
  --aborting_;
  pump();
  return Code::kSuccess;
}

Code Fake::post(bool is_send, std::byte* data, std::size_t bytes, int type, int peer, Comm* comm,
                void* stream) {
  const std::lock_guard lock(mutex_);
  FakeComm* one = alive(comm, "send or receive");
  if (one == nullptr) return Code::kInvalidArgument;
  if (type != kUint8) violations_.push_back("elements that are not bytes");
  if (group_depth == 0) violations_.push_back("send or receive outside a group");
  if (peer < 0 || peer >= one->session->ranks) return Code::kInvalidArgument;
  if (peer == one->rank) violations_.push_back("a rank sends to itself");
  auto transfer = std::make_shared<FakeTransfer>();
  transfer->is_send = is_send;
  transfer->data = data;
  transfer->bytes = bytes;
  transfer->peer = peer;
  group_posts.push_back({one, static_cast<FakeStream*>(stream), std::move(transfer)});
  return Code::kSuccess;
}

Code Fake::end_group() {
  const std::lock_guard lock(mutex_);
  std::vector<Posted> posts;
  posts.swap(group_posts);
  if (posts.empty()) return Code::kSuccess;
  FakeComm* comm = posts.front().comm;
  auto group = std::make_shared<FakeGroup>();
  group->comm = comm;
  group->queries_left = faults_.delay_queries;
  for (Posted& one : posts) group->transfers.push_back(one.transfer);
  const int number = comm->groups++;
  ++counts_.groups;
  const auto first = [&](bool is_send, bool seal) -> FakeTransfer* {
    for (const auto& one : group->transfers)
      if (one->is_send == is_send &&
          (!seal || (one->bytes >= 72 && one->bytes % 8 == 0 && one != group->transfers.front())))
        return one.get();
    return nullptr;
  };
  if (const Injected* one = find(Fault::kGroupCallFails, comm->rank, number))
    return static_cast<Code>(one->value);
  if (find(Fault::kGroupHangs, comm->rank, number) != nullptr) group->hangs = true;
  if (const Injected* one = find(Fault::kAsyncError, comm->rank, number)) {
    group->hangs = true;
    comm->error = static_cast<Code>(one->value);
    comm->last = "told to fail at group " + std::to_string(number);
  }
  if (const Injected* one = find(Fault::kCorruptByte, comm->rank, number))
    if (FakeTransfer* sent = first(true, false)) sent->corrupt_at = one->value;
  if (const Injected* one = find(Fault::kCorruptSeal, comm->rank, number))
    if (FakeTransfer* sent = first(true, true)) sent->corrupt_at = one->value;
  if (find(Fault::kShortReceive, comm->rank, number) != nullptr)
    if (FakeTransfer* wanted = first(false, false)) --wanted->bytes;
  StreamItem item;
  item.group = std::move(group);
  posts.front().stream->items.push_back(std::move(item));
  comm->polls_left = faults_.in_progress_polls;
  return comm->polls_left > 0 ? Code::kInProgress : Code::kSuccess;
}

Fake& fake() {
  static Fake one;
  return one;
}

/// Not through the exported name: the loader would give us a real runtime's where there is one.
int copy_2d(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
            std::size_t width, std::size_t height, int kind, void* stream) {
  if (kind != kCudaCopyDefault || width > target_pitch || width > source_pitch) return 1;
  StreamItem item;
  item.target = static_cast<std::byte*>(target);
  item.source = static_cast<const std::byte*>(source);
  item.target_pitch = target_pitch;
  item.source_pitch = source_pitch;
  item.width = width;
  item.height = height;
  return fake().enqueue(stream, std::move(item));
}

}  // namespace
}  // namespace troupe::reshard::nccl::testing

// The symbols, by NCCL's and CUDA's names.
using namespace troupe::reshard::nccl;           // NOLINT(google-build-using-namespace)
using namespace troupe::reshard::nccl::testing;  // NOLINT(google-build-using-namespace)

extern "C" {

FakeDesk* fake_device_desk() { return &fake(); }

Code ncclGetVersion(int* version) { return fake().version(version); }
Code ncclGetUniqueId(UniqueId* id) { return fake().unique_id(id); }
Code ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  return fake().init(comm, ranks, id, rank, *config);
}
Code ncclCommGetAsyncError(Comm* comm, Code* code) { return fake().async_error(comm, code); }
#ifdef FAKE_WITHOUT_ABORT
#define ncclCommAbort fakeCommAbort
#endif
Code ncclCommAbort(Comm* comm) { return fake().abort(comm); }
const char* ncclGetErrorString(Code code) {
  switch (code) {
    case Code::kInvalidUsage:
      return "invalid usage";
    case Code::kRemoteError:
      return "remote process exited or there was a network error";
    case Code::kSystemError:
      return "unhandled system error";
    default:
      return "some error";
  }
}
const char* ncclGetLastError(Comm* comm) { return fake().last_error(comm); }
Code ncclGroupStart() {
  ++group_depth;
  return Code::kSuccess;
}
Code ncclGroupEnd() { return --group_depth == 0 ? fake().end_group() : Code::kSuccess; }
Code ncclSend(const void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
  auto* bytes = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  return fake().post(true, bytes, count, type, peer, comm, stream);
}
Code ncclRecv(void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
  return fake().post(false, static_cast<std::byte*>(data), count, type, peer, comm, stream);
}

int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cudaGetDeviceCount(int* count) { return fake().device_count(count); }
int cudaSetDevice(int device) {
  current_device = device;
  return 0;
}
int cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  const std::string id = "0000:" + std::to_string(device + 10) + ":00.0";
  if (static_cast<std::size_t>(bytes) <= id.size()) return 1;
  std::memcpy(text, id.c_str(), id.size() + 1);
  return 0;
}
int cudaMalloc(void** data, std::size_t bytes) { return fake().allocate(data, bytes); }
int cudaFree(void* data) { return fake().free_device(data); }
int cudaMallocHost(void** data, std::size_t bytes) { return fake().allocate_pinned(data, bytes); }
int cudaFreeHost(void* data) { return fake().free_pinned(data); }
int cudaMemcpy2DAsync(void* target, std::size_t target_pitch, const void* source,
                      std::size_t source_pitch, std::size_t width, std::size_t height, int kind,
                      void* stream) {
  return copy_2d(target, target_pitch, source, source_pitch, width, height, kind, stream);
}
int cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, int kind, void* stream) {
  return copy_2d(target, bytes, source, bytes, bytes, 1, kind, stream);
}
int cudaStreamCreateWithFlags(void** stream, unsigned int flags) {
  return flags == kCudaStreamNonBlocking ? fake().make_stream(stream) : 1;
}
int cudaStreamDestroy(void* stream) { return fake().destroy_stream(stream); }
int cudaEventCreateWithFlags(void** event, unsigned int flags) {
  return flags == kCudaEventDisableTiming ? fake().make_event(event) : 1;
}
int cudaEventDestroy(void* event) { return fake().destroy_event(event); }
int cudaEventRecord(void* event, void* stream) { return fake().record(event, stream); }
int cudaEventQuery(void* event) { return fake().query(event); }
const char* cudaGetErrorString(int code) {
  return code == 100 ? "no device is detected" : "an error of the device";
}

}  // extern "C"
