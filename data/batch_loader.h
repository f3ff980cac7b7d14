// SPDX-License-Identifier: Apache-2.0
// Prepares batches ahead of their use, in threads, into slots that the caller owns.
//
//   BatchLoader loader(*splits.train, options, slots);
//   loader.start(epoch, batch_in_epoch);
//   while (training) {
//     const auto batch = loader.next();   // blocks until it is there
//     ...                                 // use slots[batch->slot]
//     loader.release(batch->slot);
//   }
//
// What a batch holds is a pure function of the options, the epoch and its index: not of the number
// of threads or slots, nor of where start() began. Nothing is allocated after construction (but
// by an exception). One thread calls the functions below; the loader's own threads are hidden.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/dataset.h"
#include "data/epoch_order.h"
#include "data/preprocess.h"

namespace layup {

// Memory for one batch; must outlive the loader.
struct BatchSlot {
  float* images = nullptr;         // [batch, C, H, W]
  std::int32_t* labels = nullptr;  // [batch]
};

struct LoaderOptions {
  std::int64_t batch = 1;
  std::uint64_t seed = 0;
  // Training shuffles, augments and drops the last batch as `data` says, and goes on from epoch to
  // epoch. Evaluation does none of it: one pass in order over all samples.
  bool training = true;
  DataOptions data;
};

struct Batch {
  int slot = 0;
  std::int64_t count = 0;  // samples; the last batch of an epoch may have fewer than `batch`
  std::int64_t epoch = 0;
  std::int64_t index = 0;           // of the batch in its epoch
  std::int64_t first_position = 0;  // of its first sample in the epoch: index * batch

  bool operator==(const Batch&) const = default;
};

// The number of batches that one pass makes; 0 if drop_last leaves none.
std::int64_t batches_per_epoch(std::int64_t num_samples, std::int64_t batch, bool drop_last);

class BatchLoader {
 public:
  // Two slots or more, or nothing is loaded while the caller works. ConfigError if drop_last leaves
  // no batch at all.
  BatchLoader(const Dataset& dataset, const LoaderOptions& options, std::vector<BatchSlot> slots);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Stops what may be under way, then loads first_batch of `epoch` and those that follow. All slots
  // are the loader's again. A first_batch at or beyond the end of the epoch counts on into the next
  // ones (in evaluation: nothing is left).
  void start(std::int64_t epoch, std::int64_t first_batch);
  // The next batch in order; nothing after the last one of an evaluation. Rethrows, at its batch,
  // what Dataset::read threw there (and again when called again); DataError for a label out of
  // range. At least one slot must not be held by the caller.
  std::optional<Batch> next();
  // The caller is done with the slot of a batch that next() gave.
  void release(int slot);
  // Returns when no thread touches a slot any more. Batches not yet taken are dropped.
  void stop();

  std::int64_t batches_per_epoch() const { return batches_per_epoch_; }

 private:
  enum class State : std::uint8_t { free, filling, ready, held };
  struct Slot {
    State state = State::free;
    Batch batch;
    std::int64_t parts_left = 0;
    std::exception_ptr error;
    std::int64_t error_part = 0;
  };
  // A share of the samples of one batch.
  struct Part {
    Batch batch;
    std::int64_t index = 0;
  };

  void work(std::vector<std::uint8_t>& pixels);
  bool can_claim() const;
  Part claim();
  void load(const Part& part, std::vector<std::uint8_t>& pixels) const;
  void finish(const Part& part, std::exception_ptr error);
  void quit();

  const Dataset& dataset_;
  const LoaderOptions options_;
  const std::vector<BatchSlot> memory_;
  const std::int64_t num_samples_;
  const std::int64_t num_classes_;
  const std::int64_t sample_elements_;
  const std::int64_t num_parts_;  // per batch; one per thread
  std::int64_t batches_per_epoch_ = 0;
  EpochOrder order_;
  Preprocessor preprocessor_;

  std::mutex mutex_;  // guards all that follows; what slots point to is handed over under it
  std::condition_variable work_changed_;   // a slot came free, start, quit
  std::condition_variable batch_changed_;  // a batch became ready
  std::condition_variable part_finished_;  // for stop()
  bool is_running_ = false;
  bool is_quitting_ = false;
  std::int64_t active_parts_ = 0;
  std::vector<Slot> slots_;  // used in turn
  std::size_t fill_slot_ = 0;
  std::int64_t fill_epoch_ = 0;
  std::int64_t fill_batch_ = 0;  // evaluation: batches_per_epoch_ when all are claimed
  std::int64_t fill_part_ = 0;   // of the batch being handed out; 0: it needs a free slot first
  std::size_t take_slot_ = 0;
  std::int64_t batches_to_take_ = 0;  // evaluation only

  std::vector<std::vector<std::uint8_t>> scratch_;  // one sample per thread
  std::vector<std::thread> threads_;
};

}  // namespace layup
