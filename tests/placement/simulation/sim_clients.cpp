#include "placement/protocol_codec.hpp"
#include "tests/placement/simulation/sim_world.hpp"

#include <algorithm>

namespace troupe::placement::simulation {
namespace {

template <class T>
T decoded(result<T> value) {
  require(value.has_value(), "a message does not decode: {}",
          value ? std::string() : value.error().message);
  return std::move(*value);
}

template <class Map>
auto pick(Map& map, Rng& rng) {
  auto at = map.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(rng.below(map.size())));
  return at;
}

}  // namespace

void SimWorld::client_up(SimClient& client, ConnectionId connection) {
  OpenSession session{.owner = client.owner, .known = {}};
  for (const auto& [id, group] : client.groups) session.known.push_back(id);
  const Bytes bytes = encode_session(session);
  client.session = true;
  post(connection, true, false, [this, index = client.endpoint->index, connection, bytes] {
    const RequestToken token = ++last_token_;
    tokens_[token] = {.endpoint = index, .connection = connection};
    to_inbox(SessionAsked{
        .connection = connection, .token = token, .session = decoded(decode_session(bytes))});
  });
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, request] : client.open) numbers.push_back(number);
  for (const std::uint64_t number : numbers) ask(client, number);
}

void SimWorld::client_down(SimClient& client) { client.session = false; }

void SimWorld::ask(SimClient& client, std::uint64_t number) {
  if (!client.session) return;
  SimRequest& request = client.open.at(number);
  ++request.asked;
  const ConnectionId connection = client.endpoint->connection;
  post(connection, true, false,
       [this, index = client.endpoint->index, connection, number, request] {
         const RequestToken token = ++last_token_;
         tokens_[token] = {.endpoint = index, .connection = connection, .number = number};
         switch (request.kind) {
           case SimRequest::Kind::kCreate: {
             const std::vector<CreateGroup> groups{request.create};
             to_inbox(CreateAsked{.connection = connection,
                                  .token = token,
                                  .groups = decoded(decode_creates(encode_creates(groups)))});
             return;
           }
           case SimRequest::Kind::kRemove:
             to_inbox(RemoveAsked{.connection = connection,
                                  .token = token,
                                  .groups = {GroupKey{.id = request.remove}}});
             return;
           case SimRequest::Kind::kResize:
             to_inbox(ResizeAsked{.connection = connection,
                                  .token = token,
                                  .resize = decoded(decode_resize(encode_resize(request.resize))),
                                  .deadline = head_now() + std::chrono::seconds(5)});
             return;
         }
       });
}

/// Requests come at random moments, in storms now and then.
void SimWorld::work() {
  if (!chaos_) return;
  const double pause = 1.0 / plan_.requests_per_second;
  after(std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(pause * 2 * work_rng_.uniform())),
        [this] {
          if (!chaos_) return;
          const std::size_t who = work_rng_.below(plan_.clients);
          if (chance(work_rng_, plan_.faults.storm * 0.1)) {
            for (int i = 0; i < 60; ++i) create_one(clients_[who]);
          } else {
            act(clients_[who]);
          }
          work();
        });
}

void SimWorld::act(SimClient& client) {
  if (!client.endpoint->alive) return;
  const std::uint64_t what = work_rng_.below(10);
  if (what < 5 || client.groups.empty()) {
    create_one(client);
  } else if (what < 8) {
    const std::uint64_t number = client.next_number++;
    const GroupId id = pick(client.groups, work_rng_)->first;
    client.open[number] = SimRequest{.kind = SimRequest::Kind::kRemove, .remove = id};
    note(fmt::format("{} asks {}: remove group {}", client.owner.name, number, id.value));
    ask(client, number);
  } else {
    resize_one(client);
  }
}

void SimWorld::create_one(SimClient& client) {
  if (!client.endpoint->alive) return;
  const std::uint64_t number = client.next_number++;
  // A small set of names, so that some are taken.
  const std::string name = chance(work_rng_, 0.1) ? fmt::format("shared{}", work_rng_.below(4))
                                                  : fmt::format("{}.{}-{}", client.owner.name,
                                                                client.owner.instance, number);
  SimRequest request{.kind = SimRequest::Kind::kCreate};
  request.create = {.number = number,
                    .request = random_request(work_rng_, plan_, name),
                    .terms = random_terms(work_rng_)};
  note(fmt::format("{} asks {}: create '{}', {} bundles", client.owner.name, number, name,
                   request.create.request.bundles.size()));
  client.open[number] = std::move(request);
  ask(client, number);
}

void SimWorld::resize_one(SimClient& client) {
  const auto [id, known] = *pick(client.groups, work_rng_);
  const std::uint64_t number = client.next_number++;
  SimRequest request{.kind = SimRequest::Kind::kResize};
  request.resize = {.number = number, .group = {.id = id}};
  if (chance(work_rng_, 0.5) && known.bundles > 0) {
    request.resize.remove.push_back(static_cast<std::int32_t>(work_rng_.below(known.bundles)));
  } else {
    request.resize.add.push_back(random_bundle(work_rng_));
  }
  note(fmt::format("{} asks {}: resize group {}", client.owner.name, number, id.value));
  client.open[number] = std::move(request);
  ask(client, number);
}

void SimWorld::outcome(SimClient& client, std::uint64_t number, const AnswerBody& body) {
  if (number == 0) {
    require(std::holds_alternative<Done>(body), "the session of {} is refused", client.owner.name);
    return;
  }
  const auto found = client.open.find(number);
  require(found != client.open.end(), "{}: request {} is over already", client.owner.name, number);
  const SimRequest request = found->second;
  client.open.erase(found);
  const auto* outcomes = std::get_if<GroupOutcomes>(&body);
  switch (request.kind) {
    case SimRequest::Kind::kCreate: {
      require(outcomes != nullptr && outcomes->size() == 1, "create ends in something else");
      const result<GroupId>& id = outcomes->front();
      note(fmt::format("{}: {} is {}", client.owner.name, request.create.request.name,
                       id ? fmt::format("group {}", id->value) : id.error().message));
      if (id) {
        ++counts_.created;
        KnownGroup& group = client.groups[*id];
        group.name = request.create.request.name;
      } else {
        ++counts_.refused;
      }
      return;
    }
    case SimRequest::Kind::kRemove:
      require(outcomes != nullptr && outcomes->size() == 1, "remove ends in something else");
      require(outcomes->front() || outcomes->front().error().code == ErrorCode::kNotFound,
              "remove of group {}: {}", request.remove.value,
              outcomes->front() ? std::string() : outcomes->front().error().message);
      if (outcomes->front()) ++counts_.removed;
      client.groups.erase(request.remove);
      return;
    case SimRequest::Kind::kResize:
      require(std::holds_alternative<GroupView>(body) || std::holds_alternative<Error>(body),
              "resize ends in something else");
      if (std::holds_alternative<GroupView>(body)) ++counts_.resized;
      return;
  }
}

void SimWorld::changes_arrive(std::size_t index, const Bytes& bytes) {
  SimClient& client = clients_[index];
  mix(bytes);
  for (const GroupChange& change : decoded(decode_changes(bytes))) {
    note(fmt::format("{}: group {} {} ({})", client.owner.name, change.group.value,
                     change_kind_name(change.kind), group_status_name(change.status)));
    if (change.kind == ChangeKind::kRemoved) {
      client.groups.erase(change.group);
      continue;
    }
    // The create may still be on its way: the answer comes first, on the same line.
    KnownGroup& known = client.groups[change.group];
    known.status = change.status;
    const bool placed = change.kind == ChangeKind::kActive || change.kind == ChangeKind::kMoved ||
                        change.kind == ChangeKind::kResized;
    if (placed) {
      require(change.epoch >= known.epoch, "group {}: epoch {} after {}", change.group.value,
              change.epoch.value, known.epoch.value);
      require(!change.placements.empty(), "group {} is active nowhere", change.group.value);
      known.epoch = change.epoch;
      known.bundles = change.placements.size();
    }
    counts_.activated += change.kind == ChangeKind::kActive ? 1 : 0;
    counts_.moved += change.kind == ChangeKind::kMoved ? 1 : 0;
    counts_.lost += change.kind == ChangeKind::kLost ? 1 : 0;
  }
}

/// The process of an owner dies; another instance of it starts later.
void SimWorld::replace_client(std::size_t index) {
  SimClient& client = clients_[index];
  if (!client.endpoint->alive) return;
  note(fmt::format("{} dies", client.owner.name));
  client.endpoint->alive = false;
  client.session = false;
  const ConnectionId id = std::exchange(client.endpoint->connection, 0);
  if (id != 0) {
    connections_.at(id).peer_open = false;
    after(std::chrono::microseconds(100), [this, id] { side_down(id, true, false); });
  }
  after(std::chrono::milliseconds(100) + random_span(fault_rng_, std::chrono::seconds(5)),
        [this, index] {
          SimClient& next = clients_[index];
          next.owner.instance += 1;
          next.open.clear();
          next.groups.clear();
          next.endpoint->alive = true;
          dial_soon(*next.endpoint);
        });
}

}  // namespace troupe::placement::simulation
