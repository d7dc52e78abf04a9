#pragma once

// Ranks on fake devices: a publication plan, a peer per rank with weights in device memory, and the
// coordinator's links to them.
// **Threads:** one; each member call runs on a thread of its own.

#include "reshard/execution/buffer_sink.hpp"
#include "reshard/execution/publish.hpp"
#include "reshard/nccl/device_sink.hpp"
#include "reshard/nccl/nccl_peer.hpp"
#include "tests/reshard/call_link.hpp"
#include "tests/reshard/memory_world.hpp"
#include "tests/reshard/nccl/fake_device_library.hpp"

#include <dlfcn.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::reshard::nccl::testing {

using reshard::testing::at;
using reshard::testing::Bytes;
using reshard::testing::Memory;

inline FakeDesk& desk() {
  static FakeDesk* const kDesk = [] {
    void* library = dlopen(TROUPE_FAKE_DEVICE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<FakeDeskFunction>(dlsym(library, "fake_device_desk"))();
  }();
  return *kDesk;
}
inline std::vector<std::string> fake_name() { return {TROUPE_FAKE_DEVICE_LIBRARY}; }

/// Every test begins without faults, and ends without having broken a rule of NCCL's or CUDA's.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { desk().reset({}); }
  void TearDown() override {
    EXPECT_TRUE(desk().violations().empty()) << desk().violations().front();
    EXPECT_EQ(desk().counts().comms, 0);
    EXPECT_EQ(desk().counts().allocations, 0);
    desk().reset({});
  }
};

struct DeviceWorldOptions {
  std::int64_t bucket_bytes = kBucketBytesMin;
  Duration round_within = std::chrono::seconds(10);
  Duration abort_within = std::chrono::seconds(5);
};

class DeviceWorld {
 public:
  DeviceWorld(const Roster& source, const Roster& target, const PlanOptions& plan_options = {},
              const DeviceWorldOptions& options = {})
      : options_(options), plan_options_(plan_options) {
    auto made = PublicationPlan::make(source, target, plan_options);
    if (!made) {
      ADD_FAILURE() << made.error().to_string();
      return;
    }
    plan = *std::move(made);
    library = *NcclLibrary::open(fake_name());
    cuda = *CudaLibrary::open(fake_name());
    memory = reshard::testing::empty_memory(plan->source());
    std::set<std::int32_t> ranks;
    for (const RankLayout& rank : plan->source().ranks) ranks.insert(rank.rank);
    for (const RankLayout& rank : plan->target().ranks) ranks.insert(rank.rank);
    for (const std::int32_t rank : ranks) add(rank);
  }
  ~DeviceWorld() { peers.clear(); }
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;

  Membership membership() {
    Membership made{.epoch = ++membership_epoch,
                    .unique_id = *peers.begin()->second->new_unique_id(),
                    .members = {},
                    .bucket_bytes = options_.bucket_bytes};
    for (const auto& [rank, peer] : peers) made.members.push_back(peer->device_member("host"));
    return made;
  }
  /// What each rank's join says, in order of ranks; `absent` do not join.
  std::map<std::int32_t, result<void>> join(const Membership& membership,
                                            Duration within = std::chrono::seconds(10),
                                            const std::set<std::int32_t>& absent = {}) {
    std::map<std::int32_t, result<void>> answers;
    std::vector<std::thread> threads;
    for (const auto& [rank, peer] : peers) {
      if (absent.count(rank) != 0) continue;
      result<void>& answer = answers[rank];
      threads.emplace_back([&answer, &membership, within, one = peer.get()] {
        answer = one->join(membership, Deadline::in(within));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  }
  void join_all() {
    for (const auto& [rank, answer] : join(membership()))
      EXPECT_TRUE(answer) << "rank " << rank << ": " << answer.error().to_string();
  }

  void fill_source(std::uint64_t round) {
    reshard::testing::fill(memory, round);
    for (const auto& [rank, buffers] : memory.buffers)
      for (std::size_t b = 0; b < buffers.size(); ++b)
        if (!buffers[b].empty())
          desk().poke(weights[rank][b]->bytes().data(), buffers[b].data(), buffers[b].size());
  }

  PublicationId id(std::int64_t version) {
    return {.epoch = ++epoch,
            .version = WeightVersion{version},
            .digest = plan->plan().digest,
            .base = {}};
  }
  result<PublicationOutcome> publish_as(const PublicationId& as,
                                        const Checks& checks = {.chunk_crc = true},
                                        Duration within = std::chrono::seconds(20)) {
    std::vector<std::unique_ptr<reshard::testing::CallLink>> links;
    const auto add_link = [&](Member member) {
      links.push_back(std::make_unique<reshard::testing::CallLink>(
          member, [this, member](const Command& command) {
            if (intercept) {
              if (auto instead = intercept(member, command)) return *std::move(instead);
            }
            return result<Reply>(peers.at(member.rank)->handle(member.side, command));
          }));
    };
    for (const RankLayout& rank : plan->source().ranks) add_link({Side::kSource, rank.rank});
    for (const RankLayout& rank : plan->target().ranks) add_link({Side::kTarget, rank.rank});
    std::vector<MemberLink*> members;
    for (const auto& link : links) members.push_back(link.get());
    PublishOptions options;
    options.id = as;
    options.checks = checks;
    options.receive_within = within;
    options.sources_send = true;
    return publish(options, members);
  }

  std::vector<Bytes> active(std::int32_t rank) const {
    std::vector<Bytes> all;
    const std::size_t count = plan->target_layout(rank)->buffer_elements.size();
    for (std::size_t b = 0; b < count; ++b) {
      const auto span = sinks.at(rank)->active_buffer(static_cast<std::int32_t>(b));
      all.push_back(desk().peek(span.data(), span.size()));
    }
    return all;
  }
  /// Every byte of every target, padding included, is what gathering and slicing gives.
  void expect_published(std::int64_t version) {
    const Memory wanted =
        reshard::testing::gather_then_slice(memory, plan->target(), plan_options_);
    for (const auto& [rank, buffers] : wanted.buffers) {
      EXPECT_EQ(sinks.at(rank)->active().value, version) << "target rank " << rank;
      EXPECT_EQ(active(rank), buffers) << "target rank " << rank;
    }
  }
  std::map<std::int32_t, std::vector<Bytes>> all_active() const {
    std::map<std::int32_t, std::vector<Bytes>> all;
    for (const auto& [rank, sink] : sinks) all[rank] = active(rank);
    return all;
  }

  DeviceWorldOptions options_;
  PlanOptions plan_options_;
  std::shared_ptr<const PublicationPlan> plan;
  std::shared_ptr<const NcclLibrary> library;
  std::shared_ptr<const CudaLibrary> cuda;
  Memory memory;
  std::uint64_t epoch = 0;
  std::uint64_t membership_epoch = 0;
  std::map<std::int32_t, std::unique_ptr<CudaDevice>> devices;
  std::map<std::int32_t, std::vector<std::unique_ptr<CudaBuffer>>> weights;
  std::map<std::int32_t, std::unique_ptr<DeviceSink>> sinks;
  std::map<std::int32_t, std::unique_ptr<NcclPeer>> peers;
  /// May answer in place of a member.
  std::function<std::optional<result<Reply>>(Member, const Command&)> intercept;

 private:
  void add(std::int32_t rank) {
    devices[rank] = *CudaDevice::open(cuda, static_cast<int>(devices.size()));
    const CudaDevice& device = *devices[rank];
    NcclPeerOptions options;
    options.round_within = options_.round_within;
    options.abort_within = options_.abort_within;
    if (plan->source_layout(rank) != nullptr) {
      for (const Bytes& bytes : memory.buffers[rank]) {
        weights[rank].push_back(
            *device.allocate(std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes.size()))));
        options.sources.push_back(weights[rank].back()->bytes());
      }
    }
    if (const RankLayout* layout = plan->target_layout(rank)) {
      sinks[rank] = *DeviceSink::create(device, buffer_bytes(plan->target(), *layout));
      DeviceSink& sink = *sinks[rank];
      for (std::size_t b = 0; b < layout->buffer_elements.size(); ++b)
        for (const auto& span : {sink.active_buffer(static_cast<std::int32_t>(b)),
                                 sink.buffer(static_cast<std::int32_t>(b))}) {
          const Bytes sentinels(span.size(), reshard::testing::kSentinel);
          desk().poke(span.data(), sentinels.data(), sentinels.size());
        }
      options.sink = &sink;
    }
    auto made = NcclPeer::create(plan, rank, library, device, options);
    ASSERT_TRUE(made) << made.error().to_string();
    peers[rank] = *std::move(made);
  }
};

}  // namespace troupe::reshard::nccl::testing
