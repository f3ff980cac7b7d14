// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>

#include "memory/arena_packing.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::RandomSource;

// As in a training step: many short blocks, and pairs of forward and backward that nest.
std::vector<Block> random_blocks(std::uint64_t seed, std::int64_t count) {
  RandomSource random(seed);
  std::vector<Block> blocks;
  const auto end = static_cast<std::int32_t>(2 * count);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int64_t bytes = 64 * (1 + random.below(random.chance(10) ? 1000 : 40));
    std::int32_t last = i + 1 + static_cast<std::int32_t>(random.below(4));
    if (random.chance(30)) last = end - i;
    if (random.chance(5)) last = i + 1 + static_cast<std::int32_t>(random.below(end - i));
    blocks.push_back({bytes, i, std::min(last, end)});
  }
  return blocks;
}

bool overlap(const Block& a, std::int64_t at_a, const Block& b, std::int64_t at_b) {
  return a.begin < b.end && b.begin < a.end && at_a < at_b + b.bytes && at_b < at_a + a.bytes;
}

// Empty if the packing is right; every pair is looked at.
std::string problem(const std::vector<Block>& blocks, const Packing& packing) {
  if (packing.offsets.size() != blocks.size()) return "wrong number of offsets";
  std::int64_t height = 0;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (packing.offsets[i] < 0 || packing.offsets[i] % 64 != 0) return "a block is misplaced";
    height = std::max(height, packing.offsets[i] + blocks[i].bytes);
    sum += blocks[i].bytes;
    for (std::size_t j = 0; j < i; ++j)
      if (overlap(blocks[i], packing.offsets[i], blocks[j], packing.offsets[j]))
        return "blocks " + std::to_string(j) + " and " + std::to_string(i) + " overlap";
  }
  if (height != packing.height_bytes) return "the height is not that of the blocks";
  if (height < max_live_bytes(blocks)) return "lower than what is live at one time";
  if (height > sum) return "higher than one block after the other";
  return "";
}

TEST_CASE("packing: what is live at one time, half-open") {
  CHECK(max_live_bytes({}) == 0);
  CHECK(max_live_bytes({{64, 0, 2}, {128, 2, 4}}) == 128);
  CHECK(max_live_bytes({{64, 0, 3}, {128, 2, 4}}) == 192);
  const Packing packing = pack_arena({{64, 0, 2}, {128, 2, 4}});
  CHECK(packing.height_bytes == 128);
  CHECK(pack_arena({}).height_bytes == 0);
}

TEST_CASE("packing: nested lifetimes need no more than what is live") {
  std::vector<Block> blocks;
  for (std::int32_t i = 0; i < 100; ++i) blocks.push_back({64 * (1 + i % 7), i, 200 - i});
  CHECK(pack_arena(blocks).height_bytes == max_live_bytes(blocks));
}

TEST_CASE("packing: random lifetimes never overlap") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const std::vector<Block> blocks = random_blocks(seed, 1 + static_cast<std::int64_t>(seed % 80));
    const Packing packing = pack_arena(blocks);
    INFO("seed " << seed);
    CHECK(problem(blocks, packing) == "");
    CHECK(pack_arena(blocks).offsets == packing.offsets);  // deterministic
  }
}

TEST_CASE("packing: crowded lifetimes of very different sizes come near to what is live") {
  double sum = 0;
  constexpr int kSets = 20;
  for (std::uint64_t seed = 0; seed < kSets; ++seed) {
    RandomSource random(seed);
    std::vector<Block> blocks;
    for (int i = 0; i < 150; ++i) {
      const auto begin = static_cast<std::int32_t>(random.below(300));
      const auto length = static_cast<std::int32_t>(1 + random.below(random.chance(30) ? 200 : 20));
      blocks.push_back(
          {64 * (1 + random.below(random.chance(20) ? 2000 : 100)), begin, begin + length});
    }
    const Packing packing = pack_arena(blocks);
    CHECK(problem(blocks, packing) == "");
    sum += static_cast<double>(packing.height_bytes) / static_cast<double>(max_live_bytes(blocks));
  }
  MESSAGE("height over bound, mean: " << sum / kSets);
  CHECK(sum / kSets < 1.005);  // 1.012 without the repairs
}

TEST_CASE("packing: the check itself sees an overlap and a wrong height") {
  const std::vector<Block> blocks = random_blocks(1, 30);
  const Packing good = pack_arena(blocks);
  REQUIRE(problem(blocks, good) == "");
  Packing bad = good;
  bad.offsets[10] = bad.offsets[9];
  CHECK(problem(blocks, bad).find("overlap") != std::string::npos);
  bad = good;
  bad.height_bytes += 64;
  CHECK(problem(blocks, bad) != "");
}

TEST_CASE("packing: 20,000 blocks are packed quickly") {
  const std::vector<Block> blocks = random_blocks(7, 20'000);
  const auto start = std::chrono::steady_clock::now();
  const Packing packing = pack_arena(blocks);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(packing.height_bytes >= max_live_bytes(blocks));
  // Twenty times what a release build takes here; quadratic code takes longer.
  CHECK(seconds.count() < 2);
  MESSAGE("20,000 blocks: " << seconds.count() << " s, height over bound "
                            << static_cast<double>(packing.height_bytes) /
                                   static_cast<double>(max_live_bytes(blocks)));
}

}  // namespace
}  // namespace layup
