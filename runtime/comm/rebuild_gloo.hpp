#pragma once

// How the ranks of a group find each other, for the first time and after a failure.
//
// Each rank posts a wish (epoch, attempt) in the rendezvous store; rank 0 looks at them and answers
// each: go, under a tag that no other attempt has, or why not. So either all connect or none does.
// A wish whose deadline passed stands: a later call for the same epoch goes on with it.
// Ownership: one per handle of a whole group.
// **Threads:** the handle's.
// **Invariants:** an answer is for one attempt of one rank and is read once.

#include "runtime/comm/collective_gloo.hpp"
#include "runtime/comm/links_gloo.hpp"
#include "runtime/comm/posted_call.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

class GlooRendezvous {
 public:
  GlooRendezvous(const GlooGroupOptions& options, GroupLabels labels,
                 std::shared_ptr<RendezvousStore> store)
      : options_(options),
        labels_(std::move(labels)),
        store_(std::move(store)),
        answered_(labels_.ranks.size(), 0) {}

  /// For a rank that takes the place of another: its wishes come after those of the old one.
  result<void> take_over(Deadline deadline);
  /// Connections with all ranks under `epoch`. `gone(rank)` says that its old connection ended.
  result<std::unique_ptr<GlooLinks>> meet(std::int64_t epoch, const std::function<bool(int)>& gone,
                                          Deadline deadline);
  /// This rank will not come any more.
  void leave();

 private:
  struct Wish {
    std::int64_t epoch = 0;  ///< or kGone, kWaiting
    std::uint64_t attempt = 0;
  };
  static constexpr std::int64_t kGone = -1;     ///< the rank has left
  static constexpr std::int64_t kWaiting = -2;  ///< it has been replaced and will rebuild

  std::string key(std::string_view what, int rank) const;
  std::string answer_key(int rank, std::uint64_t attempt) const;
  result<void> post(Wish wish);
  result<Wish> wish_of(int rank, Deadline deadline) const;
  result<std::string> gather(const std::function<bool(int)>& gone, Deadline deadline);
  result<std::string> await_answer(Deadline deadline);
  result<void> answer(int rank, std::uint64_t attempt, const std::string& text);
  result<void> refuse_all(const std::vector<std::uint64_t>& joined, const std::string& text);

  const GlooGroupOptions options_;
  const GroupLabels labels_;
  const std::shared_ptr<RendezvousStore> store_;
  Wish own_;
  std::vector<std::uint64_t> answered_;  ///< rank 0: last attempt of each that had its answer
};

}  // namespace troupe::runtime
