#include "tests/tidy/source_file.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace troupe::tidy {
namespace {

/// Blanks comments and literals while it walks the text once.
class Stripper {
 public:
  explicit Stripper(const std::string& text) : text_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (sees("//")) {
        skip_to("\n", false);
      } else if (sees("/*")) {
        skip_to("*/", true);
      } else if (sees("R\"") && !is_word(before())) {
        raw_string();
      } else if (text_[at_] == '"' || (text_[at_] == '\'' && !is_word(before()))) {
        literal(text_[at_]);
      } else {
        out_ += text_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  }
  bool sees(std::string_view word) const {
    return std::string_view(text_).substr(at_).starts_with(word);
  }
  char before() const { return at_ > 0 ? text_[at_ - 1] : ' '; }

  /// Drops text up to `end` (and `end` itself when asked), keeping line breaks.
  void skip_to(std::string_view end, bool with_end) {
    std::size_t stop = text_.find(end, at_ + 1);
    stop = stop == std::string::npos ? text_.size() : stop + (with_end ? end.size() : 0);
    for (; at_ < stop; ++at_) {
      if (text_[at_] == '\n') out_ += '\n';
    }
  }

  void raw_string() {
    const std::size_t open = text_.find('(', at_);
    if (open == std::string::npos) {
      out_ += text_[at_++];
      return;
    }
    const std::string close = ")" + text_.substr(at_ + 2, open - at_ - 2) + "\"";
    out_ += "\"\"";
    skip_to(close, true);
  }

  void literal(char quote) {
    out_ += quote;
    for (++at_; at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    out_ += quote;
    if (at_ < text_.size() && text_[at_] == quote) ++at_;
  }

  const std::string& text_;
  std::size_t at_ = 0;
  std::string out_;
};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool is_text_file(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 12> kSuffixes{".hpp",   ".cpp", ".md",   ".capnp",
                                                       ".cmake", ".txt", ".yaml", ".yml",
                                                       ".json",  ".in",  ".sh",   ".py"};
  const std::string suffix = path.extension().string();
  return suffix.empty() || std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end();
}

/// True when the text between the last statement end and a `{` opens a function body.
bool opens_function(std::string_view before) {
  const std::size_t begin = before.find_first_not_of(" \n");
  if (begin == std::string_view::npos) return false;
  before.remove_prefix(begin);
  for (const std::string_view word : {"namespace", "class", "struct", "enum", "union", "extern"}) {
    if (before.starts_with(word)) return false;
  }
  const bool is_type = before.starts_with("template") && before.find('(') == std::string_view::npos;
  // `= {` and `return {` open lists; a parameter list must have come before a body.
  return !is_type && before.find('(') != std::string_view::npos && !before.ends_with("= ") &&
         !before.ends_with('=') && !before.ends_with('(') && !before.ends_with(", ");
}

}  // namespace

SourceFile parse_source(std::string path, const std::string& text) {
  SourceFile file;
  file.path = std::move(path);
  file.lines = split_lines(text);
  file.code = file.is_code() ? split_lines(Stripper(text).run()) : file.lines;
  file.code.resize(file.lines.size());
  file.ends_with_newline = text.empty() || text.back() == '\n';
  return file;
}

std::vector<SourceFile> read_tree(const std::filesystem::path& root) {
  constexpr std::array<std::string_view, 7> kSkipped{
      "build", ".git", "runs", ".cache", "__pycache__", "fixtures", "corpus"};
  std::vector<SourceFile> files;
  auto entry = std::filesystem::recursive_directory_iterator(root);
  for (; entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory() &&
        std::find(kSkipped.begin(), kSkipped.end(), name) != kSkipped.end())
      entry.disable_recursion_pending();
    if (!entry->is_regular_file() || !is_text_file(entry->path())) continue;
    std::ifstream stream(entry->path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    if (text.find('\0') != std::string::npos) continue;
    files.push_back(
        parse_source(std::filesystem::relative(entry->path(), root).generic_string(), text));
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::vector<Include> includes_of(const SourceFile& file) {
  std::vector<Include> found;
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    if (!file.code[i].starts_with("#include")) continue;
    const std::string& line = file.lines[i];
    const std::size_t begin = line.find_first_of("\"<");
    if (begin == std::string::npos) continue;
    const std::size_t end = line.find_first_of("\">", begin + 1);
    found.push_back({i + 1, line.substr(begin + 1, end - begin - 1), line[begin] == '<'});
  }
  return found;
}

std::vector<FunctionSpan> functions_of(const SourceFile& file) {
  std::vector<FunctionSpan> found;
  std::string before;             // code since the last `;`, `{` or `}`
  int depth = 0;                  // braces inside the current function
  std::size_t function_line = 0;  // 0: not inside a function
  bool directive = false;         // also the lines that a backslash continues
  for (std::size_t i = 0; i < file.code.size(); ++i) {
    directive = file.code[i].starts_with('#') || (directive && file.code[i - 1].ends_with('\\'));
    if (directive) continue;
    for (const char c : file.code[i]) {
      if (function_line != 0) {
        depth += c == '{' ? 1 : (c == '}' ? -1 : 0);
        if (depth == 0) {
          found.push_back({function_line, i + 2 - function_line});
          function_line = 0;
          before.clear();
        }
      } else if (c == '{') {
        if (opens_function(before)) {
          function_line = i + 1;
          depth = 1;
        }
        before.clear();
      } else if (c == ';' || c == '}') {
        before.clear();
      } else {
        before += c;
      }
    }
    before += '\n';
  }
  return found;
}

}  // namespace troupe::tidy
