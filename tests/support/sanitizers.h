// SPDX-License-Identifier: Apache-2.0
// What a test cannot ask of a build with sanitizers: resident memory is not only the program's, the
// heap is another, and all takes ten times as long.
#pragma once

namespace layup::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace layup::test
