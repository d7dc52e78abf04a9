// Values survive the wire: every kind of type comes back equal, refusals name type and field path,
// unknown fields are skipped, and no damaged bytes crash the decoder. Random values of a struct
// that holds every kind are the property; damaged encodings of it are the adversary.

#include "runtime/wire/wire.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;

enum class Colour { kRed, kGreen, kBlue = 7 };

struct Point {
  double x = 0;
  float y = 0;
  bool operator==(const Point&) const = default;
  static constexpr auto fields() {
    return std::tuple{field("x", &Point::x), field("y", &Point::y)};
  }
};

struct Tree {
  std::string name;
  std::vector<Tree> children;
  bool operator==(const Tree&) const = default;
  static constexpr auto fields() {
    return std::tuple{field("name", &Tree::name), field("children", &Tree::children)};
  }
};

struct Everything {
  bool flag = false;
  std::int8_t tiny = 0;
  std::uint64_t huge = 0;
  std::int64_t whole = 0;
  Colour colour = Colour::kRed;
  std::string text;
  RankId rank{0};
  Duration span{0};
  std::optional<Point> maybe;
  std::vector<float> numbers;
  std::vector<std::uint16_t> shorts;
  std::vector<bool> flags;
  std::vector<std::byte> bytes;
  std::vector<std::string> texts;
  std::vector<Point> points;
  std::array<int, 3> three{};
  std::map<std::string, std::vector<std::int64_t>> table;
  std::pair<int, std::string> pair;
  std::tuple<bool, double, std::string> tuple;
  std::variant<std::monostate, int, std::string> choice;
  Error error;
  Metrics metrics;
  Tree tree;
  bool operator==(const Everything&) const = default;
  static constexpr auto fields() {
    return std::tuple{field("flag", &Everything::flag),     field("tiny", &Everything::tiny),
                      field("huge", &Everything::huge),     field("whole", &Everything::whole),
                      field("colour", &Everything::colour), field("text", &Everything::text),
                      field("rank", &Everything::rank),     field("span", &Everything::span),
                      field("maybe", &Everything::maybe),   field("numbers", &Everything::numbers),
                      field("shorts", &Everything::shorts), field("flags", &Everything::flags),
                      field("bytes", &Everything::bytes),   field("texts", &Everything::texts),
                      field("points", &Everything::points), field("three", &Everything::three),
                      field("table", &Everything::table),   field("pair", &Everything::pair),
                      field("tuple", &Everything::tuple),   field("choice", &Everything::choice),
                      field("error", &Everything::error),   field("metrics", &Everything::metrics),
                      field("tree", &Everything::tree)};
  }
};

std::string random_text(Rng& rng) {
  std::string text(rng.below(12), 'x');
  for (char& c : text) c = static_cast<char>(rng.below(256));  // zero bytes and all
  return text;
}

Tree random_tree(Rng& rng, int depth) {
  Tree tree{.name = random_text(rng), .children = {}};
  for (std::uint64_t i = depth == 0 ? 0 : rng.below(3); i > 0; --i)
    tree.children.push_back(random_tree(rng, depth - 1));
  return tree;
}

Everything random_everything(Rng& rng) {
  Everything value;
  value.flag = rng.below(2) == 1;
  value.tiny = static_cast<std::int8_t>(rng.next());
  value.huge = rng.next();
  value.whole = static_cast<std::int64_t>(rng.next());
  value.colour = std::array{Colour::kRed, Colour::kGreen, Colour::kBlue}[rng.below(3)];
  value.text = random_text(rng);
  value.rank = RankId{static_cast<std::int32_t>(rng.below(9))};
  value.span = Duration(static_cast<std::int64_t>(rng.next()));
  if (rng.below(2) == 1) value.maybe = Point{rng.normal(), static_cast<float>(rng.normal())};
  for (std::uint64_t i = rng.below(9); i > 0; --i) {
    value.numbers.push_back(static_cast<float>(rng.normal()));
    value.shorts.push_back(static_cast<std::uint16_t>(rng.next()));
    value.flags.push_back(rng.below(2) == 1);
    value.bytes.push_back(static_cast<std::byte>(rng.next()));
    value.texts.push_back(random_text(rng));
    value.points.push_back({rng.normal(), 1.5F});
    value.table[random_text(rng)] = {1, static_cast<std::int64_t>(rng.next())};
    value.metrics.add(fmt::format("m{}", i), rng.normal(),
                      i % 2 == 0 ? Reduction::kMean : Reduction::kHistogram);
  }
  value.three = {1, -2, static_cast<int>(rng.next())};
  value.pair = {7, random_text(rng)};
  value.tuple = {true, rng.normal(), random_text(rng)};
  if (rng.below(2) == 1) value.choice = random_text(rng);
  value.error = Error{.code = ErrorCode::kRankDead,
                      .message = random_text(rng),
                      .origin = {.group = "policy", .rank = RankId{3}, .node = {}},
                      .causes = {}};
  value.error = std::move(value.error).wrap(ErrorCode::kAborted, "outer");
  value.tree = random_tree(rng, 4);
  return value;
}

TEST(Wire, GivesBackEqualValuesOfEveryKind) {
  const std::uint64_t seed = 20261201;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int i = 0; i < 300; ++i) {
    const Everything value = random_everything(rng);
    const auto bytes = encode_value(value);
    ASSERT_TRUE(bytes) << bytes.error().to_string();
    const auto back = decode_value<Everything>(*bytes);
    ASSERT_TRUE(back) << back.error().to_string();
    ASSERT_EQ(*back, value);
    EXPECT_EQ(encode_value(*back).value(), *bytes);
  }
}

TEST(Wire, KeepsEveryBitOfRealNumbers) {
  for (const double value : {0.0, -0.0, 1e-310, double{INFINITY}, double{-INFINITY}, 0.1}) {
    const auto back = decode_value<double>(encode_value(value).value());
    ASSERT_TRUE(back);
    EXPECT_EQ(std::memcmp(&*back, &value, sizeof value), 0) << value;
  }
  EXPECT_TRUE(std::isnan(decode_value<float>(encode_value(NAN).value()).value()));
}

TEST(Wire, ReadsBytesThatAreNotAligned) {
  const auto bytes = encode_value(std::string("abc")).value();
  std::vector<std::byte> shifted(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  const auto back = decode_value<std::string>(std::span(shifted).subspan(1));
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, "abc");
}

struct Old {
  int a = 1;
  std::string b = "b";
  static constexpr auto fields() { return std::tuple{field("a", &Old::a), field("b", &Old::b)}; }
};
struct New {
  std::string b;
  std::vector<Point> extra{{1, 2}};
  int a = 0;
  std::optional<int> later;
  static constexpr auto fields() {
    return std::tuple{field("b", &New::b), field("extra", &New::extra), field("a", &New::a),
                      field("later", &New::later)};
  }
};

TEST(Wire, SkipsFieldsItDoesNotKnowAndNamesThoseItMisses) {
  const New newer{.b = "text", .extra = {{1, 2}}, .a = 5, .later = 3};
  const auto old = decode_value<Old>(encode_value(newer).value());
  ASSERT_TRUE(old) << old.error().to_string();
  EXPECT_EQ(old->a, 5);
  EXPECT_EQ(old->b, "text");
  const auto back = decode_value<New>(encode_value(Old{}).value());
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(back.error().message, "New.extra: missing");
}

TEST(Wire, NamesTheFieldPathOfAWrongKind) {
  struct Wrong {
    std::vector<std::map<std::string, std::string>> points{{{"x", "1"}}};
    static constexpr auto fields() { return std::tuple{field("points", &Wrong::points)}; }
  };
  struct Right {
    std::vector<Point> points;
    static constexpr auto fields() { return std::tuple{field("points", &Right::points)}; }
  };
  const auto back = decode_value<Right>(encode_value(Wrong{}).value());
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().message, "Right.points[0]: wanted a record, found a list");
  const auto deep = decode_value<std::vector<Point>>(
      encode_value(std::vector<std::pair<int, int>>{{1, 2}}).value());
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().code, ErrorCode::kCorrupt);
}

TEST(Wire, RefusesNumbersThatDoNotFit) {
  const auto small = decode_value<std::int8_t>(encode_value(300).value());
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message, HasSubstr("300 does not fit into 8 bits"));
  EXPECT_FALSE(decode_value<std::uint32_t>(encode_value(-1).value()));
  EXPECT_FALSE(decode_value<std::int64_t>(encode_value(~std::uint64_t{0}).value()));
  EXPECT_FALSE(decode_value<Colour>(encode_value(3).value()));
  EXPECT_TRUE(decode_value<Colour>(encode_value(7).value()));
  EXPECT_FALSE(decode_value<std::vector<float>>(encode_value(std::vector<double>{1}).value()));
  EXPECT_FALSE(encode_value(static_cast<Colour>(3)));
}

TEST(Wire, RefusesValuesThatAreTooLarge) {
  const auto bytes = encode_value(std::string(kValueBytesMax + 1, 'x'));
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, ErrorCode::kResourceExhausted);
  const std::vector<std::string> many(std::size_t{4} << 20);
  EXPECT_FALSE(encode_value(many));
  EXPECT_FALSE(decode_value<int>(std::vector<std::byte>(kValueBytesMax + 8)));
}

TEST(Wire, BoundsTheDepthOfWhatItReads) {
  Tree deep;
  for (int i = 0; i < 100; ++i) {
    Tree outer;
    outer.children.push_back(std::move(deep));
    deep = std::move(outer);
  }
  const auto bytes = encode_value(deep);
  ASSERT_TRUE(bytes);
  const auto back = decode_value<Tree>(*bytes);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(back.error().message, HasSubstr("Tree.children[0].children[0]"));
}

TEST(Wire, SurvivesDamagedBytes) {
  Rng rng(7);
  const auto good = encode_value(random_everything(rng)).value();
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    auto bytes = good;
    for (std::uint64_t hits = 1 + rng.below(4); hits > 0; --hits)
      bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1 + rng.below(255));
    if (i % 4 == 0) bytes.resize(rng.below(bytes.size()) & ~std::size_t{7});
    const auto back = decode_value<Everything>(bytes);
    if (back) {
      EXPECT_TRUE(encode_value(*back));
    } else {
      ++refused;
      EXPECT_EQ(back.error().code, ErrorCode::kCorrupt) << back.error().to_string();
    }
  }
  EXPECT_GT(refused, 1000);
}

/// Whole batches, as a link without a data plane would carry them.
class WholeBatches final : public WireContext {
 public:
  result<std::vector<std::byte>> export_batch(const Batch& batch) override {
    return batch.to_bytes();
  }
  result<Batch> import_batch(std::span<const std::byte> bytes) override {
    return Batch::from_bytes(bytes);
  }
  result<std::vector<std::byte>> export_column(const Column& column) override {
    Batch batch;
    TROUPE_TRY_VOID(batch.set("column", column));
    return batch.to_bytes();
  }
  result<Column> import_column(std::span<const std::byte> bytes) override {
    TROUPE_TRY(const Batch batch, Batch::from_bytes(bytes));
    return batch.require("column");
  }
};

struct Scored {
  Batch batch;
  std::optional<Column> weights;
  static constexpr auto fields() {
    return std::tuple{field("batch", &Scored::batch), field("weights", &Scored::weights)};
  }
};

TEST(Wire, CarriesBatchesThroughItsContextOnly) {
  Scored scored;
  ASSERT_TRUE(scored.batch.set("x", Column::dense<float>({1, 2, 3})));
  const auto without = encode_value(scored);
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(without.error().message, "Scored: a batch needs a column exchange to travel");
  scored.weights = Column::dense<double>({4, 5});
  WholeBatches context;
  const auto bytes = encode_value(scored, &context);
  ASSERT_TRUE(bytes);
  const auto back = decode_value<Scored>(*bytes, &context);
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ(back->batch, scored.batch);
  EXPECT_TRUE(back->weights->bitwise_equal(*scored.weights));
  EXPECT_EQ(decode_value<Scored>(*bytes).error().code, ErrorCode::kUnsupported);
}

TEST(Wire, SignaturesTellShapesApart) {
  EXPECT_EQ(wire_signature<std::vector<float>>(), wire_signature<std::vector<float>>());
  EXPECT_NE(wire_signature<std::vector<float>>(), wire_signature<std::vector<double>>());
  EXPECT_NE(wire_signature<Old>(), wire_signature<New>());
  EXPECT_NE((wire_signature<std::pair<int, bool>>()), (wire_signature<std::pair<bool, int>>()));
  EXPECT_NE(wire_signature<Tree>(), wire_signature<std::vector<Tree>>());
}

static_assert(Wireable<std::vector<std::map<std::string, Batch>>>);
static_assert(!Wireable<int*> && !Wireable<std::vector<int*>> && !Wireable<std::optional<int*>>);
static_assert(!Wireable<std::optional<std::optional<int>>>);
static_assert(wire_type_name<Point>() == "Point");

}  // namespace
}  // namespace troupe::runtime
