#pragma once

// Several column exchanges in one process over a `LocalNetwork`: a controller and its ranks.
//
// **Threads:** any; a world is built and destroyed by one.

#include "runtime/comm/transport_local.hpp"
#include "runtime/exchange/column_exchange.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace troupe::runtime {

class ExchangeWorld {
 public:
  /// `inline_bytes_max` below 0: everything with rows is referred to.
  explicit ExchangeWorld(int count, std::int64_t inline_bytes_max = -1,
                         Duration lease_expires_after = std::chrono::seconds(10))
      : lease(lease_expires_after) {
    controller = open({"controller", RankId{0}}, inline_bytes_max);
    for (int i = 0; i < count; ++i) {
      ranks.push_back(open({"policy", RankId{i}}, inline_bytes_max));
      ranks.back()->open_holder("controller/1");
    }
    const PeerLookup lookup = [this](const ColumnOwner& owner,
                                     Deadline) -> result<std::vector<std::byte>> {
      if (owner.group == "controller") return controller->address();
      const auto place = static_cast<std::size_t>(owner.rank.value);
      if (place >= ranks.size() || !ranks[place]) return fail(ErrorCode::kRankDead, "no such rank");
      return ranks[place]->address();
    };
    controller->set_peer_lookup(lookup);
    for (const auto& rank : ranks) rank->set_peer_lookup(lookup);
    controller->set_lease_sender([this](const ColumnOwner& owner, std::string_view method,
                                        std::vector<std::byte> payload) -> result<void> {
      ++notices;
      return ranks[static_cast<std::size_t>(owner.rank.value)]->on_lease_notice("controller/1",
                                                                                method, payload);
    });
  }
  ~ExchangeWorld() {
    controller.reset();
    ranks.clear();
  }
  ExchangeWorld(const ExchangeWorld&) = delete;
  ExchangeWorld& operator=(const ExchangeWorld&) = delete;

  std::unique_ptr<ColumnExchange> open(ColumnOwner self, std::int64_t inline_bytes_max) {
    ExchangeOptions options;
    options.self = self;
    options.inline_bytes_max = inline_bytes_max;
    options.lease_expires_after = lease;
    options.pull_deadline = std::chrono::seconds(5);
    auto exchange = ColumnExchange::open(
        std::move(options), [&](PullSource source) -> result<std::unique_ptr<Transport>> {
          return network.open(fmt::format("{} rank {}", self.group, self.rank.value),
                              std::move(source));
        });
    EXPECT_TRUE(exchange) << exchange.error().to_string();
    return *std::move(exchange);
  }
  /// A result of rank `rank` at the controller.
  Batch result_of(std::size_t rank, const Batch& batch) {
    const auto bytes = ranks[rank]->export_batch(batch);
    EXPECT_TRUE(bytes) << bytes.error().to_string();
    auto imported = controller->import_batch(*bytes);
    EXPECT_TRUE(imported) << imported.error().to_string();
    return imported ? *std::move(imported) : Batch();
  }
  /// Waits until `holds` does, or fails.
  template <class Condition>
  void eventually(Condition&& holds, const char* what) {
    const Deadline until = Deadline::in(std::chrono::seconds(5));
    while (!holds() && !until.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_TRUE(holds()) << what;
  }
  void expect_nothing_held() {
    controller->flush_releases();
    for (const auto& rank : ranks) {
      if (!rank) continue;
      const ExchangeStatistics all = rank->statistics();
      EXPECT_EQ(all.columns_held, 0);
      EXPECT_EQ(all.bytes_held, 0);
      EXPECT_EQ(all.columns_granted, 0);
      EXPECT_EQ(all.leases, 0);
    }
    EXPECT_EQ(controller->statistics().leases, 0);
    EXPECT_EQ(controller->statistics().columns_held, 0);
  }

  const Duration lease;
  LocalNetwork network;
  std::unique_ptr<ColumnExchange> controller;
  std::vector<std::unique_ptr<ColumnExchange>> ranks;
  std::atomic<int> notices{0};
};

}  // namespace troupe::runtime
