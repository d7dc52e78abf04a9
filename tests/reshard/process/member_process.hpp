#pragma once

// Members of a publication in processes of their own, for tests and benches: the loop of such a
// process, and the link to it. Commands and replies travel as lines over its standard streams,
// payload over UCX between the processes.
//
//   PROGRAM --member CASE SIDE RANK KEY LANES BUCKET_BYTES      (see run_member)
//
// CASE names two rosters that both ends make for themselves: `seed:N` a random one of
// random_case.hpp, `model:…` and `fsdp:…` bench models below.
// **Threads:** a link's calls may overlap; its other questions come from one thread.
// **Invariants:** the process dies with its link.

#include "reshard/execution/buffer_sink.hpp"
#include "reshard/execution/publication_source.hpp"
#include "reshard/execution/publication_target.hpp"
#include "reshard/execution/publish.hpp"
#include "runtime/base/log.hpp"
#include "runtime/batch/checksum.hpp"
#include "tests/reshard/memory_world.hpp"
#include "tests/reshard/random_case.hpp"
#include "tests/support/line_child.hpp"

#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

namespace troupe::reshard::testing {

/// A dense model of about `mib` MiB: four layers, wide.
inline ModelShape bench_shape(std::int64_t mib) {
  ModelShape shape{.vocab = 4096,
                   .hidden = 1024,
                   .intermediate = 2752,
                   .layers = 0,
                   .heads = 16,
                   .kv_heads = 8,
                   .head_dim = 64};
  const std::int64_t layer = (1024 * 1024 * 3 + 3 * 1024 * 2752) * 4;
  shape.layers = std::max<std::int64_t>(1, ((mib << 20) - 2 * 4096 * 1024 * 4) / layer);
  return shape;
}

inline bool is_bench_case(const std::string& name) {
  return name.starts_with("model:") || name.starts_with("fsdp:");
}

/// `model:MIB:TRAIN_TP:TRAIN_DP:ROLLOUT_TP:REPLICAS:FIRST_ROLLOUT_RANK:RANKS_PER_NODE`, or `fsdp:…`
/// with rows of every tensor over the TRAIN_DP ranks.
inline Case model_case(const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ':');) {
    if (word != "model" && word != "fsdp") numbers.push_back(std::stoll(word));
  }
  TROUPE_CHECK(numbers.size() == 7, "case {}", text);
  const ModelShape shape = bench_shape(numbers[0]);
  const auto per_node = static_cast<std::int32_t>(numbers[6]);
  const auto first = static_cast<std::int32_t>(numbers[5]);
  Case made;
  made.text = text;
  const ShardStyle shard = text.starts_with("fsdp:") ? ShardStyle::kRows : ShardStyle::kWhole;
  const auto source = train_roster(shape, {.tp = numbers[1], .dp = numbers[2], .shard = shard},
                                   {.ranks_per_node = per_node});
  const auto target = rollout_roster(
      shape, {.replicas = numbers[4], .tp = numbers[3]},
      {.first_rank = first, .first_node = first / per_node, .ranks_per_node = per_node});
  TROUPE_CHECK(source && target, "case {}: no rosters", text);
  made.source = *source;
  made.target = *target;
  return made;
}

inline Case case_of(const std::string& name) {
  if (is_bench_case(name)) return model_case(name);
  CaseMaker maker(std::stoull(name.substr(5)));
  Case made = maker.model_case();
  made.options.cell_bytes_max = std::max<std::int64_t>(made.options.cell_bytes_max, 64);
  return made;
}

/// One number for what a rank's buffers hold.
inline std::uint32_t crc_of(const std::vector<Bytes>& buffers) {
  std::uint32_t crc = 0;
  for (const Bytes& bytes : buffers) crc = runtime::crc32c(std::as_bytes(std::span(bytes)), crc);
  return crc;
}

inline runtime::TransportOptions lanes_of(const std::string& lanes) {
  runtime::TransportOptions options;
  options.interfaces = "lo";
  options.direct_copy = lanes == "direct";
  options.lanes = runtime::TransportLanes::kTcp;
  if (lanes == "direct") options.lanes = runtime::TransportLanes::kAuto;
  return options;
}

class MemberProcess {
 public:
  explicit MemberProcess(char** words)
      : case_(case_of(words[2])),
        rank_(std::stoi(words[4])),
        is_source_(words[3] == std::string("source")) {
    plan_ = *PublicationPlan::make(case_.source, case_.target, case_.options);
    runtime::TransportOptions transport = lanes_of(words[6]);
    transport.name = std::string(words[3]) + " rank " + words[4];
    const auto key = test::from_hex(words[5]);
    std::copy(key.begin(), key.end(), transport.key.begin());
    const std::int64_t bucket = std::stoll(words[7]);
    transport.chunk_bytes = std::clamp<std::int64_t>(bucket, 4096, 4 << 20);
    transport.pack_bytes_max = 2 * bucket;
    port_ = *WeightPort::open(WeightPortOptions{std::move(transport)});
    if (is_source_) {
      memory_ = empty_memory(plan_->source());
      std::vector<std::span<const std::byte>> buffers;
      for (const Bytes& bytes : memory_.buffers.at(rank_))
        buffers.push_back(std::as_bytes(std::span(bytes)));
      for (auto& [rank, all] : memory_.buffers) {
        if (rank != rank_ && is_bench_case(case_.text)) all.clear();
      }
      source_ = std::make_unique<PublicationSource>(plan_, rank_, std::move(buffers), *port_,
                                                    SourceOptions{.keep_base = false});
      return;
    }
    const RankLayout& layout = *plan_->target_layout(rank_);
    sink_ = std::make_unique<BufferSink>(buffer_bytes(plan_->target(), layout));
    for (std::size_t b = 0; b < layout.buffer_elements.size(); ++b) {
      const auto index = static_cast<std::int32_t>(b);
      for (const auto bytes : {sink_->active_buffer_to_fill(index), sink_->buffer(index)})
        std::fill(bytes.begin(), bytes.end(), std::byte{kSentinel});
    }
    target_ = std::make_unique<PublicationTarget>(plan_, rank_, *sink_, *port_,
                                                  TargetOptions{.bucket_bytes = bucket});
  }
  ~MemberProcess() {
    for (std::thread& thread : threads_) thread.join();
  }
  MemberProcess(const MemberProcess&) = delete;
  MemberProcess& operator=(const MemberProcess&) = delete;

  int run() {
    say("up");
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string verb;
      words >> verb;
      if (verb == "call") {
        std::string number;
        std::string hex;
        words >> number >> hex;
        threads_.emplace_back([this, number, hex] { call(number, hex); });
      } else if (verb == "fill") {
        std::uint64_t round = 0;
        words >> round;
        say("told " + fill_weights(round));
      } else if (verb == "look") {
        say(fmt::format("told {} {} {}", sink_->active().value, crc_of(active()),
                        static_cast<std::int64_t>(test::resident_mib() * 1024)));
      } else if (verb == "mark") {
        say(fmt::format("told {}", mark_memory()));
      } else if (verb == "peak") {
        say(fmt::format("told {}", status_kib("VmHWM:")));
      }
    }
    return 0;
  }

 private:
  void say(const std::string& line) {
    const std::lock_guard lock(mutex_);
    std::cout << line << std::endl;
  }
  static std::int64_t status_kib(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
    }
    return -1;
  }
  /// Resident KiB; the peak is counted anew from here.
  static std::int64_t mark_memory() {
    std::ofstream("/proc/self/clear_refs") << "5";
    return status_kib("VmRSS:");
  }
  void call(const std::string& number, const std::string& hex) {
    const auto command = runtime::decode_value<Command>(test::from_hex(hex));
    const Reply reply = is_source_ ? source_->handle(*command) : target_->handle(*command);
    say("reply " + number + " " + test::to_hex(*runtime::encode_value(reply)));
  }
  std::string fill_weights(std::uint64_t round) {
    const auto lease = source_->start_update(Deadline::in(std::chrono::seconds(10)));
    if (!lease) return lease.error().message;
    if (!is_bench_case(case_.text)) {
      fill(memory_, round);
      return "ok";
    }
    for (Bytes& bytes : memory_.buffers.at(rank_)) {
      for (std::size_t i = 0; i < bytes.size(); i += 8) {
        const std::uint64_t bits = mix_seed(round, i);
        std::memcpy(bytes.data() + i, &bits, std::min<std::size_t>(8, bytes.size() - i));
      }
    }
    return "ok";
  }
  std::vector<Bytes> active() const {
    std::vector<Bytes> all;
    const auto count = plan_->target_layout(rank_)->buffer_elements.size();
    for (std::size_t b = 0; b < count; ++b) {
      const auto bytes = sink_->active_buffer(static_cast<std::int32_t>(b));
      const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
      all.emplace_back(data, data + bytes.size());
    }
    return all;
  }

  Case case_;
  std::int32_t rank_;
  bool is_source_;
  std::shared_ptr<const PublicationPlan> plan_;
  std::unique_ptr<WeightPort> port_;
  Memory memory_;
  std::unique_ptr<PublicationSource> source_;
  std::unique_ptr<BufferSink> sink_;
  std::unique_ptr<PublicationTarget> target_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  ///< guards standard output
};

/// `main` of the process.
inline int run_member(int argc, char** argv) {
  if (argc != 8) return 2;
  log::set_up(log::Level::kError);
  return MemberProcess(argv).run();
}

/// Starts a member process and speaks with it.
class ProcessLink final : public MemberLink {
 public:
  ProcessLink(const std::string& program, const std::string& name, Member member,
              const std::string& key, const std::string& lanes, std::int64_t bucket_bytes)
      : member_(member),
        child_({program, "--member", name, std::string(side_name(member.side)),
                std::to_string(member.rank), key, lanes, std::to_string(bucket_bytes)}) {
    TROUPE_CHECK(child_.hear() == "up", "{} did not come up", member_text(member));
    reader_ = std::thread([this] { read(); });
  }
  ~ProcessLink() override {
    child_.signal(SIGCONT);
    child_.signal(SIGKILL);
    reader_.join();
  }
  Member member() const override { return member_; }
  test::LineChild& child() { return child_; }
  /// See each command before the member does and each reply before the caller; set between calls.
  std::function<void(const Command&)> on_call;
  std::function<void(const Reply&)> on_reply;

  runtime::pending<Reply> call(const Command& command, Deadline deadline) override {
    if (on_call) on_call(command);
    auto [answer, out] = runtime::make_pending<Reply>();
    const std::lock_guard lock(mutex_);
    if (over_) {
      out.fail(gone());
      return std::move(answer);
    }
    (void)deadline;  // the coordinator's core keeps time
    calls_[++last_] = out;
    const auto bytes = runtime::encode_value(command);
    try {
      child_.say("call " + std::to_string(last_) + " " + test::to_hex(*bytes));
    } catch (const std::runtime_error&) {
      out.fail(gone());
    }
    return std::move(answer);
  }
  /// The answer to another question; empty when the process is gone.
  std::string ask(const std::string& line) {
    std::unique_lock lock(mutex_);
    told_.clear();
    child_.say(line);
    heard_.wait_for(lock, std::chrono::seconds(20), [this] { return !told_.empty() || over_; });
    return told_.empty() ? "" : told_.substr(5);
  }

 private:
  Error gone() const {
    return Error{.code = ErrorCode::kRankDead,
                 .message = member_text(member_) + ": its process has ended",
                 .origin = {},
                 .causes = {}};
  }
  void read() {
    try {
      for (;;) {
        const std::string line = child_.hear(std::chrono::minutes(5));
        if (line.starts_with("told ")) {
          const std::lock_guard lock(mutex_);
          told_ = line;
          heard_.notify_all();
        }
        if (!line.starts_with("reply ")) continue;
        std::istringstream words(line);
        std::string verb;
        std::uint64_t number = 0;
        std::string hex;
        words >> verb >> number >> hex;
        const auto reply = runtime::decode_value<Reply>(test::from_hex(hex));
        if (on_reply && reply) on_reply(*reply);
        const std::lock_guard lock(mutex_);
        calls_.at(number).complete(reply);
        calls_.erase(number);
      }
    } catch (const std::runtime_error&) {  // its output ends
    }
    const std::lock_guard lock(mutex_);
    over_ = true;
    for (auto& [number, call] : calls_) call.fail(gone());
    calls_.clear();
    heard_.notify_all();
  }

  Member member_;
  test::LineChild child_;
  std::mutex mutex_;  ///< guards the following
  std::condition_variable heard_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, runtime::completer<Reply>> calls_;
  std::string told_;
  bool over_ = false;
  std::thread reader_;
};

/// A process for each member of a case.
class ProcessWorld {
 public:
  ProcessWorld(const std::string& program, const std::string& name, const std::string& lanes,
               std::int64_t bucket_bytes)
      : case_(case_of(name)),
        program_(program),
        name_(name),
        lanes_(lanes),
        bucket_bytes_(bucket_bytes),
        key_(test::to_hex(*runtime::make_session_key())) {
    plan = *PublicationPlan::make(case_.source, case_.target, case_.options);
    for (const auto& [roster, side] :
         {std::pair{&plan->source(), Side::kSource}, std::pair{&plan->target(), Side::kTarget}}) {
      for (const RankLayout& rank : roster->ranks) restart({side, rank.rank});
    }
  }
  /// A new process for a member; the old one is killed when it is still there.
  void restart(const Member& member) {
    links[member].reset();
    links[member] =
        std::make_unique<ProcessLink>(program_, name_, member, key_, lanes_, bucket_bytes_);
  }
  PublishOptions next(std::int64_t version) {
    PublishOptions options;
    options.id = {.epoch = ++epoch,
                  .version = WeightVersion{version},
                  .digest = plan->plan().digest,
                  .base = {}};
    return options;
  }
  result<PublicationOutcome> publish(const PublishOptions& options) {
    std::vector<MemberLink*> members;
    for (const auto& [member, link] : links) members.push_back(link.get());
    return reshard::publish(options, members);
  }
  void fill_sources(std::uint64_t round) {
    for (const auto& [member, link] : links) {
      if (member.side != Side::kSource) continue;
      const std::string told = link->ask("fill " + std::to_string(round));
      TROUPE_CHECK(told == "ok", "{}: {}", member_text(member), told);
    }
  }
  /// What a target serves and the crc of it.
  std::pair<std::int64_t, std::uint32_t> look(std::int32_t rank) {
    std::istringstream words(links.at({Side::kTarget, rank})->ask("look"));
    std::int64_t version = -1;
    std::uint32_t crc = 0;
    words >> version >> crc;
    return {version, crc};
  }

  Case case_;
  std::string program_, name_, lanes_;
  std::int64_t bucket_bytes_;
  std::string key_;
  std::shared_ptr<const PublicationPlan> plan;
  std::uint64_t epoch = 0;
  std::map<Member, std::unique_ptr<ProcessLink>> links;
};

}  // namespace troupe::reshard::testing
