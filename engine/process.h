// SPDX-License-Identifier: Apache-2.0
// What the system says of this process and machine.
#pragma once

#include <cstdint>

namespace layup {

std::int64_t current_rss_bytes();       // VmRSS; 0 where /proc is missing
std::int64_t peak_rss_bytes();          // VmHWM
std::int64_t available_memory_bytes();  // of the machine, for new use (MemAvailable)
// Since the process was started by the system; 0 where /proc is missing.
double ms_since_process_start();
// Processors that this process may use (its affinity mask).
int available_processors();

}  // namespace layup
