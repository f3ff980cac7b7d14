// SPDX-License-Identifier: Apache-2.0
// The one place that knows how kernels use several threads (OpenMP; a plain loop without it).
#pragma once

#include <cstdint>
#include <exception>

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

// One of the threads that run a body together.
struct TeamMember {
  int number = 0;
  int num_members = 1;

  // The member's contiguous part of [0, count): from begin_of(count) to end_of(count).
  std::int64_t begin_of(std::int64_t count) const { return count * number / num_members; }
  std::int64_t end_of(std::int64_t count) const { return count * (number + 1) / num_members; }
  // Returns when all members have called it.
  void wait_for_all() const {
#ifdef _OPENMP
#pragma omp barrier
#endif
  }
};

// Calls body(member) once in each of `threads` threads (or as many as there are) at the same time:
// for work in steps that wait for each other, where starting anew for each of them would take too
// long. Not inside another team. What a body throws is thrown on, but if it waits for the others it
// must not throw.
template <typename Body>
void as_team([[maybe_unused]] int threads, const Body& body) {
#ifdef _OPENMP
  if (threads > 1) {  // libgomp allocates for a team of one, too
    std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
    try {
      body(TeamMember{omp_get_thread_num(), omp_get_num_threads()});
    } catch (...) {
#pragma omp critical(layup_as_team)
      failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(failure);
    return;
  }
#endif
  body(TeamMember{});
}

// Calls body() once in every thread of the calling thread's team but the calling one.
template <typename Body>
void in_other_threads_of_team([[maybe_unused]] int threads, [[maybe_unused]] const Body& body) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() != 0) body();
#endif
}

// How many threads a library that uses OpenMP takes when the calling thread calls it.
inline int library_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}
inline void set_library_threads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

// Makes the calling thread's team of threads, which allocates; libraries that it calls use as many.
inline void warm_up_threads(int threads) {
  set_library_threads(threads);
  parallel_for(threads, threads, [](std::int64_t, std::int64_t) {});
}

}  // namespace layup
