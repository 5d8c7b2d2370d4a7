#include "sim/generators.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <unordered_map>

#include "core/check.h"
#include "sim/kernel_traces.h"
#include "sim/trace_builder.h"
#include "sim/validation_traces.h"
#include "sim/zipf.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;

namespace {

// A part of a network that runs as one: what it saves, and how long it takes forward.
struct Block {
  std::vector<double> saved;  // bytes
  double seconds;
};
using Network = std::vector<Block>;

// Forward in order, backward in reverse; backward costs twice forward.
void Train(Builder& builder, const Network& network, int iterations) {
  for (int i = 0; i < iterations; ++i) {
    std::vector<std::vector<uint32_t>> saved(network.size());
    for (size_t b = 0; b < network.size(); ++b) {
      for (const double bytes : network[b].saved) saved[b].push_back(builder.Create(Round(bytes)));
      builder.Compute(network[b].seconds);
      for (const uint32_t tensor : saved[b]) builder.Put(tensor, true);
    }
    for (size_t b = network.size(); b-- > 0;) {
      for (size_t t = saved[b].size(); t-- > 0;) builder.Get(saved[b][t]);
      builder.Compute(2 * network[b].seconds);
      for (size_t t = saved[b].size(); t-- > 0;) builder.Free(saved[b][t]);
    }
    builder.Step();
  }
}

struct Transformer {
  int layers;
  double width;
  double heads;
  double sequence;
  double batch;
  double vocabulary;  // 0: no logits
  bool eager;         // attention scores are saved
};

// Attention and MLP as blocks of their own.
void AddLayers(Network& network, const Transformer& t, double flops) {
  const double sbh = t.sequence * t.batch * t.width;
  const double attention_flops =
      (8 * sbh * t.width + 4 * t.batch * t.sequence * t.sequence * t.width) / flops;
  const double mlp_flops = 16 * sbh * t.width / flops;
  const double scores = t.heads * t.sequence * t.sequence * t.batch;
  std::vector<double> attention = {2 * sbh, 2 * sbh, 2 * sbh, 2 * sbh, 2 * sbh, 2 * sbh, sbh};
  attention.push_back(t.eager ? 2 * scores : 4 * t.heads * t.batch * t.sequence);
  if (t.eager) {
    attention.push_back(2 * scores);
    attention.push_back(scores);
  }
  for (int i = 0; i < t.layers; ++i) {
    network.push_back({attention, attention_flops});
    network.push_back({{2 * sbh, 2 * sbh, 8 * sbh, 8 * sbh, sbh}, mlp_flops});
  }
}

Network TransformerNetwork(const Transformer& t, double flops) {
  Network network;
  AddLayers(network, t, flops);
  if (t.vocabulary > 0) {
    const double logits = t.batch * t.sequence * t.vocabulary;
    network.push_back({{2 * logits}, 2 * logits * t.width / flops});
  }
  return network;
}

Network Whisper(double flops) {
  Network network;
  AddLayers(network, {12, 768, 12, 1500, 16, 0, false}, flops);
  AddLayers(network, {12, 768, 12, 448, 16, 51865, false}, flops);
  return network;
}

struct Convolution {
  double channels;
  double side;
};

// Each convolution and its normalisation save their inputs; time by the share of all operations.
Network ConvNetwork(const std::vector<Convolution>& convolutions, double batch, double gflops,
                    double flops) {
  Network network;
  const double each = gflops * 1e9 * batch / flops / static_cast<double>(convolutions.size());
  for (const Convolution& c : convolutions) {
    const double bytes = 2 * batch * c.channels * c.side * c.side;
    network.push_back({{bytes, bytes}, each});
  }
  return network;
}

Network ResNet(int third_stage, double batch, double gflops, double flops) {
  std::vector<Convolution> convolutions = {{64, 112}};
  const auto stage = [&](int blocks, double width, double side) {
    for (int i = 0; i < blocks; ++i) {
      convolutions.push_back({width, side});
      convolutions.push_back({width, side});
      convolutions.push_back({width * 4, side});
    }
  };
  stage(3, 64, 56);
  stage(4, 128, 28);
  stage(third_stage, 256, 14);
  stage(3, 512, 7);
  return ConvNetwork(convolutions, batch, gflops, flops);
}

Network AlexNet(double flops) {
  return ConvNetwork({{64, 55},
                      {64, 27},
                      {192, 27},
                      {192, 13},
                      {384, 13},
                      {256, 13},
                      {256, 13},
                      {256, 6},
                      {4096, 1},
                      {4096, 1}},
                     1024, 0.7, flops);
}

// Rows of an embedding table, in blocks of 4 to 16 MiB, changed by every use.
Trace Recommendation(int iterations, uint64_t seed) {
  Builder builder("recsys");
  std::mt19937_64 random(seed);
  std::vector<uint32_t> blocks;
  for (int i = 0; i < 400; ++i) blocks.push_back(builder.Make(core::MiB(4 + random() % 13)));
  builder.Compute(0.001);
  builder.Step();
  const Zipf zipf(blocks.size(), 1.05);
  for (int i = 0; i < iterations * 20; ++i) {
    std::vector<uint32_t> used;
    while (used.size() < 12) {
      const uint32_t block = blocks[zipf(random)];
      if (std::find(used.begin(), used.end(), block) == used.end()) used.push_back(block);
    }
    for (const uint32_t block : used) builder.Get(block, false);
    builder.Compute(0.004);
    for (const uint32_t block : used) builder.Put(block, true);
    builder.Step();
  }
  return builder.Take();
}

// Mixtral's shape at a quarter of its experts' size: two of eight for each layer, which tend to
// stay the same.
Trace MixtureOfExperts(int iterations, uint64_t seed) {
  Builder builder("moe");
  std::mt19937_64 random(seed);
  constexpr int kLayers = 32;
  constexpr int kExperts = 8;
  std::vector<std::vector<uint32_t>> experts(kLayers);
  for (auto& layer : experts) {
    for (int e = 0; e < kExperts; ++e) layer.push_back(builder.Make(core::MiB(84)));
  }
  builder.Compute(0.001);
  builder.Step();
  const Zipf zipf(kExperts, 1.0);
  std::vector<std::pair<size_t, size_t>> choice(kLayers, {0, 1});
  for (int i = 0; i < iterations * 4; ++i) {
    for (int l = 0; l < kLayers; ++l) {
      auto& [a, b] = choice[static_cast<size_t>(l)];
      if (Unit(random) < 0.3) {
        a = zipf(random);
        do b = zipf(random);
        while (b == a);
      }
      auto& layer = experts[static_cast<size_t>(l)];
      builder.Get(layer[a]);
      builder.Get(layer[b]);
      builder.Compute(0.004);
      builder.Put(layer[a]);
      builder.Put(layer[b]);
    }
    builder.Step();
  }
  return builder.Take();
}

// Conversations whose caches grow turn by turn, 131 kB a token (Llama-3-8B); a turn reads all of
// it.
Trace KvCache(int iterations, uint64_t seed) {
  Builder builder("kv-cache");
  std::mt19937_64 random(seed);
  struct Conversation {
    std::vector<uint32_t> parts;
  };
  std::vector<Conversation> conversations(48);
  const Zipf zipf(conversations.size(), 0.7);
  for (int turn = 0; turn < iterations * 60; ++turn) {
    Conversation& c = conversations[zipf(random)];
    if (c.parts.size() >= 8) {  // it ended; another begins in its place
      for (const uint32_t part : c.parts) builder.Free(part);
      c.parts.clear();
    }
    for (const uint32_t part : c.parts) builder.Get(part);
    const double tokens = 128 + double(random() % 384);
    const uint32_t fresh = builder.Create(Round(131072 * tokens));
    builder.Compute(0.004 + 0.00002 * tokens);
    c.parts.push_back(fresh);
    for (const uint32_t part : c.parts) builder.Put(part, part == fresh);
    builder.Step();
  }
  return builder.Take();
}

// Reads of things of 64 KiB to 8 MiB, popular by Zipf's law, with nothing periodic in them.
Trace ZipfReads(int iterations, uint64_t seed) {
  Builder builder("zipf");
  std::mt19937_64 random(seed);
  std::vector<uint32_t> things;
  for (int i = 0; i < 2000; ++i)
    things.push_back(builder.Make(Round(65536 * std::exp2(7 * Unit(random)))));
  builder.Compute(0.001);
  std::shuffle(things.begin(), things.end(), random);
  const Zipf zipf(things.size(), 0.9);
  for (int i = 0; i < iterations * 4000; ++i) {
    const uint32_t thing = things[zipf(random)];
    builder.Get(thing);
    builder.Compute(0.0001);
    builder.Put(thing);
  }
  return builder.Take();
}

// A model's weights read layer by layer, over and over.
Trace CyclicWeights(int iterations) {
  Builder builder("cyclic-weights");
  std::vector<uint32_t> layers;
  for (int i = 0; i < 48; ++i) layers.push_back(builder.Make(core::MiB(400)));
  builder.Compute(0.001);
  builder.Step();
  for (int i = 0; i < iterations; ++i) {
    for (const uint32_t layer : layers) {
      builder.Get(layer);
      builder.Compute(0.006);
      builder.Put(layer);
    }
    builder.Step();
  }
  return builder.Take();
}

Trace Training(std::string_view name, const Network& network, int iterations) {
  Builder builder(name);
  Train(builder, network, iterations);
  return builder.Take();
}

Trace TwoTenants(const Hardware& hardware, int iterations) {
  Builder builder(kTwoTenants, 2);
  Train(builder, TransformerNetwork({12, 768, 12, 1024, 8, 50257, false}, hardware.flops),
        iterations);
  builder.As(1);
  Train(builder, ResNet(6, 128, 4.1, hardware.flops * 0.3), iterations);
  return builder.Take();
}

std::string Whole(double number) {
  return std::to_string(std::lround(number));
}

using Generator = std::function<Trace(const Hardware&, int, uint64_t)>;

struct Entry {
  std::string name;
  std::string what;
  bool periodic;
  Generator generate;
  bool kernel_level = false;
};

const std::vector<Entry>& Entries() {
  const auto transformer = [](std::string name, Transformer shape) {
    const std::string what = "training, " + std::to_string(shape.layers) + " layers of " +
                             Whole(shape.width) + ", batch " + Whole(shape.batch) + ", sequence " +
                             Whole(shape.sequence) + ", 16 bit" +
                             (shape.eager ? ", attention scores saved" : "");
    return Entry{name, what, true, [=](const Hardware& hardware, int iterations, uint64_t) {
                   return Training(name, TransformerNetwork(shape, hardware.flops), iterations);
                 }};
  };
  const auto convolutions = [](std::string name, std::string what, auto network) {
    return Entry{name, what, true, [=](const Hardware& hardware, int iterations, uint64_t) {
                   // Convolutions reach about a third of what matrix products do.
                   return Training(name, network(hardware.flops * 0.3), iterations);
                 }};
  };
  static const std::vector<Entry> entries = {
      transformer("gpt2-small", {12, 768, 12, 1024, 8, 50257, false}),
      transformer("gpt2-medium", {24, 1024, 16, 1024, 8, 50257, false}),
      transformer("gpt2-xl", {48, 1600, 25, 1024, 8, 50257, false}),
      transformer("bert-large", {24, 1024, 16, 512, 16, 0, true}),
      convolutions("resnet50", "training, 128 images of 224 x 224, 16 bit",
                   [](double flops) { return ResNet(6, 128, 4.1, flops); }),
      convolutions("resnet101", "training, 128 images of 224 x 224, 16 bit",
                   [](double flops) { return ResNet(23, 128, 7.8, flops); }),
      {"whisper-small", "training, 12 + 12 layers of 768, batch 16, sequences 1500 and 448, 16 bit",
       true,
       [](const Hardware& hardware, int iterations, uint64_t) {
         return Training("whisper-small", Whisper(hardware.flops), iterations);
       }},
      convolutions("alexnet", "training, 1024 images of 224 x 224, 16 bit",
                   [](double flops) { return AlexNet(flops); }),
      {"cyclic-weights", "48 layers of 400 MiB that are read in turn, over and over", true,
       [](const Hardware&, int iterations, uint64_t) { return CyclicWeights(iterations); }},
      {std::string(kTwoTenants), "gpt2-small and resnet50 as two clients of one device", true,
       [](const Hardware& hardware, int iterations, uint64_t) {
         return TwoTenants(hardware, iterations);
       }},
      {"recsys", "400 blocks of 4 to 16 MiB of an embedding table, 12 a step, by Zipf's law", false,
       [](const Hardware&, int iterations, uint64_t seed) {
         return Recommendation(iterations, seed);
       }},
      {"moe", "32 layers of 8 experts of 84 MiB, two a layer, which tend to stay the same", false,
       [](const Hardware&, int iterations, uint64_t seed) {
         return MixtureOfExperts(iterations, seed);
       }},
      {"kv-cache",
       "serving, 48 conversations, 128 to 511 tokens a turn of 128 KiB (Llama-3-8B, 16 bit)", false,
       [](const Hardware&, int iterations, uint64_t seed) { return KvCache(iterations, seed); }},
      {"zipf", "reads of 2000 things of 64 KiB to 8 MiB by Zipf's law", false,
       [](const Hardware&, int iterations, uint64_t seed) { return ZipfReads(iterations, seed); }},
      {"unet", "training, 16 images of 512 x 512, 5 levels, 16 bit", true, UNetKernels, true},
      {"lstm", "training, 4 layers of 1500, batch 256, sequence 32, 16 bit", true, LstmKernels,
       true},
      {"mobilenet", "training, version 2, 256 images of 224 x 224, 16 bit", true, MobileNetKernels,
       true},
  };
  return entries;
}

const Entry& Find(std::string_view name) {
  static const std::vector<Entry> validation = [] {
    std::vector<Entry> all;
    for (const ValidationTrace& one : ValidationTraces())
      all.push_back({one.name, one.what, one.periodic, one.generate, true});
    return all;
  }();
  for (const std::vector<Entry>* entries : {&Entries(), &validation}) {
    for (const Entry& entry : *entries) {
      if (entry.name == name) return entry;
    }
  }
  RAVEN_CHECK(!"a generator's name");
}

}  // namespace

const std::vector<std::string>& GeneratorNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& entry : Entries()) all.push_back(entry.name);
    return all;
  }();
  return names;
}

const std::vector<std::string>& ValidationNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ValidationTrace& one : ValidationTraces()) all.push_back(one.name);
    return all;
  }();
  return names;
}

const std::string& DescriptionOf(std::string_view name) {
  return Find(name).what;
}

bool IsPeriodic(std::string_view name) {
  return Find(name).periodic;
}

bool IsKernelLevel(std::string_view name) {
  return Find(name).kernel_level;
}

Trace Generate(std::string_view name, const Hardware& hardware, int iterations, uint64_t seed) {
  return Find(name).generate(hardware, iterations, seed);
}

Trace WithHints(Trace trace, Hints hints, double share, uint64_t seed) {
  std::mt19937_64 random(seed);
  struct Future {
    int64_t order;
    Duration at;
  };
  // From the end: what is next for every tensor, and how much each client computes until then.
  std::vector<std::optional<Future>> next(trace.tensors.size());
  std::vector<Duration> ahead(trace.clients);
  for (size_t i = trace.ops.size(); i-- > 0;) {
    Op& op = trace.ops[i];
    Duration& clock = ahead[op.client];
    if (op.kind == OpKind::kCompute) clock += op.time;
    if (op.kind == OpKind::kGet) next[op.tensor] = {static_cast<int64_t>(i), clock};
    if (op.kind != OpKind::kPut) continue;
    op.next_use = {};
    if (hints == Hints::kNone || Unit(random) >= share) continue;
    const auto& future = next[op.tensor];
    if (!future) {
      op.next_use.kind = core::NextUse::Kind::kNever;
    } else if (hints == Hints::kOrder) {
      op.next_use = {core::NextUse::Kind::kOrder, {}, future->order};
    } else {
      op.next_use = {core::NextUse::Kind::kIn, clock - future->at, 0};
    }
  }
  return trace;
}

Trace WithTimesPerturbed(Trace trace, double by, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (Op& op : trace.ops) {
    if (op.kind != OpKind::kCompute) continue;
    const double factor = 1 + by * (2 * Unit(random) - 1);
    op.time = core::FromSeconds(core::Seconds(op.time) * factor);
  }
  return trace;
}

Trace WithReorder(Trace trace, double share, uint64_t seed) {
  std::mt19937_64 random(seed);
  // Whole [gets, compute, puts and frees] groups change places with the one after.
  struct Group {
    size_t begin;
    size_t end;
    bool gets = false;
  };
  std::vector<Group> groups;
  for (size_t i = 0; i < trace.ops.size();) {
    Group group{i, i};
    while (group.end < trace.ops.size()) {
      const Op& op = trace.ops[group.end];
      const bool opens = op.kind == OpKind::kGet || op.kind == OpKind::kCreate;
      const bool after = group.end > i && (trace.ops[group.end - 1].kind == OpKind::kPut ||
                                           trace.ops[group.end - 1].kind == OpKind::kFree ||
                                           trace.ops[group.end - 1].kind == OpKind::kStep);
      if (opens && after) break;
      group.gets = group.end == i
                       ? op.kind == OpKind::kGet
                       : group.gets && op.kind != OpKind::kCreate && op.kind != OpKind::kStep;
      ++group.end;
    }
    groups.push_back(group);
    i = group.end;
  }
  std::vector<Op> ops;
  ops.reserve(trace.ops.size());
  const auto append = [&](const Group& group) {
    ops.insert(ops.end(), trace.ops.begin() + static_cast<ptrdiff_t>(group.begin),
               trace.ops.begin() + static_cast<ptrdiff_t>(group.end));
  };
  const auto share_a_tensor = [&](const Group& a, const Group& b) {
    std::set<uint32_t> of_a;
    for (size_t i = a.begin; i < a.end; ++i) {
      if (trace.ops[i].kind <= OpKind::kFree) of_a.insert(trace.ops[i].tensor);
    }
    for (size_t i = b.begin; i < b.end; ++i) {
      if (trace.ops[i].kind <= OpKind::kFree && of_a.contains(trace.ops[i].tensor)) return true;
    }
    return false;
  };
  for (size_t g = 0; g < groups.size(); ++g) {
    const bool free_to = g + 1 < groups.size() && groups[g].gets && groups[g + 1].gets;
    if (free_to && Unit(random) < share && !share_a_tensor(groups[g], groups[g + 1])) {
      append(groups[g + 1]);
      append(groups[g++]);
    } else {
      append(groups[g]);
    }
  }
  trace.ops = std::move(ops);
  return trace;
}

Trace WithPeriodChanged(Trace trace, size_t from, double factor) {
  std::vector<size_t> iteration(trace.clients);
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kStep) ++iteration[op.client];
    if (op.kind != OpKind::kCreate || iteration[op.client] < from) continue;
    Bytes& bytes = trace.tensors[op.tensor].bytes;
    bytes = Round(static_cast<double>(bytes.count()) * factor);
  }
  std::fill(iteration.begin(), iteration.end(), 0);
  for (Op& op : trace.ops) {
    if (op.kind == OpKind::kStep) ++iteration[op.client];
    if (op.kind == OpKind::kCompute && iteration[op.client] >= from)
      op.time = core::FromSeconds(core::Seconds(op.time) * factor);
  }
  return trace;
}

}  // namespace ravenstore::sim
