// Proves in-flight weight updates over the real publication: begin, receive and commit come between
// slices, samples under way go on, and every token carries the version that made it. With recompute
// all log-probs after the update are those of a fresh prefill under the new weights, bit for bit;
// with kept KV samples go on; a drained update ends them first. An aborted publication, at any of
// its steps, leaves everything as if it had never begun, and the canary never lies.

#include "actors/roles/engine_sink.hpp"
#include "actors/rollout/model_share.hpp"
#include "reshard/execution/publication_source.hpp"
#include "reshard/execution/publication_target.hpp"
#include "reshard/rosters.hpp"
#include "tests/actors/roles_stream/stream_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using reshard::CommandKind;
using reshard::ReplyKind;

/// A trainer of one rank whose weights a replica of one rank gets.
class Publisher {
 public:
  Publisher(Replica& replica, const WeightSet& weights, WeightUpdate update)
      : replica_(replica),
        sink_(replica.engine(), [this] { return replica_.rank().stream->settle(late()); }) {
    sink_.set_update(update);
    reshard::Roster source =
        reshard::train_roster(shape_of(replica.engine().config()), {.tp = 1}).value();
    reshard::Roster target{.tensors = source.tensors, .ranks = {replica.engine().layout()}};
    fill(source, weights);
    plan_ = reshard::PublicationPlan::make(std::move(source), std::move(target)).value();
    std::vector<std::span<const std::byte>> spans;
    for (const auto& buffer : buffers_) spans.push_back(std::as_bytes(std::span(buffer)));
    source_ = std::make_unique<reshard::PublicationSource>(plan_, 0, spans, *port_);
    target_ = std::make_unique<reshard::PublicationTarget>(
        plan_, 0, sink_, *port_, reshard::TargetOptions{.bucket_bytes = 4096});
  }

  void open(WeightVersion version) {
    id_ = {.epoch = id_.epoch + 1, .version = version, .digest = plan_->plan().digest, .base = {}};
    members_.clear();
  }
  /// One step on both sides, or on the target alone.
  void step(CommandKind kind) {
    reshard::Command command{.kind = kind, .id = id_, .checks = {}, .members = {}, .cause = {}};
    if (kind == CommandKind::kReceive) command.members = members_;
    if (kind == CommandKind::kAbort)
      command.cause =
          Error{.code = ErrorCode::kAborted, .message = "test", .origin = {}, .causes = {}};
    if (kind != CommandKind::kReceive) expect(source_->handle(command));
    expect(target_->handle(command));
  }

 private:
  void fill(const reshard::Roster& roster, const WeightSet& weights) {
    const reshard::RankLayout& layout = roster.ranks[0];
    for (const std::int64_t elements : layout.buffer_elements)
      buffers_.emplace_back(static_cast<std::size_t>(elements));
    for (const reshard::Segment& s : layout.segments) {
      const reshard::TensorInfo& tensor = roster.tensors[static_cast<std::size_t>(s.tensor)];
      const float* whole = weights.find(tensor.name)->data.data();
      float* out = buffers_[static_cast<std::size_t>(s.buffer)].data() + s.offset;
      for (std::int64_t row = s.box.row_begin; row < s.box.row_end; ++row)
        std::copy_n(whole + row * tensor.cols + s.box.col_begin, s.box.cols(),
                    out + (row - s.box.row_begin) * s.row_stride);
    }
  }
  void expect(const reshard::Reply& reply) {
    ASSERT_NE(reply.kind, ReplyKind::kFailed) << (reply.error ? reply.error->to_report() : "");
    if (reply.kind == ReplyKind::kReady) members_.push_back({reply.from, reply.address});
  }

  Replica& replica_;
  EngineSink sink_;
  std::vector<std::vector<float>> buffers_;
  std::unique_ptr<reshard::WeightPort> port_ = reshard::WeightPort::local();
  std::shared_ptr<const reshard::PublicationPlan> plan_;
  std::unique_ptr<reshard::PublicationSource> source_;
  std::unique_ptr<reshard::PublicationTarget> target_;
  reshard::PublicationId id_;
  std::vector<reshard::MemberAddress> members_;
};

constexpr CommandKind kSteps[] = {CommandKind::kBegin, CommandKind::kReceive, CommandKind::kCommit};

class InFlight : public ::testing::Test {
 protected:
  /// Room for all but one of the samples: one begins after the update.
  Replica make() { return Replica(config_, old_, {.max_num_seqs = 8}); }
  void slice(Replica& replica, AdvanceRequest request) {
    request.slice = kLong;
    auto reply = replica.advance(request);
    ASSERT_TRUE(reply.has_value()) << reply.error().to_string();
    keeper_.take(*reply);
  }
  /// Two groups of two and a late one, a slice of `steps` before each step of the publication.
  void publish_under_way(Replica& replica, Publisher& publisher, std::int64_t steps) {
    GenerateRequest first = plain_request(1, 30);
    first.sample_indices = {0, 1};
    GenerateRequest second = plain_request(2, 40);
    second.sample_indices = {3, 4};
    std::vector<SampleStart> starts;
    for (Trajectory& one : trajectories_of({first, second}))
      starts.push_back(keeper_.start(std::move(one)));
    publisher.open(WeightVersion{2});
    for (const CommandKind kind : kSteps) {
      ASSERT_NO_FATAL_FAILURE(slice(replica, {.starts = std::move(starts), .steps_max = steps}));
      starts.clear();
      EXPECT_EQ(replica.engine().version(), WeightVersion{1}) << "the old version serves";
      publisher.step(kind);
    }
    EXPECT_EQ(replica.engine().version(), WeightVersion{2});
  }
  CanaryAnswer canary(RolloutEngine& engine) {
    return engine.canary(std::vector<std::int32_t>{4, 8, 15}, 6).value();
  }
  ModelConfig config_ = tiny_config();
  WeightSet old_ = weights_for(config_);
  WeightSet fresh_ = weights_for(config_, 2);
  Keeper keeper_;
};

TEST_F(InFlight, RecomputedSamplesGoOnAsFromAFreshPrefillUnderTheNewWeights) {
  Replica replica = make();
  Publisher publisher(replica, fresh_, WeightUpdate::kRecompute);
  publish_under_way(replica, publisher, 3);
  auto other = engine_for(config_, fresh_);
  EXPECT_EQ(canary(replica.engine()).tokens, canary(*other).tokens);
  EXPECT_EQ(canary(replica.engine()).version, WeightVersion{2});
  Trajectory late_one = trajectories_of({plain_request(5, 10)})[0];
  run_to_end(replica, keeper_, {keeper_.start(std::move(late_one))});
  ASSERT_EQ(keeper_.ended().size(), 5u);
  for (const auto& [attempt, outcome] : keeper_.ended()) {
    SCOPED_TRACE(fmt::format("attempt {}", attempt));
    Trajectory one = keeper_.done(attempt);
    const std::int64_t before = attempt == 5 ? 0 : 9;
    EXPECT_EQ(std::ranges::count(one.versions, WeightVersion{1}), before);
    EXPECT_TRUE(std::ranges::is_sorted(one.versions));
    EXPECT_EQ(one.span(), (VersionSpan{WeightVersion{before > 0 ? 1 : 2}, WeightVersion{2}}));
    const Trajectory whole = one;
    one.rewind(before);
    const auto wanted = generate_all(*other, {one.resume_request().value()});
    EXPECT_EQ(whole.tokens, wanted[0].tokens);
    EXPECT_EQ(bits_of(whole.log_probs), bits_of(wanted[0].log_probs));
    EXPECT_EQ(bits_of(whole.full_log_probs), bits_of(wanted[0].full_log_probs));
  }
}

TEST_F(InFlight, WithKeptKvSamplesGoOnAndOnlyTheirNextTokensSeeTheNewWeights) {
  Replica replica = make();
  Publisher publisher(replica, fresh_, WeightUpdate::kKeepKv);
  publish_under_way(replica, publisher, 3);
  AdvanceReply reply = replica.advance({.steps_max = 1, .slice = kLong}).value();
  keeper_.take(reply);
  EXPECT_EQ(reply.metrics.value("rollout/prefill_tokens"), 0.0) << "nothing is computed again";
  auto other = engine_for(config_, fresh_);
  EXPECT_EQ(canary(replica.engine()).tokens, canary(*other).tokens) << "whatever KV is kept";
  run_to_end(replica, keeper_);
  const auto of_old = generate_all(*engine_for(config_, old_), {[] {
    GenerateRequest request = plain_request(1, 30);
    request.sample_indices = {0, 1};
    return request;
  }()});
  bool differs = false;
  for (const std::uint64_t attempt : {1, 2}) {
    const Trajectory& one = keeper_.done(attempt);
    EXPECT_EQ(std::ranges::count(one.versions, WeightVersion{1}), 9);
    EXPECT_EQ(std::ranges::count(one.versions, WeightVersion{2}), 21);
    const GeneratedSequence& old = of_old[attempt - 1];
    EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.begin() + 9, old.tokens.begin()));
    differs = differs || bits_of(one.full_log_probs) != bits_of(old.full_log_probs);
    // With the KV of the old weights it is not what a fresh prefill gives either.
    Trajectory prefix = one;
    prefix.rewind(9);
    const auto fresh = generate_all(*other, {prefix.resume_request().value()});
    EXPECT_NE(bits_of(one.full_log_probs), bits_of(fresh[0].full_log_probs));
  }
  EXPECT_TRUE(differs);
}

TEST_F(InFlight, ADrainedUpdateLetsWhatBeganEndUnderTheOldWeights) {
  Replica replica = make();
  Publisher publisher(replica, fresh_, WeightUpdate::kDrain);
  publish_under_way(replica, publisher, 3);
  EXPECT_EQ(replica.engine().unfinished(), 0);
  const AdvanceReply reply = replica.advance({}).value();
  EXPECT_EQ(reply.news.size(), 4u) << "told after the update, made before it";
  keeper_.take(reply);
  for (const auto& [attempt, outcome] : keeper_.ended())
    EXPECT_EQ(keeper_.done(attempt).span(), (VersionSpan{WeightVersion{1}, WeightVersion{1}}));
  run_to_end(replica, keeper_, {keeper_.start(trajectories_of({plain_request(7, 5)})[0])});
  EXPECT_EQ(keeper_.done(5).span(), (VersionSpan{WeightVersion{2}, WeightVersion{2}}));
}

TEST_F(InFlight, NoSampleThatStartsLaterSeesAPrefixOfTheOldVersion) {
  for (const WeightUpdate update : {WeightUpdate::kRecompute, WeightUpdate::kKeepKv}) {
    Keeper keeper;
    Replica replica = make();
    Publisher publisher(replica, fresh_, update);
    GenerateRequest first = plain_request(1, 30);
    publisher.open(WeightVersion{2});
    AdvanceRequest request{.starts = {keeper.start(trajectories_of({first})[0])}, .steps_max = 4};
    keeper.take(replica.advance(request).value());
    for (const CommandKind kind : kSteps) publisher.step(kind);
    // The same prompt of the same group, while the first one still runs.
    first.sample_indices = {1};
    const SampleStart second = keeper.start(trajectories_of({first})[0]);
    run_to_end(replica, keeper, {second});
    const auto wanted = generate_all(*engine_for(config_, fresh_), {first});
    expect_same_sample(keeper.done(second.attempt), wanted[0], "second");
  }
}

TEST_F(InFlight, AnAbortedPublicationLeavesEverythingServingAsBefore) {
  for (int reached = 1; reached <= 2; ++reached) {
    SCOPED_TRACE(fmt::format("aborted behind step {}", reached));
    Keeper keeper;
    Replica replica = make();
    Publisher publisher(replica, fresh_, WeightUpdate::kRecompute);
    const CanaryAnswer before = canary(replica.engine());
    const auto wanted = generate_all(replica.engine(), {plain_request(1, 30)});
    AdvanceRequest request{.starts = {keeper.start(trajectories_of({plain_request(1, 30)})[0])},
                           .steps_max = 4,
                           .slice = kLong};
    publisher.open(WeightVersion{2});
    for (int step = 0; step < reached; ++step) {
      keeper.take(replica.advance(request).value());
      request.starts.clear();
      publisher.step(kSteps[step]);
    }
    publisher.step(CommandKind::kAbort);
    EXPECT_EQ(canary(replica.engine()), before);
    const AdvanceReply reply = run_to_end(replica, keeper);
    EXPECT_EQ(reply.version, WeightVersion{1});
    expect_same_sample(keeper.done(1), wanted[0], "as if nothing had been published");
    // And the next attempt succeeds.
    publisher.open(WeightVersion{2});
    for (const CommandKind kind : kSteps) publisher.step(kind);
    EXPECT_EQ(replica.engine().version(), WeightVersion{2});
  }
}

}  // namespace
}  // namespace troupe::actors
