// SPDX-License-Identifier: Apache-2.0
#include "apps/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/checkpoint.h"
#include "apps/evaluation.h"
#include "apps/plan_report.h"
#include "apps/run_folder.h"
#include "apps/run_log.h"
#include "apps/run_plan.h"
#include "apps/step_tracer.h"
#include "data/batch_loader.h"
#include "engine/error.h"
#include "engine/process.h"

namespace layup {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Trainer {
 public:
  Trainer(const RunConfig& config, const RunOptions& options, TrainObserver& observer)
      : config_(config),
        options_(options),
        observer_(observer),
        schedule_(config.schedule()),
        steps_per_epoch_(config.steps_per_epoch()),
        end_step_(options.steps.value_or(config.total_steps())),
        tracer_(options.trace) {}

  TrainResult run() {
    out_ = options_.out;
    const bool resumes = !options_.resume.empty();
    if (resumes && out_.empty())
      out_ = std::filesystem::is_directory(options_.resume) ? options_.resume
                                                            : options_.resume.parent_path();
    const auto device = make_cpu_device(options_.device, options_.link);
    std::optional<Calibration> calibration;
    // A trace has a predicted timeline.
    if (needs_costs(config_.memory) || !options_.trace.empty())
      calibration = complete_calibration(config_, options_, observer_);
    if (signal() != 0) throw InterruptedError("interrupted before the first step");
    const SessionPlan plan =
        plan_with_costs(config_, options_, config_.memory.policy, std::move(calibration));
    observer_.on_plan(plan);
    require_feasible(plan);
    Session session(*device, plan, config_.solver.rule.get());
    session_ = &session;
    start_from_weights(session);
    if (resumes && step_ >= end_step_) {
      observer_.on_message("already at step " + std::to_string(step_) + " of " +
                           std::to_string(end_step_) +
                           ": nothing to do; raise --epochs or --steps to go on");
      if (!options_.log.empty()) RunLog(options_.log, true).write(summary());
      return {summary(), 0};
    }
    open_log(resumes);
    log_.write({{"event", "start"}, {"config", config_.json}, {"step", step_}});
    Json planned = {{"event", "plan"}};
    planned.update(plan_to_json(plan));
    log_.write(planned);
    for (const std::string& warning : warnings_)
      log_.write({{"event", "warning"}, {"message", warning}});
    LoaderOptions loader_options;
    loader_options.batch = config_.train.batch;
    loader_options.seed = config_.train.seed;
    loader_options.data = config_.data_options;
    BatchLoader loader(*config_.data.train, loader_options, staging_slots(session));
    return loop(loader);
  }

 private:
  void start_from_weights(Session& session) {
    session.initialize(config_.train.seed);
    if (!options_.init.empty())
      observer_.on_message("weights from " + load_weights(options_.init, session).string());
    if (options_.resume.empty()) return;
    const LoadedCheckpoint loaded = load_checkpoint(options_.resume, session, run_state());
    step_ = saved_step_ = loaded.state.step;
    warnings_ = loaded.warnings;
    for (const std::string& warning : warnings_) observer_.on_message("warning: " + warning);
    observer_.on_message("resumed from " + loaded.path.string() + " at step " +
                         std::to_string(step_));
  }

  void open_log(bool append) {
    std::filesystem::path path = options_.log;
    if (path.empty() && !out_.empty()) path = out_ / "log.jsonl";
    if (!path.empty()) log_ = RunLog(path, append);
  }

  RunState run_state() const {
    return {step_,
            config_.train.batch,
            config_.data.train->size(),
            config_.train.seed,
            config_.solver.rule->params().dump(),
            to_string(options_.device),
            options_.threads,
            what_makes_the_bits()};
  }

  // All of the configuration but when to save, memory, and how long to run (unless rates depend
  // on it).
  Json what_makes_the_bits() const {
    Json json = Json::object();
    for (const char* section : {"model", "data", "solver", "train"})
      if (config_.json.contains(section)) json[section] = config_.json[section];
    json["train"].erase("checkpoint");
    if (!config_.solver.schedule.follows_run_length()) json["train"].erase("epochs");
    return json;
  }

  int signal() const { return options_.stop == nullptr ? 0 : options_.stop->load(); }

  TrainResult loop(BatchLoader& loader) {
    loader.start(step_ / steps_per_epoch_, step_ % steps_per_epoch_);
    while (step_ < end_step_ && signal() == 0) {
      train_step(loader);
      const bool epoch_ends = step_ % steps_per_epoch_ == 0;
      if ((epoch_ends || step_ == end_step_) && config_.data.test && signal() == 0)
        evaluate_between(loader);
      if (is_checkpoint_due(epoch_ends) && signal() == 0) save();
    }
    loader.stop();
    require_finite_state();
    if (signal() != 0) save_interrupted();
    if (tracer_.write()) observer_.on_message("trace of a step in " + options_.trace.string());
    Json line = summary();
    log_.write(line);
    return {line, signal()};
  }

  void train_step(BatchLoader& loader) {
    const Clock::time_point waiting_since = Clock::now();
    const std::optional<Batch> batch = loader.next();
    LAYUP_ASSERT(batch.has_value());
    StepState state;
    state.step = step_;
    state.seed = config_.train.seed;
    state.learning_rate = static_cast<float>(schedule_.at(step_));
    state.input_slot = batch->slot;
    const Clock::time_point start = Clock::now();
    const StepResult result = session_->train_step(
        state, batch->count, tracer_.begin_step(session_->plan(), batch->count));
    const double step_s = seconds_since(start);
    if (result.failed != 0) throw_diverged(result);
    loader.release(batch->slot);
    loss_ = result.loss;
    ++step_;
    note_time(step_s, seconds_since(waiting_since), batch->count);
    report(state.learning_rate, step_s, batch->epoch);
  }

  [[noreturn]] void throw_diverged(const StepResult& result) {
    throw_not_finite(
        result.failed == kFailedLoss ? "loss" : "gradient",
        session_->explain_failure(result.failed_program, result.failed_state, result.failed));
  }

  // A step can be the last before its harm shows in a loss: what it left is looked at before it is
  // saved, and at the end.
  void require_finite_state() {
    const std::string name = session_->find_not_finite();
    if (!name.empty()) throw_not_finite("state after the last update", name);
  }

  [[noreturn]] void throw_not_finite(const std::string& what, const std::string& where) {
    std::string text = "training diverged at step " + std::to_string(step_) + ": the " + what +
                       " is not finite; the first value that is not is of " + where +
                       ". Lower the learning rate (it is " + Json(schedule_.at(step_)).dump() +
                       ") or add a warm-up.";
    if (!out_.empty())
      text += list_checkpoints(out_).empty()
                  ? " Nothing was saved."
                  : " The last good state is " + list_checkpoints(out_).front().string() + ".";
    log_.write({{"event", "diverged"}, {"step", step_}, {"layer", where}});
    throw DivergedError(text);
  }

  void note_time(double step_s, double whole_s, std::int64_t images) {
    step_ms_.push_back(static_cast<float>(step_s * 1e3));
    num_images_ += images;
    train_s_ += whole_s;
    const double rate = static_cast<double>(images) / whole_s;
    // The first step is cold: it counts for nothing once there are others.
    smoothed_rate_ = step_ms_.size() <= 2 ? rate : 0.9 * smoothed_rate_ + 0.1 * rate;
  }

  void report(double learning_rate, double step_s, std::int64_t epoch) {
    const double steps_left = static_cast<double>(end_step_ - step_);
    observer_.on_step({step_, end_step_, epoch, config_.train.epochs, loss_, learning_rate,
                       smoothed_rate_,
                       steps_left * static_cast<double>(config_.train.batch) / smoothed_rate_});
    log_.write({{"event", "step"},
                {"step", step_},
                {"epoch", epoch},
                {"loss", finite_or_null(loss_)},
                {"learning_rate", learning_rate},
                {"step_ms", step_s * 1e3},
                {"images_per_s", smoothed_rate_}});
  }

  void evaluate_between(BatchLoader& loader) {
    loader.stop();
    const std::int64_t epochs_done = step_ / steps_per_epoch_;
    EvaluationReport report = evaluate_session(config_, *session_, options_.stop);
    report.epoch = epochs_done;
    report.step = step_;
    report.ends_epoch = step_ % steps_per_epoch_ == 0;
    if (signal() == 0) {  // an interrupted one says nothing
      accuracy_ = report.accuracy;
      observer_.on_evaluation(report);
      log_.write({{"event", "evaluation"},
                  {"step", step_},
                  {"epoch", epochs_done},
                  {"loss", finite_or_null(report.loss)},
                  {"accuracy", report.accuracy}});
    }
    loader.start(step_ / steps_per_epoch_, step_ % steps_per_epoch_);
  }

  bool is_checkpoint_due(bool epoch_ends) const {
    if (out_.empty()) return false;
    const CheckpointOptions& when = config_.train.checkpoint;
    return step_ == end_step_ || (when.every_steps > 0 && step_ % when.every_steps == 0) ||
           (when.every_epochs > 0 && epoch_ends &&
            (step_ / steps_per_epoch_) % when.every_epochs == 0);
  }

  void save() {
    require_finite_state();
    const std::filesystem::path path =
        save_checkpoint(out_, *session_, run_state(), config_.train.checkpoint.keep);
    saved_step_ = step_;
    log_.write({{"event", "checkpoint"}, {"step", step_}, {"path", path.string()}});
  }

  // Nothing is lost: without --out the state goes to a folder of its own.
  void save_interrupted() {
    if (saved_step_ == step_ || step_ == 0) return;
    if (out_.empty()) {
      out_ = "layup-interrupted";
      for (int n = 1; std::filesystem::exists(out_); ++n)
        out_ = "layup-interrupted-" + std::to_string(n);
      std::filesystem::create_directory(out_);
    }
    save();
    observer_.on_message("stopped at step " + std::to_string(step_) + "; go on with --resume " +
                         out_.string());
  }

  Json summary() const {
    std::vector<float> sorted = step_ms_;
    if (sorted.size() > 1) sorted.erase(sorted.begin());  // the cold one
    std::sort(sorted.begin(), sorted.end());
    const Json median = sorted.empty() ? Json(nullptr) : Json(sorted[sorted.size() / 2]);
    return {{"event", "summary"},
            {"policy", session_->plan().main().plan.policy},
            {"device", to_string(options_.device)},
            {"threads", options_.threads},
            {"batch", session_->plan().request.batch},
            {"steps", step_},
            {"epochs", step_ / steps_per_epoch_},
            {"step_ms_median", median},
            {"images_per_s",
             train_s_ > 0 ? Json(static_cast<double>(num_images_) / train_s_) : Json(nullptr)},
            {"planned_peak_bytes", session_->plan().planned_peak_bytes},
            {"measured_peak_bytes", session_->measured_peak_bytes()},
            {"process_base_rss_bytes", session_->base_rss_bytes()},
            {"process_peak_rss_bytes", peak_rss_bytes()},
            {"allocations_after_start", session_->allocations_after_start()},
            {"weights_hash", session_->weights_hash()},
            {"loss", step_ms_.empty() ? Json(nullptr) : finite_or_null(loss_)},
            {"test_accuracy", accuracy_ ? Json(*accuracy_) : Json(nullptr)}};
  }

  const RunConfig& config_;
  const RunOptions& options_;
  TrainObserver& observer_;
  LrSchedule schedule_;
  std::int64_t steps_per_epoch_;
  std::int64_t end_step_;
  std::filesystem::path out_;
  RunLog log_;
  StepTracer tracer_;
  Session* session_ = nullptr;
  std::vector<std::string> warnings_;
  std::int64_t step_ = 0;
  std::int64_t saved_step_ = -1;
  double loss_ = 0;
  std::optional<double> accuracy_;
  std::vector<float> step_ms_;
  double smoothed_rate_ = 0;
  double train_s_ = 0;
  std::int64_t num_images_ = 0;
};

}  // namespace

TrainResult train(const RunConfig& config, const RunOptions& options, TrainObserver& observer) {
  return Trainer(config, options, observer).run();
}

}  // namespace layup
