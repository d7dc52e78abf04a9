#pragma once

// The encoder and decoder beneath wire.hpp: a tree of values over one Cap'n Proto message
// (schemas/value.capnp), without its headers. Type authors meet it in `WireTraits<T>` only.
//
// Ownership: the encoder owns the message; writers and readers are views into it.
// **Threads:** an encoder or decoder belongs to one thread.
// **Invariants:** reading never throws and allocates only what the bytes hold; a reader that asks
// for another kind than was written gets kCorrupt, whose message starts with `: ` or a path.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

class Batch;
class Column;

/// Largest encoded value that `encode_value` makes and `decode_value` looks at. What travels in one
/// frame of a link must be smaller still (1 MiB).
inline constexpr std::size_t kValueBytesMax = std::size_t{64} << 20;
/// Deepest nesting of pointers; a level of struct or list takes two.
inline constexpr int kValueNestingMax = 64;

/// How batches and columns get onto the wire: what is small travels inside, the rest stays where it
/// is and is referred to. A process's column exchange implements it.
class WireContext {
 public:
  virtual ~WireContext() = default;
  virtual result<std::vector<std::byte>> export_batch(const Batch& batch) = 0;
  virtual result<Batch> import_batch(std::span<const std::byte> bytes) = 0;
  virtual result<std::vector<std::byte>> export_column(const Column& column) = 0;
  virtual result<Column> import_column(std::span<const std::byte> bytes) = 0;
};

enum class WireNumber : std::uint8_t { kI8, kU8, kI16, kU16, kI32, kU32, kI64, kU64, kF32, kF64 };

class WireEncoder;
class WireDecoder;
class WireListWriter;
class WireListReader;
class WireRecordWriter;
class WireRecordReader;

/// A view into a message: room for the builders and readers of Cap'n Proto.
struct WirePlace {
  alignas(8) std::byte bytes[48];
};

/// Where one value goes; write exactly once.
class WireWriter {
 public:
  void none();
  void flag(bool value);
  void integer(std::int64_t value);
  void natural(std::uint64_t value);
  void real(double value);
  void text(std::string_view value);
  void bytes(std::span<const std::byte> value);
  void numbers(WireNumber type, std::span<const std::byte> data);
  WireListWriter list(std::size_t size);
  WireRecordWriter record(std::size_t fields);
  void batch(std::span<const std::byte> exported);
  void column(std::span<const std::byte> exported);
  /// Makes the whole encoding fail; the first error stays.
  void fail(Error error);
  WireContext* context() const;

 private:
  friend class WireEncoder;
  friend class WireListWriter;
  friend class WireRecordWriter;
  WirePlace place_;
  WireEncoder* encoder_ = nullptr;
};

class WireListWriter {
 public:
  WireWriter at(std::size_t i);

 private:
  friend class WireWriter;
  WirePlace place_;
  WireEncoder* encoder_ = nullptr;
};

class WireRecordWriter {
 public:
  /// The value of field `i`, which is called `name`.
  WireWriter field(std::size_t i, std::string_view name);

 private:
  friend class WireWriter;
  WirePlace place_;
  WireEncoder* encoder_ = nullptr;
};

/// One message being written. `CHECK`s nothing about its values; see `finish`.
class WireEncoder {
 public:
  explicit WireEncoder(WireContext* context = nullptr);
  ~WireEncoder();
  WireEncoder(const WireEncoder&) = delete;
  WireEncoder& operator=(const WireEncoder&) = delete;

  WireWriter root();
  /// The bytes, or the first error; kResourceExhausted above kValueBytesMax.
  result<std::vector<std::byte>> finish();

 private:
  friend class WireWriter;
  friend class WireListWriter;
  struct State;
  std::unique_ptr<State> state_;
};

/// One value as it was written.
class WireReader {
 public:
  bool is_none() const;
  bool is_integer() const;  ///< `integer` or `natural`
  result<bool> flag() const;
  /// As whichever of the two was written, when it fits.
  result<std::int64_t> integer() const;
  result<std::uint64_t> natural() const;
  result<double> real() const;
  /// Views live as long as the decoder.
  result<std::string_view> text() const;
  result<std::span<const std::byte>> bytes() const;
  /// Raw little-endian elements of exactly this type.
  result<std::span<const std::byte>> numbers(WireNumber type) const;
  result<WireListReader> list() const;
  result<WireRecordReader> record() const;
  result<std::span<const std::byte>> batch() const;
  result<std::span<const std::byte>> column() const;
  WireContext* context() const { return context_; }

 private:
  friend class WireDecoder;
  friend class WireListReader;
  friend class WireRecordReader;
  WirePlace place_;
  WireContext* context_ = nullptr;
};

class WireListReader {
 public:
  std::size_t size() const { return size_; }
  /// `i` < size (CHECK).
  WireReader at(std::size_t i) const;

 private:
  friend class WireReader;
  WirePlace place_;
  std::size_t size_ = 0;
  WireContext* context_ = nullptr;
};

class WireRecordReader {
 public:
  std::size_t size() const { return size_; }
  /// The field, or nothing. Fields in the order of their declaration are found at once.
  result<std::optional<WireReader>> find(std::string_view name);

 private:
  friend class WireReader;
  WirePlace place_;
  std::size_t size_ = 0;
  std::size_t next_ = 0;
  WireContext* context_ = nullptr;
};

/// Reads one message in place when it is aligned, or from a copy.
class WireDecoder {
 public:
  explicit WireDecoder(WireContext* context = nullptr);
  ~WireDecoder();
  WireDecoder(const WireDecoder&) = delete;
  WireDecoder& operator=(const WireDecoder&) = delete;

  /// `bytes` outlive the decoder.
  result<WireReader> open(std::span<const std::byte> bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::runtime
