#include "actors/rollout/batch_scheduler.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

void BatchScheduler::submit(PromptGroup& group) {
  TROUPE_CHECK(group.waiting > 0, "scheduler: group {} has no waiting member", group.arrival);
  const bool added = waiting_.emplace(group.arrival, &group).second;
  TROUPE_CHECK(added, "scheduler: group {} is queued twice", group.arrival);
  if (group.prompt_key != 0) by_prompt_.emplace(group.prompt_key, &group);
}

void BatchScheduler::next_step(StepPlan& plan) {
  plan.clear();
  preempted_ = false;
  drop_stopped();
  schedule_running(plan);
  // After a preemption blocks are short: admitting someone now would only take them away again.
  if (!preempted_) admit(plan);
  if (plan.runs.empty()) force_progress(plan);
}

void BatchScheduler::drop_stopped() {
  std::erase_if(running_, [](const Sequence* s) { return s->state != SequenceState::kRunning; });
}

void BatchScheduler::schedule_running(StepPlan& plan) {
  const auto decodes = static_cast<std::int32_t>(
      std::ranges::count_if(running_, [](const Sequence* s) { return s->pending() == 1; }));
  std::int32_t prefill_left = std::max(0, limits_.step_tokens - decodes);
  for (Sequence* sequence : running_) {
    if (sequence->state != SequenceState::kRunning) continue;  // preempted by an older one
    const std::int32_t pending = sequence->pending();
    const bool decode = pending == 1;
    const std::int32_t take = std::min({pending, room(plan), decode ? 1 : prefill_left});
    if (take == 0) continue;
    if (!make_room(*sequence, sequence->computed + take)) return;
    add_run(*sequence, take, plan);
    if (!decode) prefill_left -= take;
  }
}

bool BatchScheduler::make_room(Sequence& sequence, std::int64_t tokens) {
  while (!pool_->grow(sequence.blocks, tokens)) {
    Sequence* victim = youngest_holder(nullptr);
    TROUPE_CHECK(victim != nullptr, "scheduler: {} tokens never fit {} blocks", tokens,
                 pool_->block_count());
    preempt(*victim);
    if (victim == &sequence) return false;
  }
  return true;
}

Sequence* BatchScheduler::youngest_holder(const Sequence* except) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it)
    if ((*it)->state == SequenceState::kRunning && *it != except) return *it;
  return nullptr;
}

void BatchScheduler::admit(StepPlan& plan) {
  // Members that will want a slot: running ones, and waiting ones of groups under way.
  std::int64_t committed = running_members_;
  for (const auto& [arrival, group] : waiting_)
    if (group->trunk.state == SequenceState::kRunning) committed += group->waiting;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    PromptGroup& group = *(it++)->second;  // forking the last member erases its entry
    if (paused_ && !group.begun) continue;
    if (group.trunk.state != SequenceState::kRunning) {
      if (!start_trunk(group, committed, plan)) return;
      committed += group.waiting;
    } else if (group.trunk_ready()) {
      while (group.waiting > 0) {
        if (running_members_ >= limits_.running_sequences || room(plan) <= 0) return;
        if (!fork_member(group, plan, group.waiting == 1)) return;
      }
    }
  }
}

bool BatchScheduler::start_trunk(PromptGroup& group, std::int64_t committed, StepPlan& plan) {
  if (committed >= limits_.running_sequences || room(plan) <= 0) return false;
  Sequence& trunk = group.trunk;
  const std::int64_t needed = blocks_for_tokens(trunk.prompt_tokens);
  // Leave every member under way a block to grow into, or the next step preempts what this admits.
  const std::int64_t spare =
      std::min<std::int64_t>(committed + group.waiting, limits_.running_sequences);
  const bool alone = youngest_holder(nullptr) == nullptr;
  if (pool_->free_count() < needed + (alone ? 0 : spare)) return false;
  trunk.prompt_weights = weights_;
  take_prompt(trunk, plan);
  const bool grown = pool_->grow(trunk.blocks, trunk.prompt_tokens);
  TROUPE_CHECK(grown, "scheduler: prompt of {} tokens never fits {} blocks", trunk.prompt_tokens,
               pool_->block_count());
  group.begun = true;
  trunk.kv_era = era_;
  start_running(trunk);
  add_run(trunk, std::min(trunk.pending(), room(plan)), plan);
  return true;
}

/// A sequence that has the KV of the whole prompt of `group`, made by the weights that serve.
const Sequence* BatchScheduler::prompt_holder(const PromptGroup& group) const {
  const auto [begin, end] = by_prompt_.equal_range(group.prompt_key);
  for (auto it = begin; it != end; ++it) {
    const PromptGroup& other = *it->second;
    if (other.trunk.tokens != group.trunk.tokens) continue;
    const auto holds = [&](const Sequence& s) {
      return s.state == SequenceState::kRunning && s.kv_era == era_ &&
             s.prompt_weights == weights_ && s.computed >= s.prompt_tokens;
    };
    if (&other != &group && holds(other.trunk)) return &other.trunk;
    for (const auto& member : other.members)
      if (holds(*member)) return member.get();
  }
  return nullptr;
}

/// The last token is always run: its logits choose the first token of the output.
void BatchScheduler::take_prompt(Sequence& trunk, StepPlan& plan) {
  if (trunk.group->prompt_key == 0 || trunk.prompt_tokens < 2) return;
  const Sequence* holder = prompt_holder(*trunk.group);
  if (holder == nullptr) return;
  const std::int32_t shared = trunk.prompt_tokens - 1;
  auto fork = pool_->fork(holder->blocks, shared);
  TROUPE_CHECK(fork.has_value(), "scheduler: no block for the prompt of group {}",
               trunk.group->arrival);
  trunk.blocks = std::move(fork->table);
  if (fork->copy) plan.copies.push_back(*fork->copy);
  trunk.computed = shared;
  counts_.prefix_tokens_shared += shared;
}

bool BatchScheduler::fork_member(PromptGroup& group, StepPlan& plan, bool take_trunk) {
  const auto found = std::ranges::find_if(
      group.members, [](const auto& m) { return m->state == SequenceState::kWaiting; });
  TROUPE_CHECK(found != group.members.end(), "scheduler: group {} has no waiting member",
               group.arrival);
  Sequence& member = **found;
  member.kv_era = group.trunk.kv_era;
  member.prompt_weights = group.trunk.prompt_weights;
  if (take_trunk) {
    member.blocks = std::exchange(group.trunk.blocks, {});
    group.trunk.computed = 0;
    group.trunk.state = SequenceState::kWaiting;
  } else {
    auto fork = pool_->fork(group.trunk.blocks, member.prompt_tokens);
    if (!fork) return false;
    member.blocks = std::move(fork->table);
    if (fork->copy) plan.copies.push_back(*fork->copy);
    ++counts_.forks;
    counts_.prefix_tokens_shared += member.prompt_tokens;
  }
  member.computed = member.prompt_tokens;
  --group.waiting;
  ++running_members_;
  start_running(member);
  settle_waiting(group);
  const std::int32_t take = std::min(member.pending(), room(plan));
  if (take <= 0) return true;
  // Without a block it keeps its KV, and the next step makes room for it.
  if (!pool_->grow(member.blocks, member.computed + take)) return false;
  add_run(member, take, plan);
  return true;
}

void BatchScheduler::force_progress(StepPlan& plan) {
  // Only finished trunks, or nothing, hold blocks here: whoever ran would have been scheduled.
  while (!waiting_.empty()) {
    drop_stopped();
    admit(plan);
    if (!plan.runs.empty()) return;
    const auto front = std::ranges::find_if(
        waiting_, [&](const auto& entry) { return !paused_ || entry.second->begun; });
    if (front == waiting_.end()) return;
    PromptGroup& group = *front->second;
    if (Sequence* victim = youngest_holder(&group.trunk)) {
      preempt(*victim);
      continue;
    }
    TROUPE_CHECK(group.trunk_ready(), "scheduler: group {} can neither start nor fork",
                 group.arrival);
    fork_member(group, plan, true);
    TROUPE_CHECK(!plan.runs.empty(), "scheduler: group {} does not fit {} blocks", group.arrival,
                 pool_->block_count());
    return;
  }
}

void BatchScheduler::complete(const ScheduledRun& run) {
  TROUPE_CHECK(run.tokens > 0 && run.tokens <= run.sequence->pending(),
               "scheduler: completed {} tokens, pending {}", run.tokens, run.sequence->pending());
  run.sequence->computed += run.tokens;
}

void BatchScheduler::finish(Sequence& sequence) {
  TROUPE_CHECK(!sequence.is_trunk() && sequence.state != SequenceState::kFinished,
               "scheduler: sequence {} cannot finish twice", sequence.id.value);
  PromptGroup& group = *sequence.group;
  if (sequence.state == SequenceState::kRunning) {
    pool_->release_all(sequence.blocks);
    --running_members_;
  } else {
    --group.waiting;
  }
  sequence.state = SequenceState::kFinished;
  --group.unfinished;
  settle_waiting(group);
  if (group.unfinished > 0) return;
  retired_.push_back(&group);
  const auto [begin, end] = by_prompt_.equal_range(group.prompt_key);
  for (auto it = begin; it != end; ++it) {
    if (it->second != &group) continue;
    by_prompt_.erase(it);
    break;
  }
}

void BatchScheduler::preempt(Sequence& sequence) {
  TROUPE_CHECK(sequence.state == SequenceState::kRunning, "scheduler: sequence {} does not run",
               sequence.id.value);
  pool_->release_all(sequence.blocks);
  sequence.computed = 0;
  sequence.state = SequenceState::kWaiting;
  if (!sequence.is_trunk()) {
    --running_members_;
    ++sequence.group->waiting;
    waiting_.emplace(sequence.group->arrival, sequence.group);
  }
  preempted_ = true;
  ++counts_.preemptions;
}

void BatchScheduler::preempt_all() {
  for (Sequence* sequence : running_)
    if (sequence->state == SequenceState::kRunning) preempt(*sequence);
  drop_stopped();
}

bool BatchScheduler::holds_kv() const {
  const auto runs = [](const Sequence* s) { return s->state == SequenceState::kRunning; };
  return std::ranges::any_of(running_, runs);
}

bool BatchScheduler::has_begun() const {
  const auto begun = [](const auto& entry) { return entry.second->begun; };
  return holds_kv() || std::ranges::any_of(waiting_, begun);
}

std::vector<PromptGroup*> BatchScheduler::take_retired() {
  if (!retired_.empty()) drop_stopped();
  return std::exchange(retired_, {});
}

void BatchScheduler::start_running(Sequence& sequence) {
  sequence.state = SequenceState::kRunning;
  const auto before = [](const Sequence* a, const Sequence* b) { return priority(*a, *b) < 0; };
  running_.insert(std::ranges::upper_bound(running_, &sequence, before), &sequence);
}

/// A group without waiting members leaves the queue and needs no trunk.
void BatchScheduler::settle_waiting(PromptGroup& group) {
  if (group.waiting > 0) return;
  waiting_.erase(group.arrival);
  if (group.trunk.state != SequenceState::kRunning) return;
  pool_->release_all(group.trunk.blocks);
  group.trunk.computed = 0;
  group.trunk.state = SequenceState::kWaiting;
}

void BatchScheduler::add_run(Sequence& sequence, std::int32_t tokens, StepPlan& plan) {
  TROUPE_CHECK(sequence.kv_era == era_, "scheduler: KV of era {} in era {}", sequence.kv_era, era_);
  plan.runs.push_back(ScheduledRun{.sequence = &sequence, .tokens = tokens});
  plan.tokens += tokens;
}

void BatchScheduler::check_invariants() const {
  pool_->check_invariants();
  std::vector<std::int32_t> holders(static_cast<std::size_t>(pool_->block_count()), 0);
  std::int64_t members = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->state != SequenceState::kRunning) continue;
    members += sequence->is_trunk() ? 0 : 1;
    TROUPE_CHECK(sequence->is_trunk() || sequence->pending() > 0,
                 "scheduler: sequence {} runs with nothing to do", sequence->id.value);
    TROUPE_CHECK(
        blocks_for_tokens(sequence->computed) <= static_cast<std::int64_t>(sequence->blocks.size()),
        "scheduler: {} computed tokens in {} blocks", sequence->computed, sequence->blocks.size());
    for (const std::int32_t block : sequence->blocks) ++holders[static_cast<std::size_t>(block)];
  }
  for (std::int32_t block = 0; block < pool_->block_count(); ++block)
    TROUPE_CHECK(holders[static_cast<std::size_t>(block)] == pool_->holders(block),
                 "scheduler: block {} is in {} tables, counted {}", block,
                 holders[static_cast<std::size_t>(block)], pool_->holders(block));
  TROUPE_CHECK(members == running_members_, "scheduler: {} members run, counted {}", members,
               running_members_);
  for (const auto& [arrival, group] : waiting_) {
    const auto waits = std::ranges::count_if(
        group->members, [](const auto& m) { return m->state == SequenceState::kWaiting; });
    TROUPE_CHECK(waits == group->waiting && waits > 0,
                 "scheduler: group {} has {} waiting, counted {}", arrival, waits, group->waiting);
  }
}

}  // namespace troupe::actors
