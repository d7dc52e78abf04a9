#include "runtime/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <system_error>
#include <utility>

namespace troupe {
namespace {

constexpr std::array<std::pair<ErrorCode, std::string_view>, 14> kCodeNames{{
    {ErrorCode::kInvalidArgument, "invalid_argument"},
    {ErrorCode::kConfig, "config"},
    {ErrorCode::kNotFound, "not_found"},
    {ErrorCode::kAlreadyExists, "already_exists"},
    {ErrorCode::kCorrupt, "corrupt"},
    {ErrorCode::kIo, "io"},
    {ErrorCode::kDeadline, "deadline"},
    {ErrorCode::kCancelled, "cancelled"},
    {ErrorCode::kAborted, "aborted"},
    {ErrorCode::kRankDead, "rank_dead"},
    {ErrorCode::kResourceExhausted, "resource_exhausted"},
    {ErrorCode::kUnsupported, "unsupported"},
    {ErrorCode::kConflict, "conflict"},
    {ErrorCode::kInternal, "internal"},
}};

std::string place(const Origin& origin) {
  std::string text = origin.group;
  if (origin.rank) text += fmt::format("{}rank {}", text.empty() ? "" : " ", origin.rank->value);
  if (origin.node) text += fmt::format("{}node {}", text.empty() ? "" : " ", origin.node->value);
  return text;
}

}  // namespace

std::string_view error_code_name(ErrorCode code) {
  for (const auto& [value, name] : kCodeNames) {
    if (value == code) return name;
  }
  return "internal";
}

std::optional<ErrorCode> error_code_from_name(std::string_view name) {
  for (const auto& [value, text] : kCodeNames) {
    if (text == name) return value;
  }
  return std::nullopt;
}

std::string Error::to_string() const {
  std::string where = place(origin);
  std::string text =
      fmt::format("{}{}{}: {}", where, where.empty() ? "" : ": ", error_code_name(code), message);
  for (const Error& cause : causes) text += fmt::format(" (caused by {})", cause.to_string());
  return text;
}

std::string Error::to_report() const {
  std::vector<const Error*> chain{this};  // from the outside in
  while (!chain.back()->causes.empty()) chain.push_back(&chain.back()->causes.front());
  Error root = *chain.back();
  root.causes.clear();
  // A root that does not know its place has that of the first who does.
  for (auto outer = chain.rbegin(); outer != chain.rend(); ++outer)
    root = std::move(root).at((*outer)->origin);
  std::string text = root.to_string();
  for (auto outer = chain.rbegin() + 1; outer != chain.rend(); ++outer) {
    const std::string where = place((*outer)->origin);
    text += fmt::format("\n  so: {}{}{}", where, where.empty() ? "" : ": ", (*outer)->message);
    for (std::size_t i = 1; i < (*outer)->causes.size(); ++i)
      text += fmt::format("\n    and: {}", (*outer)->causes[i].to_string());
  }
  return text;
}

std::string system_message(int code) { return std::system_category().message(code); }

const Error& Error::root_cause() const {
  const Error* error = this;
  while (!error->causes.empty()) error = &error->causes.front();
  return *error;
}

Error Error::wrap(ErrorCode outer_code, std::string outer_message) && {
  Error outer{.code = outer_code, .message = std::move(outer_message), .origin = {}, .causes = {}};
  outer.causes.push_back(std::move(*this));
  return outer;
}

Error Error::at(Origin where) && {
  if (origin.group.empty()) origin.group = std::move(where.group);
  if (!origin.rank) origin.rank = where.rank;
  if (!origin.node) origin.node = where.node;
  return std::move(*this);
}

}  // namespace troupe
