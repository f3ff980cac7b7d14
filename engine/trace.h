// SPDX-License-Identifier: Apache-2.0
// Events on a timeline, written as Chrome trace JSON: what Perfetto and chrome://tracing open.
// Knows nothing of plans.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/json_node.h"

namespace layup {

// A row of the timeline: a thread of a process. Numbers are above 0 (0 is the idle task to some
// readers); equal thread numbers in two processes confuse others, so use each once.
struct TraceTrack {
  int process = 1;
  int thread = 1;
};

// Times are in microseconds and are rounded down to 1/8: exact in binary as in nanoseconds, so that
// slices that touch do not overlap after a reader's arithmetic.
class Trace {
 public:
  // A place for the end of an arrow: the middle of a slice.
  struct Point {
    TraceTrack track;
    double at_us = 0;
  };

  void name_process(int process, const std::string& name);
  void name_thread(TraceTrack track, const std::string& name);
  // Slices of a track are added in order. One that begins before the end of the one before it is
  // cut there: readers drop slices that overlap.
  Point add_slice(TraceTrack track, const std::string& name, double start_us, double end_us,
                  const Json& args);
  // `series`: {"name of a curve": value, ...}
  void add_counter(int process, const std::string& name, double at_us, const Json& series);
  // An arrow between two slices.
  void add_flow(const std::string& name, const Point& from, const Point& to);

  const Json& events() const { return events_; }
  std::string to_json() const;  // one event per line

 private:
  void add_name(const char* what, int process, int thread, const std::string& name);

  Json events_ = Json::array();
  std::map<int, double> end_us_;  // of the last slice, by thread
  std::int64_t num_flows_ = 0;
};

}  // namespace layup
