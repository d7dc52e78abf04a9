#include "tests/tidy/rules.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace troupe::tidy {
namespace {

// Layers from the bottom up; an include may point to the same place or further down.
constexpr std::array<std::string_view, 7> kLayers{"schemas", "runtime", "placement", "reshard",
                                                  "actors",  "sim",     "apps"};

std::optional<std::size_t> layer_index(std::string_view layer) {
  const auto found = std::find(kLayers.begin(), kLayers.end(), layer);
  if (found == kLayers.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kLayers.begin());
}

bool is_test(const SourceFile& file) { return file.is_under("tests/"); }
/// Library code, as opposed to programs and tests.
bool is_library(const SourceFile& file) {
  return file.is_code() && layer_index(file.layer()) && !file.is_under("apps/");
}

std::size_t columns(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// One thing that must not stand in code, and what to write instead.
struct Ban {
  std::string pattern;
  std::string instead;
  bool (*applies)(const SourceFile&);
};

bool outside_caf_header(const SourceFile& file) {
  return file.path != "runtime/caf.hpp" && file.path != "runtime/caf_io.hpp";
}
bool outside_codecs(const SourceFile& file) {
  return file.file_name().find("codec") == std::string::npos && !is_test(file);
}
bool outside_ucx(const SourceFile& file) { return file.path.find("_ucx.") == std::string::npos; }
bool outside_gloo(const SourceFile& file) { return file.path.find("_gloo.") == std::string::npos; }
bool outside_nccl(const SourceFile& file) { return file.path.find("_nccl.") == std::string::npos; }
bool any_file(const SourceFile&) { return true; }
bool torch_free_place(const SourceFile& file) {
  const bool torch_folder = file.is_under("actors/model/") || file.is_under("actors/train/") ||
                            file.is_under("tests/actors/decoder/") ||
                            file.is_under("tests/actors/train/") || file.is_under("bench/");
  return !torch_folder;
}
/// Tensors have a `detach` of their own.
bool torch_free_library(const SourceFile& file) {
  return is_library(file) && torch_free_place(file);
}
bool library_header(const SourceFile& file) { return file.is_header() && is_library(file); }

const std::vector<Ban>& banned_includes() {
  static const std::vector<Ban> kBans{
      {R"(^caf/.*)", "\"runtime/caf.hpp\"", outside_caf_header},
      {R"(^(capnp|kj)/.*|.*\.capnp\.h$)", "a *_codec.cpp beside it", outside_codecs},
      {R"(^uc[pst]/.*)", "runtime/comm/transport.hpp", outside_ucx},
      {R"(^gloo/.*)", "runtime/comm/collective_gloo.hpp", outside_gloo},
      {R"(^nccl\.h$)", "runtime/comm/collective.hpp", outside_nccl},
      {R"(^(torch|ATen|c10)/.*)", "actors/train or actors/model behind a pimpl", torch_free_place},
      {R"(^(torch/.*|ATen/(?!core/Tensor\.h$).*))", "<ATen/core/Tensor.h> or a pimpl",
       library_header},
      {R"(^iostream$)", "\"runtime/base/log.hpp\"", is_library},
      {R"(^random$)", "\"runtime/base/rng.hpp\"", is_library},
      {R"(^regex$)", "PCRE2, which runs in linear time", is_library},
      {R"(^(cassert|assert\.h)$)", "TROUPE_CHECK or TROUPE_DCHECK", any_file},
      {R"(^bits/.*)", "the standard headers by name", any_file},
  };
  return kBans;
}

const std::vector<Ban>& banned_words() {
  static const std::vector<Ban> kBans{
      {R"(\[=)", "captures by name", any_file},
      {R"(\busing namespace std\s*;)", "std:: before each name", any_file},
      {R"(\bstd::(cout|cerr|endl)\b|\bprintf\()", "log::info and its kin", is_library},
      {R"(\b(s?rand|srandom)\()", "troupe::Rng", any_file},
      {R"(\bassert\()", "TROUPE_CHECK or TROUPE_DCHECK", any_file},
      {R"(\bstd::(exit|abort|quick_exit)\()", "an Error, or TROUPE_CHECK", is_library},
      {R"(\.detach\(\))", "a thread that is joined", torch_free_library},
      {R"(\b(atoi|atof|strtok|sprintf|gets)\()", "std::from_chars or fmt::format", any_file},
      {R"(\bstd::system\()", "an API that takes arguments as a list", is_library},
      {R"(\bvolatile\b)", "std::atomic", is_library},
      {R"(\b(src|dst)\b)", "source and target", any_file},
  };
  return kBans;
}

void apply_bans(const SourceFile& file, const std::vector<Ban>& bans, const std::string& rule,
                const std::vector<std::pair<std::size_t, std::string>>& texts, Offences& found) {
  for (const Ban& ban : bans) {
    if (!ban.applies(file)) continue;
    const std::regex pattern(ban.pattern);
    for (const auto& [line, text] : texts) {
      std::smatch match;
      if (std::regex_search(text, match, pattern))
        found.push_back({rule, file.path, line, text_of("'", match.str(), "': use ", ban.instead)});
    }
  }
}

/// 0 own header, 1 project, 2 third party and system, 3 standard library.
int include_rank(const SourceFile& file, const Include& include) {
  const std::string own = file.path.substr(0, file.path.rfind('.')) + ".hpp";
  if (!include.angled) return file.is_cpp() && include.target == own ? 0 : 1;
  return include.target.find_first_of("./") == std::string::npos ? 3 : 2;
}

/// Link targets of a page outside code blocks, with their lines.
std::vector<std::pair<std::size_t, std::string>> links_of(const SourceFile& file) {
  static const std::regex kLink(R"(\]\(([^)\s]+)\))");
  std::vector<std::pair<std::size_t, std::string>> links;
  bool in_code = false;
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    if (line.starts_with("```")) in_code = !in_code;
    if (in_code) continue;
    for (auto at = std::sregex_iterator(line.begin(), line.end(), kLink);
         at != std::sregex_iterator(); ++at)
      links.emplace_back(i + 1, (*at)[1].str());
  }
  return links;
}

/// GitHub's anchor of a heading: lower case, spaces to dashes, other signs gone.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

std::vector<std::pair<std::size_t, std::string>> headings_of(const SourceFile& file) {
  std::vector<std::pair<std::size_t, std::string>> headings;
  bool in_code = false;
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    if (file.lines[i].starts_with("```")) in_code = !in_code;
    if (!in_code && file.lines[i].starts_with('#')) headings.emplace_back(i + 1, file.lines[i]);
  }
  return headings;
}

bool has_anchor(const SourceFile& file, const std::string& anchor) {
  const auto headings = headings_of(file);
  return std::any_of(headings.begin(), headings.end(), [&anchor](const auto& heading) {
    const std::string& text = heading.second;
    const std::size_t begin = text.find_first_not_of("# ");
    return begin != std::string::npos && anchor_of(std::string_view(text).substr(begin)) == anchor;
  });
}

std::string normal_path(const std::filesystem::path& path) {
  return path.lexically_normal().generic_string();
}

}  // namespace

Offences shape_rules(const SourceFile& file) {
  Offences found;
  if (file.is_code()) {
    const std::size_t lines_max = is_test(file) ? 1000 : 600;
    const std::size_t columns_max = is_test(file) ? 120 : 100;
    const std::size_t function_max = is_test(file) ? 120 : 70;
    if (file.lines.size() > lines_max)
      found.push_back(
          {"file-length", file.path, 1,
           text_of(file.lines.size(), " lines, at most ", lines_max, ": split the concept")});
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      if (columns(file.lines[i]) > columns_max)
        found.push_back({"line-length", file.path, i + 1,
                         text_of(columns(file.lines[i]), " columns, at most ", columns_max)});
    }
    for (const FunctionSpan& span : functions_of(file)) {
      if (span.lines > function_max)
        found.push_back(
            {"function-length", file.path, span.line,
             text_of(span.lines, " lines, at most ", function_max, ": name its steps")});
    }
    static const std::regex kSnakeCase("[a-z0-9_]+\\.[a-z]+");
    if (!std::regex_match(file.file_name(), kSnakeCase))
      found.push_back({"file-name", file.path, 1, "use snake_case"});
  }
  for (std::size_t i = 0; i < file.lines.size() && !file.is_markdown(); ++i) {
    const std::string& line = file.lines[i];
    const bool blank_end =
        !line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0;
    if (blank_end || line.find('\t') != std::string::npos) {
      if (file.path == "LICENSE") continue;
      found.push_back({"white-space", file.path, i + 1, "no tabs, no white space at the end"});
    }
  }
  if (!file.ends_with_newline)
    found.push_back(
        {"white-space", file.path, file.lines.size(), "end the file with a line break"});
  return found;
}

Offences paragraph_rules(const SourceFile& file) {
  Offences found;
  if (is_test(file) && file.has_suffix("_test.cpp") &&
      (file.lines.empty() || !file.lines[0].starts_with("//")))
    found.push_back({"test-paragraph", file.path, 1, "open with what the file proves and how"});
  if (!file.is_header()) return found;
  if (file.lines.empty() || file.lines[0] != "#pragma once")
    found.push_back({"header-paragraph", file.path, 1, "the first line is #pragma once"});
  bool comment = false;
  bool threads = false;
  for (const std::string& line : file.lines) {
    if (line.starts_with("#include") || line.starts_with("namespace")) break;
    comment = comment || line.starts_with("//");
    threads = threads || (line.starts_with("//") && line.find("**Threads:**") != std::string::npos);
  }
  if (!comment || !threads)
    found.push_back({"header-paragraph", file.path, 3,
                     "after #pragma once comes a paragraph: purpose, ownership, **Threads:**"});
  return found;
}

Offences include_rules(const SourceFile& file) {
  Offences found;
  if (!file.is_code()) return found;
  int rank = 0;
  const auto own_layer = layer_index(file.layer());
  for (const Include& include : includes_of(file)) {
    const int next = include_rank(file, include);
    if (next < rank)
      found.push_back(
          {"include-order", file.path, include.line,
           text_of(include.target, ": order is own header, project, third party, standard")});
    rank = std::max(rank, next);
    if (include.angled) continue;
    if (include.target.find('/') == std::string::npos ||
        include.target.find("..") != std::string::npos)
      found.push_back({"include-path", file.path, include.line,
                       text_of(include.target, ": write the path from the root of the tree")});
    const auto target_layer = layer_index(include.target.substr(0, include.target.find('/')));
    const bool upwards = own_layer && target_layer && *target_layer > *own_layer;
    const bool to_tests =
        own_layer && (include.target.starts_with("tests/") || include.target.starts_with("bench/"));
    const bool base_to_other =
        file.is_under("runtime/base/") && !include.target.starts_with("runtime/base/");
    if (upwards || to_tests || base_to_other)
      found.push_back({"layering", file.path, include.line,
                       text_of(include.target,
                               ": includes point down only (apps, sim, actors, reshard, "
                               "placement, runtime, schemas)")});
  }
  return found;
}

Offences banned_rules(const SourceFile& file) {
  Offences found;
  if (file.is_code() && !file.is_under("tests/tidy")) {
    std::vector<std::pair<std::size_t, std::string>> includes;
    for (const Include& include : includes_of(file))
      includes.emplace_back(include.line, include.target);
    std::vector<std::pair<std::size_t, std::string>> code;
    for (std::size_t i = 0; i < file.code.size(); ++i) code.emplace_back(i + 1, file.code[i]);
    apply_bans(file, banned_includes(), "banned-include", includes, found);
    apply_bans(file, banned_words(), "banned-word", code, found);
  }
  if (file.is_under("tests/tidy") || file.is_markdown()) return found;
  static const std::regex kTodo(
      R"(\b(TODO(?!\((perf|cleanup|test|someday)\): )|FIXME|XXX|HACK)\b)");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    if (std::regex_search(file.lines[i], kTodo))
      found.push_back({"todo-kind", file.path, i + 1, "write TODO(perf|cleanup|test|someday): …"});
  }
  return found;
}

Offences dead_file_rules(std::span<const SourceFile> files) {
  std::set<std::string> included;
  std::string build_text;
  std::string page_links;
  for (const SourceFile& file : files) {
    for (const Include& include : includes_of(file)) included.insert(include.target);
    if (file.file_name() == "CMakeLists.txt" || file.has_suffix(".cmake")) {
      for (const std::string& line : file.lines) build_text += line + " ";
    }
    const auto folder = std::filesystem::path(file.path).parent_path();
    if (!file.is_markdown()) continue;
    for (const auto& link : links_of(file)) {
      const std::string target = link.second.substr(0, link.second.find('#'));
      if (normal_path(folder / target) != file.path)
        page_links += normal_path(folder / target) + "\n";
    }
  }
  Offences found;
  const auto dead = [&found](const SourceFile& file, std::string message) {
    found.push_back({"dead-file", file.path, 1, std::move(message)});
  };
  for (const SourceFile& file : files) {
    if (file.is_header() && !included.contains(file.path) && file.file_name() != "fwd.hpp")
      dead(file, "no file includes this header");
    if (file.is_under("bench/") && file.is_cpp()) {
      const std::string name = file.file_name().substr(0, file.file_name().size() - 4);
      if (build_text.find("troupe_bench(" + name + " ") == std::string::npos)
        dead(file, "bench/CMakeLists.txt does not declare it");
    }
    if (is_test(file) && file.has_suffix("_test.cpp")) {
      const std::string folder = file.path.substr(0, file.path.rfind('/'));
      const bool declared = build_text.find("DIR " + folder + " ") != std::string::npos ||
                            build_text.find(file.file_name()) != std::string::npos;
      if (!declared) dead(file, "tests/CMakeLists.txt does not build it");
    }
    if (file.has_suffix(".capnp") && !included.contains(file.path + ".h"))
      dead(file, "no codec includes this schema");
    if (file.is_under("docs/") && file.is_markdown() &&
        page_links.find(file.path + "\n") == std::string::npos)
      dead(file, "no other page links to this one");
  }
  return found;
}

Offences markdown_rules(std::span<const SourceFile> files, const std::filesystem::path& root) {
  Offences found;
  std::map<std::string, const SourceFile*> by_path;
  for (const SourceFile& file : files) by_path[file.path] = &file;
  for (const SourceFile& file : files) {
    if (!file.is_markdown()) continue;
    const auto headings = headings_of(file);
    const auto titles = std::count_if(headings.begin(), headings.end(), [](const auto& heading) {
      return heading.second.starts_with("# ");
    });
    if (titles != 1 || file.lines.empty() || !file.lines[0].starts_with("# "))
      found.push_back({"one-title", file.path, 1,
                       text_of(titles, " lines of `# title`, wanted one, on the first line")});
    const auto folder = std::filesystem::path(file.path).parent_path();
    for (const auto& [line, link] : links_of(file)) {
      if (link.find("://") != std::string::npos || link.starts_with("mailto:")) continue;
      const std::size_t hash = link.find('#');
      const std::string target = link.substr(0, hash);
      const std::string path = target.empty() ? file.path : normal_path(folder / target);
      if (!target.empty() && !std::filesystem::exists(root / path)) {
        found.push_back({"broken-link", file.path, line, text_of(link, ": no such file")});
      } else if (hash != std::string::npos && by_path.contains(path) &&
                 !has_anchor(*by_path[path], link.substr(hash + 1))) {
        found.push_back({"broken-link", file.path, line, text_of(link, ": no such heading")});
      }
    }
  }
  return found;
}

Offences all_rules(std::span<const SourceFile> files, const std::filesystem::path& root) {
  Offences all;
  const auto append = [&all](Offences more) {
    std::move(more.begin(), more.end(), std::back_inserter(all));
  };
  for (const SourceFile& file : files) {
    append(shape_rules(file));
    append(paragraph_rules(file));
    append(include_rules(file));
    append(banned_rules(file));
  }
  append(dead_file_rules(files));
  append(markdown_rules(files, root));
  return all;
}

Ratchet parse_ratchet(const SourceFile& file) {
  Ratchet ratchet;
  for (const std::string& line : file.lines) {
    std::istringstream words(line);
    std::string rule;
    std::string path;
    std::size_t count = 0;
    if (line.starts_with('#') || !(words >> rule >> path >> count)) continue;
    ratchet[{rule, path}] = count;
  }
  return ratchet;
}

Offences against_ratchet(const Offences& found, const Ratchet& allowed) {
  std::map<std::pair<std::string, std::string>, Offences> by_file;
  for (const Offence& offence : found) by_file[{offence.rule, offence.path}].push_back(offence);
  Offences left;
  for (const auto& [key, offences] : by_file) {
    const auto entry = allowed.find(key);
    if (entry == allowed.end() || offences.size() > entry->second)
      left.insert(left.end(), offences.begin(), offences.end());
  }
  for (const auto& [key, count] : allowed) {
    const auto entry = by_file.find(key);
    const std::size_t now = entry == by_file.end() ? 0 : entry->second.size();
    if (now < count)
      left.push_back({"ratchet", key.second, 0,
                      text_of(key.first, " allows ", count, ", found ", now, ": lower the entry")});
  }
  return left;
}

std::string to_text(const Offences& offences) {
  std::string text;
  for (const Offence& offence : offences)
    text +=
        text_of("\n", offence.path, ":", offence.line, ": ", offence.rule, ": ", offence.message);
  return text;
}

}  // namespace troupe::tidy
