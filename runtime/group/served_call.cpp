#include "runtime/group/served_call.hpp"

#include "runtime/base/check.hpp"

#include <cstring>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::size_t kWord = 8;
/// A value above this is held here and pulled by the controller.
constexpr std::size_t kValueInFrameMax = std::size_t{256} << 10;
/// Without an exchange, what a frame can take.
constexpr std::size_t kValueWholeMax = std::size_t{900} << 10;

/// The turn that a ticket stands for, waited for at the agent.
class TicketTurn final : public LaneGate::Turn {
 public:
  TicketTurn(RankLanes* lanes, LaneTicket ticket, std::string phase)
      : lanes_(lanes), ticket_(std::move(ticket)), phase_(std::move(phase)) {}
  result<void> wait(Deadline deadline) override {
    if (lanes_ == nullptr) {
      return fail(ErrorCode::kUnsupported, "lane {}: this rank has no lanes; see set_agent_parts",
                  ticket_.lane);
    }
    TROUPE_TRY(turn_, lanes_->wait(ticket_, phase_, deadline));
    return {};
  }
  std::optional<LaneTicket> ticket() const override { return ticket_; }

 private:
  RankLanes* const lanes_;
  const LaneTicket ticket_;
  const std::string phase_;
  std::unique_ptr<LaneGate::Turn> turn_;
};

}  // namespace

ServedCall::ServedCall(const CallFrame& frame, const ServedMethod& served, ColumnExchange* exchange,
                       RankLanes* lanes)
    : served_(served),
      exchange_(exchange),
      lanes_(lanes),
      wanted_(frame.wanted),
      ticket_(frame.ticket) {
  id = frame.id;
  method = served.name;
  phase = served.phase;
  submitted = steady_now();
  deadline = Deadline{submitted + frame.remaining};
  if (frame.rebuild_epoch > 0) plan.store(kRebuildBase + frame.rebuild_epoch);
  std::size_t size = 0;
  for (const WirePartView& part : frame.arguments)
    size += (part.bytes.size() + kWord - 1) / kWord * kWord;
  bytes_.resize(size);
  std::size_t at = 0;
  for (const WirePartView& part : frame.arguments) {
    arguments_.push_back({at, part.bytes.size(), part.held});
    if (!part.bytes.empty()) std::memcpy(bytes_.data() + at, part.bytes.data(), part.bytes.size());
    at += (part.bytes.size() + kWord - 1) / kWord * kWord;
  }
}

CallWire& ServedCall::wire() {
  TROUPE_CHECK(false, "{}: a served call does not travel on", method);
  std::terminate();
}

std::unique_ptr<LaneGate::Turn> ServedCall::take_turn(RankId) {
  if (ticket_.number == 0) return nullptr;
  return std::make_unique<TicketTurn>(lanes_, ticket_, std::string(phase));
}

result<std::vector<std::span<const std::byte>>> ServedCall::fetch_arguments(
    ExchangeContext& context) {
  std::vector<std::span<const std::byte>> spans;
  fetched_.reserve(arguments_.size());
  for (const Argument& argument : arguments_) {
    const auto bytes = std::span<const std::byte>(bytes_).subspan(argument.begin, argument.size);
    if (!argument.held) {
      spans.push_back(bytes);
      continue;
    }
    TROUPE_TRY(auto value, context.fetch(bytes));
    fetched_.push_back(std::move(value));
    spans.push_back(fetched_.back());
  }
  return spans;
}

result<void> ServedCall::run(void* worker, RankId, WorkerContext& context) {
  if (served_.run == nullptr)
    return troupe::fail(ErrorCode::kUnsupported, "a parameter or the result has no wire form");
  ExchangeContext arguments({.exchange = exchange_,
                             .give = ExchangeContext::Give::kLend,
                             .resolve = served_.pulls_columns,
                             .meter = &context.pulled()});
  ExchangeContext values({.exchange = exchange_, .give = ExchangeContext::Give::kGrant});
  TROUPE_TRY(const auto spans, fetch_arguments(arguments));
  ServedCallData data;
  data.arguments = spans;
  data.arguments_context = &arguments;
  data.value_context = &values;
  data.value_wanted = wanted_;
  TROUPE_TRY_VOID(served_.run(worker, context, data));
  bytes_ = {};
  fetched_.clear();
  if (!wanted_) return {};
  const std::size_t size = data.value.size();
  if (size > (exchange_ != nullptr ? kValueInFrameMax : kValueWholeMax)) {
    TROUPE_TRY(data.value, values.hold(std::move(data.value)));
    value_held_ = true;
  }
  value_ = std::move(data.value);
  return {};
}

}  // namespace troupe::runtime
