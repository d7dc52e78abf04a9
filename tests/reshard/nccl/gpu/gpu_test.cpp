// Proves NCCL and CUDA themselves where there is a device: strided copies, a communicator's life, a
// bounded init, and publications between all devices of this machine (one is enough: source and
// target then share it). Skips without a device. TROUPE_GPU_LIBRARY names a library that has both
// sets of symbols, in place of the linked ones.

#include "reshard/execution/buffer_sink.hpp"
#include "reshard/execution/publish.hpp"
#include "reshard/nccl/device_sink.hpp"
#include "reshard/nccl/linked_libraries.hpp"
#include "reshard/nccl/nccl_peer.hpp"
#include "tests/reshard/memory_world.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace troupe::reshard::nccl {
namespace {

using reshard::testing::Bytes;
using reshard::testing::Memory;

constexpr Duration kSoon = std::chrono::seconds(60);

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* name = std::getenv("TROUPE_GPU_LIBRARY")) {
      auto nccl = NcclLibrary::open({name});
      auto cuda = CudaLibrary::open({name});
      ASSERT_TRUE(nccl && cuda);
      nccl_ = *nccl;
      cuda_ = *cuda;
    } else {
      auto nccl = linked_nccl();
      ASSERT_TRUE(nccl) << nccl.error().to_string();
      nccl_ = *nccl;
      cuda_ = linked_cuda();
    }
    const auto count = cuda_->device_count();
    if (!count) GTEST_SKIP() << count.error().to_string();
    for (int i = 0; i < std::min(*count, 8); ++i) {
      auto device = CudaDevice::open(cuda_, i);
      ASSERT_TRUE(device) << device.error().to_string();
      devices_.push_back(*std::move(device));
    }
  }
  static void wait(const CudaDevice& device, const CudaHandle& stream) {
    const auto event = device.event();
    ASSERT_TRUE(event && device.record(**event, stream));
    const Deadline until = Deadline::in(kSoon);
    while (!until.passed()) {
      const auto done = device.done(**event);
      ASSERT_TRUE(done) << done.error().to_string();
      if (*done) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    FAIL() << "the device did not finish";
  }
  static void upload(const CudaDevice& device, std::span<std::byte> to, const Bytes& from) {
    const auto stream = device.stream();
    ASSERT_TRUE(stream && device.copy(to.data(), from.data(),
                                      static_cast<std::int64_t>(from.size()), **stream));
    wait(device, **stream);
  }
  static Bytes download(const CudaDevice& device, std::span<const std::byte> from) {
    Bytes bytes(from.size());
    const auto stream = device.stream();
    EXPECT_TRUE(stream && device.copy(bytes.data(), from.data(),
                                      static_cast<std::int64_t>(from.size()), **stream));
    wait(device, **stream);
    return bytes;
  }
  Membership membership(std::uint64_t epoch, std::size_t members) const {
    EXPECT_TRUE(devices_[0]->use());
    Membership made{.epoch = epoch, .unique_id = id_bytes(*nccl_->unique_id()), .members = {}};
    for (std::size_t i = 0; i < members; ++i)
      made.members.push_back({static_cast<std::int32_t>(i), "this host", devices_[i]->bus_id()});
    return made;
  }

  std::shared_ptr<const NcclLibrary> nccl_;
  std::shared_ptr<const CudaLibrary> cuda_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
};

TEST_F(GpuTest, StridedCopiesArriveBitForBit) {
  const CudaDevice& device = *devices_[0];
  constexpr std::int64_t kRows = 33, kRowBytes = 70, kStride = 96;
  Bytes bytes(kRows * kStride);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  const auto strided = device.allocate(kRows * kStride);
  const auto dense = device.allocate(kRows * kRowBytes);
  const auto stream = device.stream();
  ASSERT_TRUE(strided && dense && stream);
  upload(device, (*strided)->bytes(), bytes);
  ASSERT_TRUE(device.copy_rows({(*dense)->bytes().data(), kRowBytes},
                               {(*strided)->bytes().data(), kStride}, kRows, kRowBytes, **stream));
  wait(device, **stream);
  const Bytes packed = download(device, (*dense)->bytes());
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t i = 0; i < kRowBytes; ++i)
      ASSERT_EQ(packed[static_cast<std::size_t>(row * kRowBytes + i)],
                bytes[static_cast<std::size_t>(row * kStride + i)]);
}

TEST_F(GpuTest, ACommunicatorOfOneJoinsIsAbortedAndJoinsAgain) {
  const auto comm = Communicator::create(nccl_, *devices_[0]);
  ASSERT_TRUE(comm) << comm.error().to_string();
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    const auto joined = (*comm)->join(membership(epoch, 1), Deadline::in(kSoon)).wait();
    ASSERT_TRUE(joined) << joined.error().to_string();
    EXPECT_TRUE((*comm)->ready());
    (*comm)->abort({.code = ErrorCode::kAborted, .message = "next", .origin = {}, .causes = {}});
    ASSERT_TRUE((*comm)->wait_idle(Deadline::in(kSoon)));
  }
}

TEST_F(GpuTest, AnInitThatNobodyJoinsIsBounded) {
  const auto comm = Communicator::create(nccl_, *devices_[0]);
  ASSERT_TRUE(comm) << comm.error().to_string();
  Membership two = membership(1, 1);
  two.members.push_back({1, "another host", "0000:00:00.0"});
  const auto began = std::chrono::steady_clock::now();
  const auto joined = (*comm)->join(two, Deadline::in(std::chrono::seconds(2))).wait();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kDeadline) << joined.error().to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  const auto again = (*comm)->join(membership(2, 1), Deadline::in(kSoon)).wait();
  ASSERT_TRUE(again) << again.error().to_string();
}

class ThreadLink final : public MemberLink {
 public:
  ThreadLink(Member member, NcclPeer& peer) : member_(member), peer_(peer) {}
  ~ThreadLink() override {
    for (std::thread& thread : threads_) thread.join();
  }
  Member member() const override { return member_; }
  runtime::pending<Reply> call(const Command& command, Deadline /*deadline*/) override {
    auto [answer, out] = runtime::make_pending<Reply>();
    threads_.emplace_back(
        [this, command, out = out] { out.complete(peer_.handle(member_.side, command)); });
    return std::move(answer);
  }

 private:
  Member member_;
  NcclPeer& peer_;
  std::vector<std::thread> threads_;
};

/// Rows cut over all devices at the source, columns at the target.
TEST_F(GpuTest, PublicationsBetweenAllDevicesArriveBitForBit) {
  const auto ranks = static_cast<std::int64_t>(devices_.size());
  const std::int64_t rows = 256 * ranks, cols = 512 * ranks;
  Roster source{
      .tensors = {{.name = "w", .dtype = DType::kBf16, .rows = rows, .cols = cols, .layer = 0}},
      .ranks = {}};
  Roster target = source;
  for (std::int32_t r = 0; r < static_cast<std::int32_t>(ranks); ++r) {
    const Box by_rows{r * 256, (r + 1) * 256, 0, cols};
    const Box by_cols{0, rows, r * 512, (r + 1) * 512};
    source.ranks.push_back({r, 0, {{0, by_rows, 0, 0, cols}}, {256 * cols}});
    target.ranks.push_back({r, 0, {{0, by_cols, 0, 0, 512}}, {rows * 512}});
  }
  const auto made = PublicationPlan::make(source, target);
  ASSERT_TRUE(made) << made.error().to_string();
  const auto plan = *made;
  Memory weights = reshard::testing::empty_memory(plan->source());
  std::vector<std::unique_ptr<CudaBuffer>> buffers;
  std::vector<std::unique_ptr<DeviceSink>> sinks;
  std::vector<std::unique_ptr<NcclPeer>> peers;
  for (std::int32_t r = 0; r < static_cast<std::int32_t>(ranks); ++r) {
    const CudaDevice& device = *devices_[static_cast<std::size_t>(r)];
    buffers.push_back(*device.allocate(256 * cols * 2));
    sinks.push_back(
        *DeviceSink::create(device, buffer_bytes(plan->target(), *plan->target_layout(r))));
    NcclPeerOptions options;
    options.sources = {buffers.back()->bytes()};
    options.sink = sinks.back().get();
    auto peer = NcclPeer::create(plan, r, nccl_, device, options);
    ASSERT_TRUE(peer) << peer.error().to_string();
    peers.push_back(*std::move(peer));
  }
  Membership all = membership(1, devices_.size());
  all.bucket_bytes = 64 << 10;
  std::vector<std::thread> joins;
  for (const auto& peer : peers)
    joins.emplace_back([&all, one = peer.get()] {
      const auto joined = one->join(all, Deadline::in(kSoon));
      EXPECT_TRUE(joined) << joined.error().to_string();
    });
  for (std::thread& thread : joins) thread.join();
  for (std::int64_t version = 1; version <= 3; ++version) {
    reshard::testing::fill(weights, static_cast<std::uint64_t>(version));
    for (std::size_t r = 0; r < buffers.size(); ++r)
      upload(*devices_[r], buffers[r]->bytes(), weights.buffers[static_cast<std::int32_t>(r)][0]);
    std::vector<std::unique_ptr<ThreadLink>> links;
    std::vector<MemberLink*> members;
    for (std::size_t r = 0; r < peers.size(); ++r)
      for (const Side side : {Side::kSource, Side::kTarget})
        links.push_back(
            std::make_unique<ThreadLink>(Member{side, static_cast<std::int32_t>(r)}, *peers[r]));
    for (const auto& link : links) members.push_back(link.get());
    PublishOptions options;
    options.id = {.epoch = static_cast<std::uint64_t>(version),
                  .version = WeightVersion{version},
                  .digest = plan->plan().digest,
                  .base = {}};
    options.sources_send = true;
    const auto outcome = publish(options, members);
    ASSERT_TRUE(outcome) << outcome.error().to_string();
    const Memory wanted = reshard::testing::gather_then_slice(weights, plan->target(), {});
    for (std::size_t r = 0; r < sinks.size(); ++r)
      EXPECT_EQ(download(*devices_[r], sinks[r]->active_buffer(0)),
                wanted.buffers.at(static_cast<std::int32_t>(r))[0]);
  }
}

}  // namespace
}  // namespace troupe::reshard::nccl
