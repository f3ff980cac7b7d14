// SPDX-License-Identifier: Apache-2.0
// Every tolerance of the tests, each with its reason. What is not listed here is compared bit for
// bit.
#pragma once

namespace layup {

// Golden values of layers: |ours - theirs| over the largest magnitude in their tensor. float32
// sums of some 100 products against float64 differ by about 1e-6; a wrong term shows far above.
constexpr double kGoldenLayer = 1e-5;

// A device against the reference, layer by layer: |theirs - ours| over the largest magnitude in
// their tensor. Sums of some 1000 products in another order, in float32; Winograd's transforms lose
// about three more bits (8e-7 relative in L2 on one layer against 1.5e-7 of the direct algorithm).
constexpr double kDeviceLayer = 2e-5;

// Winograd's F(4x4, 3x3) against a convolution in double, relative in L2, of normal operands: up to
// 1.75e-6 in sums over 12,000 pixels. A wrong term shows far above; less even points do, too.
constexpr double kWinograd = 2e-6;

// A device against the reference in bf16, of operands that bf16 can hold: a result is rounded once,
// to 8 bits of significand, which moves it by 2^-8 of itself at most; sums are in float32.
constexpr double kBf16Layer = 4e-3;

// Losses at the end of a short training in bf16 against those in float32, over the loss at its
// beginning: what is learnt by heart is learnt by either, to under 1e-3 in 60 steps.
constexpr double kBf16Training = 5e-3;

// Losses of a few steps of small networks on a device against the reference, relative: rounding as
// above, amplified by updates and by batch norm over few values (a bottleneck network with 16
// values per channel at its end moves by 6e-3 in four steps). The first loss is compared by
// kDeviceLayer.
constexpr double kDeviceLoss = 2e-2;

// Losses and gradients of whole networks, by the rules of tests/golden/README.md: the first loss
// relative; later ones absolute, at least this and otherwise by what float32 moves them.
constexpr double kGoldenFirstLoss = 1e-5;
constexpr double kGoldenLaterLoss = 1e-3;
// |ours - theirs| of a gradient norm: this part of theirs, plus this part of the largest norm (a
// gradient that is exactly zero has a norm of rounding noise).
constexpr double kGoldenGradient = 1e-2;
constexpr double kGoldenGradientZero = 1e-6;

// Central differences against the analytic gradient, over the largest gradient in the tensor. The
// stencil is of fourth order, so that what is left is float32 rounding of the analytic side and
// the fifth derivative times step^4; a wrong term or factor is of the order of 1.
constexpr double kGradient = 2e-3;

// Added to it: rounding of the outputs, amplified by the division by the step, in units of
// epsilon * |y * upstream|_2 / step. The stencil's weights sum up to 1.5; independent roundings
// rarely reach three times their norm.
constexpr double kGradientRounding = 4;

// An example whose tolerance comes out above this part of its largest gradient checks too little.
constexpr double kGradientCoarsest = 0.02;

// Gradients of a batch in parts against those of the whole, over the largest: float32 sums of some
// thousand terms in another order; a wrong weight of a part is of the order of 1.
constexpr double kMicroBatch = 1e-5;

// A published value given with 6 digits.
constexpr double kSixDigits = 1e-6;

}  // namespace layup
