// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "scheduler/program.h"

namespace layup {

// A program whose offsets have become addresses and whose operations have become kernels: all that
// the executor needs, made once.
struct BoundInstruction {
  const Instruction* instruction = nullptr;
  Kernel kernel;  // of a kernel
  std::vector<const void*> reads;
  std::vector<void*> writes;
  KernelArgs args;       // points into reads and writes
  void* host = nullptr;  // of a copy of the host tier
  FileCopy file;         // of one of the file tier
  std::int64_t bytes = 0;
};

using BoundProgram = std::deque<BoundInstruction>;  // elements never move

// Issues a program on the device's streams and waits until all are idle. Decides nothing. `times`,
// one per instruction or none, get when each ran.
void execute(const BoundProgram& program, Device& device, std::span<TimeSpan> times = {});

// The same, one instruction at a time; stops when `is_good` says false after one and returns it
// (null if none).
const BoundInstruction* execute_checked(
    const BoundProgram& program, Device& device,
    const std::function<bool(const BoundInstruction&)>& is_good);

}  // namespace layup
