// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include <algorithm>
#include <utility>

#include "engine/error.h"

namespace layup {

std::int64_t batches_per_epoch(std::int64_t num_samples, std::int64_t batch, bool drop_last) {
  LAYUP_ASSERT(num_samples >= 0 && batch >= 1);
  return num_samples / batch + (!drop_last && num_samples % batch != 0 ? 1 : 0);
}

BatchLoader::BatchLoader(const Dataset& dataset, const LoaderOptions& options,
                         std::vector<BatchSlot> slots)
    : dataset_(dataset),
      options_(options),
      memory_(std::move(slots)),
      num_samples_(dataset.size()),
      num_classes_(dataset.classes()),
      sample_elements_(num_elements(dataset.sample_shape())),
      num_parts_(options.data.loader_threads),
      order_(num_samples_, options.seed, options.training && options.data.shuffle),
      preprocessor_(options.data.preprocess, dataset.sample_shape(), options.seed),
      slots_(memory_.size()) {
  LAYUP_ASSERT(num_parts_ >= 1 && !memory_.empty());
  for (const BatchSlot& slot : memory_)
    LAYUP_ASSERT(slot.images != nullptr && slot.labels != nullptr);
  batches_per_epoch_ = layup::batches_per_epoch(num_samples_, options.batch,
                                                options.training && options.data.drop_last);
  if (batches_per_epoch_ == 0)
    throw ConfigError("the training set has " + std::to_string(num_samples_) +
                      " samples, which is less than one batch of " + std::to_string(options.batch) +
                      ", and \"drop_last\" leaves out partial batches: there would be no step; "
                      "lower \"batch\" or do without \"drop_last\"");
  scratch_.assign(static_cast<std::size_t>(num_parts_),
                  std::vector<std::uint8_t>(static_cast<std::size_t>(sample_elements_)));
  try {
    for (auto& pixels : scratch_) threads_.emplace_back([this, &pixels] { work(pixels); });
  } catch (...) {
    quit();
    throw;
  }
}

BatchLoader::~BatchLoader() { quit(); }

void BatchLoader::quit() {
  {
    const std::lock_guard lock(mutex_);
    is_quitting_ = true;
  }
  work_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BatchLoader::start(std::int64_t epoch, std::int64_t first_batch) {
  LAYUP_ASSERT(epoch >= 0 && first_batch >= 0);
  stop();
  {
    const std::lock_guard lock(mutex_);
    fill_epoch_ = epoch;
    fill_batch_ = first_batch;
    if (options_.training) {
      fill_epoch_ += first_batch / batches_per_epoch_;
      fill_batch_ = first_batch % batches_per_epoch_;
    }
    fill_slot_ = take_slot_ = 0;
    fill_part_ = 0;
    batches_to_take_ = std::max<std::int64_t>(0, batches_per_epoch_ - first_batch);
    is_running_ = true;
  }
  work_changed_.notify_all();
}

void BatchLoader::stop() {
  std::unique_lock lock(mutex_);
  is_running_ = false;
  part_finished_.wait(lock, [&] { return active_parts_ == 0; });
  for (Slot& slot : slots_) {
    slot.state = State::free;
    slot.error = nullptr;
  }
}

std::optional<Batch> BatchLoader::next() {
  std::unique_lock lock(mutex_);
  LAYUP_ASSERT(is_running_);
  if (!options_.training && batches_to_take_ == 0) return std::nullopt;
  Slot& slot = slots_[take_slot_];
  LAYUP_ASSERT(slot.state != State::held);  // or this would wait for ever
  batch_changed_.wait(lock, [&] { return slot.state == State::ready; });
  // A batch that failed stays where it is: nothing behind it is handed out.
  if (slot.error) std::rethrow_exception(slot.error);
  slot.state = State::held;
  take_slot_ = (take_slot_ + 1) % slots_.size();
  --batches_to_take_;
  return slot.batch;
}

void BatchLoader::release(int slot) {
  {
    const std::lock_guard lock(mutex_);
    LAYUP_ASSERT(slot >= 0 && static_cast<std::size_t>(slot) < slots_.size());
    LAYUP_ASSERT(slots_[static_cast<std::size_t>(slot)].state == State::held);
    slots_[static_cast<std::size_t>(slot)].state = State::free;
  }
  work_changed_.notify_all();
}

bool BatchLoader::can_claim() const {
  if (!is_running_) return false;
  if (fill_part_ > 0) return true;
  return fill_batch_ < batches_per_epoch_ && slots_[fill_slot_].state == State::free;
}

BatchLoader::Part BatchLoader::claim() {
  Slot& slot = slots_[fill_slot_];
  if (fill_part_ == 0) {
    const std::int64_t first = fill_batch_ * options_.batch;
    slot.state = State::filling;
    slot.batch = {static_cast<int>(fill_slot_), std::min(options_.batch, num_samples_ - first),
                  fill_epoch_, fill_batch_, first};
    slot.parts_left = num_parts_;
  }
  const Part part{slot.batch, fill_part_};
  ++active_parts_;
  if (++fill_part_ == num_parts_) {
    fill_part_ = 0;
    fill_slot_ = (fill_slot_ + 1) % slots_.size();
    ++fill_batch_;
    if (options_.training && fill_batch_ == batches_per_epoch_) {
      fill_batch_ = 0;
      ++fill_epoch_;
    }
  }
  return part;
}

// Takes the exception over: from here on only the thread that calls next() and stop() holds it.
void BatchLoader::finish(const Part& part, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[static_cast<std::size_t>(part.batch.slot)];
  // Of several failures the first sample's is reported, whichever thread was faster.
  if (error && (!slot.error || part.index < slot.error_part)) {
    slot.error = std::move(error);
    slot.error_part = part.index;
  }
  if (--slot.parts_left == 0) {
    slot.state = State::ready;
    batch_changed_.notify_one();
  }
  if (--active_parts_ == 0) part_finished_.notify_one();
}

void BatchLoader::work(std::vector<std::uint8_t>& pixels) {
  std::unique_lock lock(mutex_);
  while (true) {
    work_changed_.wait(lock, [&] { return is_quitting_ || can_claim(); });
    if (is_quitting_) return;
    const Part part = claim();
    lock.unlock();
    std::exception_ptr error;
    try {
      load(part, pixels);
    } catch (...) {
      error = std::current_exception();
    }
    finish(part, std::move(error));
    lock.lock();
  }
}

void BatchLoader::load(const Part& part, std::vector<std::uint8_t>& pixels) const {
  const Batch& batch = part.batch;
  const BatchSlot& slot = memory_[static_cast<std::size_t>(batch.slot)];
  const std::int64_t end = batch.count * (part.index + 1) / num_parts_;
  for (std::int64_t i = batch.count * part.index / num_parts_; i < end; ++i) {
    const std::int64_t sample = order_.sample_at(batch.epoch, batch.first_position + i);
    std::int32_t label = 0;
    dataset_.read(sample, pixels.data(), &label);
    if (label < 0 || label >= num_classes_)
      throw DataError("sample " + std::to_string(sample) + ": label " + std::to_string(label) +
                      ", but the set has " + std::to_string(num_classes_) + " classes (0 to " +
                      std::to_string(num_classes_ - 1) + ")");
    float* x = slot.images + i * sample_elements_;
    if (options_.training)
      preprocessor_.augment(pixels.data(), batch.epoch, sample, x);
    else
      preprocessor_.normalize(pixels.data(), x);
    slot.labels[i] = label;
  }
}

}  // namespace layup
