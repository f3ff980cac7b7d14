// SPDX-License-Identifier: Apache-2.0
#include "engine/process.h"

#include <sched.h>

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

namespace layup {
namespace {

// "VmRSS:     1234 kB"
std::int64_t bytes_in(const char* file, std::string_view key) {
  std::ifstream status(file);
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t digits = line.find_first_of("0123456789");
    std::int64_t kib = 0;
    if (digits != std::string::npos)
      std::from_chars(line.data() + digits, line.data() + line.size(), kib);
    return kib * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t current_rss_bytes() { return bytes_in("/proc/self/status", "VmRSS:"); }
std::int64_t peak_rss_bytes() { return bytes_in("/proc/self/status", "VmHWM:"); }
std::int64_t available_memory_bytes() { return bytes_in("/proc/meminfo", "MemAvailable:"); }

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace layup
