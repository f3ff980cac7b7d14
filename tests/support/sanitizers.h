// SPDX-License-Identifier: Apache-2.0
// What a test cannot ask of a build with sanitizers.
#pragma once

namespace layup::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kShadowsMemory = true;  // resident memory is not only the program's
#else
inline constexpr bool kShadowsMemory = false;
#endif

}  // namespace layup::test
