// The book as bytes, and back. One frame: a header with the ledger and what is known of each
// group, then four blobs with checksums of their own: trajectories, prompt rows, reward rows, and
// prompts that were read and not issued.

#include "actors/loops/rollout_book.hpp"
#include "actors/pacing/trajectory_codec.hpp"
#include "runtime/batch/frame.hpp"
#include "runtime/wire/wire.hpp"

#include <cstring>
#include <utility>

namespace troupe::actors {

using runtime::Batch;

/// The header, and after reading what the blobs hold.
struct SavedBook {
  std::int64_t group_size = 0;
  std::int64_t samples = 0;  ///< of each group, those beyond the group size included
  std::int64_t groups_per_step = 0;
  std::vector<std::uint8_t> ledger{};
  std::vector<std::uint64_t> groups{};
  std::vector<std::uint8_t> flags{};   ///< of each sample
  std::vector<std::uint64_t> blobs{};  ///< their bytes
  std::vector<Trajectory> trajectories{};
  std::vector<OpenGroup> open{};
  Batch rows{};
  Batch rewards{};
  std::int64_t next_reward = 0;

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("group_size", &SavedBook::group_size),
                      field("samples", &SavedBook::samples),
                      field("groups_per_step", &SavedBook::groups_per_step),
                      field("ledger", &SavedBook::ledger),
                      field("groups", &SavedBook::groups),
                      field("flags", &SavedBook::flags),
                      field("blobs", &SavedBook::blobs)};
  }
};

namespace {

constexpr runtime::FrameFormat kFormat{
    .place = "rollout state", .magic = "TRPROLL\n", .version = 1};
constexpr std::int64_t kBytesMax = std::int64_t{1} << 34;
constexpr std::size_t kBlobs = 4;

enum SampleFlag : std::uint8_t { kWhole = 1, kRewarded = 2, kWinner = 4 };

std::vector<std::uint8_t> octets(std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

result<std::vector<std::byte>> bytes_of(std::span<const Batch> parts) {
  if (parts.empty()) return std::vector<std::byte>();
  TROUPE_TRY(const Batch all, Batch::concat(parts));
  TROUPE_TRY(const Batch here, all.resolve());
  return here.to_bytes();
}

result<Batch> batch_of(std::span<const std::byte> bytes) {
  if (bytes.empty()) return Batch();
  return Batch::from_bytes(bytes);
}

result<void> expect_count(std::string_view what, std::int64_t found, std::int64_t wanted) {
  if (found == wanted) return {};
  return fail(ErrorCode::kCorrupt, "rollout state: {} {}, wanted {}", found, what, wanted);
}

/// The header and where the blobs lie.
result<SavedBook> read_header(std::span<const std::byte> bytes,
                              std::array<std::span<const std::byte>, kBlobs>& blobs) {
  TROUPE_TRY(const auto header,
             runtime::open_frame(kFormat, bytes,
                                 {.frame_bytes_max = kBytesMax, .header_bytes_max = kBytesMax}));
  TROUPE_TRY(SavedBook saved, runtime::decode_value<SavedBook>(header));
  TROUPE_TRY_VOID(expect_count("blobs", static_cast<std::int64_t>(saved.blobs.size()), kBlobs));
  std::size_t begin = static_cast<std::size_t>(runtime::kFramePrefixBytes) + header.size();
  for (std::size_t i = 0; i < kBlobs; ++i) {
    if (saved.blobs[i] > bytes.size() - begin)
      return fail(ErrorCode::kCorrupt, "rollout state: blob {} of {} bytes, {} are left", i,
                  saved.blobs[i], bytes.size() - begin);
    blobs[i] = bytes.subspan(begin, saved.blobs[i]);
    begin += saved.blobs[i];
  }
  TROUPE_TRY_VOID(
      expect_count("bytes behind the blobs", static_cast<std::int64_t>(bytes.size() - begin), 0));
  return saved;
}

result<void> check_counts(const SavedBook& saved) {
  const auto groups = static_cast<std::int64_t>(saved.groups.size());
  if (saved.samples < 1 || saved.samples > (std::int64_t{1} << 20))
    return fail(ErrorCode::kCorrupt, "rollout state: groups of {} samples", saved.samples);
  TROUPE_TRY_VOID(
      expect_count("flags", static_cast<std::int64_t>(saved.flags.size()), groups * saved.samples));
  TROUPE_TRY_VOID(expect_count("trajectories", static_cast<std::int64_t>(saved.trajectories.size()),
                               groups * saved.samples));
  TROUPE_TRY_VOID(expect_count("prompts", saved.rows.rows(), groups));
  TROUPE_TRY_VOID(
      expect_count("open groups", static_cast<std::int64_t>(saved.open.size()), groups));
  std::int64_t rewarded = 0;
  for (const std::uint8_t flags : saved.flags) {
    if (flags > (kWhole | kRewarded | kWinner) ||
        ((flags & kRewarded) != 0 && (flags & kWhole) == 0))
      return fail(ErrorCode::kCorrupt, "rollout state: flags {} of a sample", flags);
    rewarded += (flags & kRewarded) != 0 ? 1 : 0;
  }
  return expect_count("rewards", saved.rewards.rows(), rewarded);
}

/// The same option in the state and now.
result<void> same_option(std::string_view name, std::int64_t saved, std::int64_t now) {
  if (saved == now) return {};
  return fail(ErrorCode::kInvalidArgument, "rollout state: {} was {}, now it is {}", name, saved,
              now);
}

}  // namespace

result<std::vector<std::byte>> RolloutBook::save(const Batch& unissued) const {
  SavedBook saved{.group_size = options_.group_size,
                  .samples = options_.group_size + options_.dispatch.samples_extra,
                  .groups_per_step = options_.ledger.groups_per_step};
  TROUPE_TRY(const std::vector<std::byte> ledger, ledger_.save().to_bytes());
  saved.ledger = octets(ledger);
  std::vector<Trajectory> trajectories;
  std::vector<Batch> rows;
  std::vector<Batch> rewards;
  for (const auto& [number, group] : groups_) {
    saved.groups.push_back(number);
    rows.push_back(group.row);
    for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
      const Sample& sample = group.samples[i];
      const bool winner = std::ranges::binary_search(group.winners, i);
      const bool keeps = winner || group.winners.empty();
      std::uint8_t flags = winner ? kWinner : 0;
      if (keeps && sample.whole) flags |= kWhole;
      if (keeps && sample.whole && sample.reward) {
        flags |= kRewarded;
        rewards.push_back(*sample.reward);
      }
      saved.flags.push_back(flags);
      trajectories.push_back(keeps ? sample.best() : sample.start);
    }
  }
  std::array<std::vector<std::byte>, kBlobs> blobs;
  TROUPE_TRY(blobs[0], encode_trajectories(trajectories));
  TROUPE_TRY(blobs[1], bytes_of(rows));
  TROUPE_TRY(blobs[2], bytes_of(rewards));
  TROUPE_TRY(blobs[3], bytes_of({&unissued, unissued.empty() ? std::size_t{0} : 1}));
  for (const auto& blob : blobs) saved.blobs.push_back(blob.size());
  TROUPE_TRY(const std::vector<std::byte> header, runtime::encode_value(saved));
  std::vector<std::byte> frame(static_cast<std::size_t>(runtime::kFramePrefixBytes));
  frame.insert(frame.end(), header.begin(), header.end());
  for (const auto& blob : blobs) frame.insert(frame.end(), blob.begin(), blob.end());
  runtime::write_frame_prefix(kFormat, header, static_cast<std::int64_t>(frame.size()), frame);
  return frame;
}

result<RolloutBook> RolloutBook::restore(const RolloutOptions& asked,
                                         std::span<const std::byte> bytes, TimePoint now) {
  std::array<std::span<const std::byte>, kBlobs> blobs;
  TROUPE_TRY(SavedBook saved, read_header(bytes, blobs));
  TROUPE_TRY_VOID(asked.check());
  const RolloutOptions options = asked.settled();
  TROUPE_TRY_VOID(same_option("group size", saved.group_size, options.group_size));
  TROUPE_TRY_VOID(same_option("samples of a group", saved.samples,
                              options.group_size + options.dispatch.samples_extra));
  TROUPE_TRY_VOID(
      same_option("groups per step", saved.groups_per_step, options.ledger.groups_per_step));
  TROUPE_TRY(saved.trajectories, decode_trajectories(blobs[0]));
  TROUPE_TRY(saved.rows, batch_of(blobs[1]));
  TROUPE_TRY(saved.rewards, batch_of(blobs[2]));
  TROUPE_TRY(const LedgerState state,
             LedgerState::from_bytes(std::as_bytes(std::span(saved.ledger))));
  saved.open = state.open;
  TROUPE_TRY_VOID(check_counts(saved));
  TROUPE_TRY(StalenessLedger ledger, StalenessLedger::restore(options.ledger, state));
  TROUPE_TRY(RolloutDispatcher dispatcher, RolloutDispatcher::create(options.dispatch));
  RolloutBook book(options, std::move(ledger), std::move(dispatcher));
  TROUPE_TRY(book.unissued_, batch_of(blobs[3]));
  book.at(now);
  if (!options.dispatch.rounds) book.send(RoundOpened{options.ledger.groups_per_step});
  for (std::size_t i = 0; i < saved.groups.size(); ++i)
    TROUPE_TRY_VOID(book.restore_group(saved, i));
  return book;
}

result<void> RolloutBook::restore_group(SavedBook& saved, std::size_t place) {
  const OpenGroup& open = saved.open[place];
  const std::uint64_t number = saved.groups[place];
  if (open.ticket.group != number)
    return fail(ErrorCode::kCorrupt, "rollout state: group {} where the ledger has {}", number,
                open.ticket.group);
  Group group{.ticket = open.ticket};
  TROUPE_TRY(group.row, saved.rows.slice(static_cast<std::int64_t>(place), 1));
  const auto samples = static_cast<std::size_t>(saved.samples);
  std::vector<SampleSeed> seeds;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::uint8_t flags = saved.flags[place * samples + i];
    Trajectory& one = saved.trajectories[place * samples + i];
    if (one.group != number || one.sample_index != i)
      return fail(ErrorCode::kCorrupt,
                  "rollout state: trajectory of group {} sample {} where {} "
                  "sample {} should be",
                  one.group, one.sample_index, number, i);
    Sample sample;
    sample.start = Trajectory::begin(one.group, one.prompt_id, one.sample_index, one.issued_at,
                                     one.prompt, one.sampling);
    sample.whole = (flags & kWhole) != 0;
    if (sample.whole && one.state != TrajectoryState::kFinished)
      return fail(ErrorCode::kCorrupt, "rollout state: group {} sample {} is whole and partial",
                  number, i);
    SampleSeed seed{.tokens = one.length(), .finished = sample.whole};
    if ((flags & kRewarded) != 0) {
      TROUPE_TRY(sample.reward, saved.rewards.slice(saved.next_reward++, 1));
      TROUPE_TRY(seed.score, score_of(*sample.reward));
    }
    if ((flags & kWinner) != 0) group.winners.push_back(static_cast<std::uint32_t>(i));
    sample.partials.emplace(0, std::move(one));
    seeds.push_back(seed);
    group.samples.push_back(std::move(sample));
  }
  const bool finished = open.stage != GroupStage::kRunning;
  TROUPE_TRY_VOID(expect_count("winners of a group",
                               static_cast<std::int64_t>(group.winners.size()),
                               finished ? saved.group_size : 0));
  for (const std::uint32_t winner : group.winners)
    if (!group.samples[winner].reward)
      return fail(ErrorCode::kCorrupt, "rollout state: group {} sample {} counts without a reward",
                  number, winner);
  const auto prompt_tokens = static_cast<std::int64_t>(group.samples.front().start.prompt.size());
  groups_.emplace(number, std::move(group));
  if (!finished)
    send(GroupIssued{.group = number, .prompt_tokens = prompt_tokens, .samples = std::move(seeds)});
  return {};
}

}  // namespace troupe::actors
