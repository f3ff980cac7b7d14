// SPDX-License-Identifier: Apache-2.0
// Everything that a program needs to embed Layup; see examples/embed.cpp. With pkg-config:
//
//   c++ -std=c++20 program.cpp $(pkg-config --cflags --libs layup)
#pragma once

#include "data/dataset.h"
#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/json_reader.h"
#include "engine/shape.h"
#include "engine/solver/solver.h"
#include "engine/tensor.h"
#include "layers/registry.h"
#include "models/builder.h"
