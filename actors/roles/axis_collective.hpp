#pragma once

// The collective of one mesh axis as an object that lasts as long as the worker.
//
// After a failure a group gives its ranks new collectives; an engine that keeps a pointer for life
// gets this one, which asks the context each time.
// **Ownership:** borrows the context, which outlives the worker.
// **Threads:** as the collective that it stands for.

#include "runtime/comm/collective.hpp"
#include "runtime/group/worker_context.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

class AxisCollective final : public runtime::Collective {
 public:
  AxisCollective(const runtime::WorkerContext& context, std::string axis)
      : context_(context), axis_(std::move(axis)) {}

  int rank() const override { return now().rank(); }
  int size() const override { return now().size(); }
  const std::string& name() const override { return now().name(); }
  std::int64_t epoch() const override { return now().epoch(); }
  result<void> all_reduce(runtime::Buffer data, runtime::ReduceOp op, Deadline deadline) override {
    return now().all_reduce(data, op, deadline);
  }
  result<void> all_gather(runtime::ConstBuffer part, runtime::Buffer whole,
                          Deadline deadline) override {
    return now().all_gather(part, whole, deadline);
  }
  result<std::vector<std::vector<std::byte>>> all_gather_bytes(std::span<const std::byte> part,
                                                               Deadline deadline) override {
    return now().all_gather_bytes(part, deadline);
  }
  result<std::vector<std::vector<std::byte>>> gather_bytes(std::span<const std::byte> part,
                                                           int root, Deadline deadline) override {
    return now().gather_bytes(part, root, deadline);
  }
  result<void> reduce_scatter(runtime::ConstBuffer whole, runtime::Buffer part,
                              runtime::ReduceOp op, Deadline deadline) override {
    return now().reduce_scatter(whole, part, op, deadline);
  }
  result<void> broadcast(runtime::Buffer data, int root, Deadline deadline) override {
    return now().broadcast(data, root, deadline);
  }
  result<void> barrier(Deadline deadline) override { return now().barrier(deadline); }
  result<void> send(runtime::ConstBuffer data, int peer, int tag, Deadline deadline) override {
    return now().send(data, peer, tag, deadline);
  }
  result<void> recv(runtime::Buffer data, int peer, int tag, Deadline deadline) override {
    return now().recv(data, peer, tag, deadline);
  }
  result<std::unique_ptr<Collective>> split(int colour, int key, Deadline deadline) override {
    return now().split(colour, key, deadline);
  }
  void abort(Error cause) override { now().abort(std::move(cause)); }
  std::optional<Error> failure() const override { return now().failure(); }
  result<void> rebuild(std::int64_t new_epoch, Deadline deadline) override {
    return now().rebuild(new_epoch, deadline);
  }

 private:
  runtime::Collective& now() const { return context_.collective(axis_); }

  const runtime::WorkerContext& context_;
  const std::string axis_;
};

}  // namespace troupe::actors
