#pragma once

// The typed half of a call: splits arguments, runs the method, joins results. Internal to
// worker_group.hpp.
//
// **Threads:** as `Call`: arguments are set by the caller, values by each rank in its own slot.
// **Invariants:** arguments are const once set; `join` runs after every rank has put its value.

#include "runtime/base/check.hpp"
#include "runtime/group/call.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/mesh.hpp"
#include "runtime/group/method_run.hpp"
#include "runtime/group/rank.hpp"
#include "runtime/group/served_method.hpp"
#include "runtime/task/pending.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::runtime {

enum class CallFault { kNone, kUnregistered, kWrongCount, kWrongType };

template <class Given, class Value>
inline constexpr bool kPassesAs =
    std::is_convertible_v<Given, Value> &&
    !(std::is_floating_point_v<std::remove_cvref_t<Given>> && std::is_integral_v<Value>);

/// What is wrong with calling M of W with these argument types; tests and static_asserts use it.
template <class W, auto M, class... Given>
consteval CallFault call_fault() {
  using Shape = MethodShape<decltype(M)>;
  constexpr std::size_t kIndex = method_index<W, M>();
  if constexpr (kIndex == kNoMethod) {
    return CallFault::kUnregistered;
  } else if constexpr (sizeof...(Given) != Shape::kArity) {
    return CallFault::kWrongCount;
  } else {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      [[maybe_unused]] constexpr auto kMethod = std::get<method_index<W, M>()>(kMethodsOf<W>);
      using Values = typename Shape::Values;
      using Passed = std::tuple<Given&&...>;
      const bool fits =
          (true && ... &&
           (kMethod.arguments[I].kind == ArgKind::kPerRank
                ? std::is_convertible_v<std::tuple_element_t<I, Passed>,
                                        std::vector<std::tuple_element_t<I, Values>>>
                : kPassesAs<std::tuple_element_t<I, Passed>, std::tuple_element_t<I, Values>>));
      return fits ? CallFault::kNone : CallFault::kWrongType;
    }
    (std::index_sequence_for<Given...>());
  }
}

/// The ranks from which each method's result is taken, in data-parallel order.
result<std::vector<RankId>> collecting_ranks_of(const Mesh& mesh, std::string_view method,
                                                ResultKind kind, const Collect& collect);

/// What all calls of a group share; counted, since a call may outlive its group.
struct GroupPlan : RefCounted {
  explicit GroupPlan(const Mesh& layout);
  Mesh mesh;
  std::vector<int> data_part;                   ///< [R]
  std::vector<std::vector<RankId>> collectors;  ///< per method, in data-parallel order
};

template <class W>
result<Ref<GroupPlan>> plan_group(const Mesh& mesh) {
  auto plan = make_ref<GroupPlan>(mesh);
  std::optional<Error> error;
  std::apply(
      [&](const auto&... one) {
        const auto add = [&](const auto& method) {
          auto ranks =
              collecting_ranks_of(mesh, method.name, method.outcome.kind, method.collected);
          if (ranks) {
            plan->collectors.push_back(std::move(*ranks));
          } else if (!error) {
            error = std::move(ranks).error();
          }
        };
        (add(one), ...);
      },
      kMethodsOf<W>);
  if (error) return fail(std::move(*error));
  return plan;
}

template <class W, class Made>
result<OwnedWorker> own_worker(Made made) {
  if constexpr (std::is_convertible_v<Made, std::unique_ptr<W>>) {
    std::unique_ptr<W> worker = std::move(made);
    TROUPE_CHECK(worker != nullptr, "worker group: the factory returned null");
    return OwnedWorker(worker.release(), [](void* gone) { delete static_cast<W*>(gone); });
  } else {
    if (!made) return fail(std::move(made).error());
    return own_worker<W>(std::move(*made));
  }
}

/// One argument on its way: a single value, or one part per data-parallel coordinate or rank.
template <class T>
struct Parcel {
  std::vector<T> parts;
  ArgKind kind = ArgKind::kBroadcast;
  const T& at(const GroupPlan& plan, RankId rank) const {
    const auto i = static_cast<std::size_t>(rank.value);
    if (kind == ArgKind::kBroadcast) return parts.front();
    if (kind == ArgKind::kPerRank) return parts[i];
    return parts[static_cast<std::size_t>(plan.data_part[i])];
  }
};

template <class W, auto M>
class TypedCall final : public Call, private CallWire {
 public:
  static constexpr auto kMethod = std::get<method_index<W, M>()>(kMethodsOf<W>);
  static constexpr ResultKind kKind = kMethod.outcome.kind;
  using Shape = MethodShape<decltype(M)>;
  using Value = typename Shape::Value;
  using Slot = std::conditional_t<std::is_void_v<Value>, std::monostate, Value>;
  using Outcome =
      std::conditional_t<kKind == ResultKind::kNone, void,
                         std::conditional_t<kKind == ResultKind::kAll, std::vector<Slot>, Value>>;
  static_assert(kKind == ResultKind::kNone || !std::is_void_v<Value>,
                "method: a method without a value needs returns(none)");
  static_assert(kKind != ResultKind::kConcat || Joinable<Slot>,
                "method: returns(concat) needs DispatchTraits<T>::concat for the result type");
  static_assert(kKind != ResultKind::kReduce || kMethod.outcome.reduce == kMerge ||
                    std::is_arithmetic_v<Slot>,
                "method: reduce(kSum|kMean|kMin|kMax) needs a number as result");
  static_assert(kKind != ResultKind::kReduce || kMethod.outcome.reduce != kMerge || Mergeable<Slot>,
                "method: reduce(kMerge) needs a result type with merge(const T&) -> result<void>");
  static_assert(kKind != ResultKind::kReduce || kMethod.outcome.reduce != kMean ||
                    std::is_floating_point_v<Slot>,
                "method: reduce(kMean) needs a floating-point result");

  TypedCall(Ref<const GroupPlan> group_plan, completer<Outcome> out, Deadline until)
      : group_(std::move(group_plan)),
        collectors_(group_->collectors[method_index<W, M>()]),
        out_(std::move(out)) {
    method = kMethod.name;
    phase = kMethod.lane_phase;
    deadline = until;
    if constexpr (kKind != ResultKind::kNone) slots_.resize(group_->data_part.size());
  }

  /// kInvalidArgument names the argument: rows that differ between scattered ones, or a per_rank
  /// vector of the wrong length.
  template <class... Given>
  result<void> set_arguments(Given&&... given) {
    return set_all(std::index_sequence_for<Given...>(), std::forward<Given>(given)...);
  }

  result<void> run(void* worker, RankId rank, WorkerContext& context) override {
    const auto pick = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) -> const auto& {
      return std::get<I>(parcels_).at(*group_, rank);
    };
    const auto keep = [&]<class V>(V&& value) {
      if constexpr (kKind != ResultKind::kNone)
        slots_[static_cast<std::size_t>(rank.value)].emplace(std::forward<V>(value));
      return result<void>();
    };
    return MethodRun<W, M>::run(*static_cast<W*>(worker), context, pick, keep, wanted_from(rank));
  }

  result<void> join() override {
    if constexpr (kKind != ResultKind::kNone) {
      auto joined = join_values();
      if (!joined) return troupe::fail(std::move(joined).error());
      outcome_.emplace(std::move(*joined));
    }
    return {};
  }
  void deliver() override {
    if constexpr (kKind == ResultKind::kNone) {
      out_.complete({});
    } else {
      out_.complete(std::move(*outcome_));
      outcome_.reset();
    }
  }
  bool fail(Error error) override { return out_.fail(std::move(error)); }
  bool over() const override { return out_.done(); }
  CallWire& wire() override { return *this; }

 private:
  bool wanted_from(RankId rank) const override {
    return kKind != ResultKind::kNone &&
           std::find(collectors_.begin(), collectors_.end(), rank) != collectors_.end();
  }
  std::size_t method_place() const override { return method_index<W, M>(); }
  std::size_t argument_count() const override { return Shape::kArity; }
  bool keeps_columns() const override { return kMethod.keeps_columns; }
  bool value_has_columns() const override {
    if constexpr (kServable<M> && !std::is_void_v<Value>) return wire_has_columns<Value>();
    return false;
  }

  result<std::vector<std::vector<std::byte>>> encode_argument(std::size_t i,
                                                              WireContext* context) override {
    result<std::vector<std::vector<std::byte>>> outcome = troupe::fail(
        ErrorCode::kUnsupported, "a parameter or the result has no wire form, see WireTraits");
    if constexpr (kServable<M>) {
      with_parcel(i, [&](const auto& parcel) { outcome = encode_parts(parcel, context); });
    }
    return outcome;
  }
  template <class T>
  static result<std::vector<std::vector<std::byte>>> encode_parts(const Parcel<T>& parcel,
                                                                  WireContext* context) {
    std::vector<std::vector<std::byte>> encoded;
    encoded.reserve(parcel.parts.size());
    for (const T& part : parcel.parts) {
      TROUPE_TRY(auto bytes, encode_value(part, context));
      encoded.push_back(std::move(bytes));
    }
    return encoded;
  }
  std::size_t part_of(std::size_t i, RankId rank) const override {
    ArgKind kind = ArgKind::kBroadcast;
    with_parcel(i, [&](const auto& parcel) { kind = parcel.kind; });
    const auto own = static_cast<std::size_t>(rank.value);
    if (kind == ArgKind::kBroadcast) return 0;
    return kind == ArgKind::kPerRank ? own : static_cast<std::size_t>(group_->data_part[own]);
  }
  result<void> put_value(RankId rank, std::span<const std::byte> bytes,
                         WireContext* context) override {
    if constexpr (kKind != ResultKind::kNone && kServable<M>) {
      TROUPE_TRY(slots_[static_cast<std::size_t>(rank.value)], decode_value<Value>(bytes, context));
      return {};
    } else {
      return troupe::fail(ErrorCode::kCorrupt, "a value of {} bytes came that nobody wants",
                          bytes.size());
    }
  }
  template <class Look>
  void with_parcel(std::size_t i, const Look& look) const {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((I == i ? look(std::get<I>(parcels_)) : void()), ...);
    }
    (std::make_index_sequence<Shape::kArity>());
  }

  template <std::size_t I>
  using ValueOf = std::tuple_element_t<I, typename Shape::Values>;

  template <std::size_t... I, class... Given>
  result<void> set_all(std::index_sequence<I...>, Given&&... given) {
    result<void> outcome;
    // Left to right, stopping at the first error.
    (void)((outcome = set_one<I>(std::forward<Given>(given))).has_value() && ...);
    return outcome;
  }

  template <std::size_t I, class Given>
  result<void> set_one(Given&& given) {
    constexpr ArgSpec kSpec = kMethod.arguments[I];
    using T = ValueOf<I>;
    auto& parcel = std::get<I>(parcels_);
    parcel.kind = kSpec.kind;
    if constexpr (kSpec.kind == ArgKind::kBroadcast) {
      parcel.parts.push_back(std::forward<Given>(given));
    } else if constexpr (kSpec.kind == ArgKind::kPerRank) {
      parcel.parts = std::forward<Given>(given);
      if (parcel.parts.size() != static_cast<std::size_t>(group_->mesh.size())) {
        return troupe::fail(ErrorCode::kInvalidArgument,
                            "{}: argument {} has {} values, wanted one for each of {} ranks",
                            method, I, parcel.parts.size(), group_->mesh.size());
      }
    } else {
      static_assert(Scatterable<T>,
                    "method: scatter needs DispatchTraits<T>::rows and split for the parameter");
      const T& whole = given;
      const std::int64_t rows = DispatchTraits<T>::rows(whole);
      if (rows_ && rows != *rows_) {
        return troupe::fail(ErrorCode::kInvalidArgument,
                            "{}: argument {} has {} rows, the scattered one before it has {}",
                            method, I, rows, *rows_);
      }
      rows_ = rows;
      if constexpr (kSpec.kind == ArgKind::kScatterPadded) {
        static_assert(Paddable<T>,
                      "method: scatter_padded needs DispatchTraits<T>::pad for the parameter");
        const std::int64_t multiple = std::int64_t{parts_wanted_} * kSpec.multiple;
        if (rows > 0 && rows % multiple != 0) {
          if constexpr (requires { DispatchTraits<T>::flagged(whole); })
            padding_.flagged = padding_.flagged || DispatchTraits<T>::flagged(whole);
          const T padded = DispatchTraits<T>::pad(whole, multiple);
          padding_.rows = rows;
          padding_.padded_rows = DispatchTraits<T>::rows(padded);
          parcel.parts = DispatchTraits<T>::split(padded, parts_wanted_);
          return {};
        }
      }
      parcel.parts = DispatchTraits<T>::split(whole, parts_wanted_);
      TROUPE_CHECK(parcel.parts.size() == static_cast<std::size_t>(parts_wanted_),
                   "{}: split of argument {} gave {} parts, wanted {}", method, I,
                   parcel.parts.size(), parts_wanted_);
    }
    return {};
  }

  result<Outcome> join_values() requires(kKind != ResultKind::kNone) {
    std::vector<Slot> values;
    values.reserve(collectors_.size());
    for (const RankId rank : collectors_)
      values.push_back(std::move(*slots_[static_cast<std::size_t>(rank.value)]));
    slots_.clear();
    if constexpr (kKind == ResultKind::kAll) {
      return values;
    } else if constexpr (kKind == ResultKind::kFirst) {
      return std::move(values.front());
    } else if constexpr (kKind == ResultKind::kConcat) {
      TROUPE_TRY(Value whole, DispatchTraits<Value>::concat(std::move(values)));
      if (padding_.padded_rows == padding_.rows) return whole;
      if constexpr (Strippable<Value>) {
        return DispatchTraits<Value>::strip(std::move(whole), padding_);
      } else {
        return troupe::fail(ErrorCode::kUnsupported,
                            "result type without DispatchTraits<T>::strip after scatter_padded");
      }
    } else {
      return reduce_values(std::move(values));
    }
  }

  static result<Value> reduce_values(std::vector<Slot> values) requires(kKind ==
                                                                        ResultKind::kReduce) {
    Value total = std::move(values.front());
    for (std::size_t i = 1; i < values.size(); ++i) {
      if constexpr (kMethod.outcome.reduce == kMerge) {
        TROUPE_TRY_VOID(total.merge(values[i]));
      } else if constexpr (kMethod.outcome.reduce == kMin) {
        total = std::min(total, values[i]);
      } else if constexpr (kMethod.outcome.reduce == kMax) {
        total = std::max(total, values[i]);
      } else {
        total = static_cast<Value>(total + values[i]);
      }
    }
    if constexpr (kMethod.outcome.reduce == kMean) total /= static_cast<Value>(values.size());
    return total;
  }

  template <class Tuple>
  struct Parcels;
  template <class... T>
  struct Parcels<std::tuple<T...>> {
    using type = std::tuple<Parcel<T>...>;
  };

  const Ref<const GroupPlan> group_;
  const std::vector<RankId>& collectors_;  // in the plan
  const int parts_wanted_ = group_->mesh.data_parts();
  completer<Outcome> out_;
  typename Parcels<typename Shape::Values>::type parcels_;
  std::optional<std::int64_t> rows_;
  Padding padding_;
  std::vector<std::optional<Slot>> slots_;  // [R]; rank i writes slot i only
  std::optional<std::conditional_t<std::is_void_v<Outcome>, std::monostate, Outcome>> outcome_;
};

}  // namespace troupe::runtime
