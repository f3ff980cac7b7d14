// SPDX-License-Identifier: Apache-2.0
// Programs: their text, and what the validator refuses. Programs of several streams are made by
// hand here, so that they do not depend on what lowering makes.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "engine/error.h"
#include "memory/plan_memory.h"
#include "scheduler/lower.h"
#include "scheduler/validate_program.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::parse_network;
using test::physical_training;

constexpr EventId kForwardDone{0};
constexpr EventId kCopiedOut{1};
constexpr EventId kCopiedIn{2};

// The small residual network, one stream; with copies, the output of relu1 goes to the host behind
// its last reader in forward and comes back in front of its first one in backward.
class Case {
 public:
  explicit Case(bool with_copies)
      : graph(physical_training(parse_network(test::kSmallResidual), 2)) {
    program = lower(graph, test::plan_program(graph, "none").plan);
    if (with_copies) add_copies();
  }

  Instruction& at(const std::string& name) {
    for (Instruction& instruction : program.instructions)
      if (name_of(instruction) == name) return instruction;
    throw std::logic_error("no instruction " + name);
  }
  // Everywhere.
  void move(const std::string& value, std::int64_t offset) {
    for (Instruction& instruction : program.instructions)
      for (auto* operands : {&instruction.reads, &instruction.writes})
        for (Operand& operand : *operands)
          if (graph.value(operand.value).name == value) operand.offset = offset;
  }
  std::int64_t offset_of(const std::string& value) const {
    for (const Instruction& instruction : program.instructions)
      for (const Operand& operand : instruction.writes)
        if (graph.value(operand.value).name == value) return operand.offset;
    throw std::logic_error("nothing writes " + value);
  }
  void erase(const std::string& name) {
    program.instructions.erase(program.instructions.begin() + (&at(name) - &at("load images")));
  }
  std::string error() const {
    try {
      validate_program(program, graph);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  }

  PhysicalGraph graph;
  Program program;

 private:
  std::string name_of(const Instruction& instruction) const {
    switch (instruction.kind) {
      case Instruction::Kind::copy_out: return "copy out";
      case Instruction::Kind::copy_in: return "copy in";
      case Instruction::Kind::kernel: break;
    }
    return operation_of(graph, {instruction.source, instruction.operation, {}}).name;
  }
  void insert(const std::string& in_front_of, const Instruction& instruction) {
    program.instructions.insert(
        program.instructions.begin() + (&at(in_front_of) - &at("load images")), instruction);
  }
  void add_copies() {
    const Operand operand = at("relu1 forward").writes[0];
    program.num_events = 3;
    program.host_bytes = operand.bytes;
    at("sum forward").records = kForwardDone;
    Instruction out;
    out.kind = Instruction::Kind::copy_out;
    out.stream = StreamId::copy_out;
    out.waits = {kForwardDone};
    out.records = kCopiedOut;
    out.reads = {operand};
    insert("pool forward", out);
    Instruction in;
    in.kind = Instruction::Kind::copy_in;
    in.stream = StreamId::copy_in;
    in.waits = {kCopiedOut};
    in.records = kCopiedIn;
    in.writes = {operand};
    insert("drop backward_data", in);
    at("conv2 backward_params").waits = {kCopiedIn};
  }
};

struct Breakage {
  std::string name;
  bool with_copies;
  std::function<void(Case&)> apply;
  std::vector<std::string> words;
};

const std::vector<Breakage>& stream_breakages() {
  static const std::vector<Breakage> breakages = {
      {"copy out does not wait",
       true,
       [](Case& c) { c.at("copy out").waits.clear(); },
       {"copy of relu1:y", "reads relu1:y without waiting for its write on another stream"}},
      {"copy in does not wait",
       true,
       [](Case& c) { c.at("copy in").waits.clear(); },
       {"copy of relu1:y", "without waiting for its write on another stream"}},
      {"reader does not wait",
       true,
       [](Case& c) { c.at("conv2 backward_params").waits.clear(); },
       {"conv2 backward_params", "reads relu1:y without waiting"}},
      {"waits for the wrong copy",
       true,
       [](Case& c) { c.at("conv2 backward_params").waits = {kCopiedOut}; },
       {"conv2 backward_params", "reads relu1:y without waiting"}},
      {"copied in over a reader",
       true,
       [](Case& c) {
         c.at("sum forward").records.reset();
         c.at("conv2 forward").records = kForwardDone;
       },
       {"copy of relu1:y", "writes over relu1:y while another stream may still use it"}},
      {"reused before it is copied",
       true,
       [](Case& c) {
         c.move("pool:y", c.offset_of("relu1:y"));
         c.at("copy in").writes[0].offset = c.offset_of("relu1:y");
       },
       {"pool forward", "writes over relu1:y while another stream may still use it"}},
      {"waits for an event of the future",
       true,
       [](Case& c) { c.at("copy out").waits = {kCopiedIn}; },
       {"waits for an event that is not recorded before"}},
      {"waits for an unknown event",
       true,
       [](Case& c) { c.at("pool forward").waits = {EventId{77}}; },
       {"pool forward", "waits for an event that is not recorded before"}},
      {"records an unknown event",
       true,
       [](Case& c) { c.at("pool forward").records = EventId{77}; },
       {"pool forward", "records an event that is not there"}},
      {"nothing was copied out",
       true,
       [](Case& c) { c.erase("copy out"); },
       {"waits for an event that is not recorded before"}},
      {"copies from elsewhere on the host",
       true,
       [](Case& c) {
         c.program.host_bytes *= 2;
         c.at("copy in").host_offset = c.program.host_bytes / 2;
       },
       {"reads relu1:y from bytes that hold nothing"}},
      {"outside the host block",
       true,
       [](Case& c) { c.program.host_bytes -= kAlignment; },
       {"copy of relu1:y", "reaches outside its memory"}},
  };
  return breakages;
}

const std::vector<Breakage>& kernel_breakages() {
  static const std::vector<Breakage> breakages = {
      {"reads elsewhere",
       false,
       [](Case& c) { c.at("conv2 forward").reads[0].offset = c.offset_of("conv1:y"); },
       {"conv2 forward", "reads relu1:y from bytes that hold conv1:y"}},
      {"overwritten",
       false,
       [](Case& c) { c.move("bn1:saved0", c.offset_of("conv1:y")); },
       {"writes bn1:saved0 over its operand conv1:y"}},
      {"overwritten by a later one",
       false,
       [](Case& c) { c.move("pool:y", c.offset_of("conv1:y")); },
       {"reads conv1:y from bytes that hold pool:y"}},
      {"never written",
       false,
       [](Case& c) { c.erase("conv1 forward"); },
       {"bn1 forward", "reads conv1:y from bytes that hold"}},
      {"wrong order",
       false,
       [](Case& c) { std::swap(c.at("conv1 forward"), c.at("load images")); },
       {"conv1 forward", "reads input from bytes that hold nothing"}},
      {"undeclared in place",
       false,
       [](Case& c) { c.move("conv2:y", c.offset_of("relu1:y")); },
       {"conv2 forward", "writes conv2:y over its operand relu1:y"}},
      {"in place, but shifted",
       false,
       [](Case& c) { c.move("relu1:y", c.offset_of("bn1:y") + kAlignment); },
       {"relu1 forward", "writes relu1:y over its operand bn1:y"}},
      {"two results in one place",
       false,
       [](Case& c) { c.move("bn1:saved1", c.offset_of("bn1:saved0")); },
       {"bn1 forward", "writes two values to one place"}},
      {"workspace over an operand",
       false,
       [](Case& c) {
         c.at("conv2 forward").workspace_offset = c.at("conv2 forward").reads[0].offset;
       },
       {"conv2 forward", "has its workspace over an operand"}},
      {"workspace over a value",
       false,
       [](Case& c) {
         const std::int64_t free = c.program.arena_bytes;
         c.program.arena_bytes += c.at("conv2 forward").workspace_bytes;
         c.at("conv2 forward").workspace_offset = free;
         CHECK(c.error() == "");
         c.move("bn1:saved0", free);
       },
       {"reads bn1:saved0 from bytes that hold nothing"}},
      {"workspace too small",
       false,
       [](Case& c) { c.at("conv2 forward").workspace_bytes -= 64; },
       {"conv2 forward", "workspace"}},
      {"operand missing",
       false,
       [](Case& c) { c.at("conv2 forward").reads.pop_back(); },
       {"conv2 forward", "has not the operands"}},
      {"other operand",
       false,
       [](Case& c) { c.at("sum forward").reads[0] = c.at("sum forward").reads[1]; },
       {"sum forward", "reads another value"}},
      {"other result",
       false,
       [](Case& c) { c.at("pool forward").writes[0].value = c.at("sum forward").writes[0].value; },
       {"pool forward", "writes another value"}},
      {"outside the arena",
       false,
       [](Case& c) { c.at("conv2 forward").writes[0].offset = c.program.arena_bytes; },
       {"conv2 forward", "reaches outside its memory"}},
      {"in front of the arena",
       false,
       [](Case& c) { c.at("conv2 forward").writes[0].offset = -kAlignment; },
       {"conv2 forward", "reaches outside its memory"}},
  };
  return breakages;
}

void check_refused(const std::vector<Breakage>& breakages) {
  for (const Breakage& breakage : breakages) {
    CAPTURE(breakage.name);
    Case broken(breakage.with_copies);
    breakage.apply(broken);
    const std::string error = broken.error();
    INFO("error: " << error);
    CHECK(error.starts_with("invalid program: instruction "));
    for (const std::string& word : breakage.words) CHECK(error.find(word) != std::string::npos);
  }
}

TEST_CASE("program: the validator accepts what is right") {
  CHECK(Case(false).error() == "");
  CHECK(Case(true).error() == "");
  // More waits than needed do no harm, nor does a second copy of the same value.
  Case more(true);
  more.at("drop backward_data").waits = {kForwardDone, kCopiedOut};
  more.at("copy in").waits = {kForwardDone, kCopiedOut, kCopiedOut};
  CHECK(more.error() == "");
}

TEST_CASE("program: the validator refuses streams that are not ordered") {
  check_refused(stream_breakages());
}

TEST_CASE("program: the validator refuses kernels with wrong operands") {
  check_refused(kernel_breakages());
}

TEST_CASE("program: an order through a third stream counts") {
  // relu1:y comes back to another place, and drop backward_data writes where it was: right only
  // behind the copy out, of which compute knows through the copy in alone.
  Case c(true);
  const Operand home = c.at("copy in").writes[0];
  const std::int64_t elsewhere = c.program.arena_bytes;
  c.program.arena_bytes += home.bytes;
  c.at("copy in").writes[0].offset = elsewhere;
  for (const char* reader : {"conv2 backward_params", "relu1 backward_data"})
    for (Operand& operand : c.at(reader).reads)
      if (operand.value == home.value) operand.offset = elsewhere;
  c.move("drop:dx0", home.offset);
  CHECK(c.error().find("writes over relu1:y while another stream may still use it") !=
        std::string::npos);
  c.at("drop backward_data").waits = {kCopiedIn};
  CHECK(c.error() == "");
}

// Persistent values first, behind the step's state; loss:dx0 in place over fc:y.
TEST_CASE("program: the text of a small program") {
  const PhysicalGraph graph =
      physical_training(parse_network(R"({"name": "tiny", "input": {"shape": [3]}, "layers": [
        {"name": "fc", "type": "linear", "out_features": 2, "bias": false},
        {"name": "loss", "type": "softmax_cross_entropy"}]})"),
                        2);
  CHECK(to_string(lower(graph, test::plan_program(graph, "none").plan), graph) ==
        "compute: load images (staging:images@64) -> (input@448)\n"
        "compute: load labels (staging:labels@128) -> (labels@512)\n"
        "compute: fc forward (input@448, fc.weight@192) -> (fc:y@576)\n"
        "compute: loss forward (fc:y@576, labels@512) -> "
        "(loss:y@384, loss:saved0@640, loss:correct@320)\n"
        "compute: loss backward_data (fc:y@576, labels@512, loss:saved0@640) -> (loss:dx0@576)\n"
        "compute: fc backward_params (input@448, loss:dx0@576) -> (fc.weight:grad@512)\n"
        "compute: fc.weight update (fc.weight:grad@512) -> (fc.weight@192, "
        "fc.weight:momentum@256)\n");
}

TEST_CASE("program: plans of random networks give right programs") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const PhysicalGraph graph = physical_training(parse_network(test::random_network(seed, 25)), 2);
    for (const char* policy : {"none", "caffe"}) {
      INFO("seed " << seed << ", policy " << policy);
      CHECK_NOTHROW(lower(graph, test::plan_program(graph, policy).plan));
    }
  }
}

}  // namespace
}  // namespace layup
