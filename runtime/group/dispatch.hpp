#pragma once

// How one call on a group becomes one call per rank, and how the results become one: declared once
// per method, checked at compile time.
//
//   static constexpr auto methods() {
//     return std::tuple{
//         method<&PolicyWorker::log_probs>("log_probs", args(scatter), returns(concat)),
//         method<&PolicyWorker::update>("update", args(scatter_padded, broadcast),
//                                       returns(reduce(kMerge))).phase("train")};
//   }
//
// Arguments: `scatter` splits over the data-parallel coordinate (peers on the other axes share the
// part), sizes differ by at most one, parts may be empty; `scatter_padded` first adds rows until
// all parts are equal, and the added rows are cut off a concat result again; `broadcast` gives all
// ranks the same value; `per_rank` takes a vector with one value a rank.
// Results: from the collecting ranks, one per data-parallel coordinate (index 0 on the other axes,
// the last on pp, unless `.collect` says otherwise): `concat` in data-parallel order, `first`,
// `all` (a vector; of all ranks unless `.collect` is given), `reduce(op)` in rank order, `none`.
// **Threads:** declarations are constants.
// **Invariants:** nothing is guessed from values: a vector is split only where `scatter` says so.

#include "runtime/base/result.hpp"
#include "runtime/group/dispatch_traits.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::runtime {

enum class ArgKind { kScatter, kScatterPadded, kBroadcast, kPerRank };
struct ArgSpec {
  ArgKind kind = ArgKind::kBroadcast;
  int multiple = 1;  ///< scatter_padded: each part has a multiple of this many rows
};

inline constexpr ArgSpec scatter{ArgKind::kScatter};
inline constexpr ArgSpec broadcast{ArgKind::kBroadcast};
inline constexpr ArgSpec per_rank{ArgKind::kPerRank};
/// `scatter_padded` or, for parts that are multiples of 8 rows, `scatter_padded.of(8)`.
struct ScatterPadded : ArgSpec {
  constexpr ArgSpec of(int rows) const { return {ArgKind::kScatterPadded, rows}; }
};
inline constexpr ScatterPadded scatter_padded{{ArgKind::kScatterPadded}};

/// One spec per parameter, in order.
template <class... Spec>
constexpr std::array<ArgSpec, sizeof...(Spec)> args(Spec... specs) {
  return {ArgSpec(specs)...};
}

enum class ResultKind { kConcat, kFirst, kAll, kReduce, kNone };
enum class ReduceKind { kSum, kMean, kMin, kMax, kMerge };
using enum ReduceKind;

struct ResultSpec {
  ResultKind kind = ResultKind::kNone;
  ReduceKind reduce = ReduceKind::kSum;
};
inline constexpr ResultSpec concat{ResultKind::kConcat};
inline constexpr ResultSpec first{ResultKind::kFirst};
inline constexpr ResultSpec all{ResultKind::kAll};
inline constexpr ResultSpec none{ResultKind::kNone};
/// kSum, kMean, kMin, kMax of numbers; kMerge joins what has `merge`, such as Metrics.
constexpr ResultSpec reduce(ReduceKind kind) { return {ResultKind::kReduce, kind}; }
constexpr ResultSpec returns(ResultSpec spec) { return spec; }

/// Where results are taken from: an index per axis, -1 for the last. Axes that are not given stay
/// at their default.
struct Collect {
  static constexpr std::size_t kAxesMax = 6;
  struct Entry {
    std::string_view axis;
    int index = 0;
  };
  std::array<Entry, kAxesMax> entries{};
  std::size_t count = 0;
};

/// The shape of a method: `result<T>` returns are seen as T.
template <class Method>
struct MethodShape;
template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<result<T>> {
  using type = T;
};
template <class W, class R, class... P>
struct MethodShapeOf {
  using Worker = W;
  using Return = R;
  using Value = typename Unwrapped<std::remove_cvref_t<R>>::type;
  using Parameters = std::tuple<P...>;
  using Values = std::tuple<std::remove_cvref_t<P>...>;  ///< what travels
  static constexpr std::size_t kArity = sizeof...(P);
  /// A method cannot write to its caller's arguments.
  static constexpr bool kNoMutableReferences =
      ((!std::is_lvalue_reference_v<P> || std::is_const_v<std::remove_reference_t<P>>)&&...);
};
template <class W, class R, class... P>
struct MethodShape<R (W::*)(P...)> : MethodShapeOf<W, R, P...> {};
template <class W, class R, class... P>
struct MethodShape<R (W::*)(P...) const> : MethodShapeOf<W, R, P...> {};
template <class W, class R, class... P>
struct MethodShape<R (W::*)(P...) noexcept> : MethodShapeOf<W, R, P...> {};
template <class W, class R, class... P>
struct MethodShape<R (W::*)(P...) const noexcept> : MethodShapeOf<W, R, P...> {};

/// One line of a worker's `methods()`.
template <auto Pointer>
struct Method {
  using Shape = MethodShape<decltype(Pointer)>;
  static constexpr auto kPointer = Pointer;

  std::string_view name;
  std::array<ArgSpec, Shape::kArity> arguments;
  ResultSpec outcome;
  std::string_view lane_phase = {};
  Collect collected = {};
  bool keeps_columns = false;
  bool pulls_columns = true;

  /// The method runs inside the rank's device lane, as this phase.
  constexpr Method phase(std::string_view name_of_phase) const {
    Method copy = *this;
    copy.lane_phase = name_of_phase;
    return copy;
  }
  /// Takes results from this index of `axis`; -1 is the last. May be repeated for other axes.
  constexpr Method collect(std::string_view axis, int index) const {
    Method copy = *this;
    if (copy.collected.count == Collect::kAxesMax) throw "too many collect axes";
    copy.collected.entries[copy.collected.count++] = {axis, index};
    return copy;
  }
  /// Columns of the result stay at the rank that made them; the caller gets references.
  constexpr Method keep_columns() const {
    Method copy = *this;
    copy.keeps_columns = true;
    return copy;
  }
  /// Arguments arrive as references where they are; the method resolves what it reads.
  constexpr Method lazy_columns() const {
    Method copy = *this;
    copy.pulls_columns = false;
    return copy;
  }
};

/// Declares a method. Its name is what errors and traces say.
template <auto Pointer, std::size_t N>
constexpr Method<Pointer> method(std::string_view name, std::array<ArgSpec, N> arguments,
                                 ResultSpec outcome) {
  using Shape = MethodShape<decltype(Pointer)>;
  static_assert(N == Shape::kArity,
                "method: args(...) must have one entry for each parameter of the method");
  static_assert(Shape::kNoMutableReferences,
                "method: parameters are taken by value or const reference, not by T&");
  int multiple = 0;
  bool plain = false;
  for (const ArgSpec& one : arguments) {
    plain = plain || one.kind == ArgKind::kScatter;
    if (one.kind != ArgKind::kScatterPadded) continue;
    if (one.multiple < 1) throw "scatter_padded.of(n): n must be at least 1";
    if (multiple != 0 && multiple != one.multiple)
      throw "method: all scatter_padded arguments need one multiple, or rows do not line up";
    multiple = one.multiple;
  }
  if (plain && multiple != 0)
    throw "method: scatter and scatter_padded cannot be mixed, rows would not line up";
  return Method<Pointer>{name, arguments, outcome};
}

}  // namespace troupe::runtime
