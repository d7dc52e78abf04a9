#include "runtime/observe/metrics_writer.hpp"

#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kFileBytesMax = std::size_t{1} << 30;

std::string number_text(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  if (value == 0 && std::signbit(value)) return "-0.0";  // "-0" would read back as the integer 0
  return fmt::format("{}", value);
}

std::string name_text(const std::string& name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// Where a resumed file must end, and its last step.
struct Kept {
  std::size_t bytes = 0;
  std::int64_t last_step = -1;
};

/// Calls `use(row, bytes up to and with the line)` for each whole line until it returns false.
template <class Use>
result<void> for_each_row(std::string_view text, const std::string& path, Use use) {
  std::int64_t line = 0;
  std::int64_t last_step = -1;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return {};  // torn by a kill
    ++line;
    const std::string place = fmt::format("{}:{}", path, line);
    TROUPE_TRY(auto row, parse_metrics_line(text.substr(begin, end - begin), place));
    if (row.step <= last_step) {
      return fail(ErrorCode::kCorrupt, "{}: step {} after step {}", place, row.step, last_step);
    }
    last_step = row.step;
    begin = end + 1;
    if (!use(std::move(row), begin)) return {};
  }
  return {};
}

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, "{}: cannot {}: {}", path, what, std::strerror(errno));
}

}  // namespace

std::string metrics_line(std::int64_t step, const MetricValues& values) {
  std::map<std::string, double> ordered;
  for (const auto& [name, value] : values) ordered[name] = value;
  ordered.erase("step");
  std::string line = "{\"step\":" + std::to_string(step);
  for (const auto& [name, value] : ordered) {
    line += "," + name_text(name) + ":" + number_text(value);
  }
  return line + "}";
}

result<MetricsRow> parse_metrics_line(std::string_view line, std::string_view place) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return fail(ErrorCode::kCorrupt, "{}: not a JSON object", place);
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer() ||
      (step->is_number_unsigned() &&
       step->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) ||
      step->get<std::int64_t>() < 0) {
    return fail(ErrorCode::kCorrupt, "{}: no step, or not a whole number from 0", place);
  }
  MetricsRow row{.step = step->get<std::int64_t>(), .values = {}};
  for (const auto& [name, value] : json.items()) {
    if (name == "step") continue;
    if (const auto number = number_of(value)) row.values[name] = *number;
  }
  return row;
}

result<std::vector<MetricsRow>> read_metrics(const std::string& path) {
  TROUPE_TRY(const auto text, read_text_file(path, kFileBytesMax));
  std::vector<MetricsRow> rows;
  TROUPE_TRY_VOID(for_each_row(text, path, [&](MetricsRow row, std::size_t) {
    rows.push_back(std::move(row));
    return true;
  }));
  return rows;
}

result<MetricsWriter> MetricsWriter::open(const std::string& path,
                                          std::optional<std::int64_t> resumed_step) {
  Kept kept;
  if (resumed_step) {
    auto text = read_text_file(path, kFileBytesMax);
    if (!text && text.error().code != ErrorCode::kNotFound) return fail(text.error());
    if (text) {
      TROUPE_TRY_VOID(for_each_row(*text, path, [&](const MetricsRow& row, std::size_t end) {
        if (row.step > *resumed_step) return false;
        kept = {.bytes = end, .last_step = row.step};
        return true;
      }));
    }
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(path, "open");
  if (::ftruncate(fd, static_cast<off_t>(kept.bytes)) != 0) {
    auto error = io_error(path, "truncate");
    ::close(fd);
    return error;
  }
  return MetricsWriter(path, fd, kept.last_step);
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      last_step_(other.last_step_) {}

MetricsWriter& MetricsWriter::operator=(MetricsWriter&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    last_step_ = other.last_step_;
  }
  return *this;
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

result<void> MetricsWriter::write(std::int64_t step, const Metrics& metrics) {
  MetricValues values;
  for (const auto& [name, entry] : metrics) {
    if (const auto value = entry.value()) values.emplace_back(name, *value);
  }
  return write(step, values);
}

result<void> MetricsWriter::write(std::int64_t step, const MetricValues& values) {
  if (step <= last_step_ || step < 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: step {} after step {}", path_, step, last_step_);
  }
  const std::string line = metrics_line(step, values) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const auto wrote = ::write(fd_, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io_error(path_, "write");
    done += static_cast<std::size_t>(wrote);
  }
  last_step_ = step;
  return {};
}

result<void> MetricsWriter::sync() {
  if (::fdatasync(fd_) != 0) return io_error(path_, "sync");
  return {};
}

}  // namespace troupe::runtime
