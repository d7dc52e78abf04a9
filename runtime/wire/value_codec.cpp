// The one place of runtime/wire that knows Cap'n Proto: views over builders and readers.

#include "runtime/base/check.hpp"
#include "runtime/batch/codec_support.hpp"
#include "runtime/wire/wire_stream.hpp"

#include <capnp/serialize.h>
#include <schemas/value.capnp.h>

#include <array>
#include <cstring>
#include <new>
#include <type_traits>

namespace troupe::runtime {
namespace {

using ListBuilder = capnp::List<schemas::Value>::Builder;
using RecordBuilder = capnp::List<schemas::Field>::Builder;
using ListReader = capnp::List<schemas::Value>::Reader;
using RecordReader = capnp::List<schemas::Field>::Reader;

template <class View>
void put(WirePlace& place, const View& view) {
  static_assert(sizeof(View) <= sizeof(WirePlace) && alignof(View) <= alignof(WirePlace));
  static_assert(std::is_trivially_destructible_v<View>);
  new (place.bytes) View(view);
}
template <class View>
View get(const WirePlace& place) {
  return *std::launder(reinterpret_cast<const View*>(place.bytes));
}
template <class View>
View get_builder(WirePlace& place) {
  return *std::launder(reinterpret_cast<View*>(place.bytes));
}

schemas::Value::Builder value_of(WirePlace& place) {
  return get_builder<schemas::Value::Builder>(place);
}
schemas::Value::Reader value_of(const WirePlace& place) {
  return get<schemas::Value::Reader>(place);
}

constexpr std::array<std::string_view, 12> kKindNames{
    "none",  "a flag",  "an integer", "a natural number", "a real number", "text",
    "bytes", "numbers", "a list",     "a record",         "a batch",       "a column"};

std::string_view kind_name(const WirePlace& place) {
  const auto which = static_cast<std::size_t>(value_of(place).which());
  return which < kKindNames.size() ? kKindNames[which] : "something unknown";
}

tl::unexpected<Error> wrong_kind(std::string_view wanted, const WirePlace& place) {
  return fail(ErrorCode::kCorrupt, ": wanted {}, found {}", wanted, kind_name(place));
}

/// Cap'n Proto reads lazily, so each access may meet malformed bytes.
template <class T, class Read>
result<T> guarded(Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (const kj::Exception& exception) {
    return fail(ErrorCode::kCorrupt, ": {}", exception.getDescription().cStr());
  }
}

std::span<const std::byte> span_of(capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}
capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

/// Text fields keep their terminator, so a view is all that is needed to set one.
void set_text(capnp::Text::Builder target, std::string_view text) {
  if (!text.empty()) std::memcpy(target.begin(), text.data(), text.size());
}

constexpr std::size_t kElementsMax = (std::size_t{1} << 29) - 1;

}  // namespace

struct WireEncoder::State {
  explicit State(WireContext* own_context) : context(own_context) {}
  std::array<capnp::word, 128> first{};  // Cap'n Proto wants it zeroed
  capnp::MallocMessageBuilder message{kj::arrayPtr(first.data(), first.size())};
  WireContext* context;
  std::optional<Error> error;
  std::size_t bytes = 0;  // of texts, data and lists so far

  /// False, and an error, when what is written outgrows the bound.
  bool room(std::size_t more) {
    if (more <= kValueBytesMax - bytes) {
      bytes += more;
      return !error;
    }
    if (!error) {
      error = Error{.code = ErrorCode::kResourceExhausted,
                    .message = fmt::format(": more than {} bytes", kValueBytesMax),
                    .origin = {},
                    .causes = {}};
    }
    return false;
  }
};

WireEncoder::WireEncoder(WireContext* context) : state_(std::make_unique<State>(context)) {}
WireEncoder::~WireEncoder() = default;

WireWriter WireEncoder::root() {
  WireWriter writer;
  put(writer.place_, state_->message.initRoot<schemas::Value>());
  writer.encoder_ = this;
  return writer;
}

result<std::vector<std::byte>> WireEncoder::finish() {
  if (state_->error) return troupe::fail(*state_->error);
  const std::size_t size =
      capnp::computeSerializedSizeInWords(state_->message) * sizeof(capnp::word);
  if (size > kValueBytesMax) {
    return troupe::fail(ErrorCode::kResourceExhausted, ": {} bytes, wanted at most {}", size,
                        kValueBytesMax);
  }
  std::vector<std::byte> bytes(size);
  kj::ArrayOutputStream stream(
      kj::arrayPtr(reinterpret_cast<kj::byte*>(bytes.data()), bytes.size()));
  capnp::writeMessage(stream, state_->message);
  return bytes;
}

void WireWriter::none() { value_of(place_).setNone(); }
void WireWriter::flag(bool value) { value_of(place_).setFlag(value); }
void WireWriter::integer(std::int64_t value) { value_of(place_).setInteger(value); }
void WireWriter::natural(std::uint64_t value) { value_of(place_).setNatural(value); }
void WireWriter::real(double value) { value_of(place_).setReal(value); }
void WireWriter::text(std::string_view value) {
  if (!encoder_->state_->room(value.size())) return;
  set_text(value_of(place_).initText(static_cast<unsigned>(value.size())), value);
}
void WireWriter::bytes(std::span<const std::byte> value) {
  if (encoder_->state_->room(value.size())) value_of(place_).setBytes(data_of(value));
}
void WireWriter::numbers(WireNumber type, std::span<const std::byte> data) {
  if (!encoder_->state_->room(data.size())) return;
  auto numbers = value_of(place_).initNumbers();
  numbers.setType(static_cast<schemas::NumberType>(type));
  numbers.setData(data_of(data));
}
WireListWriter WireWriter::list(std::size_t size) {
  // A list that is too long gets no elements; `at` then gives places that lead nowhere.
  const bool fits = size <= kElementsMax && encoder_->state_->room(size * sizeof(capnp::word) * 3);
  WireListWriter writer;
  put(writer.place_, value_of(place_).initList(fits ? static_cast<unsigned>(size) : 0U));
  writer.encoder_ = encoder_;
  return writer;
}
WireRecordWriter WireWriter::record(std::size_t fields) {
  TROUPE_CHECK(fields <= 1024, "wire: a record of {} fields", fields);
  WireRecordWriter writer;
  put(writer.place_, value_of(place_).initRecord(static_cast<unsigned>(fields)));
  writer.encoder_ = encoder_;
  (void)encoder_->state_->room(fields * sizeof(capnp::word) * 4);
  return writer;
}
void WireWriter::batch(std::span<const std::byte> exported) {
  if (encoder_->state_->room(exported.size())) value_of(place_).setBatch(data_of(exported));
}
void WireWriter::column(std::span<const std::byte> exported) {
  if (encoder_->state_->room(exported.size())) value_of(place_).setColumn(data_of(exported));
}
void WireWriter::fail(Error error) {
  if (!encoder_->state_->error) encoder_->state_->error = std::move(error);
}
WireContext* WireWriter::context() const { return encoder_->state_->context; }

WireWriter WireListWriter::at(std::size_t i) {
  WireWriter writer;
  writer.encoder_ = encoder_;
  auto list = get_builder<ListBuilder>(place_);
  if (i < list.size()) {
    put(writer.place_, list[static_cast<unsigned>(i)]);
  } else {
    // Only after an error, which `finish` reports.
    TROUPE_CHECK(encoder_->state_->error.has_value(), "wire: element {} of {}", i, list.size());
    put(writer.place_, encoder_->state_->message.getRoot<schemas::Value>());
  }
  return writer;
}

WireWriter WireRecordWriter::field(std::size_t i, std::string_view name) {
  auto list = get_builder<RecordBuilder>(place_);
  TROUPE_CHECK(i < list.size(), "wire: field {} of {}", i, list.size());
  auto one = list[static_cast<unsigned>(i)];
  set_text(one.initName(static_cast<unsigned>(name.size())), name);
  WireWriter writer;
  put(writer.place_, one.initValue());
  writer.encoder_ = encoder_;
  return writer;
}

struct WireDecoder::State {
  WireContext* context = nullptr;
  std::vector<capnp::word> copy;
  std::optional<capnp::FlatArrayMessageReader> message;
};

WireDecoder::WireDecoder(WireContext* context) : state_(std::make_unique<State>()) {
  state_->context = context;
}
WireDecoder::~WireDecoder() = default;

result<WireReader> WireDecoder::open(std::span<const std::byte> bytes) {
  if (bytes.size() > kValueBytesMax) {
    return fail(ErrorCode::kCorrupt, ": {} bytes, wanted at most {}", bytes.size(), kValueBytesMax);
  }
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    return fail(ErrorCode::kCorrupt, ": {} bytes, wanted whole words of {}", bytes.size(),
                sizeof(capnp::word));
  }
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(capnp::word) != 0) {
    state_->copy = std::vector<capnp::word>(bytes.size() / sizeof(capnp::word));
    std::memcpy(static_cast<void*>(state_->copy.data()), bytes.data(), bytes.size());
    bytes = std::as_bytes(std::span<const capnp::word>(state_->copy));
  }
  return guarded<WireReader>([&]() -> result<WireReader> {
    capnp::ReaderOptions options = reader_options(bytes.size());
    options.nestingLimit = kValueNestingMax;
    state_->message.emplace(words_of(bytes), options);
    TROUPE_TRY_VOID(check_end(state_->message->getEnd(), bytes, ""));
    WireReader reader;
    put(reader.place_, state_->message->getRoot<schemas::Value>());
    reader.context_ = state_->context;
    return reader;
  });
}

bool WireReader::is_none() const { return value_of(place_).isNone(); }
bool WireReader::is_integer() const {
  return value_of(place_).isInteger() || value_of(place_).isNatural();
}

result<bool> WireReader::flag() const {
  if (!value_of(place_).isFlag()) return wrong_kind("a flag", place_);
  return value_of(place_).getFlag();
}
result<std::int64_t> WireReader::integer() const {
  const auto value = value_of(place_);
  if (value.isInteger()) return value.getInteger();
  if (!value.isNatural()) return wrong_kind("an integer", place_);
  if (value.getNatural() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return fail(ErrorCode::kCorrupt, ": {} is too large", value.getNatural());
  return static_cast<std::int64_t>(value.getNatural());
}
result<std::uint64_t> WireReader::natural() const {
  const auto value = value_of(place_);
  if (value.isNatural()) return value.getNatural();
  if (!value.isInteger()) return wrong_kind("a natural number", place_);
  if (value.getInteger() < 0)
    return fail(ErrorCode::kCorrupt, ": {} is below 0", value.getInteger());
  return static_cast<std::uint64_t>(value.getInteger());
}
result<double> WireReader::real() const {
  if (!value_of(place_).isReal()) return wrong_kind("a real number", place_);
  return value_of(place_).getReal();
}
result<std::string_view> WireReader::text() const {
  if (!value_of(place_).isText()) return wrong_kind("text", place_);
  return guarded<std::string_view>([&] {
    const auto text = value_of(place_).getText();
    return std::string_view(text.begin(), text.size());
  });
}
result<std::span<const std::byte>> WireReader::bytes() const {
  if (!value_of(place_).isBytes()) return wrong_kind("bytes", place_);
  return guarded<std::span<const std::byte>>([&] { return span_of(value_of(place_).getBytes()); });
}
result<std::span<const std::byte>> WireReader::numbers(WireNumber type) const {
  if (!value_of(place_).isNumbers()) return wrong_kind("numbers", place_);
  return guarded<std::span<const std::byte>>([&]() -> result<std::span<const std::byte>> {
    const auto numbers = value_of(place_).getNumbers();
    constexpr std::array<std::string_view, 10> kNames{"i8",  "u8",  "i16", "u16", "i32",
                                                      "u32", "i64", "u64", "f32", "f64"};
    const auto found = static_cast<std::size_t>(numbers.getType());
    if (found != static_cast<std::size_t>(type)) {
      return fail(ErrorCode::kCorrupt, ": wanted numbers of {}, found {}",
                  kNames[static_cast<std::size_t>(type)],
                  found < kNames.size() ? kNames[found] : "an unknown type");
    }
    return span_of(numbers.getData());
  });
}
result<WireListReader> WireReader::list() const {
  if (!value_of(place_).isList()) return wrong_kind("a list", place_);
  return guarded<WireListReader>([&] {
    const auto list = value_of(place_).getList();
    WireListReader reader;
    put(reader.place_, list);
    reader.size_ = list.size();
    reader.context_ = context_;
    return reader;
  });
}
result<WireRecordReader> WireReader::record() const {
  if (!value_of(place_).isRecord()) return wrong_kind("a record", place_);
  return guarded<WireRecordReader>([&] {
    const auto list = value_of(place_).getRecord();
    WireRecordReader reader;
    put(reader.place_, list);
    reader.size_ = list.size();
    reader.context_ = context_;
    return reader;
  });
}
result<std::span<const std::byte>> WireReader::batch() const {
  if (!value_of(place_).isBatch()) return wrong_kind("a batch", place_);
  return guarded<std::span<const std::byte>>([&] { return span_of(value_of(place_).getBatch()); });
}
result<std::span<const std::byte>> WireReader::column() const {
  if (!value_of(place_).isColumn()) return wrong_kind("a column", place_);
  return guarded<std::span<const std::byte>>([&] { return span_of(value_of(place_).getColumn()); });
}

WireReader WireListReader::at(std::size_t i) const {
  TROUPE_CHECK(i < size_, "wire: element {} of {}", i, size_);
  WireReader reader;
  put(reader.place_, get<ListReader>(place_)[static_cast<unsigned>(i)]);
  reader.context_ = context_;
  return reader;
}

result<std::optional<WireReader>> WireRecordReader::find(std::string_view name) {
  return guarded<std::optional<WireReader>>([&]() -> result<std::optional<WireReader>> {
    const auto list = get<RecordReader>(place_);
    for (std::size_t tried = 0; tried < size_; ++tried) {
      const std::size_t i = (next_ + tried) % size_;
      const auto one = list[static_cast<unsigned>(i)];
      const auto text = one.getName();
      if (std::string_view(text.begin(), text.size()) != name) continue;
      next_ = i + 1 == size_ ? 0 : i + 1;
      WireReader reader;
      put(reader.place_, one.getValue());
      reader.context_ = context_;
      return std::optional<WireReader>(reader);
    }
    return std::optional<WireReader>();
  });
}

}  // namespace troupe::runtime
