// Proves that a configuration is what its file, overrides and defaults say, that printing it and
// reading it again gives the same tree, and that every mistake is one error with key and place.
// Oracle for the round trip: random trees of values, seed printed.

#include "runtime/config/config.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/config/scalar.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

namespace troupe::runtime {
namespace {

Schema small_schema() {
  Schema s;
  s.integer("trainer.seed", 1, "seed").within(at_least(0));
  s.text("trainer.name", "run", "name");
  s.optional_key("trainer.steps", ValueType::kInt, "steps").within(at_least(1));
  s.boolean("data.shuffle", true, "shuffle");
  s.texts("data.files", {}, "files");
  s.number("optim.lr", 1e-6, "rate").within(positive());
  s.numbers("optim.betas", {0.9, 0.999}, "betas").of_size(2).within(between(0, 1));
  s.integers("optim.milestones", {}, "steps");
  s.text("loss.kind", "k3", "estimator").one_of({"k1", "k3"}).also_spelled("low_var_kl", "k3");
  s.optional_key("loss.clip", ValueType::kDouble, "both");
  s.number("loss.clip_low", 0.2, "low").or_value_of("loss.clip");
  s.number("loss.clip_high", 0.2, "high").or_value_of("loss.clip");
  s.open_section("custom", "anything");
  s.refused("trainer.logger", "metrics are always written");
  s.alias("trainer.random_seed", "trainer.seed");
  return s;
}

result<Config> parse(std::string_view yaml, std::vector<std::string> overrides = {}) {
  static const Schema schema = small_schema();
  return Config::parse(schema, yaml, "c.yaml", overrides);
}

/// The message of a refusal, which must be kConfig.
std::string refusal(std::string_view yaml, std::vector<std::string> overrides = {}) {
  const auto config = parse(yaml, std::move(overrides));
  if (config) return "(accepted)";
  EXPECT_EQ(config.error().code, ErrorCode::kConfig);
  return config.error().message;
}

TEST(Config, DefaultsFileAndOverridesInThatOrder) {
  const auto config = parse("trainer:\n  seed: 7\ndata:\n  files: [a, b]\n",
                            {"trainer.seed=8", "optim.lr=1e-3", "trainer.seed=9"});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->get<int>("trainer.seed"), 9);
  EXPECT_EQ(config->get<std::int64_t>("trainer.seed"), 9);
  EXPECT_EQ(config->get<double>("optim.lr"), 1e-3);
  EXPECT_EQ(config->get<std::vector<std::string>>("data.files"),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config->get<bool>("data.shuffle"), true);
  EXPECT_EQ(config->get_optional<int>("trainer.steps"), std::nullopt);
  EXPECT_EQ(config->place("trainer.seed"), "command line");
  EXPECT_EQ(config->place("data.files"), "c.yaml:4");
  EXPECT_EQ(config->place("data.shuffle"), "default");
  EXPECT_TRUE(config->is_set("data.files"));
  EXPECT_FALSE(config->is_set("data.shuffle"));
  EXPECT_EQ(config->keys_below("data"), (std::vector<std::string>{"files", "shuffle"}));
}

TEST(Config, ReadsValuesOfEachTypeAsPeopleWriteThem) {
  struct Row {
    const char* text;
    double lr;
  };
  for (const Row& row : std::vector<Row>{{"1e-6", 1e-6},
                                         {"1", 1},
                                         {"1_000", 1000},
                                         {".5", 0.5},
                                         {"+2.5", 2.5},
                                         {"1E3", 1000},
                                         {"5.", 5}}) {
    const auto config = parse(std::string("optim: {lr: ") + row.text + "}");
    ASSERT_TRUE(config) << row.text << ": " << config.error().message;
    EXPECT_EQ(config->get<double>("optim.lr"), row.lr) << row.text;
    const auto by_override = parse("", {std::string("optim.lr=") + row.text});
    ASSERT_TRUE(by_override) << row.text;
    EXPECT_EQ(by_override->get<double>("optim.lr"), row.lr) << row.text;
  }
  EXPECT_EQ(parse("trainer: {seed: 1e3}")->get<int>("trainer.seed"), 1000);
  EXPECT_EQ(parse("trainer: {seed: 0x1f}")->get<int>("trainer.seed"), 31);
  EXPECT_EQ(parse("trainer: {seed: 9223372036854775807}")->get<std::int64_t>("trainer.seed"),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse("trainer: {name: 007}")->get<std::string>("trainer.name"), "007");
  EXPECT_EQ(parse("trainer: {name: 'null'}")->get<std::string>("trainer.name"), "null");
  EXPECT_EQ(parse("", {"trainer.name="})->get<std::string>("trainer.name"), "");
  EXPECT_EQ(parse("", {"trainer.name=a: b #c [x"})->get<std::string>("trainer.name"), "a: b #c [x");
  EXPECT_EQ(parse("", {"trainer.name=\"a\\nb\""})->get<std::string>("trainer.name"), "a\nb");
  EXPECT_EQ(parse("data: {files: one}")->get<std::vector<std::string>>("data.files"),
            std::vector<std::string>{"one"});
  EXPECT_EQ(parse("", {"optim.betas=[0, 1]"})->get<std::vector<double>>("optim.betas"),
            (std::vector<double>{0, 1}));
  EXPECT_EQ(
      parse("", {"optim.milestones=[1,2]"})->get<std::vector<std::int64_t>>("optim.milestones"),
      (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(parse("trainer: {steps: 5}", {"trainer.steps=null"})->is_null("trainer.steps"));
  EXPECT_EQ(parse("loss: {kind: low_var_kl}")->get<std::string>("loss.kind"), "k3");
  EXPECT_EQ(parse("trainer.seed: 4")->get<int>("trainer.seed"), 4);
  EXPECT_EQ(parse("", {"trainer={seed: 4, name: x}"})->get<int>("trainer.seed"), 4);
  EXPECT_EQ(parse("trainer: {random_seed: 6}")->get<int>("trainer.seed"), 6);
  EXPECT_EQ(parse("", {"trainer.random_seed=6"})->get<int>("trainer.seed"), 6);
  EXPECT_EQ(parse("data:\ntrainer:\n  seed: 2")->get<int>("trainer.seed"), 2);
  EXPECT_EQ(parse("a: &s 5\n", {}).has_value(), false);
  EXPECT_EQ(parse("trainer: {seed: &s 5, steps: *s}")->get<int>("trainer.steps"), 5);
  for (const char* empty : {"", "# only a comment\n", "---\n", "\n\n", "{}"}) {
    EXPECT_TRUE(parse(empty)) << empty;
  }
}

TEST(Config, EveryMistakeNamesKeyValueAndPlace) {
  struct Row {
    std::string yaml;
    std::vector<std::string> wanted;
  };
  const std::vector<Row> rows{
      {"trainer:\n  sede: 3",
       {"c.yaml:2", "unknown key 'trainer.sede'", "did you mean trainer.seed?"}},
      {"trainr:\n  seed: 3", {"c.yaml:1", "unknown section 'trainr'", "did you mean trainer?"}},
      {"model: {lr: 3}", {"unknown section 'model'"}},
      {"trainer: {seed: 1.5}", {"c.yaml:1", "trainer.seed", "'1.5'", "integer"}},
      {"trainer: {seed: '3'}", {"trainer.seed", "quoted text '3'", "integer"}},
      {"trainer: {seed: yes}", {"trainer.seed", "'yes'", "integer"}},
      {"trainer: {seed: [1]}", {"trainer.seed", "a list", "integer"}},
      {"trainer: {seed: {a: 1}}", {"trainer.seed", "section", "integer"}},
      {"trainer: {seed: }", {"trainer.seed", "null is not allowed"}},
      {"trainer: {seed: ~}", {"trainer.seed", "null is not allowed"}},
      {"trainer: {seed: -1}", {"trainer.seed", "-1 is out of range", "at least 0"}},
      {"trainer: {seed: 9223372036854775808}", {"trainer.seed", "integer"}},
      {"trainer: {seed: 1__0}", {"trainer.seed", "integer"}},
      {"trainer: {seed: _1}", {"trainer.seed", "integer"}},
      {"trainer: {seed: 0x}", {"trainer.seed", "integer"}},
      {"trainer: {seed: --1}", {"trainer.seed", "integer"}},
      {"trainer: {name: [a]}", {"trainer.name", "text"}},
      {"data: {shuffle: yes}", {"data.shuffle", "'yes'", "boolean"}},
      {"data: {shuffle: 1}", {"data.shuffle", "boolean"}},
      {"data: {files: [a, [b]]}", {"data.files", "element 1"}},
      {"data: {files: [a, ~]}", {"data.files", "element 1", "null"}},
      {"optim: {lr: 0}", {"optim.lr", "0 is out of range", "above 0"}},
      {"optim: {lr: .inf}", {"optim.lr", "not finite"}},
      {"optim: {lr: nan}", {"optim.lr", "not finite"}},
      {"optim: {lr: 1e999}", {"optim.lr", "number"}},
      {"optim: {lr: 1e}", {"optim.lr", "'1e'", "number"}},
      {"optim: {lr: 0.1.2}", {"optim.lr", "number"}},
      {"optim: {betas: [0.9]}", {"optim.betas", "1 elements, wanted 2"}},
      {"optim: {betas: [0.9, 2]}", {"optim.betas", "element 1", "out of range"}},
      {"optim: {betas: [0.9, x]}", {"optim.betas", "element 1", "'x'"}},
      {"loss: {kind: k33}", {"loss.kind", "'k33'", "k1, k3", "did you mean k3?"}},
      {"trainer: {seed: 1, seed: 2}", {"trainer.seed is given twice"}},
      {"trainer: {seed: 1}\ntrainer: {seed: 1}", {"c.yaml:2", "given twice", "c.yaml:1"}},
      {"trainer: {seed: 1}\ntrainer.seed: 2", {"given twice"}},
      {"trainer: {seed: 1, random_seed: 1}", {"trainer.seed is given twice"}},
      {"trainer: {logger: console}", {"trainer.logger is not taken: metrics are always written"}},
      {"trainer: 3", {"trainer is a section, not a value"}},
      {"- a\n- b", {"top level must be a mapping"}},
      {"just text", {"top level must be a mapping"}},
      {"trainer: {seed: 1", {"c.yaml: line"}},
      {"trainer:\n  seed: 1\n bad", {"c.yaml: line"}},
      {"a: 1\n---\nb: 2", {"2 YAML documents"}},
      {"? [1, 2]\n: 3", {"c.yaml:1", "a key must be a plain name"}},
      {"base: &b {seed: 1}\ntrainer: {<<: *b}", {"merge keys"}},
      {"trainer: {.seed: 1}", {"'.seed' is not a name"}},
      {"trainer: {'a..b': 1}", {"not a name"}},
      {"'': 1", {"a key must be a plain name"}},
      {"trainer: &x {y: *x}", {"unknown"}},
      {"custom: &x {y: *x}", {"anchor refer to itself"}},
      {"custom: {a: 1, a: 2}", {"custom.a is given twice"}},
      {"custom: {a: 1, a.b: 2}", {"custom.a is a value at"}},
      {"custom: {a.b: 1, a: 2}", {"a value here and a section at"}},
      {"custom: {a: [[1]]}", {"scalars only"}},
      {"custom: 3", {"custom is a section"}},
      {std::string("trainer: {name: \xff\xfe}"), {"not valid UTF-8"}},
  };
  for (const auto& row : rows) {
    const std::string message = refusal(row.yaml);
    for (const auto& wanted : row.wanted) {
      EXPECT_NE(message.find(wanted), std::string::npos)
          << row.yaml << "\n  said " << message << "\n  wanted " << wanted;
    }
  }
}

TEST(Config, OverrideMistakesAreNamedToo) {
  struct Row {
    std::string text;
    std::string wanted;
  };
  for (const Row& row : std::vector<Row>{
           {"+trainer.seed=3", "write trainer.seed=value"},
           {"++trainer.seed=3", "write trainer.seed=value"},
           {"~trainer.seed", "write trainer.seed"},
           {"trainer.seed", "is not key.path=value"},
           {"=3", "is not a dotted key"},
           {"", "is not key.path=value"},
           {"trainer.seed=", "no value; write null for none"},
           {"trainer..seed=3", "is not a dotted key"},
           {".=3", "is not a dotted key"},
           {"trainer.sede=3", "did you mean trainer.seed?"},
           {"trainer.seed=[1", "command line: 'trainer.seed=[1'"},
           {"trainer.seed=a b", "integer"},
           {"trainer=3", "trainer is a section"},
           {"optim.betas=[1]", "wanted 2"},
           {"seed=3", "did you mean trainer.seed?"},
           {"trainer.name=\xff", "not valid UTF-8"},
       }) {
    const std::string message = refusal("", {row.text});
    EXPECT_NE(message.find(row.wanted), std::string::npos) << row.text << " said " << message;
    EXPECT_NE(message.find("command line"), std::string::npos) << message;
  }
}

TEST(Config, ReportsAllMistakesAtOnceUpToALimit) {
  const std::string two = refusal("trainer: {seed: x}\noptim: {lr: y}");
  EXPECT_NE(two.find("2 mistakes"), std::string::npos) << two;
  EXPECT_NE(two.find("trainer.seed"), std::string::npos);
  EXPECT_NE(two.find("optim.lr"), std::string::npos);
  std::string many;
  for (int i = 0; i < 10000; ++i) many += "unknown_key_number_" + std::to_string(i) + ": 1\n";
  const std::string message = refusal(many);
  EXPECT_NE(message.find("10000 mistakes"), std::string::npos) << message;
  EXPECT_LT(message.size(), 5000U);
}

TEST(Config, HostileInputEndsInAnErrorNotInACrash) {
  std::string bomb = "custom:\n  a0: &a0 {x: 1, y: 2, z: 3, u: 4}\n";
  for (int i = 1; i < 12; ++i) {
    bomb += "  a" + std::to_string(i) + ": &a" + std::to_string(i) + " {";
    for (int k = 0; k < 8; ++k) {
      bomb += (k > 0 ? ", k" : "k") + std::to_string(k) + ": *a" + std::to_string(i - 1);
    }
    bomb += "}\n";
  }
  EXPECT_NE(refusal(bomb).find("more than 100000 values"), std::string::npos);
  EXPECT_NE(refusal("custom: " + std::string(3000, '[')).find("c.yaml"), std::string::npos);
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "{a: ";
  EXPECT_NE(refusal("custom: " + deep + "1" + std::string(200, '}')).find("deeper than 64"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(5 << 20, '#')).find("limit"), std::string::npos);
  EXPECT_NE(refusal(std::string("a: \x01\n")).find("c.yaml"), std::string::npos);
  const std::string hostile = refusal("\"x\\n\\e[31m" + std::string(500, 'y') + "\": 1");
  EXPECT_EQ(hostile.find('\x1b'), std::string::npos)
      << "escape sequences must not reach a terminal";
  EXPECT_LT(hostile.size(), 400U);
}

TEST(Config, TenThousandKeysInAnOpenSection) {
  std::string yaml = "custom:\n";
  for (int i = 0; i < 10000; ++i)
    yaml += "  k" + std::to_string(i) + ": " + std::to_string(i) + "\n";
  const auto config = parse(yaml);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->keys_below("custom").size(), 10000U);
  EXPECT_EQ(config->get<int>("custom.k9999"), 9999);
}

TEST(Config, FallbackTakesTheOtherKeysValueUnlessSet) {
  const auto both = parse("loss: {clip: 0.3}");
  EXPECT_EQ(both->get<double>("loss.clip_low"), 0.3);
  EXPECT_EQ(both->get<double>("loss.clip_high"), 0.3);
  EXPECT_EQ(both->place("loss.clip_low"), "c.yaml:1");
  const auto one = parse("loss: {clip: 0.3, clip_high: 0.5}");
  EXPECT_EQ(one->get<double>("loss.clip_low"), 0.3);
  EXPECT_EQ(one->get<double>("loss.clip_high"), 0.5);
  EXPECT_EQ(parse("")->get<double>("loss.clip_low"), 0.2);
  EXPECT_EQ(parse("loss: {clip: null}")->get<double>("loss.clip_low"), 0.2);
}

TEST(Config, RulesSeeResolvedValuesAndTheirRefusalNamesThePlace) {
  Schema s = small_schema();
  s.rule([](const Config& c) -> result<void> {
    if (c.get<int>("trainer.seed") == 13) return c.refuse("trainer.seed", "brings bad luck");
    return {};
  });
  EXPECT_TRUE(Config::parse(s, "", "c.yaml"));
  const auto refused = Config::parse(s, "trainer:\n  seed: 13", "c.yaml");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "c.yaml:2: trainer.seed = '13': brings bad luck");
}

TEST(Config, WrongUseIsACheckFailure) {
  const auto config = parse("");
  EXPECT_THROW((void)config->get<int>("trainer.sede"), CheckFailure);
  EXPECT_THROW((void)config->get<double>("trainer.seed"), CheckFailure);
  EXPECT_THROW((void)config->get<int>("trainer.steps"), CheckFailure);  // null
  EXPECT_THROW((void)config->place("nothing"), CheckFailure);
  Schema s = small_schema();
  EXPECT_THROW(s.integer("trainer.seed", 1, ""), CheckFailure);
  EXPECT_THROW(s.integer("trainer", 1, ""), CheckFailure);
  EXPECT_THROW(s.integer("trainer.seed.x", 1, ""), CheckFailure);
  EXPECT_THROW(s.integer("custom.x", 1, ""), CheckFailure);
  EXPECT_THROW(s.integer("a..b", 1, ""), CheckFailure);
  EXPECT_THROW(s.integer("a.b", -1, "").within(at_least(0)), CheckFailure);
  EXPECT_THROW(s.text("a.c", "x", "").one_of({"y"}), CheckFailure);
  EXPECT_THROW(s.alias("a.d", "nothing"), CheckFailure);
}

TEST(Config, LoadsFilesAndNamesThoseThatCannotBeRead) {
  const Schema schema = small_schema();
  const std::string path = testing::TempDir() + "troupe_config_test.yaml";
  std::ofstream(path) << "trainer: {seed: 5}\n";
  const auto config = Config::load(schema, path, std::vector<std::string>{"trainer.name=x"});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->get<int>("trainer.seed"), 5);
  EXPECT_EQ(config->place("trainer.seed"), path + ":1");
  std::remove(path.c_str());
  const auto missing = Config::load(schema, path);
  EXPECT_EQ(missing.error().code, ErrorCode::kConfig);
  EXPECT_NE(missing.error().message.find(path), std::string::npos);
  EXPECT_EQ(Config::load(schema, testing::TempDir()).error().code, ErrorCode::kConfig);
  EXPECT_TRUE(Config::load(schema, ""));
}

std::string random_text(Rng& rng) {
  static const std::vector<std::string> pieces{
      "a",    "B",      "7",      " ",    ":",
      "#",    "\n",     "\t",     "\"",   "'",
      "\\",   "{",      "]",      ",",    "&",
      "*",    "!",      "-",      "null", "true",
      "~",    "é",      "日",     "🙂", std::string(1, '\0'),
      "\x01", "\x7f",   "\r",     "%",    "@",
      "`",    "\u2028", "\u0085", ".",    "1e5",
      "0x1",  "=",      "?",      "|",    ">"};
  std::string text;
  for (std::uint64_t k = rng.below(6); k > 0; --k) text += pieces[rng.below(pieces.size())];
  return text;
}

std::string random_number(Rng& rng) {
  const double value = rng.normal() * std::pow(10.0, static_cast<double>(rng.below(40)) - 20);
  return fmt::format("{}", std::fabs(value) + 1e-30);
}

TEST(Config, PrintedTreeReadsBackEqual) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    std::vector<std::string> overrides{
        "trainer.name=" + quoted_yaml(random_text(rng)),
        "trainer.seed=" + std::to_string(rng.next() >> 1),
        "optim.lr=" + random_number(rng),
        "data.files=[" + quoted_yaml(random_text(rng)) + ", " + quoted_yaml(random_text(rng)) + "]",
    };
    if (rng.below(2) == 0) overrides.push_back("loss.clip=" + random_number(rng));
    for (int i = 0; i < 4; ++i) {
      const std::string key = "custom.k" + std::to_string(i) + (rng.below(2) == 0 ? ".x" : "");
      switch (rng.below(6)) {
        case 0:
          overrides.push_back(key + "=" + quoted_yaml(random_text(rng)));
          break;
        case 1:
          overrides.push_back(key + "=-" + random_number(rng));
          break;
        case 2:
          overrides.push_back(key + "=" + std::to_string(rng.next() >> 1));
          break;
        case 3:
          overrides.push_back(key + "=[1, 2.5, -3]");
          break;
        case 4:
          overrides.push_back(key + "=[1, '2', x]");
          break;
        default:
          overrides.push_back(key + "=" + (rng.below(2) == 0 ? "null" : "False"));
          break;
      }
    }
    const auto config = parse("", overrides);
    ASSERT_TRUE(config) << config.error().message << " seed " << seed;
    for (bool comments : {false, true}) {
      const std::string yaml = config->to_yaml(comments);
      const auto again = parse(yaml);
      ASSERT_TRUE(again) << again.error().message << "\n" << yaml << " seed " << seed;
      EXPECT_TRUE(*again == *config) << yaml << "\n--\n" << again->to_yaml() << " seed " << seed;
    }
  }
}

TEST(Config, PrintsInDeclarationOrderWithDocLines) {
  const std::string yaml = parse("")->to_yaml(true);
  EXPECT_EQ(yaml.substr(0, yaml.find("data:")),
            "trainer:\n  seed: 1  # seed\n  name: run  # name\n  steps: null  # steps\n");
  EXPECT_FALSE(*parse("trainer: {seed: 2}") == *parse(""));
  const std::string described = small_schema().describe();
  EXPECT_NE(described.find("optim.lr = 1e-06  (number above 0): rate"), std::string::npos)
      << described;
}

TEST(Scalar, ShownTextIsShortPrintableAndWhole) {
  EXPECT_EQ(shown("a\nb"), "'a\\x0ab'");
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "日";
  EXPECT_TRUE(is_valid_utf8(shown(wide)));
  EXPECT_LT(shown(wide).size(), 90U);
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x97", "\xff"}) {
    EXPECT_FALSE(is_valid_utf8(bad));
  }
}

}  // namespace
}  // namespace troupe::runtime
