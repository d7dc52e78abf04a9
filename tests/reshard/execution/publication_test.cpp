// Proves what single publications promise, on small worlds in one process and over a LocalNetwork:
// bounded memory and stable addresses over a hundred of them, tensors larger than a bucket, views
// without a copy, layers in order, frozen sources, corrupted bytes, an abort from another thread,
// and deltas that travel only what changed and are refused against another base.

#include "reshard/execution/piece_columns.hpp"
#include "reshard/execution/piece_lane.hpp"
#include "tests/reshard/execution/world.hpp"
#include "tests/reshard/random_case.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

void* counted_new(std::size_t size) {
  void* memory = std::malloc(size + 16);
  if (memory == nullptr) throw std::bad_alloc();
  std::memcpy(memory, &size, sizeof(size));
  const std::int64_t live =
      live_bytes.fetch_add(static_cast<std::int64_t>(size)) + static_cast<std::int64_t>(size);
  std::int64_t peak = peak_bytes.load();
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return static_cast<char*>(memory) + 16;
}

void counted_delete(void* memory) noexcept {
  if (memory == nullptr) return;
  void* start = static_cast<char*>(memory) - 16;
  std::size_t size = 0;
  std::memcpy(&size, start, sizeof(size));
  live_bytes.fetch_sub(static_cast<std::int64_t>(size));
  std::free(start);
}

}  // namespace

void* operator new(std::size_t size) { return counted_new(size); }
void* operator new[](std::size_t size) { return counted_new(size); }
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return counted_new(size);
}
void* operator new[](std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return counted_new(size);
}
void operator delete(void* memory) noexcept { counted_delete(memory); }
void operator delete[](void* memory) noexcept { counted_delete(memory); }
void operator delete[](void* memory, std::size_t /*size*/) noexcept { counted_delete(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { counted_delete(memory); }

namespace troupe::reshard::testing {
namespace {

ModelShape shape_of(std::int64_t hidden) {
  return {.vocab = 96,
          .hidden = hidden,
          .intermediate = 2 * hidden,
          .layers = 3,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = hidden / 8};
}

/// tp 2 and dp 2 to two engines of tp 2 on another node.
Case small_case(std::int64_t hidden = 64) {
  Case made;
  made.source = *train_roster(shape_of(hidden), {.tp = 2, .dp = 2}, {.ranks_per_node = 8});
  made.target = *rollout_roster(shape_of(hidden), {.replicas = 2, .tp = 2},
                                {.first_rank = 8, .first_node = 1, .ranks_per_node = 8});
  return made;
}

World network_world(const Case& one, std::int64_t bucket_bytes, WorldOptions options = {}) {
  options.spread = Spread::kRanks;
  options.target.bucket_bytes = bucket_bytes;
  return {one.source, one.target, one.options, options};
}

TEST(Publication, AHundredInARowKeepAddressesAndDoNotGrow) {
  const Case one = small_case(32);
  World world(one.source, one.target, one.options, {.spread = Spread::kNodes});
  std::map<std::pair<std::int32_t, std::int32_t>, std::set<const std::byte*>> addresses;
  std::int64_t after_ten = 0;
  for (std::int64_t version = 1; version <= 100; ++version) {
    world.fill_source(static_cast<std::uint64_t>(version));
    const auto outcome = world.publish_as(world.id(version));
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
    for (const auto& [rank, sink] : world.buffer_sinks) {
      EXPECT_EQ(sink->active(), WeightVersion{version});
      const auto count = world.plan->target_layout(rank)->buffer_elements.size();
      for (std::int32_t b = 0; b < static_cast<std::int32_t>(count); ++b)
        addresses[{rank, b}].insert(sink->active_buffer(b).data());
    }
    if (version == 10) after_ten = live_bytes.load();
  }
  world.expect_published();
  for (const auto& [buffer, seen] : addresses) EXPECT_EQ(seen.size(), 2U);
  EXPECT_LE(live_bytes.load(), after_ten + 4096);
}

TEST(Publication, ExtraMemoryIsAFewBuckets) {
  const Case one = small_case(128);
  constexpr std::int64_t kBucket = 16 << 10;
  World world = network_world(one, kBucket, {.spread = Spread::kRanks, .call_sinks = true});
  world.fill_source(1);
  ASSERT_TRUE(world.publish_as(world.id(1)).has_value());
  std::int64_t model = 0;
  for (const TensorInfo& tensor : one.target.tensors) model += tensor.bytes();
  const std::int64_t before = live_bytes.load();
  peak_bytes = before;
  world.fill_source(2);
  ASSERT_TRUE(world.publish_as(world.id(2)).has_value());
  const auto members = static_cast<std::int64_t>(world.sources.size() + world.targets.size());
  // All members are in this process; the buckets themselves stayed from the first publication.
  EXPECT_LE(peak_bytes.load() - before, members * 2 * kBucket + (512 << 10))
      << "the model has " << model << " bytes";
  world.expect_published();
}

TEST(Publication, TensorsLargerThanABucketArrive) {
  const Case one = small_case(64);
  World world = network_world(one, 200);  // a row of the model has 256 bytes
  world.fill_source(1);
  const auto outcome = world.publish_as(world.id(1));
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  for (const auto& [member, received] : outcome->received)
    EXPECT_LE(received.staging_bytes, 2 * 200);
  world.expect_published();
}

/// Keeps views in place of copies.
class ViewSink final : public WeightSink {
 public:
  WeightVersion active() const override { return version_; }
  result<void> begin(WeightVersion version, bool /*from_active*/) override {
    next_ = version;
    return {};
  }
  result<void> write(const TensorInfo& tensor, const Box& /*box*/, const std::byte* /*data*/,
                     std::int64_t /*row_stride*/) override {
    return fail(ErrorCode::kInternal, "tensor {} was copied", tensor.name);
  }
  bool adopt(const TensorInfo& tensor, const Box& box, const std::byte* data,
             std::int64_t row_stride) override {
    views.push_back({tensor.name, box, data, row_stride});
    return true;
  }
  result<void> commit() override {
    version_ = next_;
    return {};
  }
  void abort() override {}

  struct View {
    std::string tensor;
    Box box;
    const std::byte* data;
    std::int64_t row_stride;
  };
  std::vector<View> views;

 private:
  WeightVersion version_;
  WeightVersion next_;
};

TEST(Publication, WhereTheCallerPermitsItViewsReplaceCopies) {
  const Case one = small_case();
  World world(one.source, one.target, one.options, {});
  world.fill_source(5);
  ViewSink sink;
  const std::int32_t rank = 8;
  auto port = world.ports.at(0).get();
  world.targets.at(rank) = std::make_unique<PublicationTarget>(
      world.plan, rank, sink, *port, TargetOptions{.bucket_bytes = 4096, .permit_views = true});
  const auto outcome = world.publish_as(world.id(1));
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  const ReceiveStatistics& received = outcome->received.at({Side::kTarget, rank});
  EXPECT_GT(received.viewed_bytes, 0);
  EXPECT_EQ(received.viewed_bytes, received.local_bytes);
  EXPECT_EQ(received.pulled_bytes, 0);
  for (const ViewSink::View& view : sink.views) {
    for (std::int64_t row = view.box.row_begin; row < view.box.row_end; ++row) {
      std::uint32_t found = 0;
      std::memcpy(&found, view.data + (row - view.box.row_begin) * view.row_stride * 4, 4);
      EXPECT_EQ(found,
                static_cast<std::uint32_t>(bits_of(view.tensor, row, view.box.col_begin, 5)));
    }
  }
}

TEST(Publication, LayersAreAnnouncedInOrderOnce) {
  const Case one = small_case();
  World world = network_world(one, 4096, {.spread = Spread::kRanks, .call_sinks = true});
  world.fill_source(1);
  ASSERT_TRUE(world.publish_as(world.id(1)).has_value());
  for (const auto& [rank, sink] : world.call_sinks)
    EXPECT_EQ(sink->layers(), (std::vector<std::int32_t>{-1, 0, 1, 2, 3}));
}

TEST(Publication, WeightsDoNotChangeWhileTheyAreRead) {
  const Case one = small_case();
  World world(one.source, one.target, one.options, {});
  PublicationSource& source = *world.sources.at(0);
  Command begin;
  begin.id = world.id(1);
  ASSERT_EQ(source.handle(begin).kind, ReplyKind::kReady);
  const auto refused = source.start_update(Deadline::in(Duration(0)));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message,
            "source rank 0: its weights cannot be updated: version 1 is being published, 0 reads "
            "under way");
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Command abort = begin;
    abort.kind = CommandKind::kAbort;
    source.handle(abort);
  });
  auto lease = source.start_update(Deadline::in(std::chrono::seconds(10)));
  ender.join();
  ASSERT_TRUE(lease.has_value()) << lease.error().to_string();
  begin.id = world.id(2);
  const Reply reply = source.handle(begin);
  ASSERT_EQ(reply.kind, ReplyKind::kFailed);
  EXPECT_EQ(reply.error->message,
            "source rank 0: its weights are being updated, version 2 cannot be published");
  lease->reset();
  begin.id = world.id(3);
  EXPECT_EQ(source.handle(begin).kind, ReplyKind::kReady);
}

/// Puts something between the network and the source of every port while it lives.
class Wrapped {
 public:
  explicit Wrapped(std::function<runtime::PullSource(std::int32_t, runtime::PullSource)> wrap) {
    World::wrap_source = std::move(wrap);
  }
  ~Wrapped() { World::wrap_source = nullptr; }
  Wrapped(const Wrapped&) = delete;
  Wrapped& operator=(const Wrapped&) = delete;
};

TEST(Publication, ACorruptedByteEndsItAndTheOldVersionServes) {
  for (const Checks& checks : {Checks{true, false}, Checks{false, true}}) {
    std::atomic<int> until{-1};
    const Wrapped wrapped([&](std::int32_t process, runtime::PullSource source) {
      if (process != 1) return source;
      return runtime::PullSource([&until, source](ColumnId column, std::int64_t first,
                                                  std::int64_t rows) -> result<runtime::Pinned> {
        auto pinned = source(column, first, rows);
        const bool bytes = decode_column(column).kind == ColumnKind::kBytes;
        if (!pinned || !bytes || until.fetch_sub(1) != 0) return pinned;
        auto copy = std::make_shared<std::vector<std::byte>>();
        for (const auto& span : pinned->spans) copy->insert(copy->end(), span.begin(), span.end());
        (*copy)[copy->size() / 2] ^= std::byte{1};
        const std::span<const std::byte> span = *copy;
        return runtime::Pinned{.spans = {span}, .keep = std::move(copy)};
      });
    });
    const Case one = small_case();
    World world = network_world(one, 4096);
    world.fill_source(1);
    ASSERT_TRUE(world.publish_as(world.id(1), checks).has_value());
    const auto before = world.active(8);
    world.fill_source(2);
    until = 3;
    const auto outcome = world.publish_as(world.id(2), checks);
    ASSERT_FALSE(outcome.has_value());
    EXPECT_EQ(outcome.error().code, ErrorCode::kCorrupt);
    const std::string text = outcome.error().to_string();
    EXPECT_NE(text.find("tensor model."), std::string::npos) << text;
    EXPECT_NE(text.find("target rank "), std::string::npos) << text;
    EXPECT_EQ(world.active(8), before);
    until = -1;
    ASSERT_TRUE(world.publish_as(world.id(3), checks).has_value());
    world.expect_published();
  }
}

TEST(Publication, AnAbortEndsAReceiveThatIsUnderWay) {
  const Case one = small_case();
  World world = network_world(one, 4096);
  world.fill_source(1);
  Command command;
  command.id = world.id(1);
  for (const auto& [rank, source] : world.sources) source->handle(command);
  PublicationTarget& target = *world.targets.at(8);
  ASSERT_EQ(target.handle(command).kind, ReplyKind::kReady);
  for (const auto& [process, port] : world.ports) world.network.stop(port->address());
  command.kind = CommandKind::kReceive;
  for (const auto& [process, port] : world.ports) {
    for (const Side side : {Side::kSource, Side::kTarget})
      command.members.push_back({{side, process}, port->address()});
  }
  Reply reply;
  std::thread receiver([&] { reply = target.handle(command); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Command abort = command;
  abort.kind = CommandKind::kAbort;
  EXPECT_EQ(target.handle(abort).kind, ReplyKind::kAborted);
  receiver.join();
  EXPECT_EQ(reply.kind, ReplyKind::kFailed);
  EXPECT_EQ(reply.error->code, ErrorCode::kAborted);
  EXPECT_EQ(world.buffer_sinks.at(8)->active(), WeightVersion{0});
}

TEST(Publication, ADeltaBringsOnlyWhatChanged) {
  Case one = small_case();
  one.target = *rollout_roster(shape_of(64), {}, {.first_rank = 8, .first_node = 1});
  World world =
      network_world(one, 16 << 10, {.spread = Spread::kRanks, .source = {.keep_base = true}});
  world.fill_source(1);
  const auto full = world.publish_as(world.id(1));
  ASSERT_TRUE(full.has_value()) << full.error().to_string();
  std::uint64_t changed = 0;
  for_each_number(world.memory, [&](const TensorInfo& tensor, std::int64_t row, std::int64_t col,
                                    std::uint8_t* out) {
    if (mix_seed(row * 7919 + col, tensor.name.size()) % 100 != 0) return;
    out[0] = static_cast<std::uint8_t>(out[0] ^ 0x5A);
    ++changed;
  });
  const auto delta = world.publish_as(world.id(2, 1));
  ASSERT_TRUE(delta.has_value()) << delta.error().to_string();
  world.expect_published();
  std::int64_t pulled = 0;
  std::int64_t unchanged = 0;
  for (const auto& [member, received] : delta->received) {
    pulled += received.pulled_bytes;
    unchanged += received.unchanged_bytes;
  }
  EXPECT_GT(changed, 0U);
  EXPECT_GT(unchanged, 4 * pulled);

  const auto wrong = world.publish_as(world.id(3, 1));
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().code, ErrorCode::kConflict);
  EXPECT_NE(wrong.error().message.find("publish in full"), std::string::npos);
  ASSERT_TRUE(world.publish_as(world.id(3)).has_value());
  world.expect_published();
}

/// What the port's own lane does, counted.
class CountingLane final : public PieceLane {
 public:
  CountingLane(std::unique_ptr<PieceLane> lane, std::atomic<int>& fetches)
      : lane_(std::move(lane)), fetches_(fetches) {}
  runtime::pending<void> fetch(std::uint64_t epoch, const MemberAddress& from,
                               std::span<const LanePart> parts, std::shared_ptr<const void> keep,
                               Deadline deadline,
                               std::shared_ptr<runtime::LandingWatch> watch) override {
    ++fetches_;
    return lane_->fetch(epoch, from, parts, std::move(keep), deadline, std::move(watch));
  }

 private:
  std::unique_ptr<PieceLane> lane_;
  std::atomic<int>& fetches_;
};

TEST(Publication, ComesByTheLaneThatATargetIsGiven) {
  CaseMaker maker(5);
  const Case one = maker.model_case();
  std::atomic<int> fetches{0};
  WorldOptions options;
  options.spread = Spread::kRanks;
  options.target.lane = [&fetches](WeightPort& port) {
    return std::make_unique<CountingLane>(transport_lane(port), fetches);
  };
  World world(one.source, one.target, one.options, options);
  world.fill_source(1);
  const auto outcome = world.publish_as(world.id(1));
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  world.expect_published();
  EXPECT_GE(fetches, static_cast<int>(world.targets.size()));
}

}  // namespace
}  // namespace troupe::reshard::testing
