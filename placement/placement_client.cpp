#include "placement/placement_client.hpp"

#include "placement/client_session.hpp"
#include "placement/protocol_codec.hpp"
#include "runtime/task/when_done.hpp"

#include <utility>

namespace troupe::placement {

using runtime::Channel;
using runtime::completer;
using runtime::make_pending;
using runtime::pending;
using runtime::Ref;
using runtime::Responder;
using Reply = result<std::vector<std::byte>>;

PlacementClient::PlacementClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
PlacementClient::~PlacementClient() = default;

result<std::shared_ptr<PlacementClient>> PlacementClient::create(PlacementClientOptions options) {
  if (options.owner.empty())
    return fail(ErrorCode::kInvalidArgument, "placement client: the owner has no name");
  return std::shared_ptr<PlacementClient>(
      new PlacementClient(std::make_shared<Impl>(std::move(options))));
}

void PlacementClient::attach(Ref<Channel> head) { impl_->attach(std::move(head)); }

void PlacementClient::on_request(Channel& /*channel*/, std::string_view method,
                                 std::span<const std::byte> /*payload*/, Deadline /*deadline*/,
                                 Responder responder) {
  responder.reply(fail(ErrorCode::kNotFound, "placement client: no method '{}'", method));
}

void PlacementClient::on_notify(Channel& /*channel*/, std::string_view method,
                                std::span<const std::byte> payload) {
  if (method == "placement.changes") impl_->told(payload);
}

void PlacementClient::on_down(Channel& channel, const Error& /*cause*/) { impl_->down(channel); }

pending<std::vector<result<PlacementGroup>>> PlacementClient::create_groups(
    std::vector<GroupWish> wishes, Deadline deadline) {
  auto ends = make_pending<std::vector<result<PlacementGroup>>>();
  if (wishes.size() > kRequestsPerMessageMax) {
    ends.second.fail(make_error(ErrorCode::kInvalidArgument,
                                "{} groups in one message, at most {}", wishes.size(),
                                kRequestsPerMessageMax));
    return std::move(ends.first);
  }
  std::vector<CreateGroup> creates;
  creates.reserve(wishes.size());
  struct Made {
    std::string name;
    bool detached;
  };
  std::vector<Made> made;
  for (GroupWish& wish : wishes) {
    made.push_back({wish.request.name, wish.terms.detached});
    creates.push_back({impl_->next_number(), std::move(wish.request), wish.terms});
  }
  impl_->ask("placement.create", encode_creates(creates), deadline,
             [self = shared_from_this(), made = std::move(made), out = ends.second](Reply answer) {
               if (!answer) return (void)out.fail(std::move(answer).error());
               auto outcomes = decode_outcomes(*answer);
               if (!outcomes) return (void)out.fail(std::move(outcomes).error());
               if (outcomes->size() != made.size())
                 return (void)out.fail(make_error(ErrorCode::kCorrupt, "{} outcomes for {} groups",
                                                  outcomes->size(), made.size()));
               std::vector<result<PlacementGroup>> groups;
               for (std::size_t i = 0; i < made.size(); ++i) {
                 auto& outcome = (*outcomes)[i];
                 if (!outcome) {
                   groups.emplace_back(fail(std::move(outcome).error()));
                   continue;
                 }
                 self->impl_->adopt(*outcome, made[i].name, made[i].detached);
                 groups.emplace_back(PlacementGroup(self, *outcome, made[i].name));
               }
               out.complete(std::move(groups));
             });
  return std::move(ends.first);
}

pending<PlacementGroup> PlacementClient::create_group(GroupWish wish, Deadline deadline) {
  auto ends = make_pending<PlacementGroup>();
  std::vector<GroupWish> one;
  one.push_back(std::move(wish));
  runtime::when_done<std::vector<result<PlacementGroup>>>(
      create_groups(std::move(one), deadline),
      [out = ends.second](result<std::vector<result<PlacementGroup>>> made) {
        if (!made)
          out.fail(std::move(made).error());
        else
          out.complete(std::move(made->front()));
      });
  return std::move(ends.first);
}

namespace {

/// Completes `out` with what `decode` makes of an answer.
template <class T, class Decode>
std::function<void(Reply)> answer_to(completer<T> out, Decode decode) {
  return [out = std::move(out), decode = std::move(decode)](Reply answer) {
    if (answer)
      out.complete(decode(*answer));
    else
      out.fail(std::move(answer).error());
  };
}

result<std::string> decode_text(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

pending<GroupOutcomes> PlacementClient::remove_groups(std::vector<GroupKey> groups,
                                                      Deadline deadline) {
  auto ends = make_pending<GroupOutcomes>();
  impl_->ask("placement.remove", encode_keys(groups), deadline,
             answer_to(ends.second, decode_outcomes));
  return std::move(ends.first);
}

pending<GroupView> PlacementClient::view(GroupKey group, Deadline deadline) {
  auto ends = make_pending<GroupView>();
  impl_->ask("placement.view", encode_keys(std::span(&group, 1)), deadline,
             answer_to(ends.second, decode_view));
  return std::move(ends.first);
}

pending<std::string> PlacementClient::explain(GroupKey group, Deadline deadline) {
  auto ends = make_pending<std::string>();
  impl_->ask("placement.explain", encode_keys(std::span(&group, 1)), deadline,
             answer_to(ends.second, decode_text));
  return std::move(ends.first);
}

pending<GroupPage> PlacementClient::list(ListGroups list, Deadline deadline) {
  auto ends = make_pending<GroupPage>();
  impl_->ask("placement.list", encode_list(list), deadline, answer_to(ends.second, decode_page));
  return std::move(ends.first);
}

PlacementGroup::PlacementGroup(PlacementGroup&& other) noexcept
    : client_(std::move(other.client_)), id_(other.id_), name_(std::move(other.name_)) {
  other.client_ = nullptr;
}

PlacementGroup& PlacementGroup::operator=(PlacementGroup&& other) noexcept {
  if (this != &other) {
    if (client_) client_->impl_->drop(id_);
    client_ = std::exchange(other.client_, nullptr);
    id_ = other.id_;
    name_ = std::move(other.name_);
  }
  return *this;
}

PlacementGroup::~PlacementGroup() {
  if (client_) client_->impl_->drop(id_);
}

pending<GroupNews> PlacementGroup::wait_active(Deadline deadline) const {
  return client_->impl_->wait_active(id_, deadline);
}

pending<GroupId> PlacementGroup::remove(Deadline deadline) {
  auto ends = make_pending<GroupId>();
  const GroupKey key{.id = id_, .name = {}};
  client_->impl_->ask(
      "placement.remove", encode_keys(std::span(&key, 1)), deadline,
      answer_to(ends.second,
                [client = client_](std::span<const std::byte> bytes) -> result<GroupId> {
                  TROUPE_TRY(auto outcomes, decode_outcomes(bytes));
                  if (outcomes.size() != 1)
                    return fail(ErrorCode::kCorrupt, "{} outcomes for one group", outcomes.size());
                  if (outcomes.front()) client->impl_->mark_removed(*outcomes.front());
                  return std::move(outcomes.front());
                }));
  return std::move(ends.first);
}

pending<GroupView> PlacementGroup::grow(std::vector<Bundle> more, Deadline deadline) {
  auto ends = make_pending<GroupView>();
  const ResizeGroup resize{.number = client_->impl_->next_number(),
                           .group = {.id = id_, .name = {}},
                           .remove = {},
                           .add = std::move(more)};
  client_->impl_->ask("placement.resize", encode_resize(resize), deadline,
                      answer_to(ends.second, decode_view));
  return std::move(ends.first);
}

pending<GroupView> PlacementGroup::shrink(std::vector<std::int32_t> bundles, Deadline deadline) {
  auto ends = make_pending<GroupView>();
  const ResizeGroup resize{.number = client_->impl_->next_number(),
                           .group = {.id = id_, .name = {}},
                           .remove = std::move(bundles),
                           .add = {}};
  client_->impl_->ask("placement.resize", encode_resize(resize), deadline,
                      answer_to(ends.second, decode_view));
  return std::move(ends.first);
}

pending<std::string> PlacementGroup::explain(Deadline deadline) const {
  return client_->explain({.id = id_, .name = {}}, deadline);
}

GroupNews PlacementGroup::news() const { return client_->impl_->news(id_); }

void PlacementGroup::watch(GroupWatcher watcher) { client_->impl_->watch(id_, std::move(watcher)); }

void PlacementGroup::release() { client_ = nullptr; }

}  // namespace troupe::placement
