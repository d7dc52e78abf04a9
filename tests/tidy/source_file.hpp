#pragma once

// A source or text file as tidy rules look at it: its lines, and its code without comments and
// without the contents of literals.
//
// **Threads:** value types and pure functions, except `read_tree`, which reads the disk.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::tidy {

struct SourceFile {
  std::string path;                ///< relative to the root, with slashes
  std::vector<std::string> lines;  ///< as they stand in the file
  std::vector<std::string> code;   ///< comments blanked, literals emptied; same count as `lines`
  bool ends_with_newline = true;

  bool has_suffix(std::string_view suffix) const { return path.ends_with(suffix); }
  bool is_under(std::string_view folder) const { return path.starts_with(folder); }
  bool is_header() const { return has_suffix(".hpp"); }
  bool is_cpp() const { return has_suffix(".cpp"); }
  bool is_code() const { return is_header() || is_cpp(); }
  bool is_markdown() const { return has_suffix(".md"); }
  std::string layer() const { return path.substr(0, path.find('/')); }
  std::string file_name() const { return path.substr(path.rfind('/') + 1); }
};

SourceFile parse_source(std::string path, const std::string& text);

/// Every file that belongs to the tree: no build output, no version control, no runs, no binaries.
std::vector<SourceFile> read_tree(const std::filesystem::path& root);

struct Include {
  std::size_t line = 0;  ///< from 1
  std::string target;
  bool angled = false;
};
std::vector<Include> includes_of(const SourceFile& file);

/// A function body: from the line of its `{` to the line of its `}`.
struct FunctionSpan {
  std::size_t line = 0;
  std::size_t lines = 0;
};
std::vector<FunctionSpan> functions_of(const SourceFile& file);

}  // namespace troupe::tidy
