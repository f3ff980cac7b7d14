// SPDX-License-Identifier: Apache-2.0
// The one place that knows how kernels use several threads (OpenMP; a plain loop without it).
#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace layup {

// Calls body(begin, end) on about equal, contiguous parts of [0, count), at most `threads` of them
// at once. The parts depend on count and threads alone. Does not allocate once the calling thread
// has made its team (see warm_up_threads).
template <typename Body>
void parallel_for(int threads, std::int64_t count, const Body& body) {
  const std::int64_t parts = count < threads ? count : threads;
  if (parts <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
  // Always the whole team: libgomp allocates a new one whenever the size changes.
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
  for (std::int64_t part = 0; part < parts; ++part)
    body(count * part / parts, count * (part + 1) / parts);
}

// Makes the calling thread's team of threads, which allocates; libraries that it calls use as many.
inline void warm_up_threads(int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
  parallel_for(threads, threads, [](std::int64_t, std::int64_t) {});
}

}  // namespace layup
