// SPDX-License-Identifier: Apache-2.0
// What makes a program right, said in the plainest way: the oracle for validate_program.
#pragma once

#include <string>

#include "scheduler/program.h"

namespace layup::test {

// Empty if the program gives what the graph's operations in order give, whatever way its streams
// interleave; otherwise what is wrong. Quadratic: which instruction surely comes before which is a
// table of all pairs, and memory is looked at in pieces of 64 bytes, each with the value that it
// holds and the operation that made it.
std::string find_fault(const Program& program, const PhysicalGraph& graph);

}  // namespace layup::test
