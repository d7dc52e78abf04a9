#pragma once

// A method as a rank process serves it: arguments as bytes in, its value as bytes out.
//
// `served_methods<W>()` makes the table of a worker class; a controller of another build that
// declares a method differently has another signature and is refused.
// **Threads:** tables are constants; `run` on the engine thread.
// **Invariants:** what can be served is known at compile time: a method with a parameter or result
// without a wire form has no `run`, and a group that calls it is refused when it is created.

#include "runtime/group/method_run.hpp"
#include "runtime/wire/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// The arguments of one call, each encoded on its own, and what becomes of its value.
struct ServedCallData {
  std::span<const std::span<const std::byte>> arguments;
  WireContext* arguments_context = nullptr;
  WireContext* value_context = nullptr;
  bool value_wanted = false;
  std::vector<std::byte> value;  ///< filled when wanted
};

struct ServedMethod {
  std::string_view name;
  std::string_view phase;
  std::uint64_t signature = 0;
  bool pulls_columns = true;
  /// Null when a parameter or the result has no wire form.
  result<void> (*run)(void* worker, WorkerContext& context, ServedCallData& data) = nullptr;
};

template <class Tuple>
inline constexpr bool kAllWireable = false;
template <class... T>
inline constexpr bool kAllWireable<std::tuple<T...>> = (Wireable<T> && ...);

/// A parameter's own wire form, whatever its dispatch.
template <auto M>
inline constexpr bool kServable = [] {
  using Shape = MethodShape<decltype(M)>;
  if constexpr (!kAllWireable<typename Shape::Values>) {
    return false;
  } else if constexpr (std::is_void_v<typename Shape::Value>) {
    return true;
  } else {
    return Wireable<typename Shape::Value>;
  }
}();

/// What both ends must agree on: types of parameters and result, and how columns travel.
template <auto M>
std::uint64_t method_signature(const Method<M>& method) {
  using Shape = MethodShape<decltype(M)>;
  WireSignature signature;
  if constexpr (kServable<M>) {
    [&]<class... T>(const std::tuple<T...>*) {
      (WireTraits<T>::describe(signature), ...);
    }(static_cast<const typename Shape::Values*>(nullptr));
    signature.add("returns");
    if constexpr (!std::is_void_v<typename Shape::Value>)
      WireTraits<typename Shape::Value>::describe(signature);
  }
  signature.add(method.lane_phase, Shape::kArity);
  signature.add("columns", (method.keeps_columns ? 1U : 0U) + (method.pulls_columns ? 2U : 0U));
  return signature.hash();
}

/// Runs method M of W on decoded arguments.
template <class W, auto M>
result<void> serve_method(void* worker, WorkerContext& context, ServedCallData& data) {
  using Run = MethodRun<W, M>;
  using Values = typename Run::Shape::Values;
  constexpr std::size_t kArity = Run::Shape::kArity;
  if (data.arguments.size() != kArity) {
    return fail(ErrorCode::kCorrupt, "{} arguments came, wanted {}", data.arguments.size(), kArity);
  }
  std::optional<Error> error;
  [[maybe_unused]] const auto decode = [&]<class T>(std::size_t i, std::optional<T>*) {
    if (error) return std::optional<T>();
    auto value = decode_value<T>(data.arguments[i], data.arguments_context);
    if (value) return std::optional<T>(std::move(*value));
    error = wire_error_at(std::move(value).error(), fmt::format("argument {}: ", i));
    return std::optional<T>();
  };
  auto arguments = [&]<std::size_t... I>(std::index_sequence<I...>) {
    // Braces keep the order of evaluation.
    return std::tuple<std::optional<std::tuple_element_t<I, Values>>...>{
        decode(I, static_cast<std::optional<std::tuple_element_t<I, Values>>*>(nullptr))...};
  }
  (std::make_index_sequence<kArity>());
  if (error) return fail(std::move(*error));
  const auto pick = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) -> const auto& {
    return *std::get<I>(arguments);
  };
  const auto keep = [&]<class V>(const V& value) -> result<void> {
    TROUPE_TRY(data.value, encode_value(value, data.value_context));
    return {};
  };
  return Run::run(*static_cast<W*>(worker), context, pick, keep, data.value_wanted);
}

template <class W, class MethodType>
ServedMethod served_method(const MethodType& method) {
  constexpr auto kPointer = MethodType::kPointer;
  ServedMethod served{.name = method.name,
                      .phase = method.lane_phase,
                      .signature = method_signature(method),
                      .pulls_columns = method.pulls_columns,
                      .run = nullptr};
  if constexpr (kServable<kPointer>) served.run = &serve_method<W, kPointer>;
  return served;
}

/// One entry per method of W, in the order of its declaration.
template <class W>
std::vector<ServedMethod> served_methods() {
  return std::apply(
      [](const auto&... method) { return std::vector<ServedMethod>{served_method<W>(method)...}; },
      kMethodsOf<W>);
}

}  // namespace troupe::runtime
