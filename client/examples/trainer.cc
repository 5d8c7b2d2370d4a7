#include "client/examples/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/version.h>

#ifdef RAVENSTORE_TORCH_CUDA
#include <ATen/autocast_mode.h>
#endif

#include "client/examples/device_memory.h"
#include "client/examples/gpt.h"
#include "client/examples/text.h"

namespace ravenstore::examples {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

DeviceMemory& MemoryOf(const RunConfig& config) {
  return config.cuda ? DeviceMemory::Cuda() : DeviceMemory::Simulated();
}

// On a GPU matrix products run in bfloat16 while one is alive.
class Autocast {
 public:
  explicit Autocast(bool on) : on_(on) {
#ifdef RAVENSTORE_TORCH_CUDA
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(true);
#endif
  }
  ~Autocast() {
#ifdef RAVENSTORE_TORCH_CUDA
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
#endif
  }

 private:
  [[maybe_unused]] const bool on_;
};

// FNV-1a over every parameter's bits.
uint64_t Checksum(const std::vector<at::Tensor>& parameters) {
  uint64_t sum = 14695981039346656037u;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor host = parameter.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(host.data_ptr());
    for (size_t i = 0; i < host.nbytes(); ++i) sum = (sum ^ bytes[i]) * 1099511628211u;
  }
  return sum;
}

// A model in training.
class Training {
 public:
  Training(const RunConfig& config, const std::string& text, std::shared_ptr<Store> store)
      : config_(config),
        memory_(MemoryOf(config)),
        store_(std::move(store)),
        device_(config.cuda ? at::kCUDA : at::kCPU),
        batches_(text, config.batch, config.seq + 1, config.seed),
        model_(MakeModel(config, device_)),
        optimizer_(model_->parameters(),
                   ::torch::optim::AdamWOptions(config.learning_rate).weight_decay(0.01)) {
    if (store_ || config.measure)
      scope_.emplace(store_, model_->parameters(),
                     ravenstore::torch::OffloadOptions{.torch_bytes = config.torch_share,
                                                       .hints = config.hints,
                                                       .measure_only = config.measure});
  }

  // One step; its loss.
  float Step(RunResult& result) {
    const at::Tensor tokens =
        at::tensor(batches_.Next(), at::kLong).view({config_.batch, config_.seq + 1}).to(device_);
    optimizer_.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(config_.cuda);
      loss = model_->Loss(tokens);
    }
    // Everything that the forward pass saved is in the store now: its fullest moment.
    if (store_) LookAtStore(result);
    loss.backward();
    optimizer_.step();
    const float value = loss.item<float>();
    memory_.Synchronize();
    return value;
  }

  void LookAtStore(RunResult& result) {
    const Stats stats = store_->stats();
    store_bytes_ = stats.device_bytes;
    result.store_peak = std::max(result.store_peak, stats.device_bytes);
    result.store_host_peak = std::max(result.store_host_peak, stats.host_bytes);
  }

  // What the last step took, finished or not.
  void CountPeaks(RunResult& result) {
    const uint64_t torch = memory_.Peak();
    result.torch_peak = std::max(result.torch_peak, torch);
    result.torch_reserved = std::max(result.torch_reserved, memory_.PeakReserved());
    result.device_peak = std::max(result.device_peak, torch + store_bytes_);
    memory_.ResetPeak();
  }

  void Finish(RunResult& result) {
    CountPeaks(result);
    if (scope_) result.offload = scope_->stats();
    if (store_) result.store = store_->stats();
    if (result.finished) result.weights = Checksum(model_->parameters());
  }

 private:
  static std::shared_ptr<Gpt> MakeModel(const RunConfig& config, at::Device device) {
    at::manual_seed(config.seed);
    auto model = std::make_shared<Gpt>(GptConfig{.layers = config.layers,
                                                 .width = config.width,
                                                 .heads = config.heads,
                                                 .context = config.seq});
    model->to(device);
    return model;
  }

  const RunConfig config_;
  DeviceMemory& memory_;
  const std::shared_ptr<Store> store_;
  const at::Device device_;
  Batches batches_;
  std::shared_ptr<Gpt> model_;
  ::torch::optim::AdamW optimizer_;
  std::optional<ravenstore::torch::OffloadScope> scope_;
  uint64_t store_bytes_ = 0;  // on the device, at the last look
};

void TrainInto(const RunConfig& config, const std::string& text, std::shared_ptr<Store> store,
               const Progress& progress, RunResult& result) {
  Training training(config, text, std::move(store));
  std::vector<double> seconds;
  try {
    for (int step = 1; step <= config.steps; ++step) {
      result.failed_step = step;
      const auto begin = Clock::now();
      result.losses.push_back(training.Step(result));
      seconds.push_back(SecondsSince(begin));
      training.CountPeaks(result);
      if (step == 1) result.first_step_peak = result.torch_peak;
      progress(step, result.losses.back(), seconds.back());
    }
    result.finished = true;
    result.failed_step = 0;
  } catch (...) {
    training.Finish(result);
    throw;
  }
  training.Finish(result);
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  result.step_seconds = seconds[seconds.size() / 2];
}

}  // namespace

bool TorchSeesCuda() {
#ifdef RAVENSTORE_TORCH_CUDA
  return at::globalContext().hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
#else
  return false;
#endif
}

void PrepareTorch(bool cuda, int threads) {
  if (cuda && !TorchSeesCuda())
    throw std::runtime_error("torch sees no GPU here; --device cpu trains on the simulated device");
  // cuBLAS is repeatable only with a fixed workspace. It reads this when it is first used.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::set_num_threads(threads);
  if (cuda) at::empty({1}, at::kCUDA);  // the allocator takes a limit only once it is up
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
#ifdef RAVENSTORE_TORCH_CUDA
  // It would write NaNs into every new tensor: not needed here, and not free.
  context.setDeterministicFillUninitializedMemory(false);
  // Flash attention has a deterministic backward pass; the others do not, or use more memory.
  context.setSDPUseFlash(true);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
  context.setSDPUseMath(false);
#endif
}

RunResult Train(const RunConfig& config, const std::string& text, std::shared_ptr<Store> store,
                const Progress& progress) {
  RunResult result;
  DeviceMemory& memory = MemoryOf(config);
  try {
    memory.SetLimit(config.torch_limit);
    memory.ResetPeak();
    TrainInto(config, text, std::move(store), progress, result);
  } catch (const c10::OutOfMemoryError& error) {
    result.out_of_memory = true;
    result.failure = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    result.failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    result.failure = error.what();
  }
  memory.SetLimit(0);
  return result;
}

}  // namespace ravenstore::examples
