#include "reshard/execution/messages.hpp"

#include <fmt/format.h>

namespace troupe::reshard {

std::string member_text(const Member& member) {
  return fmt::format("{} rank {}", side_name(member.side), member.rank);
}

std::string_view command_name(CommandKind kind) {
  switch (kind) {
    case CommandKind::kBegin:
      return "begin";
    case CommandKind::kReceive:
      return "receive";
    case CommandKind::kCommit:
      return "commit";
    case CommandKind::kAbort:
      return "abort";
  }
  return "unknown";
}

}  // namespace troupe::reshard
