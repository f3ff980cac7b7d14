// SPDX-License-Identifier: Apache-2.0
// The one place that knows how kernels use several threads (OpenMP; a plain loop without it).
#pragma once

#include <cstdint>

namespace layup {

// Calls body(begin, end) on about equal, contiguous parts of [0, count), at most `threads` of them
// at once. The parts depend on count and threads alone. Does not allocate, but for the first call
// of a host thread with more than one part, which starts its team.
template <typename Body>
void parallel_for(int threads, std::int64_t count, const Body& body) {
  const std::int64_t parts = count < threads ? count : threads;
  if (parts <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
  // The team has `threads` members even for fewer parts: libgomp keeps one team per host thread and
  // allocates another one whenever the size asked for changes.
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
  for (std::int64_t part = 0; part < parts; ++part)
    body(count * part / parts, count * (part + 1) / parts);
}

}  // namespace layup
