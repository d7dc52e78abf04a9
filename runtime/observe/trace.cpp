#include "runtime/observe/trace.hpp"

#include "runtime/base/file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace troupe::runtime {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kNameBytesMax = 200;

void cut(std::string& name) {
  if (name.size() <= kNameBytesMax) return;
  std::size_t end = kNameBytesMax;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  name.resize(end);
}

std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// Numbers for process and thread names, the same for the same set of names.
class Numbering {
 public:
  void add(const TracePlace& place) { rows_[place.process].insert(place.thread); }
  std::pair<int, int> of(const TracePlace& place) const {
    const auto process = rows_.find(place.process);
    const auto thread = process->second.find(place.thread);
    return {1 + static_cast<int>(std::distance(rows_.begin(), process)),
            1 + static_cast<int>(std::distance(process->second.begin(), thread))};
  }
  void describe(std::vector<std::string>& lines) const {
    int pid = 0;
    for (const auto& [process, threads] : rows_) {
      lines.push_back(dumped(
          {{"ph", "M"}, {"name", "process_name"}, {"pid", ++pid}, {"args", {{"name", process}}}}));
      int tid = 0;
      for (const auto& thread : threads) {
        lines.push_back(dumped({{"ph", "M"},
                                {"name", "thread_name"},
                                {"pid", pid},
                                {"tid", ++tid},
                                {"args", {{"name", thread}}}}));
      }
    }
  }

 private:
  // Natural order, so that rank 10 comes after rank 9: shorter names first.
  struct ShorterFirst {
    bool operator()(const std::string& a, const std::string& b) const {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    }
  };
  std::map<std::string, std::set<std::string, ShorterFirst>> rows_;
};

const char* flow_letter(FlowPoint point) {
  return point == FlowPoint::kStart ? "s" : point == FlowPoint::kStep ? "t" : "f";
}

}  // namespace

void Trace::keep(Event event) {
  cut(event.span.name);
  cut(event.span.category);
  cut(event.span.place.process);
  cut(event.span.place.thread);
  const std::scoped_lock lock(mutex_);
  events_.push_back(std::move(event));
  if (events_.size() > options_.events_max) {
    events_.pop_front();
    ++dropped_;
  }
}

void Trace::span(TraceSpan span) {
  span.end = std::max(span.end, span.begin);
  Event event;
  event.span = std::move(span);
  keep(std::move(event));
}

void Trace::counter(std::string_view process, std::string_view name, TimePoint at, double value) {
  if (!std::isfinite(value)) {
    const std::scoped_lock lock(mutex_);
    ++dropped_;
    return;
  }
  Event event;
  event.kind = Event::Kind::kCounter;
  event.span.place.process = process;
  event.span.name = name;
  event.span.begin = at;
  event.value = value;
  keep(std::move(event));
}

void Trace::flow(std::uint64_t id, std::string_view name, const TracePlace& place, TimePoint at,
                 FlowPoint point) {
  Event event;
  event.kind = Event::Kind::kFlow;
  event.span.place = place;
  event.span.name = name;
  event.span.begin = at;
  event.id = id;
  event.point = point;
  keep(std::move(event));
}

std::vector<TraceSpan> Trace::spans() const {
  std::vector<TraceSpan> spans;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& event : events_) {
      if (event.kind == Event::Kind::kSpan) spans.push_back(event.span);
    }
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return spans;
}

std::int64_t Trace::dropped() const {
  const std::scoped_lock lock(mutex_);
  return dropped_;
}

std::size_t Trace::size() const {
  const std::scoped_lock lock(mutex_);
  return events_.size();
}

double Trace::microseconds(TimePoint at) const {
  return static_cast<double>((at - options_.origin).count()) / 1e3;
}

std::string Trace::to_json() const {
  std::deque<Event> events;
  std::int64_t dropped = 0;
  {
    const std::scoped_lock lock(mutex_);
    events = events_;
    dropped = dropped_;
  }
  Numbering numbering;
  for (const auto& event : events) numbering.add(event.span.place);
  std::vector<std::string> lines;
  numbering.describe(lines);
  for (const auto& event : events) {
    const auto [pid, tid] = numbering.of(event.span.place);
    OrderedJson json{{"name", event.span.name},
              {"pid", pid},
              {"tid", tid},
              {"ts", microseconds(event.span.begin)}};
    switch (event.kind) {
      case Event::Kind::kSpan:
        json["ph"] = "X";
        json["cat"] = event.span.category;
        json["dur"] = static_cast<double>((event.span.end - event.span.begin).count()) / 1e3;
        if (event.span.step >= 0) json["args"] = {{"step", event.span.step}};
        break;
      case Event::Kind::kCounter:
        json["ph"] = "C";
        json["args"] = {{"value", event.value}};
        break;
      case Event::Kind::kFlow:
        json["ph"] = flow_letter(event.point);
        json["cat"] = "flow";
        json["id"] = event.id;
        json["bp"] = "e";  // binds to the enclosing span
        break;
    }
    lines.push_back(dumped(json));
  }
  std::string text =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_events\":" + std::to_string(dropped) +
      "},\"traceEvents\":[";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += lines[i];
  }
  return text + "\n]}\n";
}

result<void> Trace::write(const std::string& path) const {
  return write_text_file(path, to_json());
}

ScopedSpan::ScopedSpan(Trace* trace, TracePlace place, std::string name, std::string category,
                       std::int64_t step)
    : trace_(trace) {
  if (trace_ == nullptr) return;
  span_ = {.place = std::move(place),
           .name = std::move(name),
           .category = std::move(category),
           .begin = steady_now(),
           .end = {},
           .step = step};
}

ScopedSpan::~ScopedSpan() {
  if (trace_ == nullptr) return;
  span_.end = steady_now();
  trace_->span(std::move(span_));
}

}  // namespace troupe::runtime
