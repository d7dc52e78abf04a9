#include "sim/rollout/replica.hpp"

#include "runtime/base/check.hpp"
#include "sim/engine/duration.hpp"

#include <algorithm>
#include <utility>

namespace troupe::sim {
result<std::unique_ptr<Replica>> Replica::create(const DecodeCost& cost, ReplicaOptions options,
                                                 ReplicaListener& listener) {
  if (options.sequences_max < 1 || options.kv_tokens < 0 || !(options.watermark >= 0) ||
      options.watermark >= 1 || !(options.slowness > 0))
    return fail(ErrorCode::kInvalidArgument,
                "replica: {} sequences, {} KV tokens, watermark {}, slowness {}; wanted at least "
                "1, at least 0, a share below 1 and a positive number",
                options.sequences_max, options.kv_tokens, options.watermark, options.slowness);
  std::int64_t tokens = options.kv_tokens;
  if (tokens == 0) {
    TROUPE_TRY(tokens, cost.kv_tokens());
  }
  return std::unique_ptr<Replica>(new Replica(cost, options, listener, tokens / kKvBlockTokens));
}

result<void> Replica::submit(Simulation& simulation, const SimSequence& sequence) {
  TROUPE_CHECK(sequence.length >= 1 && sequence.generated < sequence.length,
               "replica: sequence {} has {} of {} tokens", sequence.id, sequence.generated,
               sequence.length);
  if (blocks(sequence.prompt) + blocks(sequence.length) > pool_blocks_)
    return fail(ErrorCode::kResourceExhausted,
                "replica: sequence {} needs {} + {} tokens of KV, the pool has {}", sequence.id,
                sequence.prompt, sequence.length, pool_blocks_ * kKvBlockTokens);
  waiting_.push_back(sequence);
  if (paused_ || in_event_) return {};
  if (stretch_.steps == 0) {
    plan(simulation);
  } else if (admissible(waiting_.front())) {
    cut(simulation);
  }
  return {};
}

std::optional<SimSequence> Replica::stop(Simulation& simulation, std::uint64_t id) {
  const auto queued = std::find_if(waiting_.begin(), waiting_.end(),
                                   [id](const SimSequence& one) { return one.id == id; });
  if (queued != waiting_.end()) {
    const SimSequence stopped = *queued;
    waiting_.erase(queued);
    return stopped;
  }
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [id](const Running& one) { return one.sequence.id == id; });
  if (found == running_.end()) return std::nullopt;
  const auto place = found - running_.begin();
  if (!in_event_) cut(simulation);  // the step under way ends as planned, without it
  const Running stopped = running_[static_cast<std::size_t>(place)];
  leave(stopped);
  running_.erase(running_.begin() + place);
  return stopped.sequence;
}

std::vector<SimSequence> Replica::stop_all(Simulation& simulation) {
  if (!in_event_ && stretch_.steps > 0) cut(simulation);
  std::vector<SimSequence> stopped;
  for (const Running& one : running_) {
    leave(one);
    stopped.push_back(one.sequence);
  }
  running_.clear();
  stopped.insert(stopped.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
  return stopped;
}

void Replica::pause(Simulation& simulation) {
  paused_ = true;
  if (!in_event_ && stretch_.steps > 0) cut(simulation);
}

void Replica::resume(Simulation& simulation) {
  paused_ = false;
  if (!in_event_ && stretch_.steps == 0) plan(simulation);
}

void Replica::settle(Simulation& simulation) {
  if (in_event_ || stretch_.steps == 0) return;
  account(simulation.now());
  if (!options_.skip) return;  // every step is an event
  // The last step belongs to the event that ends the stretch.
  const std::int64_t ended = std::min(steps_ended(simulation.now()), stretch_.steps - 1);
  if (ended > stretch_.done) advance_by(ended - stretch_.done);
}

std::int64_t Replica::free_tokens() const {
  std::int64_t free = (pool_blocks_ - used_after(0)) * kKvBlockTokens;
  for (const SimSequence& one : waiting_) free -= one.prompt + one.generated;
  return std::max<std::int64_t>(free, 0);
}

void Replica::on_event(Simulation& simulation, const Event&) {
  in_event_ = true;
  account(simulation.now());
  if (options_.skip) {
    advance_by(stretch_.steps - stretch_.done);
  } else {
    stretch_.elapsed_s +=
        options_.slowness *
        cost_.step_s(stretch_.sequences,
                     static_cast<double>(stretch_.cached + stretch_.done * stretch_.sequences));
    advance_by(1);
    if (stretch_.done < stretch_.steps) {
      in_event_ = false;
      schedule(simulation);
      return;
    }
  }
  stretch_ = Stretch{};
  finish_done();
  in_event_ = false;
  plan(simulation);
}

std::int64_t Replica::used_after(std::int64_t steps) const {
  std::int64_t used = shared_blocks_;
  for (const Running& one : running_) used += blocks(one.own_tokens + steps);
  return used;
}

/// Most steps, up to `most`, after which the pool still holds everything.
std::int64_t Replica::steps_in_pool(std::int64_t most) const {
  if (used_after(most) <= pool_blocks_) return most;
  std::int64_t low = 0;
  std::int64_t high = most;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (used_after(middle) <= pool_blocks_ ? low : high) = middle;
  }
  return low;
}

TimePoint Replica::end_of_step(std::int64_t step) const {
  return stretch_.start +
         to_duration(options_.slowness *
                     cost_.steps_s(stretch_.sequences, static_cast<double>(stretch_.cached), step));
}

std::int64_t Replica::steps_ended(TimePoint now) const {
  std::int64_t low = stretch_.done;
  std::int64_t high = stretch_.steps;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (end_of_step(middle) <= now)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

void Replica::account(TimePoint now) {
  const double span = seconds(now - accounted_to_);
  accounted_to_ = now;
  if (stretch_.steps == 0) return;
  statistics_.busy_s += span;
  statistics_.running_s += span * static_cast<double>(running_.size());
  statistics_.kv_token_s += span * static_cast<double>(cached_tokens_);
}

void Replica::advance_by(std::int64_t steps) {
  for (Running& one : running_) {
    one.sequence.generated += steps;
    one.own_tokens += steps;
  }
  const auto grown = steps * static_cast<std::int64_t>(running_.size());
  cached_tokens_ += grown;
  statistics_.tokens += grown;
  statistics_.steps += steps;
  stretch_.done += steps;
  statistics_.kv_tokens_peak = std::max(statistics_.kv_tokens_peak, used_after(0) * kKvBlockTokens);
}

/// Brings what runs up to now and lets the stretch end with the step under way.
void Replica::cut(Simulation& simulation) {
  const std::int64_t ended = steps_ended(simulation.now());
  account(simulation.now());
  if (options_.skip) advance_by(ended - stretch_.done);
  const std::int64_t end = std::min(stretch_.steps, stretch_.done + 1);
  if (end == stretch_.steps) return;
  stretch_.steps = end;
  if (!options_.skip) return;  // its event is the end of this step already
  simulation.cancel(next_);
  schedule(simulation);
}

void Replica::schedule(Simulation& simulation) {
  TimePoint at = end_of_step(stretch_.steps);
  if (!options_.skip) {
    const auto cached = stretch_.cached + stretch_.done * stretch_.sequences;
    at =
        stretch_.start + to_duration(stretch_.elapsed_s +
                                     options_.slowness * cost_.step_s(stretch_.sequences,
                                                                      static_cast<double>(cached)));
  }
  next_ = simulation.at(std::max(at, simulation.now()), *this, 0);
}

void Replica::finish_done() {
  std::vector<SimSequence> done;
  std::erase_if(running_, [&](const Running& one) {
    if (one.sequence.generated < one.sequence.length) return false;
    leave(one);
    done.push_back(one.sequence);
    return true;
  });
  statistics_.finished += static_cast<std::int64_t>(done.size());
  for (const SimSequence& sequence : done) listener_.on_finished(*this, sequence);
}

bool Replica::admissible(const SimSequence& sequence) const {
  if (running() >= options_.sequences_max) return false;
  if (running_.empty()) return true;
  const bool shared = options_.share_prompt && groups_.contains(sequence.group);
  const std::int64_t wanted =
      options_.share_prompt
          ? (shared ? 0 : blocks(sequence.prompt)) + blocks(sequence.generated + 1)
          : blocks(sequence.prompt + sequence.generated + 1);
  const auto kept =
      static_cast<std::int64_t>(options_.watermark * static_cast<double>(pool_blocks_));
  return used_after(1) + wanted <= pool_blocks_ - kept;
}

/// Admits what fits, in order. Returns the seconds that its prefill takes.
double Replica::admit() {
  double tokens = 0;
  double squares = 0;
  while (!waiting_.empty() && admissible(waiting_.front())) {
    const SimSequence sequence = waiting_.front();
    waiting_.pop_front();
    const auto prompt = static_cast<double>(sequence.prompt);
    const auto all = static_cast<double>(sequence.prompt + sequence.generated);
    Running running{sequence, sequence.generated};
    bool computed = false;
    if (options_.share_prompt) {
      Shared& group = groups_[sequence.group];
      computed = group.members > 0;
      if (!computed) {
        group.blocks = blocks(sequence.prompt);
        shared_blocks_ += group.blocks;
      }
      ++group.members;
    } else {
      running.own_tokens += sequence.prompt;
    }
    tokens += computed ? all - prompt : all;
    if (sequence.generated > 0) {
      const std::int64_t again =
          computed ? sequence.generated : sequence.prompt + sequence.generated;
      statistics_.recomputed_tokens += again;
    }
    squares += computed ? all * all - prompt * prompt : all * all;
    cached_tokens_ += sequence.prompt + sequence.generated;
    running_.push_back(running);
  }
  statistics_.prefill_tokens += static_cast<std::int64_t>(tokens);
  return options_.slowness * cost_.prefill_s(tokens, squares);
}

void Replica::leave(const Running& gone) {
  cached_tokens_ -= gone.sequence.prompt + gone.sequence.generated;
  if (!options_.share_prompt) return;
  const auto group = groups_.find(gone.sequence.group);
  if (--group->second.members > 0) return;
  shared_blocks_ -= group->second.blocks;
  groups_.erase(group);
}

void Replica::preempt() {
  while (running_.size() > 1 && used_after(1) > pool_blocks_) {
    const Running youngest = running_.back();
    running_.pop_back();
    leave(youngest);
    waiting_.push_front(youngest.sequence);
    ++statistics_.preemptions;
  }
}

void Replica::plan(Simulation& simulation) {
  account(simulation.now());
  if (paused_) return;
  preempt();
  const double prefill = admit();
  if (running_.empty()) return;
  std::int64_t steps = running_.front().sequence.length - running_.front().sequence.generated;
  for (const Running& one : running_)
    steps = std::min(steps, one.sequence.length - one.sequence.generated);
  stretch_ = Stretch{.start = simulation.now() + to_duration(prefill),
                     .sequences = running(),
                     .cached = cached_tokens_,
                     .steps = std::max<std::int64_t>(1, steps_in_pool(steps)),
                     .done = 0,
                     .elapsed_s = 0};
  schedule(simulation);
}

}  // namespace troupe::sim
