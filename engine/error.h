// SPDX-License-Identifier: Apache-2.0
// Errors say whose fault it is. The library throws them and never prints, exits or aborts.
#pragma once

#include <stdexcept>
#include <string>

namespace layup {

// Base of every error that the library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user's configuration or command line: says where (file:line:column, JSON pointer).
class ConfigError : public Error {
  using Error::Error;
};
// The user's network: shapes, names, arity, cycles.
class GraphError : public Error {
  using Error::Error;
};
// A memory plan that does not fit, or (from a validator) a plan or program that is wrong.
class PlanError : public Error {
  using Error::Error;
};
// Data sets, weight files and checkpoints: says which file and which sample.
class DataError : public Error {
  using Error::Error;
};
// The machine: allocation, I/O of the device, a missing device.
class DeviceError : public Error {
  using Error::Error;
};
// The user asked to stop before there was anything to save.
class InterruptedError : public Error {
  using Error::Error;
};
// Training produced a value that is not finite: says the step and the first layer.
class DivergedError : public Error {
  using Error::Error;
};

namespace detail {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}

}  // namespace layup

// A programmer's mistake, never reachable from user input. Throws std::logic_error.
#define LAYUP_ASSERT(condition) \
  ((condition) ? (void)0 : ::layup::detail::assertion_failed(#condition, __FILE__, __LINE__))
