// Proves that the whole tree keeps the rules of CONTRIBUTING.md that a program can check: lengths,
// header paragraphs, include order and layers, banned includes and calls, TODO kinds, dead files,
// titles and links. Each rule is first shown to catch a small offender. Exceptions live in
// tests/tidy_ratchet.txt, which may only shrink.

#include "tests/tidy/rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace troupe::tidy {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> rules_broken(const Offences& offences) {
  std::vector<std::string> rules;
  for (const Offence& offence : offences) rules.push_back(offence.rule);
  return rules;
}

std::string repeated(const std::string& line, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line;
  return text;
}

Offences one_file(const std::string& path, const std::string& text) {
  const std::vector<SourceFile> files{parse_source(path, text)};
  Offences all = shape_rules(files[0]);
  for (const Offences& more : {paragraph_rules(files[0]), include_rules(files[0]), banned_rules(files[0])})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Tidy, TheTreeKeepsTheRules) {
  const std::filesystem::path root = TROUPE_SOURCE_DIR;
  const auto files = read_tree(root);
  ASSERT_GT(files.size(), 50U) << "the tree was not found at " << root;
  Ratchet ratchet;
  for (const SourceFile& file : files) {
    if (file.path == "tests/tidy_ratchet.txt") ratchet = parse_ratchet(file);
  }
  const Offences left = against_ratchet(all_rules(files, root), ratchet);
  EXPECT_TRUE(left.empty()) << left.size() << " offences:" << to_text(left);
}

TEST(TidyRules, LengthsAreBounded) {
  EXPECT_THAT(rules_broken(one_file("runtime/a.cpp", repeated("int x;\n", 601))), Contains("file-length"));
  EXPECT_THAT(rules_broken(one_file("tests/a.cpp", repeated("int x;\n", 601))), Not(Contains("file-length")));
  EXPECT_THAT(rules_broken(one_file("runtime/a.cpp", std::string(101, 'x') + "\n")), Contains("line-length"));
  EXPECT_THAT(one_file("runtime/a.cpp", "// " + repeated("é", 97) + "\n"), IsEmpty()) << "columns, not bytes";
  const std::string body = repeated("  work();\n", 69);
  EXPECT_THAT(rules_broken(one_file("runtime/a.cpp", "void f() {\n" + body + "}\n")), Contains("function-length"));
  EXPECT_THAT(one_file("runtime/a.cpp", "void f() {\n" + repeated("  work();\n", 68) + "}\n"), IsEmpty());
  EXPECT_THAT(one_file("runtime/a.cpp", "namespace a {\nclass B {\n" + body + "};\n}\n"), IsEmpty());
  EXPECT_THAT(one_file("runtime/a.cpp", "#if defined(A) && \\\n    defined(B)\n#endif\nnamespace a {\n" + body + "}\n"),
              IsEmpty());
  EXPECT_THAT(rules_broken(one_file("runtime/a.cpp", "class B {\n  int f(int a) const override {\n    if (a) {\n" +
                                                         body + "  }\n}\n};\n")),
              Contains("function-length"));
}

TEST(TidyRules, CommentsAndLiteralsAreNotCode) {
  EXPECT_THAT(one_file("runtime/a.cpp", "// assert(x) [=]\nauto s = \"assert(x)\";\nauto r = R\"x(rand()\n)x\";\n"),
              IsEmpty());
  EXPECT_THAT(rules_broken(one_file("runtime/a.cpp", "int n = 1'000; /* a */ assert(n);\n")), Contains("banned-word"));
  const std::string brace = "void f() {\n  g('{', \"}\");\n" + repeated("  work();\n", 69) + "}\n";
  EXPECT_THAT(rules_broken(one_file("runtime/a.cpp", brace)), Contains("function-length"));
}

TEST(TidyRules, HeadersOpenWithTheirParagraphAndTestsWithTheirClaim) {
  EXPECT_THAT(one_file("runtime/a.hpp", "#pragma once\n\n// Purpose.\n// **Threads:** any.\n"), IsEmpty());
  for (const char* text : {"// Purpose. **Threads:** any.\n#pragma once\n", "#pragma once\n\n// Purpose.\n",
                           "#pragma once\n#include <map>\n// **Threads:** too late.\n", ""})
    EXPECT_THAT(rules_broken(one_file("runtime/a.hpp", text)), Contains("header-paragraph")) << text;
  EXPECT_THAT(rules_broken(one_file("tests/a_test.cpp", "#include <map>\n")), Contains("test-paragraph"));
}

TEST(TidyRules, IncludesAreOrderedAbsoluteAndPointDown) {
  EXPECT_THAT(one_file("actors/a.cpp",
                       "#include \"actors/a.hpp\"\n#include \"runtime/b.hpp\"\n"
                       "#include <fmt/format.h>\n#include <map>\n"),
              IsEmpty());
  EXPECT_THAT(rules_broken(one_file("actors/a.cpp", "#include <map>\n#include <fmt/format.h>\n")),
              Contains("include-order"));
  EXPECT_THAT(rules_broken(one_file("actors/a.cpp", "#include \"runtime/b.hpp\"\n#include \"actors/a.hpp\"\n")),
              Contains("include-order"));
  EXPECT_THAT(rules_broken(one_file("actors/a.cpp", "#include \"b.hpp\"\n")), Contains("include-path"));
  for (const auto& [path, target] :
       std::vector<std::pair<std::string, std::string>>{{"runtime/a.cpp", "actors/b.hpp"},
                                                        {"placement/a.cpp", "reshard/b.hpp"},
                                                        {"actors/a.cpp", "sim/b.hpp"},
                                                        {"sim/a.cpp", "apps/b.hpp"},
                                                        {"runtime/base/a.cpp", "runtime/batch/b.hpp"},
                                                        {"actors/a.cpp", "tests/b.hpp"}})
    EXPECT_THAT(rules_broken(one_file(path, "#include \"" + target + "\"\n")), Contains("layering")) << path;
  EXPECT_THAT(one_file("sim/a.cpp", "#include \"actors/b.hpp\"\n"), IsEmpty());
}

TEST(TidyRules, BannedIncludesAndWordsNameTheReplacement) {
  for (const auto& [path, text, instead] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"runtime/group/a.cpp", "#include <caf/all.hpp>\n", "runtime/caf.hpp"},
           {"runtime/batch/a.cpp", "#include \"schemas/batch.capnp.h\"\n", "_codec.cpp"},
           {"runtime/comm/a.cpp", "#include <ucp/api/ucp.h>\n", "transport.hpp"},
           {"runtime/comm/a.cpp", "#include <nccl.h>\n", "collective.hpp"},
           {"runtime/a.cpp", "#include <torch/torch.h>\n", "pimpl"},
           {"actors/train/a.hpp", "#include <torch/torch.h>\n", "pimpl"},
           {"actors/a.cpp", "#include <iostream>\n", "log.hpp"},
           {"actors/a.cpp", "#include <random>\n", "rng.hpp"},
           {"actors/a.cpp", "#include <cassert>\n", "TROUPE_CHECK"},
           {"actors/a.cpp", "auto f = [=] { return 1; };\n", "by name"},
           {"actors/a.cpp", "std::cout << 1;\n", "log::info"},
           {"actors/a.cpp", "int src = 1;\n", "source"},
           {"actors/a.cpp", "worker.detach();\n", "joined"},
           {"actors/a.cpp", "std::abort();\n", "Error"}}) {
    const Offences found = one_file(path, text);
    ASSERT_FALSE(found.empty()) << text;
    EXPECT_THAT(to_text(found), HasSubstr(instead)) << text;
  }
  EXPECT_THAT(one_file("runtime/batch/batch_codec.cpp", "#include \"schemas/batch.capnp.h\"\n"), IsEmpty());
  EXPECT_THAT(one_file("actors/train/a.cpp", "#include <torch/torch.h>\n"), IsEmpty());
  EXPECT_THAT(one_file("bench/a.cpp", "#include <iostream>\nint main() { std::cout << 1; }\n"), IsEmpty());
}

TEST(TidyRules, TodosHaveAKind) {
  EXPECT_THAT(one_file("actors/a.cpp", "// TODO(perf): fuse the two loops\n"), IsEmpty());
  for (const char* text : {"// TODO: x\n", "// TODO(me): x\n", "// FIXME\n", "// XXX later\n", "// HACK\n"})
    EXPECT_THAT(rules_broken(one_file("actors/a.cpp", text)), Contains("todo-kind")) << text;
}

TEST(TidyRules, DeadFilesAreFound) {
  const std::vector<SourceFile> files{
      parse_source("tests/CMakeLists.txt", "troupe_test(a DIR tests/a LIBS a)\n"),
      parse_source("runtime/used.hpp", ""),
      parse_source("runtime/dead.hpp", ""),
      parse_source("tests/a/used_test.cpp", "#include \"runtime/used.hpp\"\n#include \"schemas/x.capnp.h\"\n"),
      parse_source("tests/b/dead_test.cpp", ""),
      parse_source("schemas/x.capnp", ""),
      parse_source("schemas/dead.capnp", ""),
      parse_source("bench/dead.cpp", ""),
      parse_source("README.md", "# T\n[a](docs/used.md)\n"),
      parse_source("docs/used.md", "# U\n"),
      parse_source("docs/dead.md", "# D\n[self](dead.md)\n")};
  const Offences found = dead_file_rules(files);
  ASSERT_EQ(found.size(), 5U) << to_text(found);
  for (const Offence& offence : found) EXPECT_THAT(offence.path, HasSubstr("dead"));
}

TEST(TidyRules, PagesHaveOneTitleAndLinksThatResolve) {
  const std::filesystem::path root = TROUPE_SOURCE_DIR;
  const auto broken = [&root](const std::string& text) {
    return rules_broken(markdown_rules(std::vector{parse_source("page.md", text)}, root));
  };
  EXPECT_THAT(broken("# One\n## Two words, *really*\n[a](#two-words-really) [b](CMakeLists.txt) "
                     "[c](https://example.com)\n```\n# not a title\n[no](nowhere.md)\n```\n"),
              IsEmpty());
  EXPECT_THAT(broken("text\n# One\n"), Contains("one-title"));
  EXPECT_THAT(broken("# One\n# Two\n"), Contains("one-title"));
  EXPECT_THAT(broken("# One\n[a](nowhere.md)\n"), Contains("broken-link"));
  EXPECT_THAT(broken("# One\n[a](#nowhere)\n"), Contains("broken-link"));
}

TEST(TidyRatchet, AllowsWhatItListsAndMustShrinkWithIt) {
  const Ratchet ratchet = parse_ratchet(parse_source("r.txt", "# comment\nline-length a.cpp 2\n"));
  const auto offences = [](std::size_t count) { return Offences(count, {"line-length", "a.cpp", 1, "m"}); };
  EXPECT_THAT(against_ratchet(offences(2), ratchet), IsEmpty());
  EXPECT_EQ(against_ratchet(offences(3), ratchet).size(), 3U);
  EXPECT_THAT(rules_broken(against_ratchet(offences(1), ratchet)), Contains("ratchet"));
  EXPECT_THAT(rules_broken(against_ratchet({}, ratchet)), Contains("ratchet"));
  EXPECT_EQ(against_ratchet({{"line-length", "b.cpp", 1, "m"}}, ratchet).size(), 2U);
}

}  // namespace
}  // namespace troupe::tidy
