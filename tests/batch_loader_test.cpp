// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "engine/error.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/dataset_files.h"

namespace layup {
namespace {

using namespace test;

const Shape kShape = {2, 6, 5};
constexpr std::size_t kElements = 60;

// What lies behind BatchSlots.
struct Slots {
  Slots(std::size_t count, std::int64_t batch)
      : images(count, std::vector<float>(static_cast<std::size_t>(batch) * kElements)),
        labels(count, std::vector<std::int32_t>(static_cast<std::size_t>(batch))) {}
  std::vector<BatchSlot> views() {
    std::vector<BatchSlot> all;
    for (std::size_t i = 0; i < images.size(); ++i)
      all.push_back({images[i].data(), labels[i].data()});
    return all;
  }
  std::vector<std::vector<float>> images;
  std::vector<std::vector<std::int32_t>> labels;
};

struct Seen {
  Batch batch;
  std::vector<float> images;
  std::vector<std::int32_t> labels;

  // All but the slot, which depends on where loading began.
  bool operator==(const Seen& other) const {
    return batch.count == other.batch.count && batch.epoch == other.batch.epoch &&
           batch.index == other.batch.index && batch.first_position == other.batch.first_position &&
           images == other.images && labels == other.labels;
  }
};

std::vector<Seen> take(BatchLoader& loader, const Slots& slots, int count) {
  std::vector<Seen> all;
  for (int i = 0; i < count; ++i) {
    const std::optional<Batch> batch = loader.next();
    if (!batch) break;
    const auto slot = static_cast<std::size_t>(batch->slot);
    const auto& images = slots.images[slot];
    const auto& labels = slots.labels[slot];
    all.push_back({*batch,
                   {images.begin(), images.begin() + batch->count * std::ptrdiff_t(kElements)},
                   {labels.begin(), labels.begin() + batch->count}});
    loader.release(batch->slot);
  }
  return all;
}

LoaderOptions training_options(std::int64_t batch, int threads = 1) {
  LoaderOptions options;
  options.batch = batch;
  options.seed = 42;
  options.data.loader_threads = threads;
  options.data.preprocess = {{0.5F}, {0.25F}, 2, true};
  return options;
}

std::vector<Seen> run(const Dataset& set, const LoaderOptions& options, int count,
                      std::int64_t epoch = 0, std::int64_t first_batch = 0,
                      std::size_t num_slots = 2) {
  Slots slots(num_slots, options.batch);
  BatchLoader loader(set, options, slots.views());
  loader.start(epoch, first_batch);
  return take(loader, slots, count);
}

TEST_CASE("batches of an epoch: counts, positions, the partial last one, the next epoch") {
  CHECK(batches_per_epoch(20, 8, false) == 3);
  CHECK(batches_per_epoch(20, 8, true) == 2);
  CHECK(batches_per_epoch(16, 8, false) == 2);
  CHECK(batches_per_epoch(16, 8, true) == 2);
  CHECK(batches_per_epoch(5, 8, false) == 1);
  CHECK(batches_per_epoch(5, 8, true) == 0);
  const CountingDataset set(20, kShape, 20);
  const auto all = run(set, training_options(8), 7);
  REQUIRE(all.size() == 7);
  const std::vector<std::int64_t> counts = {8, 8, 4, 8, 8, 4, 8};
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(all[i].batch.count == counts[i]);
    CHECK(all[i].batch.epoch == static_cast<std::int64_t>(i / 3));
    CHECK(all[i].batch.index == static_cast<std::int64_t>(i % 3));
    CHECK(all[i].batch.first_position == static_cast<std::int64_t>(i % 3 * 8));
  }
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::int32_t> labels;  // with as many classes as samples: which they were
    for (std::size_t i = 3 * epoch; i < 3 * epoch + 3; ++i)
      labels.insert(all[i].labels.begin(), all[i].labels.end());
    CHECK(labels.size() == 20);
    CHECK(std::set<std::int32_t>(labels.begin(), labels.end()).size() == 20);
  }
  CHECK(all[0].labels != all[3].labels);
}

TEST_CASE("drop_last leaves the partial batch out; a set below one batch is refused (B17)") {
  LoaderOptions options = training_options(8);
  options.data.drop_last = true;
  const auto all = run(CountingDataset(20, kShape), options, 3);
  CHECK(all[1].batch.count == 8);
  CHECK(all[2].batch.epoch == 1);
  const std::string error = config_error([&] { run(CountingDataset(5, kShape), options, 1); });
  CHECK(contains(error, "has 5 samples"));
  CHECK(contains(error, "batch of 8"));
  CHECK(contains(error, "\"drop_last\""));
  options.data.drop_last = false;
  CHECK(run(CountingDataset(5, kShape), options, 1)[0].batch.count == 5);
}

TEST_CASE("a batch holds what order, dataset and preprocessor say") {
  const CountingDataset set(50, kShape);
  const LoaderOptions options = training_options(7);
  const auto all = run(set, options, 10, 3);
  const EpochOrder order(50, 42, true);
  const Preprocessor preprocessor(options.data.preprocess, kShape, 42);
  for (const Seen& seen : all)
    for (std::int64_t i = 0; i < seen.batch.count; ++i) {
      const std::int64_t sample = order.sample_at(seen.batch.epoch, seen.batch.first_position + i);
      Bytes pixels(kElements);
      std::int32_t label = 0;
      set.read(sample, pixels.data(), &label);
      std::vector<float> x(kElements);
      preprocessor.augment(pixels.data(), seen.batch.epoch, sample, x.data());
      CHECK(seen.labels[static_cast<std::size_t>(i)] == label);
      CHECK(std::equal(x.begin(), x.end(), seen.images.begin() + i * std::ptrdiff_t(kElements)));
    }
}

TEST_CASE("the same bits for 1, 2 and 8 threads and for any number of slots (B24)") {
  const CountingDataset set(103, kShape);
  const auto one = run(set, training_options(16), 25);
  CHECK(one == run(set, training_options(16, 2), 25));
  CHECK(one == run(set, training_options(16, 8), 25));
  CHECK(one == run(set, training_options(16, 3), 25, 0, 0, 5));
  CHECK(one == run(set, training_options(16, 2), 25, 0, 0, 1));
  LoaderOptions other = training_options(16);
  other.seed = 43;
  CHECK(one != run(set, other, 25));
}

TEST_CASE("starting anywhere gives the batches of a run straight through (B31)") {
  const CountingDataset set(20, kShape);
  const auto straight = run(set, training_options(8, 2), 12);
  for (int first = 0; first < 9; ++first) {
    const std::vector<Seen> rest(straight.begin() + first, straight.end());
    CHECK(run(set, training_options(8, 2), 12 - first, first / 3, first % 3) == rest);
    // Counting on from the first epoch means the same.
    CHECK(run(set, training_options(8, 2), 12 - first, 0, first) == rest);
  }
  Slots slots(3, 8);
  BatchLoader loader(set, training_options(8, 4), slots.views());
  loader.stop();  // before any start: nothing happens
  for (int first = 8; first >= 0; --first) {
    loader.start(0, first);
    CHECK(take(loader, slots, 3) ==
          std::vector<Seen>(straight.begin() + first, straight.begin() + first + 3));
    if (first % 2 == 0) loader.stop();  // else start() stops what is under way
  }
  loader.start(0, 0);
  CHECK(loader.next());  // held while all ends
}

TEST_CASE("evaluation: one pass in order, nothing shuffled, augmented or dropped") {
  const CountingDataset set(20, kShape, 20);
  LoaderOptions options = training_options(8, 2);
  options.training = false;
  options.data.drop_last = true;
  Slots slots(2, 8);
  BatchLoader loader(set, options, slots.views());
  CHECK(loader.batches_per_epoch() == 3);
  const Preprocessor preprocessor(options.data.preprocess, kShape, 0);
  for (int pass = 0; pass < 2; ++pass) {
    loader.start(0, 0);
    const auto all = take(loader, slots, 100);
    REQUIRE(all.size() == 3);
    CHECK(all[2].batch.count == 4);
    for (std::size_t i = 0; i < 20; ++i) {
      CHECK(all[i / 8].labels[i % 8] == static_cast<std::int32_t>(i));
      Bytes pixels(kElements);
      std::int32_t label = 0;
      set.read(static_cast<std::int64_t>(i), pixels.data(), &label);
      std::vector<float> x(kElements);
      preprocessor.normalize(pixels.data(), x.data());
      CHECK(std::equal(x.begin(), x.end(),
                       all[i / 8].images.begin() + std::ptrdiff_t(i % 8 * kElements)));
    }
    CHECK(!loader.next());
    CHECK(!loader.next());
  }
  loader.start(0, 2);
  CHECK(take(loader, slots, 100).size() == 1);
  loader.start(0, 3);
  CHECK(!loader.next());
  options.batch = 64;  // more than there is, though drop_last is set
  CHECK(run(set, options, 9).size() == 1);
}

TEST_CASE("what read() throws comes out of next(), at its batch, whatever the threads") {
  CountingDataset set(64, kShape);
  set.bad_sample = 37;
  for (const int threads : {1, 2, 8}) {
    LoaderOptions options = training_options(8, threads);
    options.data.shuffle = false;
    Slots slots(3, 8);
    BatchLoader loader(set, options, slots.views());
    loader.start(0, 0);
    CHECK(take(loader, slots, 4).size() == 4);
    for (int again = 0; again < 2; ++again)
      CHECK(data_error([&] { loader.next(); }) == "sample 37 is unreadable");
    loader.start(0, 5);  // behind it all is well
    CHECK(take(loader, slots, 3).size() == 3);
  }
}

TEST_CASE("labels out of range never reach a batch (B12)") {
  CountingDataset set(64, kShape);
  set.bad_label_sample = 17;
  for (const std::int32_t bad : {10, -1, 255}) {
    set.bad_label = bad;
    LoaderOptions options = training_options(8, 2);
    options.training = false;
    CHECK(data_error([&] { run(set, options, 8); }) ==
          "sample 17: label " + std::to_string(bad) + ", but the set has 10 classes (0 to 9)");
  }
}

TEST_CASE("nothing is allocated after construction") {
  const CountingDataset set(103, kShape);
  Slots slots(2, 16);
  BatchLoader loader(set, training_options(16, 4), slots.views());
  const std::int64_t before = num_allocations();
  loader.start(0, 3);
  for (int i = 0; i < 40; ++i) loader.release(loader.next()->slot);
  loader.stop();
  loader.start(5, 0);
  loader.release(loader.next()->slot);
  CHECK(num_allocations() == before);
  const std::vector<float> one_more(1000);
  CHECK((num_allocations() > before || !counts_allocations()));
}

TEST_CASE("slots: all of them are used, and misuse is caught rather than waiting for ever") {
  const CountingDataset set(64, kShape);
  Slots slots(3, 8);
  BatchLoader loader(set, training_options(8, 2), slots.views());
  CHECK_THROWS_AS(loader.next(), std::logic_error);  // not started
  loader.start(0, 0);
  std::set<int> held;
  for (int i = 0; i < 3; ++i) held.insert(loader.next()->slot);
  CHECK(held == std::set<int>{0, 1, 2});
  CHECK_THROWS_AS(loader.next(), std::logic_error);  // would wait for a slot that the caller holds
  loader.release(0);
  CHECK_THROWS_AS(loader.release(0), std::logic_error);
  CHECK_THROWS_AS(loader.release(3), std::logic_error);
  CHECK(loader.next()->slot == 0);
}

}  // namespace
}  // namespace layup
