// SPDX-License-Identifier: Apache-2.0
// Strong ids: dense indices into the vectors of a Graph, TrainingGraph or Program that cannot be
// mixed up with one another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace layup {

enum class NodeId : std::uint32_t {};    // a layer of a Graph
enum class TensorId : std::uint32_t {};  // an edge of a Graph
enum class ValueId : std::uint32_t {};   // a value of a TrainingGraph
enum class OpId : std::uint32_t {};      // an operation of a TrainingGraph
enum class EventId : std::uint32_t {};   // an event of a Program

template <typename Id>
constexpr std::size_t index(Id id) {
  return static_cast<std::size_t>(id);
}

}  // namespace layup
