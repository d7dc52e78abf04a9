#pragma once

// `WireTraits<T>`: how values of one type are written and read; see wire.hpp, which includes this.
//
// **Threads:** stateless.
// **Invariants:** `read(write(x))` = x; `read` refuses every other kind than `write` writes.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/wire/wire_signature.hpp"
#include "runtime/wire/wire_stream.hpp"

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// static void write(WireWriter, const T&); static result<T> read(const WireReader&);
/// static void describe(WireSignature&).
template <class T>
struct WireTraits;

template <class T>
concept Wireable = requires(WireWriter out, const WireReader& in, WireSignature& signature,
                            const T& value) {
  WireTraits<T>::write(out, value);
  { WireTraits<T>::read(in) } -> std::same_as<result<T>>;
  WireTraits<T>::describe(signature);
};

/// A member with the name that it has on the wire.
template <class Owner, class T>
struct WireField {
  using Value = T;
  std::string_view name;
  T Owner::*member;
};
template <class Owner, class T>
constexpr WireField<Owner, T> field(std::string_view name, T Owner::*member) {
  return {name, member};
}

template <>
struct WireTraits<bool> {
  static void write(WireWriter out, bool value) { out.flag(value); }
  static result<bool> read(const WireReader& in) { return in.flag(); }
  static void describe(WireSignature& signature) { signature.add("flag"); }
};

template <class T>
concept WireInteger = std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8;

template <WireInteger T>
struct WireTraits<T> {
  static void write(WireWriter out, T value) {
    if constexpr (std::is_signed_v<T>) {
      out.integer(value);
    } else {
      out.natural(value);
    }
  }
  static result<T> read(const WireReader& in) {
    if constexpr (std::is_signed_v<T>) {
      TROUPE_TRY(const std::int64_t value, in.integer());
      if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max())
        return fail(ErrorCode::kCorrupt, ": {} does not fit into {} bits", value, sizeof(T) * 8);
      return static_cast<T>(value);
    } else {
      TROUPE_TRY(const std::uint64_t value, in.natural());
      if (value > std::numeric_limits<T>::max())
        return fail(ErrorCode::kCorrupt, ": {} does not fit into {} bits", value, sizeof(T) * 8);
      return static_cast<T>(value);
    }
  }
  static void describe(WireSignature& signature) {
    signature.add(std::is_signed_v<T> ? "integer" : "natural", sizeof(T));
  }
};

template <class T>
concept WireReal = std::same_as<T, float> || std::same_as<T, double>;

template <WireReal T>
struct WireTraits<T> {
  static void write(WireWriter out, T value) { out.real(static_cast<double>(value)); }
  static result<T> read(const WireReader& in) {
    TROUPE_TRY(const double value, in.real());
    return static_cast<T>(value);
  }
  static void describe(WireSignature& signature) { signature.add("real", sizeof(T)); }
};

template <class E>
requires std::is_enum_v<E> &&(!std::same_as<E, std::byte>)struct WireTraits<E> {
  static constexpr auto kListed = wire_enumerators<E>();
  static bool listed(std::int64_t value) {
    return value >= 0 && value < static_cast<std::int64_t>(kListed.size()) &&
           kListed[static_cast<std::size_t>(value)];
  }
  static void write(WireWriter out, E value) {
    const auto number = static_cast<std::int64_t>(value);
    if (!listed(number)) {
      out.fail(Error{.code = ErrorCode::kInvalidArgument,
                     .message = fmt::format(": {} is no enumerator in 0..127", number),
                     .origin = {},
                     .causes = {}});
    }
    out.integer(number);
  }
  static result<E> read(const WireReader& in) {
    TROUPE_TRY(const std::int64_t number, in.integer());
    if (!listed(number)) return fail(ErrorCode::kCorrupt, ": {} is no enumerator", number);
    return static_cast<E>(number);
  }
  static void describe(WireSignature& signature) { signature.add("enum"); }
};

template <>
struct WireTraits<std::string> {
  static void write(WireWriter out, const std::string& value) { out.text(value); }
  static result<std::string> read(const WireReader& in) {
    TROUPE_TRY(const std::string_view text, in.text());
    return std::string(text);
  }
  static void describe(WireSignature& signature) { signature.add("text"); }
};

template <>
struct WireTraits<std::monostate> {
  static void write(WireWriter out, std::monostate) { out.none(); }
  static result<std::monostate> read(const WireReader& in) {
    if (!in.is_none()) return fail(ErrorCode::kCorrupt, ": wanted nothing");
    return std::monostate();
  }
  static void describe(WireSignature& signature) { signature.add("none"); }
};

template <class Tag, class Value>
struct WireTraits<StrongId<Tag, Value>> {
  using Id = StrongId<Tag, Value>;
  static void write(WireWriter out, const Id& id) { WireTraits<Value>::write(out, id.value); }
  static result<Id> read(const WireReader& in) {
    TROUPE_TRY(const Value value, WireTraits<Value>::read(in));
    return Id{value};
  }
  static void describe(WireSignature& signature) { WireTraits<Value>::describe(signature); }
};

/// Durations of whole units travel as nanoseconds, the unit of `Duration`.
template <>
struct WireTraits<Duration> {
  static void write(WireWriter out, Duration span) { out.integer(span.count()); }
  static result<Duration> read(const WireReader& in) {
    TROUPE_TRY(const std::int64_t count, in.integer());
    return Duration(count);
  }
  static void describe(WireSignature& signature) { signature.add("nanoseconds"); }
};

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

/// Not of optional or monostate: both would be `none`.
template <Wireable T>
requires(!kIsOptional<T> && !std::same_as<T, std::monostate>) struct WireTraits<std::optional<T>> {
  static void write(WireWriter out, const std::optional<T>& value) {
    if (value) {
      WireTraits<T>::write(out, *value);
    } else {
      out.none();
    }
  }
  static result<std::optional<T>> read(const WireReader& in) {
    if (in.is_none()) return std::optional<T>();
    TROUPE_TRY(T value, WireTraits<T>::read(in));
    return std::optional<T>(std::move(value));
  }
  static void describe(WireSignature& signature) {
    signature.add("optional");
    WireTraits<T>::describe(signature);
  }
};

/// Element types of `numbers`.
template <class T>
concept WireNumeric = (WireInteger<T> && !std::same_as<T, char>) || WireReal<T>;

template <WireNumeric T>
constexpr WireNumber wire_number_of() {
  if constexpr (std::same_as<T, float>) return WireNumber::kF32;
  if constexpr (std::same_as<T, double>) return WireNumber::kF64;
  constexpr bool kSigned = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1:
      return kSigned ? WireNumber::kI8 : WireNumber::kU8;
    case 2:
      return kSigned ? WireNumber::kI16 : WireNumber::kU16;
    case 4:
      return kSigned ? WireNumber::kI32 : WireNumber::kU32;
    default:
      return kSigned ? WireNumber::kI64 : WireNumber::kU64;
  }
}

template <Wireable T>
requires(!WireNumeric<T> && !std::same_as<T, bool>) struct WireTraits<std::vector<T>> {
  static void write(WireWriter out, const std::vector<T>& values) {
    WireListWriter list = out.list(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) WireTraits<T>::write(list.at(i), values[i]);
  }
  static result<std::vector<T>> read(const WireReader& in) {
    TROUPE_TRY(const WireListReader list, in.list());
    std::vector<T> values;
    values.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto value = WireTraits<T>::read(list.at(i));
      if (!value) return fail(wire_error_in(std::move(value).error(), i));
      values.push_back(std::move(*value));
    }
    return values;
  }
  static void describe(WireSignature& signature) {
    signature.add("list");
    WireTraits<T>::describe(signature);
  }
};

template <WireNumeric T>
struct WireTraits<std::vector<T>> {
  static void write(WireWriter out, const std::vector<T>& values) {
    out.numbers(wire_number_of<T>(), std::as_bytes(std::span<const T>(values)));
  }
  static result<std::vector<T>> read(const WireReader& in) {
    TROUPE_TRY(const auto data, in.numbers(wire_number_of<T>()));
    if (data.size() % sizeof(T) != 0)
      return fail(ErrorCode::kCorrupt, ": {} bytes of numbers of {} bytes", data.size(), sizeof(T));
    std::vector<T> values(data.size() / sizeof(T));
    if (!data.empty()) std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  static void describe(WireSignature& signature) {
    signature.add("numbers");
    WireTraits<T>::describe(signature);
  }
};

/// One byte each, 0 or 1.
template <>
struct WireTraits<std::vector<bool>> {
  static void write(WireWriter out, const std::vector<bool>& values);
  static result<std::vector<bool>> read(const WireReader& in);
  static void describe(WireSignature& signature) { signature.add("flags"); }
};

template <>
struct WireTraits<std::vector<std::byte>> {
  static void write(WireWriter out, const std::vector<std::byte>& value) { out.bytes(value); }
  static result<std::vector<std::byte>> read(const WireReader& in) {
    TROUPE_TRY(const auto bytes, in.bytes());
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  static void describe(WireSignature& signature) { signature.add("bytes"); }
};

template <class T, std::size_t N>
requires Wireable<std::vector<T>>
struct WireTraits<std::array<T, N>> {
  static void write(WireWriter out, const std::array<T, N>& values) {
    WireTraits<std::vector<T>>::write(out, std::vector<T>(values.begin(), values.end()));
  }
  static result<std::array<T, N>> read(const WireReader& in) {
    TROUPE_TRY(std::vector<T> values, WireTraits<std::vector<T>>::read(in));
    if (values.size() != N)
      return fail(ErrorCode::kCorrupt, ": {} elements, wanted {}", values.size(), N);
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<T, N>{std::move(values[I])...};
    }
    (std::make_index_sequence<N>());
  }
  static void describe(WireSignature& signature) {
    signature.add("array", N);
    WireTraits<std::vector<T>>::describe(signature);
  }
};

/// Keys and values in turn, in key order; a repeated or unordered key is kCorrupt.
template <Wireable K, Wireable V, class Compare, class Allocator>
struct WireTraits<std::map<K, V, Compare, Allocator>> {
  using Map = std::map<K, V, Compare, Allocator>;
  static void write(WireWriter out, const Map& map) {
    WireListWriter list = out.list(map.size() * 2);
    std::size_t i = 0;
    for (const auto& [key, value] : map) {
      WireTraits<K>::write(list.at(i++), key);
      WireTraits<V>::write(list.at(i++), value);
    }
  }
  static result<Map> read(const WireReader& in) {
    TROUPE_TRY(const WireListReader list, in.list());
    if (list.size() % 2 != 0)
      return fail(ErrorCode::kCorrupt, ": {} keys and values, wanted pairs", list.size());
    Map map;
    for (std::size_t i = 0; i < list.size(); i += 2) {
      auto key = WireTraits<K>::read(list.at(i));
      if (!key) return fail(wire_error_in(std::move(key).error(), i));
      auto value = WireTraits<V>::read(list.at(i + 1));
      if (!value) return fail(wire_error_in(std::move(value).error(), i + 1));
      if (!map.empty() && !map.key_comp()(map.rbegin()->first, *key))
        return fail(ErrorCode::kCorrupt, "[{}]: keys are not in rising order", i);
      map.emplace_hint(map.end(), std::move(*key), std::move(*value));
    }
    return map;
  }
  static void describe(WireSignature& signature) {
    signature.add("map");
    WireTraits<K>::describe(signature);
    WireTraits<V>::describe(signature);
  }
};

/// std::tuple and std::pair: a list of exactly their parts.
template <class Tuple, class... T>
struct WireTupleTraits {
  static void write(WireWriter out, const Tuple& values) {
    WireListWriter list = out.list(sizeof...(T));
    std::size_t i = 0;
    std::apply([&](const auto&... one) { (WireTraits<T>::write(list.at(i++), one), ...); }, values);
  }
  static result<Tuple> read(const WireReader& in) {
    TROUPE_TRY(const WireListReader list, in.list());
    if (list.size() != sizeof...(T))
      return fail(ErrorCode::kCorrupt, ": {} parts, wanted {}", list.size(), sizeof...(T));
    std::optional<Error> error;
    auto parts = [&]<std::size_t... I>(std::index_sequence<I...>) {
      // Braces keep the order of evaluation.
      return std::tuple<std::optional<T>...>{read_part<T>(list, I, error)...};
    }
    (std::index_sequence_for<T...>());
    if (error) return fail(std::move(*error));
    return std::apply([](auto&... part) { return Tuple(std::move(*part)...); }, parts);
  }
  static void describe(WireSignature& signature) {
    signature.add("tuple", sizeof...(T));
    (WireTraits<T>::describe(signature), ...);
  }

 private:
  template <class Part>
  static std::optional<Part> read_part(const WireListReader& list, std::size_t i,
                                       std::optional<Error>& error) {
    if (error) return std::nullopt;
    auto part = WireTraits<Part>::read(list.at(i));
    if (part) return std::move(*part);
    error = wire_error_in(std::move(part).error(), i);
    return std::nullopt;
  }
};
template <Wireable... T>
struct WireTraits<std::tuple<T...>> : WireTupleTraits<std::tuple<T...>, T...> {};
template <Wireable A, Wireable B>
struct WireTraits<std::pair<A, B>> : WireTupleTraits<std::pair<A, B>, A, B> {};

/// The index of the alternative, then its value.
template <Wireable... T>
struct WireTraits<std::variant<T...>> {
  using Variant = std::variant<T...>;
  static void write(WireWriter out, const Variant& value) {
    WireListWriter list = out.list(2);
    list.at(0).natural(value.index());
    std::visit([&]<class One>(const One& one) { WireTraits<One>::write(list.at(1), one); }, value);
  }
  static result<Variant> read(const WireReader& in) {
    TROUPE_TRY(const WireListReader list, in.list());
    if (list.size() != 2) return fail(ErrorCode::kCorrupt, ": {} parts, wanted 2", list.size());
    TROUPE_TRY(const std::uint64_t index, list.at(0).natural());
    result<Variant> outcome =
        fail(ErrorCode::kCorrupt, ": alternative {} of {}", index, sizeof...(T));
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((index == I ? (void)(outcome = read_one<I>(list.at(1))) : (void)0), ...);
    }
    (std::index_sequence_for<T...>());
    return outcome;
  }
  static void describe(WireSignature& signature) {
    signature.add("variant", sizeof...(T));
    (WireTraits<T>::describe(signature), ...);
  }

 private:
  template <std::size_t I>
  static result<Variant> read_one(const WireReader& in) {
    auto value = WireTraits<std::variant_alternative_t<I, Variant>>::read(in);
    if (!value) return fail(std::move(value).error());
    return Variant(std::in_place_index<I>, std::move(*value));
  }
};

/// The fields of a struct; specialise it for one that cannot say so itself because it lies in a
/// library that knows nothing of the wire.
template <class T>
struct WireFields;
template <class T>
requires requires { T::fields(); }
struct WireFields<T> {
  static constexpr auto fields() { return T::fields(); }
};

template <class T>
concept WireStruct = requires {
  std::tuple_size<std::remove_cvref_t<decltype(WireFields<T>::fields())>>::value;
}
&&std::default_initializable<T>;

/// A struct with `fields()`: a record of named fields.
template <WireStruct T>
struct WireTraits<T> {
  static void write(WireWriter out, const T& value) {
    std::apply(
        [&](const auto&... one) {
          WireRecordWriter record = out.record(sizeof...(one));
          std::size_t i = 0;
          (write_field(record.field(i++, one.name), value.*one.member), ...);
        },
        WireFields<T>::fields());
  }
  static result<T> read(const WireReader& in) {
    TROUPE_TRY(WireRecordReader record, in.record());
    T value{};
    std::optional<Error> error;
    std::apply([&](const auto&... one) { (void)(read_field(record, one, value, error) && ...); },
               WireFields<T>::fields());
    if (error) return fail(std::move(*error));
    return value;
  }
  static void describe(WireSignature& signature) {
    // A struct may hold a list of itself.
    if (!signature.enter()) return;
    std::apply(
        [&](const auto&... one) {
          signature.add("record", sizeof...(one));
          ((signature.add(one.name),
            WireTraits<typename std::remove_cvref_t<decltype(one)>::Value>::describe(signature)),
           ...);
        },
        WireFields<T>::fields());
    signature.leave();
  }

 private:
  template <class V>
  static void write_field(WireWriter out, const V& value) {
    static_assert(Wireable<V>, "fields(): the type of this member has no WireTraits");
    WireTraits<V>::write(out, value);
  }
  template <class V>
  static bool read_field(WireRecordReader& record, const WireField<T, V>& one, T& target,
                         std::optional<Error>& error) {
    auto found = record.find(one.name);
    if (!found) {
      error = wire_error_at(std::move(found).error(), one.name, '.');
      return false;
    }
    if (!*found) {
      if constexpr (kIsOptional<V>) return true;
      error = Error{.code = ErrorCode::kCorrupt,
                    .message = fmt::format(".{}: missing", one.name),
                    .origin = {},
                    .causes = {}};
      return false;
    }
    auto value = WireTraits<V>::read(**found);
    if (!value) {
      error = wire_error_at(std::move(value).error(), one.name, '.');
      return false;
    }
    target.*one.member = std::move(*value);
    return true;
  }
};

}  // namespace troupe::runtime
