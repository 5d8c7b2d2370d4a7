#include "tests/sim/tight_traces.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "core/check.h"
#include "sim/tape.h"
#include "sim/tape_layers.h"
#include "sim/token_layers.h"
#include "sim/validation_traces.h"

namespace ravenstore::sim {

namespace {

constexpr int kIterations = 2;
const Value kNone{nullptr, nullptr};

double Between(std::mt19937_64* random, double least, double most) {
  return std::floor(least + Unit(*random) * (most - least));
}

template <typename T>
T OneOf(std::mt19937_64* random, std::initializer_list<T> values) {
  return values.begin()[(*random)() % values.size()];
}

// What a layer of a transformer is given in addition to tokens: nothing, or how much of each
// column.
enum class Conditioned : uint8_t { kNo, kYes };

// Decoders with gated feed-forwards, and blocks that a condition scales and shifts, as those of
// LLaMA (Touvron et al. 2023) and DiT (Peebles and Xie 2023) do.
class Transformer {
 public:
  Transformer(Tape* tape, std::mt19937_64* random, Conditioned conditioned)
      : tape_(*tape),
        tokens_(tape),
        width_(64 * Between(random, 6, 20)),
        inner_(width_ * OneOf(random, {2.7, 3.5, 4.0})),
        rows_(512 * Between(random, 4, 24)),
        words_(OneOf(random, {4096.0, 16000.0, 50257.0})),
        checkpoints_(Unit(*random) < 0.5),
        conditioned_(conditioned) {
    table_ = tokens_.Learned(words_ * width_);
    last_ = tokens_.LinearFor(width_, words_, false);
    const double layers = Between(random, 3, 9);
    for (int i = 0; i < static_cast<int>(layers); ++i) {
      layers_.push_back({tokens_.NormFor(width_, false), tokens_.NormFor(width_, false),
                         tokens_.LinearFor(width_, 3 * width_), tokens_.LinearFor(width_, width_),
                         tokens_.LinearFor(width_, inner_), tokens_.LinearFor(width_, inner_),
                         tokens_.LinearFor(inner_, width_), tokens_.LinearFor(width_, 2 * width_)});
    }
  }

  void Train() {
    const Data places = tape_.Filled(kIndex * rows_);
    const Value condition = tape_.Frozen(kHalf * rows_ * width_);
    Value x = tokens_.LookUp(table_, places, kHalf * rows_ * width_);
    for (const Layer& layer : layers_) {
      const auto run = [this, &layer, condition](const Value& in) {
        return Run(layer, in, condition);
      };
      x = checkpoints_ ? tape_.Checkpoint(x, run) : run(x);
    }
    tokens_.Loss(tokens_.Apply(last_, x, rows_), places);
  }

 private:
  struct Layer {
    TokenNorm before_attention, before_feed;
    Linear attention, out, gate, in, feed_out, condition;
  };

  Value Run(const Layer& layer, const Value& x, const Value& condition) {
    Value normed = tokens_.Normalise(layer.before_attention, x, rows_);
    if (conditioned_ == Conditioned::kYes) {
      const Value scales = tokens_.Apply(layer.condition, condition, rows_);
      normed = Make(&tape_, {normed, scales}, normed.data->bytes(), {.inputs_kept = 2});
    }
    const Value q_k_v = tokens_.Apply(layer.attention, normed, rows_);
    const Value mixed = tokens_.FusedAttention({rows_ / 512, 8, 512, 512, width_}, {q_k_v},
                                               conditioned_ == Conditioned::kNo);
    const Value attended = tokens_.Plus(x, tokens_.Apply(layer.out, mixed, rows_));
    const Value again = tokens_.Normalise(layer.before_feed, attended, rows_);
    const Value gate = tokens_.Activate(tokens_.Apply(layer.gate, again, rows_));
    const Value inner = tokens_.Multiply(gate, tokens_.Apply(layer.in, again, rows_));
    return tokens_.Plus(attended, tokens_.Apply(layer.feed_out, inner, rows_));
  }

  Tape& tape_;
  Tokens tokens_;
  double width_, inner_, rows_, words_;
  bool checkpoints_;
  Conditioned conditioned_;
  Value table_;
  Linear last_;
  std::vector<Layer> layers_;
};

Trace TransformerTrace(const std::string& name, const Hardware& hardware, uint64_t seed,
                       Conditioned conditioned) {
  std::mt19937_64 random(seed);
  const Tape::Optimiser optimiser{.together = OneOf<size_t>(&random, {1, 4, 24, 64}),
                                  .clips = Unit(random) < 0.5};
  return Trained<Transformer>(name, hardware, kIterations, seed, optimiser, &random, conditioned);
}

// Tables of rows in blocks, of which a batch touches some by chance, and all it touches together,
// as DLRM's lookups and updates do (Naumov et al. 2019).
Trace Tables(const std::string& name, const Hardware& hardware, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tape tape(name, hardware, seed);
  {
    std::vector<std::vector<Data>> tables(static_cast<size_t>(Between(&random, 4, 16)));
    for (std::vector<Data>& table : tables) {
      const double bytes = 512 * Between(&random, 200, 16000);
      const double blocks = Between(&random, 1, 60);
      for (int i = 0; i < static_cast<int>(blocks); ++i) table.push_back(tape.Filled(bytes));
    }
    const double batch = 512 * Between(&random, 1, 16);
    tape.EndSetUp();
    for (int iteration = 0; iteration < 8 * kIterations; ++iteration) {
      std::vector<Data> vectors;
      std::vector<std::vector<Data>> touched;
      for (const std::vector<Data>& table : tables) {
        std::set<size_t> which;
        for (size_t i = 0; i < table.size(); ++i) {
          const double place = Unit(random);  // a few blocks are what most rows are of
          which.insert(static_cast<size_t>(place * place * static_cast<double>(table.size())));
        }
        touched.emplace_back();
        for (const size_t i : which) touched.back().push_back(table[i]);
        vectors.push_back(tape.Run({.reads = touched.back()}, batch * 256));
      }
      Data x = tape.Run({.reads = vectors}, batch * 64 * static_cast<double>(vectors.size()));
      x = tape.Run({.reads = {x}, .workspace = x->bytes() / 3}, x->bytes());
      for (size_t i = tables.size(); i-- > 0;) {
        const Data gradient = tape.Run({.reads = {x, vectors[i]}}, batch * 256);
        tape.Run({.reads = {gradient}, .changes = touched[i], .workspace = batch * 64}, {});
        vectors.pop_back();
      }
      tape.Step();
    }
  }
  return tape.Take();
}

// Requests that share what they begin with. Each reads all that it stands on, of blocks that are as
// long as what was computed together (Zheng et al., SGLang, 2023).
Trace Prefixes(const std::string& name, const Hardware& hardware, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tape tape(name, hardware, seed);
  {
    struct Prefix {
      std::shared_ptr<Prefix> parent;
      std::vector<Data> blocks;
    };
    const auto read = [](const Prefix& prefix) {
      std::vector<Data> all;
      for (const Prefix* at = &prefix; at != nullptr; at = at->parent.get())
        all.insert(all.end(), at->blocks.begin(), at->blocks.end());
      return all;
    };
    const double unit = OneOf(&random, {64e3, 512e3, 2e6});
    const double chunk = OneOf(&random, {1.0, 8.0, 40.0});
    const auto fill = [&](Prefix* prefix, double units) {
      for (double left = units; left > 0; left -= chunk)
        prefix->blocks.push_back(tape.Run({.reads = read(*prefix)}, unit * std::min(chunk, left)));
    };
    std::vector<std::shared_ptr<Prefix>> documents(static_cast<size_t>(Between(&random, 4, 20)));
    const auto renew = [&](std::shared_ptr<Prefix>* document) {
      *document = std::make_shared<Prefix>();
      fill(document->get(), Between(&random, 10, 80));
    };
    for (auto& document : documents) renew(&document);
    tape.EndSetUp();
    for (int request = 0; request < 12 * kIterations; ++request) {
      auto& document = documents[random() % documents.size()];
      if (Unit(random) < 0.1) renew(&document);
      Prefix conversation{document, {}};
      fill(&conversation, Between(&random, 1, 20));
      for (double left = Between(&random, 1, 8); left > 0; --left)
        conversation.blocks.push_back(tape.Run({.reads = read(conversation)}, unit));
      if (request % 6 == 5) tape.Step();
    }
  }
  return tape.Take();
}

// Layers over neighbours that are drawn again for each batch, so that no size comes again, as those
// of GraphSAGE (Hamilton et al. 2017).
Trace Graph(const std::string& name, const Hardware& hardware, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tape tape(name, hardware, seed);
  {
    const Value features = tape.Frozen(512 * Between(&random, 20'000, 200'000));
    std::vector<Value> weights;
    for (double left = Between(&random, 2, 5); left > 0; --left)
      weights.push_back(tape.Learned(4096 * Between(&random, 8, 200))->value);
    tape.EndSetUp();
    for (int iteration = 0; iteration < 4 * kIterations; ++iteration) {
      const double nodes = Between(&random, 2000, 9000);
      double bytes = nodes * 512 * Between(&random, 4, 12);
      const Data edges = tape.Run({.workspace = bytes / 4}, bytes / 8);
      Value x = Make(&tape, {features}, bytes, {.also = {edges}});
      for (const Value& weight : weights) {
        const double wide = bytes * (1 + 2 * Unit(random));
        const Value messages = Make(&tape, {x}, wide, {.inputs_kept = 1, .also = {edges}});
        bytes *= 0.3 + 0.6 * Unit(random);
        x = Apply(&tape, Make(&tape, {messages, x}, bytes, {.inputs_kept = 2}), weight, bytes,
                  {.seconds = 1e-5, .workspace = bytes / 2});
      }
      tape.Add(x.gradient, tape.Run({.reads = {x.data}}, x.data->bytes()));
      x = {};
      tape.Backward();
      tape.Update({.together = 4});
      tape.Step();
    }
    weights.clear();
  }
  return tape.Take();
}

}  // namespace

const std::vector<std::string>& TightNames() {
  static const std::vector<std::string> names = {"language",
                                                 "diffusion",
                                                 "tables",
                                                 "prefixes",
                                                 "graph",
                                                 "language+tables",
                                                 "language+graph",
                                                 "diffusion+prefixes",
                                                 "diffusion+language",
                                                 "graph+tables"};
  return names;
}

Trace TightTrace(const std::string& name, const Hardware& hardware, uint64_t seed) {
  if (const size_t plus = name.find('+'); plus != std::string::npos) {
    return Merge(name, TightTrace(name.substr(0, plus), hardware, seed),
                 TightTrace(name.substr(plus + 1), hardware, seed + 1));
  }
  if (name == "language") return TransformerTrace(name, hardware, seed, Conditioned::kNo);
  if (name == "diffusion") return TransformerTrace(name, hardware, seed, Conditioned::kYes);
  if (name == "tables") return Tables(name, hardware, seed);
  if (name == "prefixes") return Prefixes(name, hardware, seed);
  RAVEN_CHECK(name == "graph");
  return Graph(name, hardware, seed);
}

}  // namespace ravenstore::sim
