// SPDX-License-Identifier: Apache-2.0
#include "apps/run_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/process.h"
#include "engine/shape.h"
#include "memory/policy.h"
#include "scheduler/calibrate.h"
#include "scheduler/measure_copies.h"

namespace layup {
namespace {

std::string per_second(double bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes)) + "/s";
}

}  // namespace

SessionRequest request_for(const RunConfig& config, const RunOptions& options) {
  SessionRequest request;
  request.batch = config.train.batch;
  request.last_batch = config.last_batch();
  request.micro_batch = config.train.micro_batch;
  request.clip_norm = config.train.clip_norm;
  if (config.data.train->size() < config.train.batch) {  // every batch is the partial one
    request.batch = config.data.train->size();
    request.last_batch = 0;
  }
  if (config.data.test) {
    // Evaluation in parts of the size of training's, so that it needs no more memory than that.
    request.evaluation_batch = std::min(
        request.micro_batch > 0 ? std::min(request.micro_batch, request.batch) : request.batch,
        config.data.test->size());
    request.last_evaluation_batch = config.data.test->size() % request.evaluation_batch;
  }
  request.device = options.device;
  request.threads = options.threads;
  request.policy = config.memory.policy;
  request.budget_bytes = config.memory.budget_bytes;
  request.host_budget_bytes = config.memory.host_budget_bytes;
  request.spill = config.memory.spill;
  // A file tier is there to bound the memory of the process: the host takes what it is told to.
  if (!request.spill.empty() && !request.host_budget_bytes) request.host_budget_bytes = 0;
  request.kernels = config.train.kernels;
  request.updates_inside_backward = config.memory.updates_inside_backward;
  return request;
}

bool needs_costs(const MemoryOptions& memory) {
  if (memory.policy == "auto") return memory.budget_bytes.has_value();
  const Policy* policy = find_policy(memory.policy.substr(0, memory.policy.find('/')));
  return policy == nullptr || policy->weighs_costs;
}

Calibration complete_calibration(const RunConfig& config, const RunOptions& options,
                                 TrainObserver& observer) {
  Calibration unmeasured;
  unmeasured.machine = machine_name();
  unmeasured.device = options.device;
  unmeasured.threads = options.threads;
  Calibration calibration = read_calibration(options.device, options.threads).value_or(unmeasured);
  const SessionRequest request = request_for(config, options);
  const Solver* solver = config.solver.rule.get();
  const ProgramPlan program = prepare_program(config.network, solver, request, main_part(request));
  const bool lacks_file =
      !request.spill.empty() && !calibration.file.contains(folder_key(request.spill));
  const bool lacks_copies = request.host_budget_bytes != 0 && calibration.copy_bytes_per_s == 0;
  if (!lacks_copies && !lacks_file && find_unmeasured(program.physical, calibration).empty())
    return calibration;
  const auto start = std::chrono::steady_clock::now();
  const auto device = make_cpu_device(options.device);
  const auto stops = [&] { return options.stop != nullptr && options.stop->load() != 0; };
  const int measured =
      calibrate(program.graph, program.physical, solver, *device, calibration, stops, lacks_copies);
  std::string files;
  if (lacks_file && !stops()) {
    const FileRates rates = measure_file(*device, options.threads, request.spill);
    calibration.file[folder_key(request.spill)] = rates;
    files = " and the file tier (" + per_second(rates.write_bytes_per_s) + " out, " +
            per_second(rates.read_bytes_per_s) + " back)";
  }
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const bool is_saved = write_calibration(calibration);
  observer.on_message(
      "measured " + std::to_string(measured) + " operations" + files + " in " +
      std::to_string(std::llround(ms)) + " ms" +
      (is_saved ? "; kept in " + calibration_path(options.device, options.threads).string() : ""));
  return calibration;
}

void limit_copies(Calibration& calibration, const LinkPace& link) {
  // Most of the time of a copy on a slower link is waiting.
  const auto part = [&](double bytes_per_s) {
    return link.bytes_per_s > 0 && bytes_per_s > 0 ? std::min(1.0, link.bytes_per_s / bytes_per_s)
                                                   : 1.0;
  };
  calibration.interference *= part(calibration.copy_bytes_per_s);
  for (auto& [folder, rates] : calibration.file)
    rates.interference *= part(std::min(rates.write_bytes_per_s, rates.read_bytes_per_s));
  if (link.bytes_per_s > 0)
    calibration.copy_bytes_per_s = calibration.copy_bytes_per_s > 0
                                       ? std::min(calibration.copy_bytes_per_s, link.bytes_per_s)
                                       : link.bytes_per_s;
  calibration.latency_us = std::max(calibration.latency_us, link.latency_us);
}

SessionPlan plan_with_costs(const RunConfig& config, const RunOptions& options,
                            const std::string& policy, std::optional<Calibration> calibration) {
  SessionRequest request = request_for(config, options);
  request.policy = policy;
  if (!request.host_budget_bytes) request.host_budget_bytes = available_memory_bytes();
  const Solver* solver = config.solver.rule.get();
  if (!calibration) return plan_session(config.network, solver, request);
  SessionPlan by_estimate = plan_session(config.network, solver, request);
  if (options.link) limit_copies(*calibration, *options.link);
  request.calibration = &*calibration;
  SessionPlan plan = plan_session(config.network, solver, request);
  plan.request.calibration = nullptr;  // it does not outlive this
  const std::optional<std::int64_t> other = by_estimate.minimum_budget_bytes;
  if (other && (!plan.minimum_budget_bytes || *other < *plan.minimum_budget_bytes))
    plan.minimum_budget_bytes = other;
  const bool is_smaller =
      !request.budget_bytes && by_estimate.planned_peak_bytes < plan.planned_peak_bytes;
  if (is_smaller || (!plan.feasible && by_estimate.feasible)) {
    by_estimate.minimum_budget_bytes = plan.minimum_budget_bytes;
    return by_estimate;
  }
  return plan;
}

SessionPlan plan_run(const RunConfig& config, const RunOptions& options, const std::string& policy,
                     const MachineProfile* machine) {
  if (machine == nullptr)
    return plan_with_costs(config, options, policy,
                           read_calibration(options.device, options.threads));
  SessionRequest request = request_for(config, options);
  request.policy = policy;
  request.machine = machine;
  return plan_session(config.network, config.solver.rule.get(), request);
}

}  // namespace layup
