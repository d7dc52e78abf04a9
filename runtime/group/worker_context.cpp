#include "runtime/group/worker_context.hpp"

#include "runtime/base/check.hpp"
#include "runtime/group/rank.hpp"

#include <utility>

namespace troupe::runtime {

const std::string& WorkerContext::group() const { return cell_.group; }
RankId WorkerContext::rank() const { return cell_.rank; }
const Mesh& WorkerContext::mesh() const { return cell_.mesh; }

Collective& WorkerContext::collective() const {
  TROUPE_CHECK(cell_.world != nullptr, "{}: the group was made without collectives", cell_.group);
  return *cell_.world;
}

Collective& WorkerContext::collective(std::string_view axis) const {
  if (mesh().axis_size(axis) == mesh().size()) return collective();
  const auto found = cell_.axes.find(axis);
  TROUPE_CHECK(found != cell_.axes.end(), "{}: no collectives along axis {} of {}", cell_.group,
               axis, mesh().to_string());
  return *found->second;
}

Deadline WorkerContext::deadline() const {
  return Deadline{TimePoint(Duration(cell_.deadline.load()))};
}
bool WorkerContext::cancelled() const { return cell_.cancelled.load(std::memory_order_relaxed); }
void WorkerContext::progress(std::int64_t steps) {
  cell_.progress.fetch_add(steps, std::memory_order_relaxed);
}

WorkerContext::Waiting::Waiting(RankCell& cell, std::string what) : cell_(cell) {
  const std::lock_guard lock(cell_.mutex);
  cell_.waits_for = std::move(what);
  cell_.waiting_since = steady_now();
}
WorkerContext::Waiting::~Waiting() {
  const std::lock_guard lock(cell_.mutex);
  cell_.waits_for.clear();
}

ColumnStore& WorkerContext::columns() const { return cell_.columns; }
PullMeter& WorkerContext::pulled() const { return cell_.pulled; }

}  // namespace troupe::runtime
