// Reading trace files back, for reports. The file may come from anywhere: everything is checked.

#include "runtime/base/file.hpp"
#include "runtime/observe/trace.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace troupe::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kTraceBytesMax = std::size_t{1} << 30;
constexpr double kMicrosecondsMax = 4.0e15;  // begin + length still fits 63 bits of nanoseconds

std::string text_of(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

std::optional<double> number_of(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) return std::nullopt;
  return at->get<double>();
}

/// Process and thread ids may be numbers or texts; both are used as text.
std::string id_of(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_structured()) return {};
  return at->is_string() ? at->get<std::string>() : at->dump();
}

struct Names {
  std::map<std::string, std::string> processes;
  std::map<std::pair<std::string, std::string>, std::string> threads;

  void learn(const Json& event) {
    const auto arguments = event.find("args");
    if (arguments == event.end() || !arguments->is_object()) return;
    const std::string kind = text_of(event, "name");
    if (kind == "process_name") processes[id_of(event, "pid")] = text_of(*arguments, "name");
    if (kind == "thread_name") {
      threads[{id_of(event, "pid"), id_of(event, "tid")}] = text_of(*arguments, "name");
    }
  }
  TracePlace place_of(const Json& event) const {
    const std::string pid = id_of(event, "pid");
    const std::string tid = id_of(event, "tid");
    const auto process = processes.find(pid);
    const auto thread = threads.find({pid, tid});
    return {process == processes.end() ? "process " + pid : process->second,
            thread == threads.end() ? "thread " + tid : thread->second};
  }
};

}  // namespace

result<TraceFile> parse_trace(std::string_view json, std::string_view source) {
  const Json file = Json::parse(json, nullptr, false);
  if (file.is_discarded()) return fail(ErrorCode::kCorrupt, "{}: not JSON", source);
  const Json* events = nullptr;
  TraceFile trace;
  if (file.is_array()) {
    events = &file;
  } else if (file.is_object() && file.contains("traceEvents") && file["traceEvents"].is_array()) {
    events = &file["traceEvents"];
    if (file.contains("otherData") && file["otherData"].is_object()) {
      trace.dropped = static_cast<std::int64_t>(
          std::clamp(number_of(file["otherData"], "dropped_events").value_or(0), 0.0, 9e15));
    }
  } else {
    return fail(ErrorCode::kCorrupt, "{}: no list traceEvents", source);
  }
  Names names;
  for (const auto& event : *events) {
    if (event.is_object() && text_of(event, "ph") == "M") names.learn(event);
  }
  for (std::size_t i = 0; i < events->size(); ++i) {
    const Json& event = (*events)[i];
    if (!event.is_object()) {
      return fail(ErrorCode::kCorrupt, "{}: traceEvents[{}]: not an object", source, i);
    }
    if (text_of(event, "ph") != "X") continue;
    const auto begin = number_of(event, "ts");
    const auto length = number_of(event, "dur");
    if (!begin || !length || std::fabs(*begin) > kMicrosecondsMax || !(*length >= 0) ||
        *length > kMicrosecondsMax) {
      return fail(ErrorCode::kCorrupt, "{}: traceEvents[{}]: ts and dur must be times", source, i);
    }
    TraceSpan span{.place = names.place_of(event),
                   .name = text_of(event, "name"),
                   .category = text_of(event, "cat"),
                   .begin = TimePoint(Duration(std::llround(*begin * 1e3))),
                   .end = {},
                   .step = -1};
    span.end = span.begin + Duration(std::llround(*length * 1e3));
    const auto arguments = event.find("args");
    if (arguments != event.end() && arguments->is_object() && arguments->contains("step") &&
        (*arguments)["step"].is_number_integer()) {
      span.step = (*arguments)["step"].get<std::int64_t>();
    }
    trace.spans.push_back(std::move(span));
  }
  std::stable_sort(trace.spans.begin(), trace.spans.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return trace;
}

result<TraceFile> read_trace(const std::string& path) {
  TROUPE_TRY(const auto text, read_text_file(path, kTraceBytesMax));
  return parse_trace(text, path);
}

}  // namespace troupe::runtime
