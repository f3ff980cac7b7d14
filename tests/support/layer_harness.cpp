// SPDX-License-Identifier: Apache-2.0
#include "tests/support/layer_harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "engine/error.h"
#include "engine/rng.h"

namespace layup {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kGuardBytes = 64;

void append_slots(std::vector<Slot>& slots, Role role, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) slots.push_back({role, static_cast<int>(i)});
}

bool contains(const std::vector<Slot>& slots, Slot slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

}  // namespace

std::unique_ptr<Layer> read_layer(const LayerType& type, const Json& params) {
  const JsonNode node = JsonNode::from(params);
  JsonErrors errors(type.name);
  JsonReader reader(node, "", errors);
  std::unique_ptr<Layer> layer = type.read(reader);
  reader.finish();
  errors.throw_if_any();
  return layer;
}

GuardedBuffer::GuardedBuffer(std::int64_t size_bytes)
    : size_bytes_(static_cast<std::size_t>(size_bytes)) {
  blocks_.resize(2 + (size_bytes_ + sizeof(Block) - 1) / sizeof(Block));
  auto* raw = reinterpret_cast<std::byte*>(blocks_.data());
  std::fill(raw, raw + blocks_.size() * sizeof(Block), kGuard);
  fill(std::byte{0});
}

std::span<std::byte> GuardedBuffer::bytes() { return {blocks_[1].bytes, size_bytes_}; }

std::span<const std::byte> GuardedBuffer::bytes() const { return {blocks_[1].bytes, size_bytes_}; }

void GuardedBuffer::fill(std::byte value) { std::memset(bytes().data(), int(value), size_bytes_); }

bool GuardedBuffer::is_intact() const {
  const auto* raw = reinterpret_cast<const std::byte*>(blocks_.data());
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  return std::all_of(raw, raw + kGuardBytes, is_guard) &&
         std::all_of(raw + kGuardBytes + size_bytes_, raw + blocks_.size() * sizeof(Block),
                     is_guard);
}

LayerHarness::LayerHarness(const Layer& layer, std::vector<TensorSpec> inputs, int threads)
    : layer_(&layer), inputs_(std::move(inputs)), info_(layer.infer(inputs_)), threads_(threads) {
  append_slots(slots_, Role::x, inputs_.size());
  append_slots(slots_, Role::dx, inputs_.size());
  append_slots(slots_, Role::y, 1);
  append_slots(slots_, info_.is_loss ? Role::labels : Role::dy, 1);
  append_slots(slots_, Role::parameter, info_.parameters.size());
  append_slots(slots_, Role::parameter_gradient, info_.parameters.size());
  append_slots(slots_, Role::buffer, info_.buffers.size());
  append_slots(slots_, Role::saved, info_.saved.size());
  append_slots(slots_, Role::carry, info_.carries.size());
  append_slots(slots_, Role::metric, info_.metrics.size());
  for (const Slot slot : slots_) buffers_.emplace_back(num_bytes(spec(slot)));
  std::int64_t workspace_bytes = 0;
  for (int i = 0; i < kNumPasses; ++i) {
    const auto pass = static_cast<Pass>(i);
    if (!info_.pass(pass).exists()) continue;
    kernels_[i] = layer.make_kernel(request(pass));
    workspace_bytes = std::max(workspace_bytes, layer.workspace_bytes(request(pass)));
  }
  workspace_ = GuardedBuffer(workspace_bytes);
}

KernelRequest LayerHarness::request(Pass pass) const {
  return {pass, inputs_, fnv1a("layer"), threads_};
}

bool LayerHarness::has(Slot slot) const { return contains(slots_, slot); }

TensorSpec LayerHarness::spec(Slot slot) const {
  const auto i = static_cast<std::size_t>(slot.index);
  switch (slot.role) {
    case Role::x:
    case Role::dx: return inputs_.at(i);
    case Role::y:
    case Role::dy: return info_.output;
    case Role::parameter:
    case Role::parameter_gradient: return {info_.parameters.at(i).shape};
    case Role::buffer: return {info_.buffers.at(i).shape};
    case Role::saved: return info_.saved.at(i);
    case Role::carry: return info_.carries.at(i);
    case Role::labels: return {{inputs_.at(0).shape.at(0)}, DType::i32};
    case Role::metric: return {};
  }
  throw std::logic_error("unknown role");
}

std::size_t LayerHarness::position(Slot slot) const {
  const auto found = std::find(slots_.begin(), slots_.end(), slot);
  if (found == slots_.end()) throw std::runtime_error("the layer has no " + to_string(slot));
  return static_cast<std::size_t>(found - slots_.begin());
}

std::span<std::byte> LayerHarness::bytes(Slot slot) { return buffers_[position(slot)].bytes(); }

std::span<const std::byte> LayerHarness::bytes(Slot slot) const {
  return buffers_[position(slot)].bytes();
}

void LayerHarness::fill(std::uint64_t seed) {
  for (const Slot slot : slots_) {
    const std::uint64_t key = mix(seed ^ fnv1a(to_string(slot)));
    if (slot.role == Role::labels) {
      const std::int64_t classes = num_elements(inputs_[0].shape) / inputs_[0].shape[0];
      const auto labels = values<std::int32_t>(slot);
      for (std::size_t i = 0; i < labels.size(); ++i)
        labels[i] = static_cast<std::int32_t>(mix(key + i) % static_cast<std::uint64_t>(classes));
    } else if (slot.role == Role::buffer) {
      const float initial = info_.buffers[static_cast<std::size_t>(slot.index)].initial;
      std::ranges::fill(values(slot), initial);
    } else if (slot.role == Role::dy) {
      const auto dy = values(slot);
      for (std::size_t i = 0; i < dy.size(); ++i)
        dy[i] = 2 * to_unit_float(static_cast<std::uint32_t>(mix(key + i))) - 1;
    } else if (slot.role == Role::x || slot.role == Role::parameter) {
      std::ranges::copy(spread_values(values(slot).size(), key), values(slot).begin());
    }
  }
  // Not the defaults, so that a kernel that ignores them is seen.
  state_ = {.step = 7, .seed = seed, .first_sample = 5, .loss_gradient = 0.75F};
}

void LayerHarness::poison_all_but_reads(const PassSpec& pass) {
  for (const Slot slot : slots_) {
    // A buffer that a pass lists under writes is updated where it lies.
    const bool updated = slot.role == Role::buffer && contains(pass.writes, slot);
    if (!updated && !contains(pass.reads, slot)) buffers_[position(slot)].fill(kPoison);
  }
}

void LayerHarness::run(Pass pass, const RunOptions& options) {
  const PassSpec& spec_of_pass = info_.pass(pass);
  if (!spec_of_pass.exists())
    throw std::runtime_error(std::string("the layer has no pass ") + to_string(pass));
  workspace_.fill(options.poison ? kPoison : std::byte{0});
  if (options.poison) poison_all_but_reads(spec_of_pass);

  std::vector<const void*> reads;
  std::vector<void*> writes;
  for (const Slot slot : spec_of_pass.reads) reads.push_back(bytes(slot).data());
  for (const Slot slot : spec_of_pass.writes) writes.push_back(bytes(slot).data());
  // Bytes that are read and written are a copy of what is read; the result is copied back.
  std::vector<GuardedBuffer> shared;
  shared.reserve(options.in_place.size());
  for (const InPlace& pair : options.in_place) {
    const auto source = bytes(spec_of_pass.reads.at(static_cast<std::size_t>(pair.read)));
    shared.emplace_back(static_cast<std::int64_t>(source.size()));
    std::ranges::copy(source, shared.back().bytes().begin());
    reads[static_cast<std::size_t>(pair.read)] = shared.back().bytes().data();
    writes.at(static_cast<std::size_t>(pair.write)) = shared.back().bytes().data();
  }
  const std::vector<GuardedBuffer> before = buffers_;

  const KernelArgs args{reads.data(), writes.data(), workspace_.bytes().data(), &state_};
  const Kernel& kernel = kernels_[static_cast<std::size_t>(pass)];
  const std::int64_t count_before = allocation_counter_ ? allocation_counter_() : 0;
  kernel(args);
  allocations_in_last_run_ = allocation_counter_ ? allocation_counter_() - count_before : 0;

  for (std::size_t i = 0; i < shared.size(); ++i) {
    const auto write = spec_of_pass.writes[static_cast<std::size_t>(options.in_place[i].write)];
    std::ranges::copy(shared[i].bytes().first(bytes(write).size()), bytes(write).begin());
    if (!shared[i].is_intact())
      throw std::runtime_error(std::string(to_string(pass)) + " writes outside " +
                               to_string(write) + " in place");
  }
  check_guards(pass);
  for (const Slot slot : spec_of_pass.reads)
    if (!contains(spec_of_pass.writes, slot) &&
        !std::ranges::equal(before[position(slot)].bytes(), bytes(slot)))
      throw std::runtime_error(std::string(to_string(pass)) + " changes " + to_string(slot) +
                               ", which it only reads");
}

void LayerHarness::check_guards(Pass pass) const {
  for (const Slot slot : slots_)
    if (!buffers_[position(slot)].is_intact())
      throw std::runtime_error(std::string(to_string(pass)) + " writes outside " + to_string(slot));
  if (!workspace_.is_intact())
    throw std::runtime_error(std::string(to_string(pass)) + " writes outside its workspace");
}

void LayerHarness::run_step() {
  run(Pass::forward);
  if (info_.passes_gradient_through)
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      std::ranges::copy(bytes({Role::dy}), bytes({Role::dx, static_cast<int>(i)}).begin());
  for (const Pass pass : {Pass::backward_params, Pass::backward_data})
    if (info_.pass(pass).exists()) run(pass);
}

double spacing(std::size_t count) { return 4.0 / static_cast<double>(count + count % 2); }

std::vector<float> spread_values(std::size_t count, std::uint64_t seed) {
  const std::size_t places = count + count % 2;  // even, so that none lies at 0
  std::vector<std::size_t> order(places);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = places; i > 1; --i) std::swap(order[i - 1], order[mix(seed + i) % i]);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((static_cast<double>(order[i]) + 0.5) * spacing(count) - 2);
  return values;
}

std::string to_string(Slot slot) {
  constexpr std::array<const char*, 11> kNames = {
      "x",      "y",     "dx",    "dy",     "parameter", "parameter_gradient",
      "buffer", "saved", "carry", "labels", "metric"};
  return kNames[static_cast<std::size_t>(slot.role)] + std::to_string(slot.index);
}

}  // namespace layup
