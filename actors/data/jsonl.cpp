#include "actors/data/jsonl.hpp"

#include "runtime/base/file.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

JsonLinesReader::JsonLinesReader(std::string path, std::ifstream file,
                                 const JsonLinesOptions& options)
    : path_(std::move(path)), file_(std::move(file)), options_(options) {}

result<JsonLinesReader> JsonLinesReader::open(const std::string& path,
                                              const JsonLinesOptions& options) {
  std::error_code problem;
  const auto status = std::filesystem::status(path, problem);
  if (!std::filesystem::exists(status)) return fail(ErrorCode::kNotFound, "{}: no such file", path);
  if (std::filesystem::is_directory(status))
    return fail(ErrorCode::kIo, "{}: is a folder, wanted a file of JSON lines", path);
  if (!std::filesystem::is_regular_file(status))  // a pipe may never have a writer
    return fail(ErrorCode::kIo, "{}: is no regular file, wanted a file of JSON lines", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kIo, "{}: cannot be opened for reading", path);
  return JsonLinesReader(path, std::move(file), options);
}

result<std::optional<JsonLine>> JsonLinesReader::next() {
  std::streambuf& source = *file_.rdbuf();
  constexpr auto kEnd = std::ifstream::traits_type::eof();
  for (;;) {
    JsonLine line;
    line.number = ++number_;
    line.place = path_ + ":" + std::to_string(number_);
    bool at_end = false;
    for (;;) {
      const auto c = source.sbumpc();
      if (c == kEnd) {
        at_end = true;
        break;
      }
      if (c == '\n') break;
      if (line.text.size() >= options_.line_bytes_max)
        return fail(ErrorCode::kCorrupt, "{}: line of more than {} bytes, the bound", line.place,
                    options_.line_bytes_max);
      line.text.push_back(std::ifstream::traits_type::to_char_type(c));
    }
    if (number_ == 1 && line.text.starts_with(kByteOrderMark))
      line.text.erase(0, kByteOrderMark.size());
    if (line.text.ends_with('\r')) line.text.pop_back();
    if (line.text.find_first_not_of(" \t") != std::string::npos) return std::optional(line);
    if (at_end) return std::optional<JsonLine>{};
  }
}

result<void> write_lines(const std::string& path, std::span<const std::string> lines) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code problem;
  if (!folder.empty()) std::filesystem::create_directories(folder, problem);
  if (problem)
    return fail(ErrorCode::kIo, "{}: cannot make folder {}: {}", path, folder.string(),
                problem.message());
  TROUPE_TRY(AtomicFile file, AtomicFile::create(path));
  for (const std::string& line : lines)
    TROUPE_TRY_VOID(file.write(std::as_bytes(std::span<const char>(line + "\n"))));
  return file.commit();
}

}  // namespace troupe::actors
