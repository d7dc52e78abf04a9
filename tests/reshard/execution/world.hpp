#pragma once

// Publications between ranks of one test process: sources and targets of a plan with real buffers,
// behind one port, a port per node, or a port per rank over a `LocalNetwork`.
// **Threads:** one; each member call runs on a thread of its own.

#include "reshard/execution/buffer_sink.hpp"
#include "reshard/execution/publication_source.hpp"
#include "reshard/execution/publication_target.hpp"
#include "reshard/execution/publish.hpp"
#include "runtime/comm/transport_local.hpp"
#include "tests/reshard/call_link.hpp"
#include "tests/reshard/memory_world.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::reshard::testing {

/// A sink without plain memory: boxes come by call, and each number must come exactly once.
class CallSink final : public WeightSink {
 public:
  CallSink(const Roster& roster, const RankLayout& layout) : roster_(roster), layout_(layout) {
    for (auto* set : {&active_, &filling_}) {
      for (std::size_t b = 0; b < layout.buffer_elements.size(); ++b)
        set->emplace_back(at(layout.buffer_elements[b] * item_bytes(roster, layout, b)), kSentinel);
    }
  }
  WeightVersion active() const override { return version_; }
  result<void> begin(WeightVersion version, bool from_active) override {
    if (from_active) return fail(ErrorCode::kUnsupported, "call sink: no deltas");
    next_ = version;
    numbers_ = 0;
    layers_.clear();
    return {};
  }
  result<void> write(const TensorInfo& tensor, const Box& box, const std::byte* data,
                     std::int64_t row_stride) override {
    for (const Segment& s : layout_.segments) {
      if (roster_.tensors[at(s.tensor)].name != tensor.name || !s.box.contains(box)) continue;
      const std::int64_t size = element_bytes(tensor.dtype);
      for (std::int64_t row = box.row_begin; row < box.row_end; ++row) {
        const std::int64_t element =
            s.offset + (row - s.box.row_begin) * s.row_stride + (box.col_begin - s.box.col_begin);
        std::memcpy(filling_[at(s.buffer)].data() + element * size,
                    data + (row - box.row_begin) * row_stride * size, at(box.cols() * size));
      }
      numbers_ += box.elements();
      return {};
    }
    return fail(ErrorCode::kNotFound, "call sink: {} {}", tensor.name, box_text(box));
  }
  void layer_ready(std::int32_t layer) override { layers_.push_back(layer); }
  result<void> commit() override {
    std::int64_t wanted = 0;
    for (const Segment& s : layout_.segments) wanted += s.box.elements();
    if (numbers_ != wanted)
      return fail(ErrorCode::kCorrupt, "call sink: {} numbers, wanted {}", numbers_, wanted);
    std::swap(active_, filling_);
    version_ = next_;
    return {};
  }
  void abort() override {}
  const std::vector<Bytes>& buffers() const { return active_; }
  const std::vector<std::int32_t>& layers() const { return layers_; }

 private:
  const Roster& roster_;
  const RankLayout& layout_;
  std::vector<Bytes> active_;
  std::vector<Bytes> filling_;
  WeightVersion version_;
  WeightVersion next_;
  std::int64_t numbers_ = 0;
  std::vector<std::int32_t> layers_;
};

enum class Spread : std::uint8_t { kOneProcess, kNodes, kRanks };

struct WorldOptions {
  Spread spread = Spread::kOneProcess;
  bool call_sinks = false;
  bool mixed_sinks = false;  ///< every other rank has a call sink
  TargetOptions target = {};
  SourceOptions source = {};
};

class World {
 public:
  World(const Roster& source, const Roster& target, const PlanOptions& plan_options,
        const WorldOptions& options)
      : options_(options), plan_options_(plan_options) {
    auto made = PublicationPlan::make(source, target, plan_options);
    if (!made) {
      ADD_FAILURE() << made.error().to_string();
      return;
    }
    plan = *std::move(made);
    memory = empty_memory(plan->source());
    for (const RankLayout& rank : plan->source().ranks) {
      std::vector<std::span<const std::byte>> buffers;
      for (const Bytes& bytes : memory.buffers[rank.rank])
        buffers.push_back(std::as_bytes(std::span(bytes)));
      sources[rank.rank] = std::make_unique<PublicationSource>(plan, rank.rank, std::move(buffers),
                                                               port(rank), options.source);
    }
    for (const RankLayout& rank : plan->target().ranks) add_target(rank);
  }

  WeightPort& port(const RankLayout& rank) {
    const std::int32_t process = options_.spread == Spread::kOneProcess ? 0
                                 : options_.spread == Spread::kNodes    ? rank.node
                                                                        : rank.rank;
    std::unique_ptr<WeightPort>& port = ports[process];
    if (port != nullptr) return *port;
    if (options_.spread == Spread::kOneProcess) {
      port = WeightPort::local();
    } else {
      port = *WeightPort::open(
          [&](runtime::PullSource source) -> result<std::unique_ptr<runtime::Transport>> {
            if (wrap_source) source = wrap_source(process, std::move(source));
            return network.open("process " + std::to_string(process), std::move(source));
          });
    }
    return *port;
  }

  void fill_source(std::uint64_t round) { fill(memory, round); }

  PublicationId id(std::int64_t version, std::optional<std::int64_t> base = {}) {
    PublicationId made{.epoch = ++epoch,
                       .version = WeightVersion{version},
                       .digest = plan->plan().digest,
                       .base = {}};
    if (base) made.base = WeightVersion{*base};
    return made;
  }

  result<PublicationOutcome> publish_as(const PublicationId& as, const Checks& checks = {},
                                        Duration within = std::chrono::seconds(60)) {
    std::vector<std::unique_ptr<CallLink>> links;
    for (const auto& [rank, source] : sources)
      links.push_back(std::make_unique<CallLink>(
          Member{Side::kSource, rank},
          [one = source.get()](const Command& command) { return one->handle(command); }));
    for (const auto& [rank, target] : targets)
      links.push_back(std::make_unique<CallLink>(
          Member{Side::kTarget, rank},
          [one = target.get()](const Command& command) { return one->handle(command); }));
    std::vector<MemberLink*> members;
    for (const auto& link : links) members.push_back(link.get());
    PublishOptions options;
    options.id = as;
    options.checks = checks;
    options.receive_within = within;
    return publish(options, members);
  }

  /// The active buffers of a target.
  std::vector<Bytes> active(std::int32_t rank) const {
    if (const auto call = call_sinks.find(rank); call != call_sinks.end())
      return call->second->buffers();
    std::vector<Bytes> all;
    const auto count = plan->target_layout(rank)->buffer_elements.size();
    for (std::size_t b = 0; b < count; ++b) {
      const auto bytes = buffer_sinks.at(rank)->active_buffer(static_cast<std::int32_t>(b));
      const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
      all.emplace_back(data, data + bytes.size());
    }
    return all;
  }

  /// Every byte of every target, padding included, is what gathering and slicing gives.
  void expect_published() {
    const Memory wanted = gather_then_slice(memory, plan->target(), plan_options_);
    for (const auto& [rank, buffers] : wanted.buffers)
      EXPECT_EQ(active(rank), buffers) << "target rank " << rank;
  }

  WorldOptions options_;
  PlanOptions plan_options_;
  runtime::LocalNetwork network;
  /// Set before the first rank is added to put faults between the network and a port.
  static inline std::function<runtime::PullSource(std::int32_t, runtime::PullSource)> wrap_source;
  std::shared_ptr<const PublicationPlan> plan;
  Memory memory;
  std::uint64_t epoch = 0;
  std::map<std::int32_t, std::unique_ptr<WeightPort>> ports;
  std::map<std::int32_t, std::unique_ptr<BufferSink>> buffer_sinks;
  std::map<std::int32_t, std::unique_ptr<CallSink>> call_sinks;
  std::map<std::int32_t, std::unique_ptr<PublicationSource>> sources;
  std::map<std::int32_t, std::unique_ptr<PublicationTarget>> targets;

 private:
  void add_target(const RankLayout& rank) {
    WeightSink* sink = nullptr;
    if (options_.call_sinks || (options_.mixed_sinks && rank.rank % 2 == 0)) {
      auto& made = call_sinks[rank.rank];
      made = std::make_unique<CallSink>(plan->target(), *plan->target_layout(rank.rank));
      sink = made.get();
    } else {
      auto& made = buffer_sinks[rank.rank];
      made = std::make_unique<BufferSink>(buffer_bytes(plan->target(), rank));
      for (std::size_t b = 0; b < rank.buffer_elements.size(); ++b) {
        const auto index = static_cast<std::int32_t>(b);
        for (const auto bytes : {made->active_buffer_to_fill(index), made->buffer(index)})
          std::fill(bytes.begin(), bytes.end(), std::byte{kSentinel});
      }
      sink = made.get();
    }
    targets[rank.rank] =
        std::make_unique<PublicationTarget>(plan, rank.rank, *sink, port(rank), options_.target);
  }
};

}  // namespace troupe::reshard::testing
