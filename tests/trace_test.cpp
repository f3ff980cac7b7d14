// SPDX-License-Identifier: Apache-2.0
// Chrome trace JSON: the format that readers expect.
#include "engine/trace.h"

#include <doctest/doctest.h>

namespace layup {
namespace {

TEST_CASE("trace: the format") {
  Trace trace;
  trace.name_process(1, "measured \"x\"");
  trace.name_thread({1, 11}, "compute");
  const auto from = trace.add_slice({1, 11}, "conv1 forward", 0.3, 2.7, {{"bytes", 5}});
  const auto to = trace.add_slice({1, 12}, "conv1:y", 3, 4, Json::object());
  trace.add_counter(1, "host bytes", 1.99, {{"live", 7}});
  trace.add_flow("conv1:y", from, to);
  CHECK(trace.to_json() ==
        R"({"traceEvents":[
{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"measured \"x\""}},
{"name":"thread_name","ph":"M","pid":1,"tid":11,"args":{"name":"compute"}},
{"name":"conv1 forward","ph":"X","ts":0.25,"dur":2.375,"pid":1,"tid":11,"args":{"bytes":5}},
{"name":"conv1:y","ph":"X","ts":3.0,"dur":1.0,"pid":1,"tid":12,"args":{}},
{"name":"host bytes","ph":"C","ts":1.875,"pid":1,"args":{"live":7}},
{"name":"conv1:y","cat":"flow","ph":"s","id":1,"ts":1.375,"pid":1,"tid":11},
{"name":"conv1:y","cat":"flow","ph":"f","id":1,"ts":3.5,"pid":1,"tid":12,"bp":"e"}
],"displayTimeUnit":"ms"}
)");
  CHECK(Json::parse(Trace().to_json()).at("traceEvents").empty());
}

TEST_CASE("trace: slices of one track never overlap, those of others may") {
  Trace trace;
  trace.add_slice({1, 1}, "a", 0, 10, Json::object());
  trace.add_slice({1, 2}, "beside", 5, 6, Json::object());
  trace.add_slice({1, 1}, "late", 8, 12, Json::object());
  trace.add_slice({1, 1}, "within", 9, 11, Json::object());
  const Json& events = trace.events();
  CHECK(events[1].at("ts") == 5.0);
  CHECK(events[2].at("ts") == 10.0);
  CHECK(events[2].at("dur") == 2.0);
  CHECK(events[3].at("ts") == 12.0);
  CHECK(events[3].at("dur") == 0.0);
}

}  // namespace
}  // namespace layup
