// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_packing.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>

namespace layup {
namespace {

constexpr std::size_t kMaxForSizeOrder = 3000;

using Order = std::vector<std::size_t>;

template <typename Less>
Order order_by(std::size_t count, const Less& less) {
  Order order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), less);
  return order;
}

// The free gaps of an arena of unbounded height.
class FreeList {
 public:
  enum class Fit : std::uint8_t { best, first };

  std::int64_t take(std::int64_t bytes, Fit fit) {
    auto chosen = gaps_.end();
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->second < bytes) continue;
      if (chosen == gaps_.end() || gap->second < chosen->second) chosen = gap;
      if (fit == Fit::first) break;
    }
    if (chosen == gaps_.end()) {  // grow, over the free end if there is one
      std::int64_t offset = height_;
      if (!gaps_.empty()) {
        const auto last = std::prev(gaps_.end());
        if (last->first + last->second == height_) {
          offset = last->first;
          gaps_.erase(last);
        }
      }
      height_ = offset + bytes;
      return offset;
    }
    const std::int64_t offset = chosen->first;
    const std::int64_t left = chosen->second - bytes;
    gaps_.erase(chosen);
    if (left > 0) gaps_.emplace(offset + bytes, left);
    return offset;
  }
  void give_back(std::int64_t offset, std::int64_t bytes) {
    auto next = gaps_.lower_bound(offset);
    if (next != gaps_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = gaps_.erase(next);
    }
    if (next != gaps_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    gaps_.emplace_hint(next, offset, bytes);
  }
  std::int64_t height() const { return height_; }

 private:
  std::map<std::int64_t, std::int64_t> gaps_;  // offset -> bytes
  std::int64_t height_ = 0;
};

// Sweeps over time as an allocator would; `blocks` may be reversed in time.
Packing sweep(const std::vector<Block>& blocks, FreeList::Fit fit, bool large_first) {
  const Order starts = order_by(blocks.size(), [&](std::size_t a, std::size_t b) {
    const Block& x = blocks[a];
    const Block& y = blocks[b];
    if (x.begin != y.begin) return x.begin < y.begin;
    if (large_first && x.bytes != y.bytes) return x.bytes > y.bytes;
    return x.end > y.end;
  });
  const Order ends = order_by(
      blocks.size(), [&](std::size_t a, std::size_t b) { return blocks[a].end < blocks[b].end; });
  Packing packing;
  packing.offsets.resize(blocks.size());
  FreeList free;
  auto ended = ends.begin();
  for (const std::size_t block : starts) {
    for (; ended != ends.end() && blocks[*ended].end <= blocks[block].begin; ++ended)
      free.give_back(packing.offsets[*ended], blocks[*ended].bytes);
    packing.offsets[block] = free.take(blocks[block].bytes, fit);
  }
  packing.height_bytes = free.height();
  return packing;
}

std::vector<Block> reversed_in_time(const std::vector<Block>& blocks) {
  std::vector<Block> reversed;
  for (const Block& block : blocks) reversed.push_back({block.bytes, -block.end, -block.begin});
  return reversed;
}

// Places blocks in the given order, each into the lowest place free of those it meets in time.
Packing place_in_order(const std::vector<Block>& blocks, const Order& order) {
  Packing packing;
  packing.offsets.resize(blocks.size());
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t block : order) {
    const Block& self = blocks[block];
    std::int64_t lowest = 0;
    for (const std::size_t other : placed) {
      if (blocks[other].end <= self.begin || self.end <= blocks[other].begin) continue;
      if (packing.offsets[other] >= lowest + self.bytes) break;
      lowest = std::max(lowest, packing.offsets[other] + blocks[other].bytes);
    }
    packing.offsets[block] = lowest;
    packing.height_bytes = std::max(packing.height_bytes, lowest + self.bytes);
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), lowest,
        [&](std::int64_t value, std::size_t b) { return value < packing.offsets[b]; });
    placed.insert(at, block);
  }
  return packing;
}

// The most that lives at any time of each block: where it is crowded, there is no room to move.
std::vector<std::int64_t> crowds_of(const std::vector<Block>& blocks) {
  std::vector<std::pair<std::int32_t, std::int64_t>> changes;
  for (const Block& block : blocks) {
    changes.emplace_back(block.begin, block.bytes);
    changes.emplace_back(block.end, -block.bytes);
  }
  std::sort(changes.begin(), changes.end());
  // live[level][i]: the most from times[i] on, over 2^level changes.
  std::vector<std::int32_t> times;
  std::vector<std::vector<std::int64_t>> live(1);
  for (const auto& [time, bytes] : changes) {
    if (times.empty() || times.back() != time) {
      times.push_back(time);
      live[0].push_back(live[0].empty() ? 0 : live[0].back());
    }
    live[0].back() += bytes;
  }
  for (std::size_t step = 1; 2 * step <= times.size(); step *= 2) {
    const std::vector<std::int64_t>& half = live.back();
    std::vector<std::int64_t> whole;
    for (std::size_t i = 0; i + step < half.size(); ++i)
      whole.push_back(std::max(half[i], half[i + step]));
    live.push_back(std::move(whole));
  }
  std::vector<std::int64_t> crowds;
  for (const Block& block : blocks) {
    const auto index_of = [&](std::int32_t time) {
      return static_cast<std::size_t>(std::lower_bound(times.begin(), times.end(), time) -
                                      times.begin());
    };
    const std::size_t first = index_of(block.begin);
    const std::size_t last = std::max(index_of(block.end), first + 1);
    const auto level = static_cast<std::size_t>(std::bit_width(last - first) - 1);
    crowds.push_back(std::max(live[level][first], live[level][last - (std::size_t{1} << level)]));
  }
  return crowds;
}

// Repairs are made while the packing is further than 1/kNearEnough from the bound, until so many in
// a row have not helped.
constexpr int kMostInVain = 10;
constexpr std::int64_t kNearEnough = 500;

}  // namespace

std::int64_t max_live_bytes(const std::vector<Block>& blocks) {
  std::vector<std::pair<std::int32_t, std::int64_t>> changes;
  for (const Block& block : blocks) {
    changes.emplace_back(block.begin, block.bytes);
    changes.emplace_back(block.end, -block.bytes);
  }
  std::sort(changes.begin(), changes.end());  // ends (negative) before begins at the same time
  std::int64_t live = 0;
  std::int64_t most = 0;
  for (const auto& [time, bytes] : changes) {
    live += bytes;
    most = std::max(most, live);
  }
  return most;
}

Packing pack_arena(const std::vector<Block>& blocks) {
  const std::int64_t bound = max_live_bytes(blocks);
  Packing best;
  best.height_bytes = std::numeric_limits<std::int64_t>::max();
  const auto is_optimal_with = [&](Packing packing) {
    if (packing.height_bytes < best.height_bytes) best = std::move(packing);
    return best.height_bytes == bound;
  };
  const std::vector<Block> reversed = reversed_in_time(blocks);
  for (const FreeList::Fit fit : {FreeList::Fit::best, FreeList::Fit::first})
    for (const bool large_first : {false, true})
      for (const std::vector<Block>* direction : {&blocks, &reversed})
        if (is_optimal_with(sweep(*direction, fit, large_first))) return best;
  if (blocks.size() > kMaxForSizeOrder) return best;
  const auto length = [&](std::size_t i) { return std::int64_t{blocks[i].end} - blocks[i].begin; };
  if (is_optimal_with(place_in_order(blocks, order_by(blocks.size(), [&](auto a, auto b) {
                                       return blocks[a].bytes > blocks[b].bytes;
                                     }))))
    return best;
  if (is_optimal_with(place_in_order(blocks, order_by(blocks.size(), [&](auto a, auto b) {
                                       return blocks[a].bytes * length(a) >
                                              blocks[b].bytes * length(b);
                                     }))))
    return best;
  if (is_optimal_with(place_in_order(
          blocks, order_by(blocks.size(), [&](auto a, auto b) { return length(a) > length(b); }))))
    return best;
  // From the most crowded times outward; then, again and again, with those in front that came to
  // lie above the bound.
  const std::vector<std::int64_t> crowds = crowds_of(blocks);
  Order order = order_by(blocks.size(), [&](auto a, auto b) {
    if (crowds[a] != crowds[b]) return crowds[a] > crowds[b];
    return blocks[a].bytes > blocks[b].bytes;
  });
  const std::int64_t near_enough = bound + bound / kNearEnough;
  int in_vain = 0;
  while (in_vain < kMostInVain && best.height_bytes > near_enough) {
    const std::int64_t before = best.height_bytes;
    const Packing packing = place_in_order(blocks, order);
    const auto is_too_high = [&](std::size_t i) {
      return packing.offsets[i] + blocks[i].bytes > bound;
    };
    std::stable_partition(order.begin(), order.end(), is_too_high);
    if (is_optimal_with(packing)) return best;
    in_vain = best.height_bytes < before ? 0 : in_vain + 1;
  }
  return best;
}

}  // namespace layup
