#pragma once

// One method of a worker, found in its declaration and run with given arguments: what ranks in this
// process and ranks that serve another one have in common. Internal to worker_group.hpp.
//
// **Threads:** the rank's engine thread.
// **Invariants:** batches arrive with their columns here unless the method is lazy; a kept result
// is put into the rank's column store before it is handed on.

#include "runtime/batch/column_ref.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace troupe::runtime {

template <class W>
inline constexpr auto kMethodsOf = W::methods();
template <class W>
using MethodsOf = std::remove_const_t<decltype(kMethodsOf<W>)>;

inline constexpr std::size_t kNoMethod = static_cast<std::size_t>(-1);

/// Place of M in W::methods(), or kNoMethod.
template <class W, auto M>
consteval std::size_t method_index() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    std::size_t found = kNoMethod;
    ((std::is_same_v<std::tuple_element_t<I, MethodsOf<W>>, Method<M>> ? found = I : found), ...);
    return found;
  }
  (std::make_index_sequence<std::tuple_size_v<MethodsOf<W>>>());
}

template <class W, auto M>
class MethodRun {
 public:
  static constexpr auto kMethod = std::get<method_index<W, M>()>(kMethodsOf<W>);
  using Shape = MethodShape<decltype(M)>;
  using Value = typename Shape::Value;

  /// `pick(std::integral_constant<std::size_t, I>)` gives argument I as a const reference that
  /// outlives the call; `keep(Value)` returns result<void> and gets the value, when the method has
  /// one and it is `wanted`.
  template <class Pick, class Keep>
  static result<void> run(W& worker, WorkerContext& context, const Pick& pick, const Keep& keep,
                          bool wanted) {
    return invoke(worker, context, pick, keep, wanted, std::make_index_sequence<Shape::kArity>());
  }

 private:
  template <std::size_t I>
  using ValueOf = std::tuple_element_t<I, typename Shape::Values>;
  template <class T>
  static constexpr bool kMayArrive = std::is_same_v<T, Batch>&& kMethod.pulls_columns;

  template <class Pick, class Keep, std::size_t... I>
  static result<void> invoke(W& worker, WorkerContext& context, const Pick& pick, const Keep& keep,
                             bool wanted, std::index_sequence<I...>) {
    // Batches are handles: a copy per rank costs reference counts. Other values are passed as they
    // lie where `pick` finds them, shared and const.
    std::tuple<std::conditional_t<kMayArrive<ValueOf<I>>, result<Batch>, std::monostate>...> local;
    std::optional<Error> error;
    [[maybe_unused]] const auto arrive =
        [&]<std::size_t K>(std::integral_constant<std::size_t, K> place) {
          if constexpr (kMayArrive<ValueOf<K>>) {
            auto& slot = std::get<K>(local);
            const Batch& part = pick(place);
            slot = part.has_references() ? part.resolve(&context.pulled()) : result<Batch>(part);
            if (!slot && !error) error = slot.error();
          }
        };
    (arrive(std::integral_constant<std::size_t, I>()), ...);
    if (error) return fail(std::move(*error));
    [[maybe_unused]] const auto arrived =
        [&]<std::size_t K>(std::integral_constant<std::size_t, K> place) -> const ValueOf<K>& {
      if constexpr (kMayArrive<ValueOf<K>>) {
        return *std::get<K>(local);
      } else {
        return pick(place);
      }
    };
    // The class that declares the method may be a base of W.
    auto& target = static_cast<typename Shape::Worker&>(worker);
    if constexpr (std::is_void_v<typename Shape::Return>) {
      (target.*M)(pass<I>(arrived(std::integral_constant<std::size_t, I>()))...);
      return {};
    } else {
      return hand_on(context, keep, wanted,
                     (target.*M)(pass<I>(arrived(std::integral_constant<std::size_t, I>()))...));
    }
  }

  /// A parameter T&& gets a copy of its own to take apart.
  template <std::size_t I>
  static decltype(auto) pass(const ValueOf<I>& value) {
    using P = std::tuple_element_t<I, typename Shape::Parameters>;
    if constexpr (std::is_rvalue_reference_v<P>) {
      return ValueOf<I>(value);
    } else {
      return (value);
    }
  }

  template <class Keep, class Returned>
  static result<void> hand_on(WorkerContext& context, const Keep& keep, bool wanted,
                              Returned&& returned) {
    if constexpr (std::is_same_v<std::remove_cvref_t<Returned>, result<Value>>) {
      if (!returned) return fail(std::forward<Returned>(returned).error());
      if constexpr (!std::is_void_v<Value>)
        return hand_on(context, keep, wanted, *std::move(returned));
      return {};
    } else if (!wanted) {
      return {};
    } else if constexpr (std::is_same_v<Value, Batch> && kMethod.keeps_columns) {
      TROUPE_TRY(Batch kept, context.columns().put(returned));
      return keep(std::move(kept));
    } else {
      return keep(std::forward<Returned>(returned));
    }
  }
};

}  // namespace troupe::runtime
