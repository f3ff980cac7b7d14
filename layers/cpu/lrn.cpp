// SPDX-License-Identifier: Apache-2.0
// lrn of images in blocks of channels, pixel by pixel: the squares of all channels lie in a row
// with zeros at its ends, so that a window is a few unaligned loads. Contract and formulas:
// layers/lrn.cpp; sums and powers are in float32 here.
#include "layers/lrn.h"

#include <cmath>

#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/vector.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;

struct Settings {
  BlockedImage image;
  LrnParams params;
  int threads;

  Index row() const { return image.blocks * channel_block(); }  // channels with padding
  Index window_row() const {  // with zeros in front and behind, whichever way the window lies
    return round_up(row() + 2 * params.before(), channel_block());
  }
};

LrnParams params_of(const LayerOperation& op) {
  const JsonNode node = JsonNode::from(op.node.layer->params());
  JsonErrors errors("lrn");
  JsonReader reader(node, "", errors);
  return read_lrn_params(reader);
}

Settings settings_of(const LayerOperation& op) {
  return {BlockedImage(op.inputs[0].shape, channel_block()), params_of(op), op.threads};
}

// s^-beta. Quarters, as the usual 3/4, by square roots.
template <int kBlock>
class Power {
 public:
  explicit Power(double beta) : beta_(static_cast<float>(beta)) {
    const double quarters = 4 * beta;
    constexpr double kMost = 16;
    quarters_ = quarters <= kMost && quarters == std::floor(quarters) ? int(quarters) : -1;
  }

  typename Vectors<kBlock>::Float operator()(const typename Vectors<kBlock>::Float& s) const {
    using V = Vectors<kBlock>;
    typename V::Float result = typename V::Float{} + 1.0F;
    if (quarters_ < 0) {
      for (int lane = 0; lane < kBlock; ++lane) result[lane] = std::pow(s[lane], -beta_);
      return result;
    }
    const auto root = V::sqrt(V::sqrt(s));
    for (int i = 0; i < quarters_; ++i) result *= root;
    return 1.0F / result;
  }

 private:
  float beta_;
  int quarters_;
};

// One pixel after the other.
template <int kBlock>
class Normalizer {
  using V = Vectors<kBlock>;
  using Float = typename V::Float;

 public:
  explicit Normalizer(const Settings& settings)
      : s_(settings),
        power_(settings.params.beta),
        share_(static_cast<float>(settings.params.share())),
        k_(static_cast<float>(settings.params.k)),
        factor_(static_cast<float>(2 * settings.params.share() * settings.params.beta)) {}

  // `rows`: window_row() floats; in backward as many again, and row() more.
  void forward(Index pixel, const float* x, float* y, float* rows) const {
    clear_ends(rows);
    float* const squares = rows + s_.params.before();
    for (Index block = 0; block < s_.image.blocks; ++block) {
      const Float value = V::load(x + offset(pixel, block));
      V::store(squares + block * kBlock, value * value);
    }
    for (Index block = 0; block < s_.image.blocks; ++block) {
      const Index at = offset(pixel, block);
      V::store(y + at, V::load(x + at) * power_(scale(rows, block)));
    }
  }

  void backward(Index pixel, const float* x, const float* dy, float* dx, float* rows) const {
    clear_ends(rows);
    float* const squares = rows + s_.params.before();
    float* const gives = rows + s_.window_row();  // what a channel gives to those in its window
    float* const powers = gives + s_.window_row();
    clear_ends(gives);
    for (Index block = 0; block < s_.image.blocks; ++block) {
      const Float value = V::load(x + offset(pixel, block));
      V::store(squares + block * kBlock, value * value);
    }
    for (Index block = 0; block < s_.image.blocks; ++block) {
      const Index at = offset(pixel, block);
      const Float sum = scale(rows, block);
      const Float power = power_(sum);
      V::store(powers + block * kBlock, power);
      V::store(gives + s_.params.before() + block * kBlock,
               V::load(dy + at) * V::load(x + at) * power / sum);
    }
    // The other way round: from `after` channels in front on.
    const Index start = s_.params.before() - s_.params.after();
    for (Index block = 0; block < s_.image.blocks; ++block) {
      const Index at = offset(pixel, block);
      const Float sum = window(gives + start + block * kBlock);
      V::store(dx + at, V::load(dy + at) * V::load(powers + block * kBlock) -
                            factor_ * V::load(x + at) * sum);
    }
  }

 private:
  Index offset(Index pixel, Index block) const {
    const Index n = pixel / s_.image.pixels;
    return s_.image.template offset<kBlock>(n, block) + pixel % s_.image.pixels * kBlock;
  }
  void clear_ends(float* row) const {
    std::fill_n(row, s_.params.before(), 0.0F);
    std::fill(row + s_.params.before() + s_.row(), row + s_.window_row(), 0.0F);
  }
  Float window(const float* from) const {
    Float sum = V::load(from);
    for (Index j = 1; j < s_.params.size; ++j) sum += V::load(from + j);
    return sum;
  }
  Float scale(const float* rows, Index block) const {
    return k_ + share_ * window(rows + block * kBlock);
  }

  const Settings& s_;
  Power<kBlock> power_;
  float share_, k_, factor_;
};

// Only of maps that come in blocks. A zero in the padding stays one unless it is divided by zero.
Choice choose(const LayerOperation& op) {
  const Settings s = settings_of(op);
  const bool is_padded = s.row() != s.image.channels;
  if (op.reads[0].is_plain() || (is_padded && s.params.k == 0)) return {};
  const bool is_backward = op.pass == Pass::backward_data;
  const Layout layout = blocked(op.inputs[0].shape);
  const Index floats = is_backward ? 2 * s.window_row() + s.row() : s.window_row();
  return {"vector",
          std::vector<Layout>(op.reads.size(), layout),
          {layout},
          op.threads * floats * Index{sizeof(float)}};
}

template <int kBlock>
Kernel make_for(const LayerOperation& op) {
  const Settings s = settings_of(op);
  const bool is_backward = op.pass == Pass::backward_data;
  return [s, is_backward](const KernelArgs& args) {
    const Normalizer<kBlock> normalizer(s);
    const Index pixels = s.image.batch * s.image.pixels;
    // A part of the pixels, and rows of the workspace, for each thread.
    parallel_for(s.threads, s.threads, [&](Index begin, Index end) {
      for (Index part = begin; part < end; ++part) {
        const Index floats = is_backward ? 2 * s.window_row() + s.row() : s.window_row();
        float* const rows = static_cast<float*>(args.workspace) + part * floats;
        const Index last = pixels * (part + 1) / s.threads;
        for (Index pixel = pixels * part / s.threads; pixel < last; ++pixel) {
          if (is_backward)
            normalizer.backward(pixel, args.read(0), args.read(1), args.write(0), rows);
          else
            normalizer.forward(pixel, args.read(0), args.write(0), rows);
        }
      }
    });
  };
}

Kernel make(const LayerOperation& op) {
  return channel_block() == 16 ? make_for<16>(op) : make_for<8>(op);
}

}  // namespace

CpuLayer lrn_cpu() { return {"lrn", choose, make}; }

}  // namespace layup::cpu
