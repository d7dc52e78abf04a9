#pragma once

// The one error type of Troupe: what failed, where it failed, and what caused it.
//
// An `Error` is a value. It travels in `result<T>` (expected failures: configuration, files,
// network, deadlines, dead peers) and, from a rank to the controller, in replies.
// **Threads:** a value type; share by copy.
// **Invariants:** `message` names the place and both values, lower-case, no full stop.

#include "runtime/base/ids.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Closed set of reasons; tests and callers branch on these, people read the message.
enum class ErrorCode {
  kInvalidArgument,    ///< a caller's value is wrong (shape, range, name)
  kConfig,             ///< the configuration is wrong
  kNotFound,           ///< a file, column, tensor, method or key is missing
  kAlreadyExists,      ///< a name is taken
  kCorrupt,            ///< bytes do not decode: file or wire
  kIo,                 ///< the operating system refused a read or write
  kDeadline,           ///< the deadline passed first
  kCancelled,          ///< the caller or its scope cancelled
  kAborted,            ///< gave up because another rank failed
  kRankDead,           ///< the rank that should answer is gone
  kResourceExhausted,  ///< memory, blocks, queue or budget is full
  kUnsupported,        ///< valid, but not something this build does
  kConflict,           ///< two values that must agree do not
  kInternal,           ///< a failed CHECK or a foreign exception
};

/// What the system says of an `errno`.
std::string system_message(int code);

/// Name as printed and as stored on the wire, e.g. `deadline`.
std::string_view error_code_name(ErrorCode code);

/// Inverse of error_code_name; empty when the name is unknown.
std::optional<ErrorCode> error_code_from_name(std::string_view name);

/// Where an error happened; empty fields are unknown or do not apply.
struct Origin {
  std::string group;           ///< worker group, e.g. `policy`
  std::optional<RankId> rank;  ///< rank inside that group
  std::optional<NodeId> node;  ///< host
  bool operator==(const Origin&) const = default;
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  Origin origin;
  std::vector<Error> causes;  ///< root cause last; at most a handful

  bool operator==(const Error&) const = default;

  /// One line: `policy rank 3: deadline: … (caused by …)`.
  std::string to_string() const;
  /// For people: the root cause is the first line, with the place where it happened; what failed
  /// because of it follows, a line each, from the inside out.
  std::string to_report() const;
  /// The deepest first cause, or this error when it has none.
  const Error& root_cause() const;
  /// This error wrapped as the cause of a new one.
  Error wrap(ErrorCode outer_code, std::string outer_message) &&;
  /// The same error with its origin filled in where it was unknown.
  Error at(Origin where) &&;
};

}  // namespace troupe
