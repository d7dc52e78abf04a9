#include "tests/placement/simulation/sim_world.hpp"

#include "placement/protocol_codec.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::placement::simulation {
namespace {

template <class T>
T decoded(result<T> value) {
  require(value.has_value(), "a message does not decode: {}",
          value ? std::string() : value.error().message);
  return std::move(*value);
}

}  // namespace

SimWorld::SimWorld(const SimOptions& options)
    : options_(options),
      plan_(make_plan(options.seed)),
      network_rng_(mix_seed(options.seed, 2)),
      fault_rng_(mix_seed(options.seed, 3)),
      work_rng_(mix_seed(options.seed, 4)),
      core_rng_(mix_seed(options.seed, 5)) {
  plan_.core.mutation = options.core_mutation;
  for (std::size_t i = 0; i < plan_.nodes.size() + plan_.clients + 1; ++i)
    endpoints_.push_back(Endpoint{.index = i});
  nodes_.resize(plan_.nodes.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].endpoint = &endpoints_[i];
    nodes_[i].spec = plan_.nodes[i];
  }
  for (std::size_t i = 0; i <= plan_.clients; ++i) {
    SimClient client;
    client.endpoint = &endpoints_[nodes_.size() + i];
    client.owner = {.name = fmt::format("owner{}", i), .instance = 1};
    clients_.push_back(std::move(client));
  }
}

SimReport SimWorld::run() {
  SimReport report;
  try {
    start_head();
    for (std::size_t i = 0; i < nodes_.size(); ++i) start_node(i);
    for (SimClient& client : clients_) dial_soon(*client.endpoint);
    schedule_faults();
    work();
    run_until(now_ + plan_.chaos);
    heal();
    run_until(now_ + patience());
    check_quiescent();
    drain_groups();
    check_empty();
  } catch (const SimFailure& failure) {
    report.failure =
        fmt::format("at {:.6f} s: {}", seconds(now_.time_since_epoch()), failure.what());
  } catch (const CheckFailure& failure) {
    report.failure =
        fmt::format("at {:.6f} s: {}", seconds(now_.time_since_epoch()), failure.what());
  }
  report.hash = hash_;
  report.counts = counts_;
  report.log.assign(log_.begin(), log_.end());
  return report;
}

// ---- the head ------------------------------------------------------------------------------

void SimWorld::start_head() {
  head_touched_ = true;
  ++head_life_;
  const result<LedgerState> state = ledger_.open();
  require(state.has_value(), "the ledger does not open: {}",
          state ? std::string() : state.error().message);
  appended_ = *state;
  head_.emplace(plan_.core, *state, head_now());
  note(fmt::format("head starts, term {}, {} groups", head_->term(), state->groups.size()));
  // The term is durable before anything is sent.
  ledger_.append({head_->start_record()}, 0);
  require(appended_.apply(head_->start_record()).has_value(), "the first record does not apply");
  ledger_.start_flush();
  ledger_.finish_flush();
  schedule_step(now_);
}

void SimWorld::crash_head() {
  if (!head_) return;
  ++counts_.head_restarts;
  note("head dies");
  head_.reset();
  inbox_.clear();
  step_at_.reset();
  tokens_.clear();
  ledger_.crash(fault_rng_);
  ++head_life_;
  for (auto& [id, connection] : connections_) {
    if (!connection.head_open) continue;
    side_down(id, true, false);
  }
  after(std::chrono::milliseconds(10) + random_span(fault_rng_, std::chrono::seconds(4)), [this] {
    if (!head_) start_head();
  });
}

void SimWorld::to_inbox(CoreEvent event) {
  inbox_.push_back(std::move(event));
  schedule_step(now_ + random_span(network_rng_, std::chrono::microseconds(500)));
}

void SimWorld::schedule_step(TimePoint when) {
  if (!head_) return;
  when = std::max(when, now_);
  if (step_at_ && *step_at_ <= when) return;
  step_at_ = when;
  at(when, [this, when, life = head_life_] {
    if (!head_ || life != head_life_ || !step_at_ || *step_at_ != when) return;
    step_at_.reset();
    step_head();
  });
}

void SimWorld::step_head() {
  head_touched_ = true;
  if (inbox_.empty()) inbox_.push_back(Tick{});
  const std::vector<CoreEvent> events = std::exchange(inbox_, {});
  CoreEffects effects = head_->step(events, head_now(), core_rng_);
  mix(effects.records.size() + (effects.passes.size() << 16) + (effects.answers.size() << 32));
  for (const std::string& line : effects.notices) note("head: " + line);
  for (const LedgerRecord& record : effects.records)
    require(appended_.apply(record).has_value(), "a record does not apply");
  carry_out(std::move(effects));
  if (!head_) return;
  if (const auto wake = head_->next_wake()) schedule_step(*wake - head_ahead_);
}

/// The process may die anywhere in here.
void SimWorld::carry_out(CoreEffects effects) {
  const bool dies = chaos_ && chance(fault_rng_, plan_.faults.head_crash_per_step);
  const std::uint64_t last = dies ? fault_rng_.below(3 + effects.passes.size()) : ~std::uint64_t{0};
  if (last > 0) append(effects);
  std::uint64_t steps = 1;
  for (const SendPass& sent : effects.passes) {
    if (last > steps++) send_pass(sent);
  }
  if (last > steps) {
    check_outward(effects);
    for (Answer& answer : effects.answers) {
      require(answered_.insert(answer.token).second, "request {} is answered twice", answer.token);
      const auto found = tokens_.find(answer.token);
      require(found != tokens_.end(), "request {} was never asked", answer.token);
      const SimToken token = found->second;
      tokens_.erase(found);
      if (!connections_.at(token.connection).head_open) continue;
      post(token.connection, false, false,
           [this, token, body = std::move(answer.body)] { answer_arrives(token, body); });
    }
    for (const TellOwner& told : effects.changes) {
      if (!connections_.at(told.connection).head_open) continue;
      const Bytes bytes = encode_changes(told.changes);
      const std::size_t client = connections_.at(told.connection).endpoint - nodes_.size();
      mix(bytes);
      post(told.connection, false, false, [this, client, bytes] { changes_arrive(client, bytes); });
    }
  }
  if (dies) crash_head();
}

void SimWorld::append(CoreEffects& effects) {
  if (effects.snapshot) {
    ledger_.replace(std::move(*effects.snapshot), effects.last_record);
  } else if (!effects.records.empty()) {
    ledger_.append(std::move(effects.records), effects.last_record);
  }
  flush_soon();
}

void SimWorld::flush_soon() {
  if (!ledger_.start_flush()) return;
  Duration span = random_span(network_rng_, plan_.flush_max);
  if (slow_disk_) span += random_span(network_rng_, std::chrono::seconds(2));
  after(span, [this, life = head_life_] {
    if (!head_ || life != head_life_) return;
    to_inbox(LedgerDurable{ledger_.finish_flush()});
    flush_soon();
  });
}

void SimWorld::send_pass(const SendPass& sent) {
  const Connection& connection = connections_.at(sent.connection);
  if (!connection.head_open) return;
  ++counts_.passes;
  if (chaos_ && chance(network_rng_, plan_.faults.lose_message / 4)) {
    // As when a message does not fit a frame.
    Error error{ErrorCode::kInvalidArgument, "does not fit", {}, {}};
    to_inbox(PassFailed{.connection = sent.connection,
                        .session = sent.pass.session,
                        .number = sent.pass.number,
                        .error = std::move(error)});
    return;
  }
  const Bytes bytes = encode_pass(sent.pass);
  require(decoded(decode_pass(bytes)) == sent.pass, "a pass does not survive its codec");
  post(sent.connection, false, true,
       [this, node = connection.endpoint, id = sent.connection, bytes] {
         pass_arrives(node, id, bytes);
       });
}

void SimWorld::answer_arrives(const SimToken& token, const AnswerBody& body) {
  Endpoint& endpoint = endpoints_[token.endpoint];
  if (endpoint.connection != token.connection) return;
  if (token.endpoint >= nodes_.size()) {
    outcome(clients_[token.endpoint - nodes_.size()], token.number, body);
    return;
  }
  if (const auto* refused = std::get_if<Error>(&body)) {
    note(fmt::format("node {} is refused: {}", token.endpoint, refused->message));
    side_down(token.connection, false, false);
  }
}

// ---- nodes ---------------------------------------------------------------------------------

void SimWorld::start_node(std::size_t index) {
  nodes_touched_ = true;
  SimNode& node = nodes_[index];
  node.spec.draining = false;
  for (DeviceSpec& device : node.spec.devices) device.failed = false;
  node.incarnation = ++last_incarnation_;
  auto core = NodeReservations::create(node.spec, node.incarnation, options_.node_mutation);
  require(core.has_value(), "node {}: {}", index, core ? std::string() : core.error().message);
  node.core.emplace(std::move(*core));
  node.term = node.session = node.number = 0;
  node.endpoint->alive = true;
  note(fmt::format("node {} starts", index));
  dial_soon(*node.endpoint);
}

void SimWorld::node_up(std::size_t index, ConnectionId connection) {
  const NodeHello hello = nodes_[index].core->hello();
  const Bytes bytes = encode_hello(hello);
  post(connection, true, false, [this, index, connection, bytes] {
    const RequestToken token = ++last_token_;
    tokens_[token] = {.endpoint = index, .connection = connection};
    to_inbox(HelloArrived{
        .connection = connection, .token = token, .hello = decoded(decode_hello(bytes))});
  });
}

void SimWorld::kill_node(std::size_t index, bool silent) {
  SimNode& node = nodes_[index];
  if (!node.endpoint->alive) return;
  ++counts_.node_deaths;
  note(fmt::format("node {} dies{}", index, silent ? " silently" : ""));
  node.core.reset();
  node.endpoint->alive = false;
  const ConnectionId id = std::exchange(node.endpoint->connection, 0);
  if (id != 0) {
    connections_.at(id).peer_open = false;
    after(silent ? std::chrono::seconds(3) : std::chrono::microseconds(100),
          [this, id, silent] { side_down(id, true, silent); });
  }
  after(std::chrono::milliseconds(50) + random_span(fault_rng_, std::chrono::seconds(10)),
        [this, index] {
          if (!nodes_[index].endpoint->alive) start_node(index);
        });
}

void SimWorld::pass_arrives(std::size_t index, ConnectionId connection, const Bytes& bytes) {
  SimNode& node = nodes_[index];
  if (!node.core) return;
  const NodePass pass = decoded(decode_pass(bytes));
  mix(bytes);
  ReservationChanges changes;
  const std::optional<NodeReply> reply = node.core->step(pass, now_ + node.clock_ahead, changes);
  if (!reply) {
    ++counts_.stale;
    return;
  }
  nodes_touched_ = true;
  check_pass_order(node, pass);
  for (std::size_t i = 0; i < pass.ops.size(); ++i) {
    const NodeOp& op = pass.ops[i];
    std::string slots;
    for (const Slot& slot : op.slots) slots += fmt::format(" {}", slot.slot);
    for (const SlotBundle& named : op.bundles) slots += fmt::format(" {}", named.slot);
    detail(fmt::format("node {} pass {}/{}/{}: {} group {} epoch {:x} slots{}{}", index, pass.term,
                       pass.session, pass.number, node_op_name(op.kind), op.group.value,
                       op.epoch.value, slots, reply->refusals[i] ? " REFUSED" : ""));
  }
  for (const HeldBundle& bundle : changes.committed)
    committed_[{bundle.group, bundle.slot, bundle.epoch}] = {index, node.incarnation};
  for (const std::string& notice : changes.notices) note("node: " + notice);
  counts_.refusals += changes.notices.size();
  if (node.endpoint->connection != connection) return;
  const Bytes answer = encode_reply(*reply);
  require(decoded(decode_reply(answer)) == *reply, "a reply does not survive its codec");
  post(connection, true, true, [this, connection, answer] {
    to_inbox(ReplyArrived{.connection = connection, .reply = decoded(decode_reply(answer))});
  });
}

SimReport simulate(const SimOptions& options) { return SimWorld(options).run(); }

}  // namespace troupe::placement::simulation
