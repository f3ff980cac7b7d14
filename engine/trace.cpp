// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <algorithm>
#include <cmath>

namespace layup {
namespace {

double rounded(double us) { return std::floor(us * 8) / 8; }

}  // namespace

void Trace::add_name(const char* what, int process, int thread, const std::string& name) {
  events_.push_back(
      {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
}

void Trace::name_process(int process, const std::string& name) {
  add_name("process_name", process, 0, name);
}

void Trace::name_thread(TraceTrack track, const std::string& name) {
  add_name("thread_name", track.process, track.thread, name);
}

Trace::Point Trace::add_slice(TraceTrack track, const std::string& name, double start_us,
                              double end_us, const Json& args) {
  double& last_us = end_us_[track.thread];
  const double start = std::max(rounded(start_us), last_us);
  const double end = std::max(rounded(end_us), start);
  last_us = end;
  events_.push_back({{"name", name},
                     {"ph", "X"},
                     {"ts", start},
                     {"dur", end - start},
                     {"pid", track.process},
                     {"tid", track.thread},
                     {"args", args}});
  return {track, rounded((start + end) / 2)};
}

void Trace::add_counter(int process, const std::string& name, double at_us, const Json& series) {
  events_.push_back(
      {{"name", name}, {"ph", "C"}, {"ts", rounded(at_us)}, {"pid", process}, {"args", series}});
}

void Trace::add_flow(const std::string& name, const Point& from, const Point& to) {
  const std::int64_t id = ++num_flows_;
  const auto add = [&](const char* phase, const Point& point) -> Json& {
    events_.push_back({{"name", name},
                       {"cat", "flow"},
                       {"ph", phase},
                       {"id", id},
                       {"ts", point.at_us},
                       {"pid", point.track.process},
                       {"tid", point.track.thread}});
    return events_.back();
  };
  add("s", from);
  add("f", to)["bp"] = "e";  // ends at the slice around the point, not at the next one
}

std::string Trace::to_json() const {
  std::string text = "{\"traceEvents\":[";
  const char* separator = "\n";
  for (const Json& event : events_) {
    text += separator + event.dump();
    separator = ",\n";
  }
  return text + "\n],\"displayTimeUnit\":\"ms\"}\n";
}

}  // namespace layup
