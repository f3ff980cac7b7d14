// SPDX-License-Identifier: Apache-2.0
// A policy decides what becomes of every value. Packing, lowering, validation and simulation are
// shared, and no policy calls another one. One policy is one stem in policies/ plus one word in the
// list of memory/meson.build.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/cost_model.h"
#include "memory/memory_plan.h"
#include "memory/value_uses.h"

namespace layup {

struct PolicyInput {
  const PhysicalGraph& graph;
  const ValueUses& uses;
  const CostModel& cost;
  std::optional<std::int64_t> host_budget_bytes;  // none: unbounded
};

enum class CopyStyle : std::uint8_t { gated, layer_by_layer };

struct Decisions {
  // By value. What `recompute` leaves out is computed again when it is needed, and values that only
  // such chains read are treated likewise unless they are kept or offloaded here.
  std::vector<Retention> retention;
  // A recomputed or offloaded value leaves again after each use in backward unless the next
  // operation reads it too (memory-centric), instead of staying until its last use.
  bool drop_between_uses = false;
  // By value (empty: none). When the value was computed again, or came back, only as a link of the
  // chain to another one, it leaves right after that, although a later operation will want it.
  std::vector<char> leaves_as_link;
  CopyStyle copy_style = CopyStyle::gated;
  int look_ahead =
      1;  // of CopyStyle::layer_by_layer: layers of backward that a prefetch runs beside
  bool updates_inside_backward = true;
  bool in_place = true;
  bool reuse = true;  // false: every value keeps bytes of its own for the whole step
  // Bytes that the policy's paper counts and this engine has no use for; placed like a value that
  // lives for the whole step.
  std::int64_t accounting_bytes = 0;

  bool operator==(const Decisions&) const = default;
};

struct Policy {
  std::string name;
  std::string summary;  // half a line for people
  // A policy may offer several ways of planning (variants), each with levels that go from the least
  // memory (0) to the least extra work. Without a budget level 0 is taken, with one the highest
  // level that fits, of the variant whose predicted step is the shortest.
  int num_variants = 1;
  int num_levels = 1;
  // Variants from this one on are for tight budgets: of a large graph they are only tried when no
  // earlier one fits.
  int first_tight_variant = 1 << 30;
  // Names of variants, those beyond num_variants included. One of them is asked for as
  // "policy/variant"; otherwise only the first num_variants are tried.
  std::vector<std::string> variant_names;
  // False where it decides by the graph alone: nothing is measured for it.
  bool weighs_costs = true;
  // Where the published system has more on the device than this engine's kernels read: adds reads
  // to operations of backward. Plans are made of the changed graph, and are plans of the original.
  void (*add_reads)(PhysicalGraph& graph) = nullptr;
  Decisions (*decide)(const PolicyInput& input, int variant, int level) = nullptr;
};

const std::vector<Policy>& builtin_policies();
std::vector<std::string> policy_names();           // with "auto"
std::vector<std::string> plannable_names();        // these, and "policy/variant"
const Policy* find_policy(std::string_view name);  // null if there is none

// For policies' use.
//
// A start for `Decisions::retention`: values that backward reads are kept, the others are links of
// chains.
std::vector<Retention> keep_candidates(const PolicyInput& input);
// Keeps the candidates that forward makes last, as many as have level/(num_levels-1) of the bytes
// of all. They are needed first in backward and gone before the early, large ones come back.
void keep_tail(const PolicyInput& input, int level, int num_levels, Decisions& decisions);
// What the calls of cuDNN of that time had on the device in backward and this engine's layers do
// without: adds x and y of layers with one input to the reads of their backward, for those where
// `wants` says so.
struct WantedOperands {
  bool x = false;
  bool y = false;
};
void add_operands(PhysicalGraph& graph, WantedOperands (*wants)(const PhysicalGraph& graph,
                                                                const PhysicalOperation& forward));
// By value: how many operations of forward read it.
std::vector<int> count_forward_readers(const PolicyInput& input);
// Candidates too small to be worth a copy or a replay are kept.
bool is_small(const PolicyInput& input, ValueId value);

}  // namespace layup
