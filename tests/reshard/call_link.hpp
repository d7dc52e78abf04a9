#pragma once

// The coordinator's link to a member of this process.
// **Threads:** each call runs on a thread of its own, which the destructor joins.

#include "reshard/execution/publish.hpp"

#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::reshard::testing {

/// Calls `handle` on a thread.
class CallLink final : public MemberLink {
 public:
  using Handle = std::function<result<Reply>(const Command&)>;
  CallLink(Member member, Handle handle) : member_(member), handle_(std::move(handle)) {}
  ~CallLink() override {
    for (std::thread& thread : threads_) thread.join();
  }
  Member member() const override { return member_; }
  runtime::pending<Reply> call(const Command& command, Deadline /*deadline*/) override {
    auto [answer, out] = runtime::make_pending<Reply>();
    threads_.emplace_back([this, command, out = out] { out.complete(handle_(command)); });
    return std::move(answer);
  }

 private:
  Member member_;
  Handle handle_;
  std::vector<std::thread> threads_;
};

}  // namespace troupe::reshard::testing
