#pragma once

// The rules of CONTRIBUTING.md that a program can check, each a function over files.
//
// **Threads:** pure functions, except `markdown_rules`, which asks the disk whether links exist.

#include "tests/tidy/source_file.hpp"

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::tidy {

struct Offence {
  std::string rule;  ///< e.g. `line-length`
  std::string path;
  std::size_t line = 0;
  std::string message;  ///< what is wrong and what to do instead
};
using Offences = std::vector<Offence>;

/// `file-length`, `function-length`, `line-length`, `white-space`, `file-name`.
Offences shape_rules(const SourceFile& file);
/// `header-paragraph`, `test-paragraph`.
Offences paragraph_rules(const SourceFile& file);
/// `include-order`, `include-path`, `layering`.
Offences include_rules(const SourceFile& file);
/// `banned-include`, `banned-word`, `todo-kind`; the message names the replacement.
Offences banned_rules(const SourceFile& file);
/// `dead-file`: headers that nobody includes, tests, benches and schemas that no build file or
/// source names, pages that nobody links to.
Offences dead_file_rules(std::span<const SourceFile> files);
/// `one-title`, `broken-link`.
Offences markdown_rules(std::span<const SourceFile> files, const std::filesystem::path& root);

/// All of the above over a tree.
Offences all_rules(std::span<const SourceFile> files, const std::filesystem::path& root);

/// How many offences of a rule a file may have. Lines of `rule path count`, `#` comments.
using Ratchet = std::map<std::pair<std::string, std::string>, std::size_t>;
Ratchet parse_ratchet(const SourceFile& file);

/// Offences that the ratchet does not allow, and entries of it that can be lowered or removed.
Offences against_ratchet(const Offences& found, const Ratchet& allowed);

std::string to_text(const Offences& offences);

}  // namespace troupe::tidy
