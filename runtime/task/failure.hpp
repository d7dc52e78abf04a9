#pragma once

// `Failure`: an `Error` on its way through a coroutine, so that loops read without error plumbing.
//
// Awaiting a `task` or a `pending` that failed throws it; `run`, `as_result` and engine threads
// turn it back into a value. Nothing else is thrown for an expected failure.
// **Threads:** a value type.

#include "runtime/base/result.hpp"

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

namespace troupe::runtime {

class Failure : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)), text_(error_.to_string()) {}
  const Error& error() const& noexcept { return error_; }
  Error error() && noexcept { return std::move(error_); }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Error error_;
  std::string text_;
};

/// The value of `outcome`, or throws its error as a `Failure`.
template <class T>
T value_or_throw(result<T> outcome) {
  if (!outcome) throw Failure(std::move(outcome).error());
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}

/// The exception in flight as an Error: a `Failure` keeps its own, everything else (a failed CHECK,
/// a foreign exception) becomes kInternal with its text. Call inside a catch block only.
Error error_of_current_exception();

}  // namespace troupe::runtime
