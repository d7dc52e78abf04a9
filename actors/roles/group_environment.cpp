#include "actors/roles/group_environment.hpp"

#include "actors/roles/settled.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Failure;
using runtime::task;
using runtime::value_or_throw;

/// What one rank is asked of one call; while it lives, these turns count as under way there.
struct GroupEnvironment::Part {
  explicit Part(Seat& at) : seat(&at) {}
  Part(Part&& other) noexcept
      : seat(std::exchange(other.seat, nullptr)),
        rows(std::move(other.rows)),
        turns(std::move(other.turns)),
        call(std::move(other.call)) {}
  Part& operator=(Part&&) = delete;
  ~Part() {
    if (seat != nullptr) seat->under_way -= static_cast<std::int64_t>(rows.size());
  }
  void add(std::size_t row, EnvironmentTurn turn) {
    ++seat->under_way;
    rows.push_back(row);
    turns.push_back(std::move(turn));
  }

  Seat* seat;
  std::vector<std::size_t> rows;
  std::vector<EnvironmentTurn> turns;
  std::optional<runtime::pending<EnvironmentReply>> call;
};

result<std::unique_ptr<GroupEnvironment>> GroupEnvironment::create(
    Make make, const GroupEnvironmentOptions& options) {
  if (options.ranks < 1)
    return fail(ErrorCode::kInvalidArgument, "environment: {} ranks, wanted at least 1",
                options.ranks);
  std::unique_ptr<GroupEnvironment> made(new GroupEnvironment(std::move(make), options));
  for (int index = 0; index < options.ranks; ++index) {
    auto seat = std::make_unique<Seat>();
    seat->index = index;
    TROUPE_TRY(Group group, made->make_(index, {.generation = 1, .within = options.create_within}));
    seat->group = std::make_unique<Group>(std::move(group));
    made->seats_.push_back(std::move(seat));
  }
  return made;
}

std::vector<GroupEnvironment::Seat*> GroupEnvironment::living() const {
  std::vector<Seat*> seats;
  for (const auto& seat : seats_) {
    if (alive(*seat)) seats.push_back(seat.get());
  }
  return seats;
}

void GroupEnvironment::begin_remaking(Seat& seat) {
  if (seat.group != nullptr) cause_ = seat.group->dead_cause();
  if (remakes_ >= options_.remakes_max) return;
  ++remakes_;
  ++seat.generation;
  log::warn("environment rank {} is made anew ({} of {}): {}", seat.index, remakes_,
            options_.remakes_max, cause_ ? cause_->to_string() : std::string("it is gone"));
  const GroupMaking making{.generation = seat.generation, .within = options_.remake_within};
  seat.making =
      make_anew(seat.job, std::move(seat.group),
                [make = make_, index = seat.index, making] { return make(index, making); });
}

task<void> GroupEnvironment::finish_remaking(Seat& seat) {
  auto making = std::move(*seat.making);
  seat.making.reset();
  auto made = co_await settled(std::move(making));
  if (made)
    seat.group = *std::move(made);
  else
    cause_ = std::move(made).error();
}

task<std::vector<GroupEnvironment::Seat*>> GroupEnvironment::usable() {
  const Turnstile::Pass pass = co_await remaking_.enter();
  for (const auto& seat : seats_) {
    if (!alive(*seat) && !seat->making) begin_remaking(*seat);
    if (seat->making && seat->making->ready()) co_await finish_remaking(*seat);
  }
  std::vector<Seat*> seats = living();
  while (seats.empty()) {
    const auto next = std::find_if(seats_.begin(), seats_.end(),
                                   [](const auto& seat) { return seat->making.has_value(); });
    if (next == seats_.end())
      throw Failure(Error(*cause_).wrap(
          ErrorCode::kRankDead,
          fmt::format("environment: no rank is left, after {} were made anew", remakes_)));
    co_await finish_remaking(**next);
    seats = living();
  }
  co_return seats;
}

std::vector<GroupEnvironment::Part> GroupEnvironment::deal(std::vector<Seat*> seats,
                                                           std::vector<EnvironmentTurn> turns) {
  std::vector<Part> parts;
  parts.reserve(seats.size());
  for (Seat* seat : seats) parts.emplace_back(*seat);
  for (std::size_t row = 0; row < turns.size(); ++row) {
    const auto least = std::min_element(
        parts.begin(), parts.end(),
        [](const Part& a, const Part& b) { return a.seat->under_way < b.seat->under_way; });
    least->add(row, std::move(turns[row]));
  }
  return parts;
}

task<std::vector<EnvironmentAnswer>> GroupEnvironment::turn(std::vector<EnvironmentTurn> turns) {
  std::vector<EnvironmentAnswer> answers(turns.size());
  std::vector<Seat*> seats = co_await usable();
  std::vector<Part> parts = deal(std::move(seats), std::move(turns));
  for (Part& part : parts) {
    if (part.rows.empty()) continue;
    const auto options = runtime::CallOptions().within(options_.turn_within);
    part.call = part.seat->group->call_with<&EnvironmentWorker::turn>(options, part.turns);
  }
  std::optional<Error> first_error;
  for (Part& part : parts) {
    if (!part.call) continue;
    auto reply = co_await settled(*std::move(part.call));
    if (!reply || reply->answers.size() != part.rows.size()) {
      if (!first_error)
        first_error = reply ? Error{.code = ErrorCode::kConflict,
                                    .message = "environment: answers and turns differ in number",
                                    .origin = {},
                                    .causes = {}}
                            : std::move(reply).error();
      continue;
    }
    value_or_throw(metrics_.merge(reply->metrics));
    for (std::size_t i = 0; i < part.rows.size(); ++i)
      answers[part.rows[i]] = std::move(reply->answers[i]);
  }
  if (first_error) throw Failure(*std::move(first_error));
  co_return answers;
}

runtime::Metrics GroupEnvironment::take_metrics() {
  if (remakes_ > 0)
    metrics_.add("environment/remakes", static_cast<double>(remakes_), runtime::Reduction::kLast);
  return std::exchange(metrics_, {});
}

std::optional<Error> GroupEnvironment::dead_cause() const {
  if (remakes_ < options_.remakes_max) return std::nullopt;
  for (const auto& seat : seats_) {
    if (alive(*seat) || seat->making) return std::nullopt;
  }
  return cause_;
}

}  // namespace troupe::actors
