// Proves that a trajectory can stop anywhere and go on anywhere: samples of a real engine that are
// interrupted at random tokens, carried as bytes and resumed in another engine are bit for bit the
// samples that were never interrupted. Then turns of environments, refusals, masks, and the codec
// against damaged bytes.

#include "actors/pacing/trajectory.hpp"

#include "actors/pacing/trajectory_codec.hpp"
#include "tests/actors/rollout/engine_case.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Trajectory begun(const GenerateRequest& request, std::size_t sample) {
  return Trajectory::begin(5, request.prompt_id, request.sample_indices[sample], WeightVersion{0},
                           request.prompt, request.sampling);
}

GeneratedSequence answer_to(const Trajectory& one, std::vector<std::int32_t> more,
                            StopReason reason, std::int64_t version) {
  GeneratedSequence answer;
  answer.prompt_id = one.prompt_id;
  answer.sample_index = one.sample_index;
  const auto from = static_cast<std::ptrdiff_t>(one.turn_begin);
  answer.tokens.assign(one.tokens.begin() + from, one.tokens.end());
  answer.log_probs.assign(one.log_probs.begin() + from, one.log_probs.end());
  answer.full_log_probs.assign(one.full_log_probs.begin() + from, one.full_log_probs.end());
  answer.versions.assign(one.versions.begin() + from, one.versions.end());
  for (const std::int32_t token : more) {
    answer.tokens.push_back(token);
    answer.log_probs.push_back(-0.5F);
    answer.full_log_probs.push_back(-0.75F);
    answer.versions.push_back(WeightVersion{version});
  }
  answer.reason = reason;
  return answer;
}

Trajectory small() {
  return Trajectory::begin(1, 2, 3, WeightVersion{0}, {7, 8},
                           {.max_new_tokens = 8, .stop_ids = {9}});
}

Trajectory through_bytes(const Trajectory& one) {
  const auto bytes = encode_trajectories({&one, 1});
  TROUPE_CHECK(bytes.has_value(), "{}", bytes.error().to_string());
  auto back = decode_trajectories(*bytes);
  TROUPE_CHECK(back.has_value() && back->size() == 1, "decode");
  return std::move(back->front());
}

TEST(Trajectory, GoesOnInAnotherEngineFromAnyTokenBitForBit) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  Rng rng(11);
  const std::vector<GenerateRequest> requests = random_requests(rng, 10, config.vocab_size);
  auto plain = engine_for(config, weights);
  const std::vector<GeneratedSequence> wanted = generate_all(*plain, requests);
  std::vector<std::unique_ptr<RolloutEngine>> engines;
  for (int i = 0; i < 3; ++i) engines.push_back(engine_for(config, weights));
  std::size_t next = 0;
  int interruptions = 0;
  for (const GenerateRequest& request : requests)
    for (std::size_t sample = 0; sample < request.sample_indices.size(); ++sample) {
      Trajectory one = begun(request, sample);
      while (one.state == TrajectoryState::kPartial) {
        RolloutEngine& engine = *engines[rng.below(engines.size())];
        const auto ids = engine.submit(one.resume_request().value()).value();
        for (std::uint64_t steps = 1 + rng.below(12); steps > 0 && engine.unfinished() > 0; --steps)
          ASSERT_TRUE(engine.step().has_value());
        interruptions += engine.abort(ids[0]) ? 1 : 0;
        const auto answers = engine.take_finished();
        ASSERT_EQ(answers.size(), 1U);
        ASSERT_TRUE(one.absorb(answers[0]).has_value());
        ASSERT_TRUE(one.absorb(answers[0]).has_value()) << "the same answer again changes nothing";
        const Trajectory back = through_bytes(one);
        ASSERT_EQ(back, one);
        one = back;
      }
      GeneratedSequence whole = wanted[next++];
      ASSERT_EQ(one.tokens, whole.tokens);
      ASSERT_EQ(bits_of(one.log_probs), bits_of(whole.log_probs));
      ASSERT_EQ(bits_of(one.full_log_probs), bits_of(whole.full_log_probs));
      ASSERT_EQ(one.reason, whole.reason);
      ASSERT_EQ(one.sampler_position, request.prompt.size() + whole.tokens.size());
    }
  EXPECT_GT(interruptions, 20);
}

TEST(Trajectory, SharesOnePrefillWithItsGroup) {
  std::vector<Trajectory> group;
  for (std::uint32_t i = 0; i < 3; ++i) {
    group.push_back(small());
    group.back().sample_index = i;
    ASSERT_TRUE(group.back()
                    .absorb(answer_to(group.back(), std::vector<std::int32_t>(i, 4),
                                      StopReason::kAborted, 0))
                    .has_value());
  }
  const auto request = resume_group(group);
  ASSERT_TRUE(request.has_value());
  EXPECT_THAT(request->sample_indices, ElementsAre(0, 1, 2));
  EXPECT_EQ(request->prefixes[2].tokens, (std::vector<std::int32_t>{4, 4}));
  group[1].sampling.temperature = 0.5;
  EXPECT_EQ(resume_group(group).error().code, ErrorCode::kConflict);
}

TEST(Trajectory, RefusesAnswersThatForkOrBelongToOthers) {
  Trajectory one = small();
  ASSERT_TRUE(one.absorb(answer_to(one, {4, 5}, StopReason::kAborted, 0)).has_value());
  const Trajectory before = one;
  GeneratedSequence fork = answer_to(one, {6}, StopReason::kAborted, 1);
  fork.tokens[1] = 44;
  EXPECT_THAT(one.absorb(fork).error().message,
              HasSubstr("token 1 is 5 of version 0, the answer says 44"));
  GeneratedSequence relabelled = answer_to(one, {6}, StopReason::kAborted, 1);
  relabelled.versions[0] = WeightVersion{1};
  EXPECT_EQ(one.absorb(relabelled).error().code, ErrorCode::kConflict);
  GeneratedSequence other = answer_to(one, {6}, StopReason::kAborted, 1);
  other.sample_index = 9;
  EXPECT_EQ(one.absorb(other).error().code, ErrorCode::kConflict);
  EXPECT_EQ(one.absorb(answer_to(small(), {4}, StopReason::kAborted, 0)).error().code,
            ErrorCode::kConflict)
      << "shorter than what is there";
  EXPECT_EQ(one.absorb(answer_to(one, std::vector<std::int32_t>(7, 1), StopReason::kLength, 1))
                .error()
                .code,
            ErrorCode::kConflict)
      << "beyond its budget";
  EXPECT_EQ(one, before);
  ASSERT_TRUE(one.absorb(answer_to(one, {9}, StopReason::kStopId, 1)).has_value());
  EXPECT_EQ(one.absorb(answer_to(one, {5}, StopReason::kAborted, 1)).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(one.resume_request().error().code, ErrorCode::kConflict);
}

TEST(Trajectory, KnowsTheVersionsThatMadeIt) {
  Trajectory one = small();
  EXPECT_TRUE(one.span().empty());
  ASSERT_TRUE(one.absorb(answer_to(one, {4, 5}, StopReason::kAborted, 3)).has_value());
  ASSERT_TRUE(one.absorb(answer_to(one, {6}, StopReason::kAborted, 5)).has_value());
  EXPECT_EQ(one.span(), (VersionSpan{WeightVersion{3}, WeightVersion{5}}));
  EXPECT_EQ(one.span().crossed(), 2);
  EXPECT_EQ(one.mask_older_than(WeightVersion{4}), 2);
  EXPECT_EQ(one.mask_older_than(WeightVersion{4}), 0);
  EXPECT_THAT(one.mask, ElementsAre(0, 0, 1));
  EXPECT_EQ(one.tokens_in_loss(), 1);
}

TEST(Trajectory, TurnsOfTheEnvironmentAreMaskedAndBecomePrompt) {
  Trajectory one = small();
  ASSERT_TRUE(one.absorb(answer_to(one, {4, 9}, StopReason::kStopId, 0)).has_value());
  const std::vector<std::int32_t> tool{20, 21};
  ASSERT_TRUE(one.append_environment(tool, {std::byte{1}}).has_value());
  EXPECT_EQ(one.state, TrajectoryState::kPartial);
  EXPECT_THAT(one.mask, ElementsAre(1, 1, 0, 0));
  const auto request = one.resume_request().value();
  EXPECT_THAT(request.prompt, ElementsAre(7, 8, 4, 9, 20, 21)) << "token in, token out";
  EXPECT_EQ(request.sampling.max_new_tokens, 4);
  EXPECT_TRUE(request.prefixes[0].tokens.empty());
  ASSERT_TRUE(one.absorb(answer_to(one, {5}, StopReason::kAborted, 2)).has_value());
  EXPECT_THAT(one.resume_request()->prefixes[0].tokens, ElementsAre(5));
  EXPECT_EQ(one.span(), (VersionSpan{WeightVersion{0}, WeightVersion{2}}));
  EXPECT_EQ(through_bytes(one), one);
  const std::vector<std::int32_t> large(3, 30);
  EXPECT_EQ(one.append_environment(large, {}).error().code, ErrorCode::kConflict);
  one.rewind(4);
  EXPECT_THAT(one.tokens, ElementsAre(4, 9, 20, 21));
  EXPECT_TRUE(one.check().has_value());
}

TEST(Trajectory, ChecksNameTheFieldAndBothValues) {
  const auto message = [](auto&& spoil) {
    Trajectory one = small();
    EXPECT_TRUE(one.absorb(answer_to(one, {4, 5}, StopReason::kAborted, 0)).has_value());
    spoil(one);
    const auto checked = one.check();
    return checked ? std::string("passed") : checked.error().message;
  };
  EXPECT_EQ(message([](Trajectory&) {}), "passed");
  EXPECT_THAT(message([](Trajectory& t) { t.log_probs.pop_back(); }),
              HasSubstr("2 tokens, 1 log-probs"));
  EXPECT_THAT(message([](Trajectory& t) { t.sampler_position = 9; }),
              HasSubstr("sampler position 9"));
  EXPECT_THAT(message([](Trajectory& t) { t.turn_begin = 3; }), HasSubstr("turn begins at 3 of 2"));
  EXPECT_THAT(message([](Trajectory& t) { t.mask[0] = 2; }), HasSubstr("mask 2"));
  EXPECT_THAT(message([](Trajectory& t) { t.versions[1] = kNoVersion; }), HasSubstr("token 1"));
  EXPECT_THAT(message([](Trajectory& t) { t.log_probs[0] = NAN; }), HasSubstr("nan"));
  EXPECT_THAT(message([](Trajectory& t) { t.score = 1.0; }), HasSubstr("partial, but has score"));
  EXPECT_THAT(message([](Trajectory& t) { t.sampling.top_p = 0; }), HasSubstr("group 1 sample 3"));
}

// ---- codec -----------------------------------------------------------------------------------

Trajectory random_trajectory(Rng& rng) {
  Trajectory one =
      Trajectory::begin(rng.next(), rng.next(), static_cast<std::uint32_t>(rng.below(64)),
                        WeightVersion{static_cast<std::int64_t>(rng.below(5))}, {1},
                        {.temperature = rng.uniform(), .max_new_tokens = 200});
  for (std::uint64_t i = rng.below(20); i > 0; --i)
    one.prompt.push_back(static_cast<std::int32_t>(rng.below(99)));
  one.sampler_position = one.prompt.size();
  if (rng.below(2) == 0) one.sampling.stop_strings = {"\n", std::string("a\0b", 3)};
  std::int64_t version = one.issued_at.value;
  for (std::uint64_t turn = rng.below(4); turn > 0; --turn) {
    version += static_cast<std::int64_t>(rng.below(3));
    std::vector<std::int32_t> more(rng.below(12), static_cast<std::int32_t>(rng.below(99)));
    EXPECT_TRUE(one.absorb(answer_to(one, more, StopReason::kAborted, version)).has_value());
    if (rng.below(2) == 0) {
      std::vector<std::byte> state(rng.below(9), std::byte{5});
      EXPECT_TRUE(one.append_environment(more, state).has_value());
    }
  }
  if (rng.below(2) == 0) {
    EXPECT_TRUE(one.absorb(answer_to(one, {3}, StopReason::kStopString, version)).has_value());
    one.text = "done";
    if (rng.below(2) == 0) one.score = rng.uniform();
  }
  return one;
}

TEST(TrajectoryCodec, GivesBackWhatItGot) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    std::vector<Trajectory> all;
    for (std::uint64_t i = rng.below(5); i > 0; --i) all.push_back(random_trajectory(rng));
    const auto bytes = encode_trajectories(all);
    ASSERT_TRUE(bytes.has_value()) << "seed " << seed << ": " << bytes.error().to_string();
    const auto back = decode_trajectories(*bytes);
    ASSERT_TRUE(back.has_value()) << "seed " << seed << ": " << back.error().to_string();
    ASSERT_EQ(*back, all) << "seed " << seed;
  }
}

SamplePrefix piece_of(std::vector<std::int32_t> ids, std::int64_t version) {
  SamplePrefix piece;
  piece.tokens = std::move(ids);
  piece.log_probs.assign(piece.tokens.size(), -0.5F);
  piece.full_log_probs.assign(piece.tokens.size(), -0.75F);
  piece.versions.assign(piece.tokens.size(), WeightVersion{version});
  return piece;
}

TEST(Trajectory, GrowsByPiecesAsByOneAnswer) {
  Trajectory by_pieces = small();
  ASSERT_TRUE(by_pieces.extend(0, piece_of({4, 5}, 0)).has_value());
  const Trajectory before = by_pieces;
  ASSERT_TRUE(by_pieces.extend(0, piece_of({4, 5}, 0)).has_value());  // heard twice
  EXPECT_EQ(by_pieces, before);
  ASSERT_TRUE(by_pieces.extend(2, piece_of({}, 0)).has_value());
  EXPECT_EQ(by_pieces, before);
  // A piece may overlap with what is there.
  SamplePrefix rest = piece_of({5}, 0);
  const SamplePrefix newer = piece_of({6, 9}, 1);
  rest.tokens.insert(rest.tokens.end(), newer.tokens.begin(), newer.tokens.end());
  rest.log_probs.insert(rest.log_probs.end(), newer.log_probs.begin(), newer.log_probs.end());
  rest.full_log_probs.insert(rest.full_log_probs.end(), newer.full_log_probs.begin(),
                             newer.full_log_probs.end());
  rest.versions.insert(rest.versions.end(), newer.versions.begin(), newer.versions.end());
  ASSERT_TRUE(by_pieces.extend(1, rest, StopReason::kStopId).has_value());
  Trajectory by_answers = small();
  ASSERT_TRUE(by_answers.absorb(answer_to(by_answers, {4, 5}, StopReason::kAborted, 0)));
  ASSERT_TRUE(by_answers.absorb(answer_to(by_answers, {6, 9}, StopReason::kStopId, 1)));
  EXPECT_EQ(by_pieces, by_answers);
  ASSERT_TRUE(by_pieces.extend(1, rest, StopReason::kStopId).has_value());  // its end heard twice
  EXPECT_EQ(by_pieces, by_answers);
}

TEST(Trajectory, RefusesPiecesThatDoNotFit) {
  Trajectory one = small();
  ASSERT_TRUE(one.extend(0, piece_of({4, 5}, 0)).has_value());
  const Trajectory before = one;
  const auto refused = [&one](std::int64_t from, const SamplePrefix& piece,
                              std::optional<StopReason> ended, const std::string& why) {
    const auto outcome = one.extend(from, piece, ended);
    ASSERT_FALSE(outcome.has_value());
    EXPECT_EQ(outcome.error().code, ErrorCode::kConflict);
    EXPECT_THAT(outcome.error().message, HasSubstr(why));
  };
  refused(3, piece_of({6}, 0), std::nullopt, "piece begins at 3, wanted 0 (this turn) to 2");
  refused(1, piece_of({6}, 0), std::nullopt, "token 1 is 5 of version 0, the piece says 6");
  refused(1, piece_of({5}, 1), std::nullopt, "the piece says 5 of version 1");
  refused(2, piece_of({1, 1, 1, 1, 1, 1, 1}, 0), std::nullopt, "7 more tokens, the budget has 6");
  refused(2, piece_of({6}, 0), StopReason::kAborted, "a turn does not end by aborted");
  SamplePrefix ragged = piece_of({6}, 0);
  ragged.versions.clear();
  refused(2, ragged, std::nullopt, "piece of 1 tokens");
  EXPECT_EQ(one, before);
  ASSERT_TRUE(one.append_environment(std::vector<std::int32_t>{7}, {}).has_value());
  refused(1, piece_of({5}, 0), std::nullopt, "piece begins at 1, wanted 3 (this turn)");
  ASSERT_TRUE(one.extend(3, piece_of({9}, 0), StopReason::kStopId).has_value());
  refused(4, piece_of({1}, 0), std::nullopt, "ended by stop_id at 4 tokens, the piece adds 1");
}

TEST(TrajectoryCodec, RefusesEveryCutAndEveryFlippedBit) {
  Rng rng(4);
  const std::vector<Trajectory> all{random_trajectory(rng), random_trajectory(rng)};
  const auto bytes = encode_trajectories(all).value();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto cut = decode_trajectories(std::span(bytes).first(size));
    ASSERT_EQ(cut.error().code, ErrorCode::kCorrupt) << size;
  }
  int accepted = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_FALSE(decode_trajectories(flipped).has_value()) << bit;
    // Without checksums damage is found by what it says, or gives another whole value.
    const auto other = decode_trajectories(flipped, {.checksums = false});
    if (!other) continue;
    ++accepted;
    ASSERT_EQ(decode_trajectories(encode_trajectories(*other).value()).value(), *other) << bit;
  }
  EXPECT_GT(accepted, 0);
}

TEST(TrajectoryCodec, HoldsItsLimits) {
  Trajectory one = small();
  one.environment.resize(100);
  const TrajectoryLimits tight{.environment_bytes_max = 99};
  EXPECT_EQ(encode_trajectories({&one, 1}, tight).error().code, ErrorCode::kResourceExhausted);
  const auto bytes = encode_trajectories({&one, 1}).value();
  EXPECT_THAT(decode_trajectories(bytes, tight).error().message,
              HasSubstr("100 environment bytes, wanted at most 99"));
  EXPECT_FALSE(decode_trajectories(bytes, {.tokens_max = 1}).has_value());
  EXPECT_FALSE(decode_trajectories(bytes, {.trajectories_max = 0}).has_value());
  EXPECT_FALSE(decode_trajectories(bytes, {.frame_bytes_max = 64}).has_value());
  one.prompt.clear();
  EXPECT_EQ(encode_trajectories({&one, 1}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::actors
