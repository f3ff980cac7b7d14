// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <iostream>

#include "engine/error.h"
#include "engine/graph/device_kernels.h"
#include "engine/process.h"

namespace layup {
namespace {

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (stop_signal.exchange(number) != 0) _exit(128 + number);
}

DeviceKind parse_device(const std::string& name) {
  if (name == "auto") return default_device();
  for (const DeviceKind kind : {DeviceKind::reference, DeviceKind::cpu, DeviceKind::cuda}) {
    if (name != to_string(kind)) continue;
    if (!has_device(kind)) require_device_kernels(kind);
    return kind;
  }
  const std::vector<std::string> known = {"auto", "reference", "cpu", "cuda"};
  throw ConfigError("unknown device \"" + name + "\"" + suggestion(name, known));
}

std::int64_t parse_steps(const std::string& text) {
  std::int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0)
    throw ConfigError("--steps " + text + ": expected a whole number, 0 or more, of 64 bits");
  return steps;
}

int report(const char* kind, const std::exception& error, int code) {
  std::cerr << kind << ": " << error.what() << '\n';
  return code;
}

// A first word that is no verb of a program that has verbs: CLI11 would only say that one is
// missing.
std::string unknown_verb(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  if (verbs.empty() || argc < 2) return {};
  const std::string word = argv[1];
  if (word.starts_with('-') || std::find(verbs.begin(), verbs.end(), word) != verbs.end())
    return {};
  std::string text = "unknown verb \"" + word + "\"" + suggestion(word, verbs) + "; there are";
  for (const std::string& verb : verbs) text += " " + verb;
  return text;
}

// Threads that wait at the end of a kernel spin for some milliseconds by default, and on a machine
// that has other work they take the time of those that they wait for. libgomp reads its settings
// before main, so the program starts itself once more with a shorter spin, unless the user has
// a setting already.
void shorten_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "10000", 0);
  execv("/proc/self/exe", argv);  // returns only if that fails; then all is right but slower
}

}  // namespace

void CommandLine::add_shaping_options(CLI::App& app) {
  app.add_option("config", config, "training configuration (JSON)")->required();
  app.add_option("--set", sets, "change a key of the configuration: path=value")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--device", device, "auto, reference, cpu or cuda");
  app.add_option("--policy", policy, "memory policy");
  app.add_option("--budget", budget, "memory of the device: 700MiB, 2GB, or bytes");
  app.add_option("--host-budget", host_budget, "memory of the host tier");
  app.add_option("--emulate-link", link, "pace copies as this link would: 12GB/s,10us");
  app.add_option("--batch", batch, "samples per step");
  app.add_option("--seed", seed, "seed of the run");
  app.add_option("--threads", threads, "threads of the kernels (default: all processors)")
      ->check(CLI::Range(1, 1024));
}

void CommandLine::add_weights_options(CLI::App& app) {
  app.add_option("--resume", resume, "folder with checkpoints to go on from");
  app.add_option("--init", init, "weights to start from (safetensors)");
}

std::vector<Override> CommandLine::overrides() const {
  std::vector<Override> list;
  for (const std::string& item : sets) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      throw ConfigError("--set " + item + ": write it as path=value, as train.batch=32");
    list.push_back({item.substr(0, equals), item.substr(equals + 1)});
  }
  const auto add = [&](const char* option, const char* path,
                       const std::optional<std::string>& value) {
    if (!value) return;
    if (value->empty()) throw ConfigError(std::string(option) + " is empty");
    list.push_back({path, *value});
  };
  add("--batch", "train.batch", batch);
  add("--epochs", "train.epochs", epochs);
  add("--seed", "train.seed", seed);
  add("--policy", "memory.policy", policy);
  add("--budget", "memory.budget", budget);
  add("--host-budget", "memory.host_budget", host_budget);
  return list;
}

RunOptions CommandLine::run_options() const {
  for (const auto& [option, path] : {std::pair{"--resume ", &resume}, {"--init ", &init}})
    if (!path->empty() && !std::filesystem::exists(*path))
      throw ConfigError(option + *path + " does not exist");
  RunOptions options;
  options.device = parse_device(device);
  options.threads = threads > 0 ? threads : available_processors();
  if (link) options.link = parse_link_pace(*link);
  if (steps) options.steps = parse_steps(*steps);
  options.out = out;
  options.resume = resume;
  options.init = init;
  options.log = log;
  options.trace = trace;
  options.stop = &stop_signal;
  return options;
}

const std::atomic<int>& install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of write, which has a message
  return stop_signal;
}

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  shorten_spinning(argv);
  app.set_version_flag("--version", "layup " LAYUP_VERSION);
  if (const std::string problem = unknown_verb(app, argc, argv); !problem.empty()) {
    std::cerr << "error: " << problem << '\n';
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  try {
    return body();
  } catch (const ConfigError& error) {
    return report("error", error, kExitUsage);
  } catch (const GraphError& error) {
    return report("error", error, kExitUsage);
  } catch (const DataError& error) {
    return report("data error", error, kExitData);
  } catch (const PlanError& error) {
    return report("does not fit", error, kExitDoesNotFit);
  } catch (const InterruptedError&) {
    return 128 + stop_signal.load();
  } catch (const DivergedError& error) {
    return report("diverged", error, kExitDiverged);
  } catch (const DeviceError& error) {
    return report("device error", error, kExitDevice);
  } catch (const std::bad_alloc&) {
    std::cerr << "device error: the system has no memory left; lower the batch size or give a "
                 "--budget\n";
    return kExitDevice;
  } catch (const std::exception& error) {
    return report("internal error, please report it", error, kExitInternal);
  }
}

}  // namespace layup
