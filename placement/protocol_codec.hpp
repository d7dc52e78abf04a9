#pragma once

// The messages of placement as bytes (schemas/placement.capnp) and back.
//
// **Threads:** pure functions.
// **Invariants:** decoding never throws and never trusts a length; a failure is one kCorrupt error
// naming the message. What decodes is well formed, not yet valid: PlacementCore and
// NodeReservations refuse what makes no sense.
// **Cost:** about 1 µs for a message of one bundle.

#include "placement/placement_protocol.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace troupe::placement {

using MessageBytes = std::vector<std::byte>;
using MessageView = std::span<const std::byte>;

MessageBytes encode_session(const OpenSession& session);
result<OpenSession> decode_session(MessageView bytes);
MessageBytes encode_creates(std::span<const CreateGroup> groups);
result<std::vector<CreateGroup>> decode_creates(MessageView bytes);
MessageBytes encode_outcomes(const GroupOutcomes& outcomes);
result<GroupOutcomes> decode_outcomes(MessageView bytes);
MessageBytes encode_keys(std::span<const GroupKey> keys);
result<std::vector<GroupKey>> decode_keys(MessageView bytes);
MessageBytes encode_resize(const ResizeGroup& resize);
result<ResizeGroup> decode_resize(MessageView bytes);
MessageBytes encode_list(const ListGroups& list);
result<ListGroups> decode_list(MessageView bytes);
MessageBytes encode_view(const GroupView& view);
result<GroupView> decode_view(MessageView bytes);
MessageBytes encode_page(const GroupPage& page);
result<GroupPage> decode_page(MessageView bytes);
MessageBytes encode_changes(std::span<const GroupChange> changes);
result<std::vector<GroupChange>> decode_changes(MessageView bytes);

MessageBytes encode_hello(const NodeHello& hello);
result<NodeHello> decode_hello(MessageView bytes);
MessageBytes encode_pass(const NodePass& pass);
result<NodePass> decode_pass(MessageView bytes);
MessageBytes encode_reply(const NodeReply& reply);
result<NodeReply> decode_reply(MessageView bytes);

}  // namespace troupe::placement
