#pragma once

// `ServedCall`: a call as the rank process that runs it sees it: bytes in, bytes out.
//
// Ownership: counted; the engine's queue holds it.
// **Threads:** made on the link's I/O thread, run on the engine thread.
// **Invariants:** owns a copy of its arguments, each at a word boundary.

#include "runtime/group/call.hpp"
#include "runtime/group/exchange_context.hpp"
#include "runtime/group/group_codec.hpp"
#include "runtime/group/rank_lanes.hpp"
#include "runtime/group/served_method.hpp"

#include <memory>
#include <span>
#include <vector>

namespace troupe::runtime {

class ServedCall final : public Call {
 public:
  ServedCall(const CallFrame& frame, const ServedMethod& served, ColumnExchange* exchange,
             RankLanes* lanes);

  result<void> run(void* worker, RankId rank, WorkerContext& context) override;
  std::unique_ptr<LaneGate::Turn> take_turn(RankId rank) override;
  CallWire& wire() override;
  result<void> join() override { return {}; }
  void deliver() override {}
  bool fail(Error) override { return false; }
  bool over() const override { return false; }

  /// After `run`: the value, if it was wanted.
  const std::optional<std::vector<std::byte>>& value() const { return value_; }
  bool value_held() const { return value_held_; }

 private:
  result<std::vector<std::span<const std::byte>>> fetch_arguments(ExchangeContext& context);

  struct Argument {
    std::size_t begin = 0;
    std::size_t size = 0;
    bool held = false;
  };
  const ServedMethod& served_;
  ColumnExchange* const exchange_;
  RankLanes* const lanes_;
  const bool wanted_;
  LaneTicket ticket_;
  std::vector<std::byte> bytes_;
  std::vector<Argument> arguments_;
  std::vector<std::vector<std::byte>> fetched_;
  std::optional<std::vector<std::byte>> value_;
  bool value_held_ = false;
};

}  // namespace troupe::runtime
