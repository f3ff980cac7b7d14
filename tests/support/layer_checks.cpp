// SPDX-License-Identifier: Apache-2.0
#include "tests/support/layer_checks.h"

#include <algorithm>

#include "engine/error.h"
#include "tests/support/layer_harness.h"

namespace layup {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr Pass kPasses[] = {Pass::forward, Pass::evaluate, Pass::replay, Pass::backward_params,
                            Pass::backward_data};

// A harness after one training step, from which any pass can be run (again).
LayerHarness after_step(const LayerSubject& subject, int threads = 1) {
  LayerHarness harness(*subject.layer, subject.inputs, threads);
  harness.fill(kSeed);
  harness.run_step();
  return harness;
}

// Persistent state as it was before the step, so that the forward pass can be run again.
void restore_buffers(LayerHarness& harness) {
  const auto& buffers = harness.info().buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    std::ranges::fill(harness.values({Role::buffer, static_cast<int>(i)}), buffers[i].initial);
}

bool same_bits(const LayerHarness& a, const LayerHarness& b, Slot slot) {
  return std::ranges::equal(a.bytes(slot), b.bytes(slot));
}

void compare_writes(const LayerHarness& expected, const LayerHarness& found, Pass pass,
                    const std::string& when, Problems& problems) {
  for (const Slot slot : expected.info().pass(pass).writes)
    if (!same_bits(expected, found, slot))
      problems.push_back(std::string(to_string(pass)) + " writes other bits to " + to_string(slot) +
                         " " + when);
}

// Runs `body`; what the harness throws becomes a problem.
template <typename Body>
Problems collect(const Body& body) {
  Problems problems;
  try {
    body(problems);
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

bool contains(const std::vector<Slot>& slots, Slot slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

std::vector<Slot> all_of(Role role, std::size_t count) {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < count; ++i) slots.push_back({role, static_cast<int>(i)});
  return slots;
}

std::vector<Slot> join(std::initializer_list<std::vector<Slot>> lists) {
  std::vector<Slot> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// What each pass has to write, all of it and nothing else.
std::vector<Slot> duty(const LayerHarness& harness, std::size_t num_inputs, Pass pass) {
  const LayerInfo& info = harness.info();
  const auto metrics = all_of(Role::metric, info.metrics.size());
  switch (pass) {
    case Pass::forward:
      return join({all_of(Role::y, 1), all_of(Role::saved, info.saved.size()), metrics,
                   all_of(Role::buffer, info.buffers.size())});
    case Pass::evaluate: return join({all_of(Role::y, 1), metrics});
    case Pass::replay: return all_of(Role::y, 1);
    case Pass::backward_params:
      return join({all_of(Role::parameter_gradient, info.parameters.size()),
                   all_of(Role::carry, info.carries.size())});
    case Pass::backward_data: return all_of(Role::dx, num_inputs);
  }
  return {};
}

std::vector<Role> may_read(Pass pass) {
  switch (pass) {
    case Pass::forward: return {Role::x, Role::parameter, Role::labels};
    case Pass::evaluate: return {Role::x, Role::parameter, Role::labels, Role::buffer};
    case Pass::replay: return {Role::x, Role::parameter, Role::saved};
    case Pass::backward_params:
      return {Role::x, Role::y, Role::dy, Role::parameter, Role::saved, Role::labels};
    case Pass::backward_data:
      return {Role::x, Role::y, Role::dy, Role::parameter, Role::saved, Role::labels, Role::carry};
  }
  return {};
}

// Whether the layer has to have the pass; the others it must not have (replay it may have).
bool is_due(const LayerInfo& info, Pass pass) {
  if (pass == Pass::backward_params) return !info.parameters.empty();
  if (pass == Pass::backward_data) return !info.passes_gradient_through;
  return true;
}

void check_pass(const LayerHarness& harness, std::size_t num_inputs, Pass pass,
                Problems& problems) {
  const LayerInfo& info = harness.info();
  const PassSpec& spec = info.pass(pass);
  const std::string name = to_string(pass);
  if (!spec.exists()) {
    if (is_due(info, pass) && pass != Pass::replay) problems.push_back(name + " is missing");
    return;
  }
  if (!is_due(info, pass)) problems.push_back(name + " exists, but has nothing to do");
  const std::vector<Slot> due = duty(harness, num_inputs, pass);
  for (const Slot slot : due)
    if (!contains(spec.writes, slot))
      problems.push_back(name + " does not write " + to_string(slot));
  for (const Slot slot : spec.writes)
    if (!contains(due, slot)) problems.push_back(name + " must not write " + to_string(slot));
  if (spec.writes.size() > due.size()) problems.push_back(name + " lists a write twice");
  const std::vector<Role> allowed = may_read(pass);
  for (const Slot slot : spec.reads)
    if (!harness.has(slot) || std::find(allowed.begin(), allowed.end(), slot.role) == allowed.end())
      problems.push_back(name + " must not read " + to_string(slot));
  for (const InPlace& pair : spec.in_place) {
    const bool exists = pair.read >= 0 && pair.read < static_cast<int>(spec.reads.size()) &&
                        pair.write >= 0 && pair.write < static_cast<int>(spec.writes.size());
    if (!exists)
      problems.push_back(name + " has an in-place pair of slots that it does not list");
    else if (num_bytes(harness.spec(spec.writes[static_cast<std::size_t>(pair.write)])) >
             num_bytes(harness.spec(spec.reads[static_cast<std::size_t>(pair.read)])))
      problems.push_back(name + " has an in-place write that is larger than what it lies over");
  }
  if (spec.flops < 0) problems.push_back(name + " has negative flops");
}

// Whether what params() says is what was written: 3 may become [3, 3], and an object may gain
// defaults.
bool says(const Json& kept, const Json& written) {
  if (kept == written) return true;
  if (kept.is_array() && !written.is_array())
    return std::all_of(kept.begin(), kept.end(), [&](const Json& item) { return item == written; });
  if (!kept.is_object() || !written.is_object()) return false;
  for (const auto& [key, value] : written.items())
    if (!kept.contains(key) || kept[key] != value) return false;
  return true;
}

// Each pair alone; then as many as fit together.
std::vector<std::vector<InPlace>> variants(const PassSpec& pass) {
  std::vector<std::vector<InPlace>> result;
  std::vector<InPlace> together;
  for (const InPlace& pair : pass.in_place) {
    result.push_back({pair});
    const bool free = std::none_of(together.begin(), together.end(), [&](const InPlace& other) {
      return other.read == pair.read || other.write == pair.write;
    });
    if (free) together.push_back(pair);
  }
  if (together.size() > 1) result.push_back(together);
  return result;
}

}  // namespace

Problems check_contract(const LayerSubject& subject) {
  return collect([&](Problems& problems) {
    const LayerHarness harness(*subject.layer, subject.inputs);
    for (const Pass pass : kPasses) check_pass(harness, subject.inputs.size(), pass, problems);
  });
}

Problems check_in_place(const LayerSubject& subject) {
  return collect([&](Problems& problems) {
    const LayerHarness expected = after_step(subject);
    for (const Pass pass : kPasses)
      for (const auto& variant : variants(expected.info().pass(pass))) {
        LayerHarness plain = expected;
        restore_buffers(plain);
        LayerHarness in_place = plain;
        plain.run(pass);
        in_place.run(pass, {.in_place = variant});
        compare_writes(plain, in_place, pass, "in place", problems);
      }
  });
}

Problems check_reads(const LayerSubject& subject) {
  return collect([&](Problems& problems) {
    const LayerHarness expected = after_step(subject);
    for (const Pass pass : kPasses) {
      if (!expected.info().pass(pass).exists()) continue;
      LayerHarness plain = expected;
      restore_buffers(plain);
      LayerHarness poisoned = plain;
      plain.run(pass);
      // Other values go through the layer, lest it has kept something of its own.
      LayerHarness others = expected;
      others.fill(kSeed + 1);
      others.run_step();
      poisoned.run(pass, {.in_place = {}, .poison = true});
      compare_writes(plain, poisoned, pass, "when what it does not read is poisoned", problems);
    }
  });
}

Problems check_repeat(const LayerSubject& subject) {
  return collect([&](Problems& problems) {
    const LayerHarness first = after_step(subject);
    LayerHarness second = first;
    restore_buffers(second);
    second.run(Pass::forward);
    compare_writes(first, second, Pass::forward, "the second time", problems);
    if (!first.info().pass(Pass::replay).exists()) return;
    std::ranges::fill(second.bytes({Role::y}), kPoison);
    second.run(Pass::replay);
    if (!same_bits(first, second, {Role::y}))
      problems.emplace_back("replay gives other bits of y than forward");
  });
}

Problems check_threads(const LayerSubject& subject) {
  return collect([&](Problems& problems) {
    for (const int threads : {2, 3}) {
      LayerHarness one = after_step(subject, 1);
      LayerHarness several = after_step(subject, threads);
      const std::string when = "with " + std::to_string(threads) + " threads";
      for (const Pass pass : {Pass::forward, Pass::backward_params, Pass::backward_data})
        compare_writes(one, several, pass, when, problems);
      for (const Pass pass : {Pass::evaluate, Pass::replay}) {
        if (!one.info().pass(pass).exists()) continue;
        one.run(pass);
        several.run(pass);
        compare_writes(one, several, pass, when, problems);
      }
    }
  });
}

Problems check_allocations(const LayerSubject& subject, std::int64_t (*counter)()) {
  return collect([&](Problems& problems) {
    for (const int threads : {1, 2, 3}) {
      LayerHarness harness = after_step(subject, threads);
      harness.set_allocation_counter(counter);
      for (const Pass pass : kPasses) {
        if (!harness.info().pass(pass).exists()) continue;
        harness.run(pass);  // the thread pool starts its threads here
        harness.run(pass);
        if (harness.allocations_in_last_run() != 0)
          problems.push_back(std::string(to_string(pass)) + " allocates " +
                             std::to_string(harness.allocations_in_last_run()) +
                             " times per run with " + std::to_string(threads) + " threads");
      }
    }
  });
}

Problems check_json(const LayerType& type, const LayerExample& example) {
  return collect([&](Problems& problems) {
    const auto layer = read_layer(type, example.params);
    const Json params = layer->params();
    for (const auto& [key, value] : example.params.items())
      if (!params.contains(key) || !says(params[key], value))
        problems.push_back("params() " + params.dump() + " loses \"" + key + "\"");
    const auto again = read_layer(type, params);
    if (again->params() != params)
      problems.push_back("params() " + params.dump() + " reads back as " + again->params().dump());
    if (again->infer(example.inputs) != layer->infer(example.inputs))
      problems.push_back("params() " + params.dump() + " reads back as another layer");

    const std::string known = params.empty() ? "" : params.begin().key();
    const std::string slip = known + "x";
    Json misspelt = params;
    misspelt[slip] = 1;
    try {
      read_layer(type, misspelt);
      problems.push_back("the unknown key \"" + slip + "\" is accepted");
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      const bool named = message.find("unknown key \"" + slip + "\"") != std::string::npos;
      const bool helps =
          known.empty() || message.find("did you mean \"" + known + "\"?") != std::string::npos;
      if (!named || !helps) problems.push_back("for the key \"" + slip + "\" it says: " + message);
    }
  });
}

}  // namespace layup
