// SPDX-License-Identifier: Apache-2.0
// Good programs of several streams are broken in every systematic way: the validators refuse what a
// slow checker finds wrong, and nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "engine/error.h"
#include "memory/finish_plan.h"
#include "memory/schedule.h"
#include "memory/validate_plan.h"
#include "scheduler/lower.h"
#include "scheduler/validate_program.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"
#include "tests/support/slow_program_checker.h"

namespace layup {
namespace {

using test::RandomSource;

struct Case {
  std::string name;
  PhysicalGraph graph;
  MemoryPlan plan;
  Program program;
};

// Plans of the policies that copy, with values that are worth it.
Case policy_case(const std::string& policy) {
  Case made;
  made.name = policy;
  made.graph = test::physical_training(test::parse_network(test::kSmallResidual), 250);
  made.plan = test::plan_program(made.graph, policy).plan;
  made.program = lower(made.graph, made.plan);
  return made;
}

// Small values, any decisions; in every third case a file takes what a small host tier does not.
Case random_case(std::uint64_t seed) {
  RandomSource random(seed);
  Case made;
  made.name = "seed " + std::to_string(seed);
  made.graph = test::physical_training(
      test::parse_network(test::random_network(seed, 3 + static_cast<int>(random.below(6)))), 2);
  std::optional<std::int64_t> host_bytes;
  if (seed % 3 == 2) {
    widen_alignment(made.graph, kFileAlignment);
    host_bytes = kFileAlignment * random.below(8);
  }
  const ValueUses uses = find_uses(made.graph);
  const Decisions decisions = test::random_decisions(made.graph, uses, random);
  const DraftSchedule draft = draft_schedule(made.graph, uses, decisions, host_bytes);
  made.plan =
      finish_plan(made.graph, "random", decisions,
                  place_copies(made.graph, estimate_cost(made.graph), decisions, draft, 0.9),
                  layout_persistent(made.graph));
  made.program = lower(made.graph, made.plan);
  return made;
}

std::string verdict(const Program& program, const PhysicalGraph& graph) {
  try {
    validate_program(program, graph);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

struct Mutation {
  std::string what;
  std::function<void(Program&)> apply;
};

// Of instruction i.
void add_event_mutations(const Program& program, std::size_t i, std::vector<Mutation>& all) {
  const Instruction& self = program.instructions[i];
  for (std::size_t w = 0; w < self.waits.size(); ++w) {
    all.push_back({"drop a wait", [i, w](Program& p) {
                     auto& waits = p.instructions[i].waits;
                     waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
                   }});
    all.push_back({"wait for the event before", [i, w](Program& p) {
                     EventId& event = p.instructions[i].waits[w];
                     if (index(event) > 0)
                       event = EventId{static_cast<std::uint32_t>(index(event) - 1)};
                   }});
    if (i > 0)
      all.push_back({"wait one instruction earlier", [i, w](Program& p) {
                       auto& waits = p.instructions[i].waits;
                       p.instructions[i - 1].waits.push_back(waits[w]);
                       waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
                     }});
  }
  if (self.records)
    all.push_back({"drop a record", [i](Program& p) { p.instructions[i].records.reset(); }});
  if (self.records && i > 0)
    all.push_back({"record one instruction earlier", [i](Program& p) {
                     if (!p.instructions[i - 1].records)
                       std::swap(p.instructions[i - 1].records, p.instructions[i].records);
                   }});
}

void add_order_mutations(const Program& program, std::size_t i, std::vector<Mutation>& all) {
  if (i + 1 < program.instructions.size())
    all.push_back({"swap with the next",
                   [i](Program& p) { std::swap(p.instructions[i], p.instructions[i + 1]); }});
  all.push_back({"drop", [i](Program& p) {
                   p.instructions.erase(p.instructions.begin() + static_cast<std::ptrdiff_t>(i));
                 }});
  all.push_back({"do twice", [i](Program& p) {
                   const Instruction again = p.instructions[i];
                   p.instructions.insert(p.instructions.begin() + static_cast<std::ptrdiff_t>(i),
                                         again);
                 }});
  if (program.instructions[i].kind == Instruction::Kind::kernel) return;
  for (const std::size_t by : {std::size_t{1}, std::size_t{2}, std::size_t{5}})
    if (i >= by)
      all.push_back({"move a copy earlier", [i, by](Program& p) {
                       const auto at = p.instructions.begin() + static_cast<std::ptrdiff_t>(i);
                       std::rotate(at - static_cast<std::ptrdiff_t>(by), at, at + 1);
                     }});
  all.push_back({"a copy on the compute stream",
                 [i](Program& p) { p.instructions[i].stream = StreamId::compute; }});
  all.push_back({"a copy on the other stream", [i](Program& p) {
                   StreamId& stream = p.instructions[i].stream;
                   stream = stream == StreamId::copy_in ? StreamId::copy_out : StreamId::copy_in;
                 }});
  all.push_back({"a copy of the other tier", [i](Program& p) {
                   Tier& tier = p.instructions[i].tier;
                   tier = tier == Tier::host ? Tier::file : Tier::host;
                 }});
  for (const std::int64_t by : {-kAlignment, kAlignment, kFileAlignment})
    all.push_back({"another place on the host",
                   [i, by](Program& p) { p.instructions[i].host_offset += by; }});
}

void add_operand_mutations(const Program& program, std::size_t i, RandomSource& random,
                           std::vector<Mutation>& all) {
  const Instruction& self = program.instructions[i];
  const auto operands_of = [](Program& p, std::size_t at, bool writes) -> std::vector<Operand>& {
    return writes ? p.instructions[at].writes : p.instructions[at].reads;
  };
  for (const bool writes : {false, true}) {
    const std::size_t count = writes ? self.writes.size() : self.reads.size();
    for (std::size_t k = 0; k < count; ++k) {
      for (const std::int64_t by : {-kAlignment, kAlignment})
        all.push_back(
            {"shift an operand", [=](Program& p) { operands_of(p, i, writes)[k].offset += by; }});
      all.push_back({"shorten an operand",
                     [=](Program& p) { operands_of(p, i, writes)[k].bytes -= kAlignment; }});
      const std::int64_t elsewhere = kAlignment * random.below(program.arena_bytes / kAlignment);
      all.push_back({"an operand elsewhere",
                     [=](Program& p) { operands_of(p, i, writes)[k].offset = elsewhere; }});
    }
    if (count > 1)
      all.push_back({"exchange two operands", [=](Program& p) {
                       std::swap(operands_of(p, i, writes)[0], operands_of(p, i, writes)[1]);
                     }});
    if (count > 1)
      all.push_back({"exchange two places", [=](Program& p) {
                       std::swap(operands_of(p, i, writes)[0].offset,
                                 operands_of(p, i, writes)[1].offset);
                     }});
  }
  if (self.workspace_bytes == 0) return;
  const std::int64_t elsewhere = kAlignment * random.below(program.arena_bytes / kAlignment);
  all.push_back({"a workspace elsewhere",
                 [=](Program& p) { p.instructions[i].workspace_offset = elsewhere; }});
  all.push_back(
      {"shift a workspace", [=](Program& p) { p.instructions[i].workspace_offset += kAlignment; }});
  all.push_back({"shorten a workspace",
                 [=](Program& p) { p.instructions[i].workspace_bytes -= kAlignment; }});
}

struct Tally {
  int refused = 0;
  int harmless = 0;
};

void check_mutations(const Case& good, std::uint64_t seed, int percent,
                     std::map<std::string, Tally>& tallies) {
  CAPTURE(good.name);
  REQUIRE(verdict(good.program, good.graph) == "");
  REQUIRE(test::find_fault(good.program, good.graph) == "");
  RandomSource random(seed);
  for (std::size_t i = 0; i < good.program.instructions.size(); ++i) {
    std::vector<Mutation> mutations;
    add_event_mutations(good.program, i, mutations);
    add_order_mutations(good.program, i, mutations);
    add_operand_mutations(good.program, i, random, mutations);
    for (const Mutation& mutation : mutations) {
      if (!random.chance(percent)) continue;
      Program program = good.program;
      mutation.apply(program);
      const std::string fault = test::find_fault(program, good.graph);
      const std::string said = verdict(program, good.graph);
      INFO("instruction " << i << ", " << mutation.what << ": the slow checker finds \"" << fault
                          << "\", the validator says \"" << said << "\"");
      CHECK(fault.empty() == said.empty());
      Tally& tally = tallies[mutation.what];
      ++(said.empty() ? tally.harmless : tally.refused);
    }
  }
}

TEST_CASE("program: every mutation that does harm is refused, and no other") {
  std::map<std::string, Tally> tallies;
  for (const char* policy : {"vdnn_all", "layup"})
    check_mutations(policy_case(policy), 1, 8, tallies);
  std::int64_t in_files = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Case made = random_case(seed);
    in_files += made.plan.file_bytes > 0 ? 1 : 0;
    check_mutations(made, seed, 60, tallies);
  }
  CHECK(in_files > 5);
  for (const auto& [what, tally] : tallies) {
    MESSAGE(what << ": " << tally.refused << " refused, " << tally.harmless << " harmless");
    // A copy waits for all that it needs, on whatever stream it runs.
    const bool is_stream = what.starts_with("a copy on");
    CHECK((tally.refused == 0) == is_stream);
  }
  for (const std::string what : {"drop a record", "shorten an operand", "shorten a workspace"}) {
    CAPTURE(what);
    CHECK(tallies.at(what).harmless == 0);
  }
}

TEST_CASE("plan: a residency that ends or begins one action off is refused") {
  const auto refused = [](const MemoryPlan& plan, const PhysicalGraph& graph) {
    try {
      validate_plan(plan, graph);
    } catch (const PlanError&) {
      return true;
    }
    return false;
  };
  int count = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Case good = random_case(seed);
    for (std::size_t i = 0; i < good.plan.residencies.size(); ++i) {
      INFO("seed " << seed << ", residency " << i);
      MemoryPlan shorter = good.plan;
      --shorter.residencies[i].end;
      CHECK(refused(shorter, good.graph));
      MemoryPlan later = good.plan;
      ++later.residencies[i].begin;
      CHECK(refused(later, good.graph));
      // Elsewhere: refused, or nothing is there and the program is still right.
      MemoryPlan shifted = good.plan;
      shifted.residencies[i].offset += kAlignment;
      if (!refused(shifted, good.graph))
        CHECK(test::find_fault(lower(good.graph, shifted), good.graph) == "");
      ++count;
    }
  }
  CHECK(count > 2000);
}

TEST_CASE("plan: a copy that is left out, moved or doubled is refused, or does no harm") {
  int num_refused = 0;
  int num_harmless = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Case good = random_case(seed);
    RandomSource random(seed);
    for (std::size_t i = 0; i < good.plan.actions.size(); ++i) {
      const ActionKind kind = good.plan.actions[i].kind;
      if (kind == ActionKind::run || kind == ActionKind::replay) continue;
      for (const int by : {-3, -1, 1, 3}) {
        const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(i) + by;
        if (to < 0 || to >= static_cast<std::ptrdiff_t>(good.plan.actions.size())) continue;
        MemoryPlan changed = good.plan;
        const Action action = changed.actions[i];
        changed.actions.erase(changed.actions.begin() + static_cast<std::ptrdiff_t>(i));
        changed.actions.insert(changed.actions.begin() + to, action);
        INFO("seed " << seed << ", action " << i << " moved by " << by);
        std::string said;
        try {
          validate_plan(changed, good.graph);
        } catch (const PlanError& error) {
          said = error.what();
        }
        if (!said.empty()) {
          ++num_refused;
          continue;
        }
        // What passes can be lowered to a program that is right: plans are not judged by programs.
        ++num_harmless;
        Program program;
        CHECK_NOTHROW(program = lower(good.graph, changed));
        CHECK(test::find_fault(program, good.graph) == "");
      }
    }
  }
  MESSAGE(num_refused << " refused, " << num_harmless << " harmless");
  CHECK(num_refused > 500);
  CHECK(num_harmless > 100);
}

}  // namespace
}  // namespace layup
