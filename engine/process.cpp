// SPDX-License-Identifier: Apache-2.0
#include "engine/process.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

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

double ms_since_process_start() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // The second field is a name in brackets, which may hold anything; the start is the 22nd.
  const char* const end = text.data() + text.size();
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  long long ticks = 0;
  if (at == std::string::npos ||
      std::from_chars(text.data() + at + 1, end, ticks).ec != std::errc())
    return 0;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6 -
         static_cast<double>(ticks) * 1e3 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace layup
