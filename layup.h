// SPDX-License-Identifier: Apache-2.0
// Everything that a program needs to embed Layup; see examples/embed.cpp. With pkg-config:
//
//   c++ -std=c++20 program.cpp $(pkg-config --cflags --libs layup)
#pragma once

#include "data/batch_loader.h"
#include "data/dataset.h"
#include "engine/device/device.h"
#include "engine/error.h"
#include "engine/graph/graph.h"
#include "engine/graph/graph_def.h"
#include "engine/json_reader.h"
#include "engine/shape.h"
#include "engine/solver/solver.h"
#include "layers/registry.h"
#include "memory/plan_memory.h"
#include "models/builder.h"
#include "scheduler/session.h"
#include "scheduler/session_plan.h"
