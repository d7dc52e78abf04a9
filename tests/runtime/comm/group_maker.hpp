#pragma once

// Groups of the kind under test: in this process, or over Gloo with ranks that are threads.
//
// **Threads:** made on one thread; each handle is then used by its own.

#include "runtime/base/check.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/comm/collective_gloo.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::runtime {

using Handles = std::vector<std::unique_ptr<Collective>>;

enum class GroupKind { kLocal, kGloo };

inline std::string group_kind_name(const ::testing::TestParamInfo<GroupKind>& info) {
  return info.param == GroupKind::kLocal ? "Local" : "Gloo";
}

/// Tests whose parameter says which groups `make_group` makes.
class GroupTest : public ::testing::TestWithParam<GroupKind> {
 public:
  bool over_gloo() const { return GetParam() == GroupKind::kGloo; }

  Handles make_group(int size, const LocalGroupOptions& options = {}) {
    if (!over_gloo()) return make_local_group(size, options);
    TROUPE_CHECK(size >= 1, "{} ranks", size);
    store_ = std::make_shared<LocalRendezvous>();
    options_ = options;
    Handles handles(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto made = make_gloo_collective(gloo_options(rank, size), store_,
                                         Deadline::in(std::chrono::seconds(20)));
        ASSERT_TRUE(made.has_value()) << made.error().to_string();
        handles[static_cast<std::size_t>(rank)] = std::move(*made);
      });
    }
    for (auto& thread : threads) thread.join();
    return handles;
  }

  /// A handle for a rank of the last group whose handle is gone; usable after a rebuild.
  std::unique_ptr<Collective> replace(Collective& survivor, int rank) {
    if (!over_gloo()) {
      auto fresh = replace_rank(survivor, rank);
      return fresh ? std::move(*fresh) : nullptr;
    }
    GlooGroupOptions options = gloo_options(rank, survivor.size());
    options.join = false;
    auto made = make_gloo_collective(options, store_, Deadline::in(std::chrono::seconds(20)));
    return made ? std::move(*made) : nullptr;
  }

 private:
  GlooGroupOptions gloo_options(int rank, int size) const {
    return {.name = options_.name,
            .rank = rank,
            .size = size,
            .mailbox_bytes = options_.mailbox_bytes,
            .scratch_bytes = std::size_t{64} << 10};  // several chunks in the bigger tests
  }

  std::shared_ptr<LocalRendezvous> store_;
  LocalGroupOptions options_;
};

}  // namespace troupe::runtime
