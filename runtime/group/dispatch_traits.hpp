#pragma once

// How values are split, joined and padded. Specialise `DispatchTraits` for a type of your own.
//
//   static std::int64_t rows(const T&);
//   static std::vector<T> split(const T&, int parts);           // exactly `parts`, in order
//   static result<T> concat(std::vector<T> parts);              // at least one part
//   static T pad(const T&, std::int64_t multiple);              // only for scatter_padded
//   static result<T> strip(T whole, const Padding&);            // only to cut padding off results
//
// **Threads:** stateless; split on the caller's thread, concat on the last rank's engine thread.
// **Invariants:** concat(split(x, k)) = x; part sizes differ by at most one, larger ones first.

#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/observe/metrics.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// First row of `part` when `rows` are split into `parts`; part sizes differ by at most one.
constexpr std::int64_t part_begin(std::int64_t rows, std::int64_t parts, std::int64_t part) {
  return part * (rows / parts) + (part < rows % parts ? part : rows % parts);
}

/// What scatter_padded did to the arguments of a call.
struct Padding {
  std::int64_t rows = 0;         ///< before
  std::int64_t padded_rows = 0;  ///< after; more than `rows`
  bool flagged = false;          ///< an argument had a `valid` column of its own before
};

template <class T>
struct DispatchTraits;

template <class X>
struct DispatchTraits<std::vector<X>> {
  using Value = std::vector<X>;
  static std::int64_t rows(const Value& value) { return static_cast<std::int64_t>(value.size()); }
  static std::vector<Value> split(const Value& value, int parts) {
    std::vector<Value> out;
    out.reserve(static_cast<std::size_t>(parts));
    for (int part = 0; part < parts; ++part) {
      out.emplace_back(value.begin() + part_begin(rows(value), parts, part),
                       value.begin() + part_begin(rows(value), parts, part + 1));
    }
    return out;
  }
  static result<Value> concat(std::vector<Value> parts) {
    Value whole = std::move(parts.front());
    for (std::size_t i = 1; i < parts.size(); ++i) {
      whole.insert(whole.end(), std::make_move_iterator(parts[i].begin()),
                   std::make_move_iterator(parts[i].end()));
    }
    return whole;
  }
  /// Repeats elements 0, 1, … until `multiple` divides the count; empty stays empty.
  static Value pad(const Value& value, std::int64_t multiple) {
    Value padded = value;
    for (std::int64_t i = 0; !value.empty() && rows(padded) % multiple != 0; ++i)
      padded.push_back(value[static_cast<std::size_t>(i % rows(value))]);
    return padded;
  }
  static result<Value> strip(Value whole, const Padding& padding) {
    if (rows(whole) != padding.padded_rows) {
      return fail(ErrorCode::kConflict,
                  "{} result rows for {} padded rows; which are padding cannot be told",
                  rows(whole), padding.padded_rows);
    }
    whole.erase(whole.begin() + padding.rows, whole.end());
    return whole;
  }
};

template <>
struct DispatchTraits<Batch> {
  static std::int64_t rows(const Batch& batch) { return batch.rows(); }
  static std::vector<Batch> split(const Batch& batch, int parts) { return batch.split(parts); }
  static result<Batch> concat(const std::vector<Batch>& parts) { return Batch::concat(parts); }
  static Batch pad(const Batch& batch, std::int64_t multiple) {
    return batch.pad_to_multiple(multiple);
  }
  static bool flagged(const Batch& batch) { return batch.has(kValidColumn); }
  /// A result with one row per padded row keeps the first `rows`; any other must carry `valid`.
  static result<Batch> strip(const Batch& whole, const Padding& padding);
};

template <class T>
concept Scatterable = requires(const T& value) {
  { DispatchTraits<T>::rows(value) } -> std::convertible_to<std::int64_t>;
  { DispatchTraits<T>::split(value, 2) } -> std::convertible_to<std::vector<T>>;
};
template <class T>
concept Paddable = Scatterable<T> && requires(const T& value) {
  { DispatchTraits<T>::pad(value, std::int64_t{2}) } -> std::convertible_to<T>;
};
template <class T>
concept Joinable = requires(std::vector<T> parts) {
  { DispatchTraits<T>::concat(std::move(parts)) } -> std::convertible_to<result<T>>;
};
/// A result whose padding rows can be cut off.
template <class T>
concept Strippable = Joinable<T> && requires(T whole) {
  { DispatchTraits<T>::strip(std::move(whole), Padding{}) } -> std::convertible_to<result<T>>;
};
/// Joined by `a.merge(b)`.
template <class T>
concept Mergeable = requires(T a, const T& b) {
  { a.merge(b) } -> std::convertible_to<result<void>>;
};

}  // namespace troupe::runtime
