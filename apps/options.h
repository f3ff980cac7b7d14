// SPDX-License-Identifier: Apache-2.0
// What the command-line programs share: options, exit codes, signals. CLI11 is used here and in the
// programs only.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/trainer.h"

namespace layup {

// Exit codes.
inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;  // command line, configuration, network
inline constexpr int kExitData = 3;
inline constexpr int kExitDoesNotFit = 4;
inline constexpr int kExitDiverged = 5;
inline constexpr int kExitDevice = 6;
inline constexpr int kExitInternal = 70;

// Options as they stand on the command line; empty means not given.
struct CommandLine {
  std::string config;
  std::vector<std::string> sets;
  std::string device = "auto";
  std::optional<std::string> policy, budget, host_budget, link;
  std::optional<std::string> epochs, batch, seed, steps;
  int threads = 0;
  std::string out, resume, init, log, trace, machine;

  void add_shaping_options(CLI::App& app);  // all that shapes a plan
  void add_weights_options(CLI::App& app);  // --resume, --init
  std::vector<Override> overrides() const;
  RunOptions run_options() const;
};

// First INT or TERM: the flag is set to its number. Second: the process ends at once.
const std::atomic<int>& install_signal_handlers();

// Parses and runs a program; turns what it throws into a message on stderr and an exit code.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

}  // namespace layup
