// Trains a GPT on real text with its saved activations in the store, and reports what that took.
//
// With Bazel: //client/examples:train_gpt. With one compiler call against the torch wheel of a GPU
// node, T being the wheel's folder (python3 -c "import torch; print(torch.__path__[0])") and L the
// folder with libravenstore.so, from the top of the repository:
//
//   g++ -std=c++20 -O2 -I. -I$T/include -I$T/include/torch/csrc/api/include
//       -I/usr/local/cuda/include -DRAVENSTORE_TORCH_CUDA client/torch.cc client/examples/*.cc
//       -o train_gpt -L$L -lravenstore -L$T/lib -Wl,--no-as-needed -ltorch -ltorch_cpu -ltorch_cuda
//       -lc10 -lc10_cuda -Wl,-rpath,$T/lib -Wl,-rpath,$L -Wl,--allow-shlib-undefined -lpthread -ldl
//
// The program runs with that torch and no other.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/examples/options.h"
#include "client/examples/report.h"
#include "client/examples/table.h"
#include "client/examples/text.h"
#include "client/examples/trainer.h"

namespace ravenstore::examples {
namespace {

constexpr int kExitFailed = 1;  // a run did not do what it must
constexpr int kExitUsage = 2;   // nothing was run

class Story {
 public:
  explicit Story(const Options& options)
      : options_(options), text_(LoadText(options.text.empty() ? kDefaultText : options.text)) {}

  // Finds the device, and the daemon unless only the plain run is wanted.
  void Prepare();
  void Run();
  int Conclude() const;

 private:
  RunConfig Config() const;
  std::shared_ptr<Store> Connect(uint64_t budget) const;
  Trial& Perform(Trial run, std::shared_ptr<Store> store);
  void Measure();
  void RunPlain();
  void RunPlainUnderLimit();
  void RunWithStore(const Budget& budget, uint64_t limit);
  void ChooseLimit();
  std::string Where() const { return cuda_ ? "cuda" : "simulated device"; }
  // For people; out of the way of --json.
  template <typename... Values>
  void Say(const char* format, Values... values) const {
    std::fprintf(options_.json ? stderr : stdout, format, values...);
    std::fflush(options_.json ? stderr : stdout);
  }

  const Options options_;
  const std::string text_;
  bool cuda_ = false;
  uint64_t activations_ = 0;  // bytes that a store would hold at a step's fullest moment
  uint64_t saved_ = 0;        // bytes that autograd saves in a step
  uint64_t limit_ = 0;
  std::vector<Trial> runs_;
};

RunConfig Story::Config() const {
  RunConfig config;
  config.layers = options_.layers;
  config.width = options_.width;
  config.heads = options_.heads;
  config.steps = options_.steps;
  config.batch = options_.batch;
  config.seq = options_.seq;
  config.learning_rate = options_.learning_rate;
  config.seed = options_.seed;
  config.cuda = cuda_;
  return config;
}

std::shared_ptr<Store> Story::Connect(uint64_t budget) const {
  try {
    return std::make_shared<Store>(Store::connect({.socket = options_.socket,
                                                   .name = "train_gpt",
                                                   .device_budget = budget,
                                                   .host_budget = options_.host_budget}));
  } catch (const Error& error) {
    std::string message = error.what();
    if (error.code() == RAVENSTORE_UNAVAILABLE)
      message +=
          "\nIs the daemon running? deploy/demo starts one and runs this story. By hand:\n"
          "  ravenstored --backend host --socket /tmp/ravenstore.sock &\n"
          "  RAVENSTORE_SOCKET=/tmp/ravenstore.sock train_gpt ...\n"
          "--plain trains without the store.";
    throw std::runtime_error(message);
  }
}

void Story::Prepare() {
  const bool can = TorchSeesCuda();
  cuda_ = options_.device == "cuda" || (options_.device == "auto" && can);
  if (!options_.plain) {
    const bool store_cuda = Connect(0)->backend() == "cuda";
    if (options_.device == "auto") cuda_ = store_cuda;
    if (store_cuda && !cuda_)
      throw std::runtime_error(
          "the daemon keeps GPU memory, so --device cpu needs another daemon: "
          "one with --backend host");
    if (!store_cuda && cuda_)
      throw std::runtime_error(
          "the daemon simulates its devices (--backend host), so --device "
          "cuda needs another daemon: one with --backend cuda");
    if (cuda_ && !can)
      throw std::runtime_error("the daemon keeps GPU memory, but this program's torch sees no GPU");
  }
  PrepareTorch(cuda_, options_.threads);
  Say("GPT of %d layers, %d wide, %d heads; %d sequences of %d bytes a step; %s of text; on %s\n",
      options_.layers, options_.width, options_.heads, options_.batch, options_.seq,
      FormatBytes(text_.size()).c_str(), cuda_ ? "the GPU" : "a simulated device (the CPU)");
}

Trial& Story::Perform(Trial run, std::shared_ptr<Store> store) {
  RunConfig config = Config();
  config.torch_share = run.torch_share;
  config.hints = !options_.no_hints;
  if (run.device_limit) {
    // What the store may use is not torch's any more.
    const uint64_t store_bytes = run.budget - run.torch_share.value_or(0);
    if (store_bytes >= run.device_limit)
      throw std::runtime_error("the budget of " + FormatBytes(store_bytes) +
                               " leaves nothing of the device limit of " +
                               FormatBytes(run.device_limit) + " to torch");
    config.torch_limit = run.device_limit - store_bytes;
  }
  Say("\n%s\n", run.name.c_str());
  const bool overwrite = !options_.json && isatty(STDOUT_FILENO);
  run.result = Train(config, text_, std::move(store), [&](int step, float loss, double seconds) {
    Say("%s  step %d/%d  loss %.4f  %s%s", overwrite ? "\r\033[K" : "", step, config.steps, loss,
        FormatSeconds(seconds).c_str(), overwrite && step < config.steps ? "" : "\n");
  });
  if (!run.result.finished)
    Say("%s  %s at step %d: %s\n", overwrite ? "\n" : "",
        run.result.out_of_memory ? "out of memory" : "failed", run.result.failed_step,
        run.result.failure.c_str());
  runs_.push_back(std::move(run));
  return runs_.back();
}

void Story::Measure() {
  RunConfig config = Config();
  config.steps = 1;
  config.measure = true;
  const RunResult result = Train(config, text_, nullptr, [](int, float, double) {});
  if (!result.finished) throw std::runtime_error("the measuring step failed: " + result.failure);
  activations_ = result.offload.live_bytes_peak;
  saved_ = result.offload.saved_bytes;
  Say("autograd saves %llu tensors a step, %s; %s of them are activations that the store can "
      "hold\n",
      static_cast<unsigned long long>(result.offload.saved), FormatBytes(saved_).c_str(),
      FormatBytes(activations_).c_str());
}

void Story::RunPlain() {
  Trial plain;
  plain.name = "plain";
  if (!options_.demo) plain.device_limit = options_.plain ? options_.device_limit : 0;
  const Trial& run = Perform(std::move(plain), nullptr);
  if (!run.result.finished && !options_.plain)
    throw std::runtime_error("the plain run, without any limit, failed: " + run.result.failure);
}

// A device on which two fifths of the activations do not fit.
void Story::ChooseLimit() {
  limit_ = options_.device_limit;
  if (limit_ || !options_.demo) return;
  const RunResult& plain = runs_.front().result;
  limit_ = plain.first_step_peak - activations_ * 2 / 5;
}

void Story::RunPlainUnderLimit() {
  Trial run;
  run.name = "plain, limited";
  run.must_finish = false;
  run.device_limit = limit_;
  const Trial& done = Perform(std::move(run), nullptr);
  if (done.result.finished)
    Say("  The plain run fits into the limit of %s: there is nothing to rescue.\n",
        FormatBytes(limit_).c_str());
}

void Story::RunWithStore(const Budget& budget, uint64_t limit) {
  Trial run;
  run.with_store = true;
  run.budget = budget.Resolve(activations_);
  // Under a limit torch has what the store leaves, and no more.
  const std::optional<double> percent =
      limit ? options_.torch_share.value_or(0) : options_.torch_share;
  run.torch_share.reset();
  if (percent)
    run.torch_share = static_cast<uint64_t>(static_cast<double>(run.budget) * *percent / 100);
  run.device_limit = limit;
  run.name = "store " + budget.Format() + (limit ? ", limited" : "");
  // A budget of 0 would mean the tenant's.
  constexpr uint64_t kLeast = MiB(2);
  auto store = Connect(std::max(run.budget - run.torch_share.value_or(0), kLeast));
  Perform(std::move(run), std::move(store));
}

void Story::Run() {
  if (options_.plain) return RunPlain();
  Measure();
  RunPlain();
  ChooseLimit();
  if (options_.demo) {
    RunPlainUnderLimit();
    RunWithStore(options_.budgets.front(), limit_);
    for (const double percent : {50.0, 100.0}) RunWithStore(Budget{.percent = percent}, 0);
    return;
  }
  if (limit_) RunPlainUnderLimit();
  for (const Budget& budget : options_.budgets) RunWithStore(budget, limit_);
}

int Story::Conclude() const {
  if (options_.json) {
    for (const Trial& run : runs_) std::printf("%s\n", Json(run, runs_.front(), Where()).c_str());
  } else {
    const std::string title = std::string("\ntrain_gpt, ") + options_.size + ", " +
                              std::to_string(options_.steps) + " steps, on " +
                              (cuda_ ? "a GPU" : "a simulated device");
    std::printf("%s", Report(title, runs_).c_str());
  }
  const auto failures = Failures(runs_);
  for (const auto& failure : failures) std::fprintf(stderr, "FAILED: %s\n", failure.c_str());
  return failures.empty() ? EXIT_SUCCESS : kExitFailed;
}

int Main(const std::vector<std::string>& arguments) {
  int exit_code = kExitUsage;
  try {
    const Options options = ParseOptions(arguments);
    if (options.help) {
      std::printf("%s", kUsage);
      return EXIT_SUCCESS;
    }
    Story story(options);
    story.Prepare();
    exit_code = kExitFailed;
    story.Run();
    return story.Conclude();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return exit_code;
  }
}

}  // namespace
}  // namespace ravenstore::examples

int main(int argc, char** argv) {
  return ravenstore::examples::Main({argv + 1, argv + argc});
}
