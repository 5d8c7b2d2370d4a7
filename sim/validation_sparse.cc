#include "sim/validation_sparse.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "sim/tape.h"
#include "sim/tape_layers.h"

namespace ravenstore::sim {

namespace {

// Iterations of DLRM for one of the generator's: they are short, and each touches something else.
constexpr int kBatchesOfDlrm = 8;

// A weight in 32 bit, in (rows x in) times it, with its bias if it has one.
struct Dense {
  Value weight;
  Value bias;  // no data: none
  double in;
  double out;
};

Value FloatLearned(Tape* tape, double elements) {
  const double bytes = kFloat * elements;
  return tape->Learned(bytes, {bytes, bytes})->value;
}

Dense DenseFor(Tape* tape, double in, double out, bool biased) {
  Dense dense{FloatLearned(tape, in * out), {nullptr, nullptr}, in, out};
  if (biased) dense.bias = FloatLearned(tape, out);
  return dense;
}

Value Multiplied(Tape* tape, const Dense& dense, const Value& x, double rows) {
  const double seconds = tape->FloatProductSeconds(2 * rows * dense.in * dense.out);
  const Value y = Apply(tape, x, dense.weight, kFloat * rows * dense.out, {seconds});
  if (dense.bias.data == nullptr) return y;
  return Make(tape, {y, dense.bias}, y.data->bytes());
}

Value Rectified(Tape* tape, const Value& x) {
  return Make(tape, {x}, x.data->bytes(), {.output_kept = true});
}

void Loss(Tape* tape, const Value& scores, const Data& labels) {
  const Value likely = Make(tape, {scores}, scores.data->bytes(), {.output_kept = true});
  const Value loss = Make(tape, {likely}, kFloat, {.also = {labels}});
  tape->Add(loss.gradient, tape->Run({.reads = {loss.data}}, kFloat));
}

// ---- GraphSAGE

class GraphSage {
 public:
  explicit GraphSage(Tape* tape) : tape_(*tape) {
    features_ = tape_.Frozen(kFloat * kNodes * kFeatures);
    labels_ = tape_.Filled(kIndex * kNodes);
    begins_ = tape_.Filled(kIndex * (kNodes + 1));
    neighbours_ = tape_.Filled(kIndex * kEdges);
    double in = kFeatures;
    for (size_t i = 0; i < std::size(kFanOuts); ++i) {
      const double out = i + 1 == std::size(kFanOuts) ? kClasses : kHidden;
      layers_.push_back({DenseFor(tape, in, out, true), DenseFor(tape, in, out, false)});
      in = out;
    }
  }

  void Train() {
    for (int i = 0; i + 1 < kSummed; ++i) {
      Forward();
      tape_.Backward();
    }
    Forward();
  }

 private:
  static constexpr double kNodes = 2449029;
  static constexpr double kEdges = 2 * 61859140.0;
  static constexpr double kFeatures = 100;
  static constexpr double kHidden = 256;
  static constexpr double kClasses = 47;
  static constexpr double kFanOuts[] = {15, 10, 5};
  static constexpr double kBatch = 16384;
  static constexpr int kSummed = 4;  // batches, for an update

  struct Layer {
    Dense of_neighbours, of_self;
  };
  // From some nodes to those and their sampled neighbours.
  struct Hop {
    double targets;
    double nodes;
    double edges;
    Data found;   // all nodes, the targets first
    Data ends;    // of each edge, as places among `found`
    Data counts;  // edges of each target
  };

  void Forward() {
    const Data seeds = tape_.Run({}, kIndex * kBatch);
    std::vector<Hop> hops;
    Data frontier = seeds;
    double nodes = kBatch;
    for (const double fan_out : kFanOuts) {
      hops.push_back(Sample(frontier, nodes, fan_out));
      frontier = hops.back().found;
      nodes = hops.back().nodes;
    }
    const double bytes = kFloat * nodes * kFeatures;
    Value x = Make(&tape_, {features_}, bytes, {.also = {frontier}, .traffic = 2 * bytes});
    frontier = nullptr;
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = Run(layers_[i], x, hops.back());
      hops.pop_back();
      if (i + 1 == layers_.size()) break;
      x = Rectified(&tape_, x);
      x = Make(&tape_, {x}, x.data->bytes(), {.made = {x.data->bytes() / kFloat}});
    }
    const Data labels =
        tape_.Run({.reads = {labels_, seeds}, .traffic = 3 * kIndex * kBatch}, kIndex * kBatch);
    Loss(&tape_, x, labels);
  }
  // Nodes of few neighbours give fewer than asked for, and many are found more than once.
  Hop Sample(const Data& frontier, double nodes, double fan_out) {
    Hop hop{.targets = nodes, .nodes = 0, .edges = 0, .found = {}, .ends = {}, .counts = {}};
    hop.edges = std::floor(nodes * fan_out * (0.75 + 0.2 * Unit(tape_.random())));
    const double popular = kNodes * (0.8 + 0.1 * Unit(tape_.random()));
    const double fresh = popular * (1 - std::exp(-hop.edges / popular));
    hop.nodes = std::floor(std::min(kNodes, nodes + fresh * (1 - nodes / kNodes)));
    const double row = kIndex * nodes;
    const double all = kIndex * (nodes + hop.edges);
    hop.counts = tape_.Run({.reads = {begins_, frontier}, .traffic = 4 * row}, row);
    const Data offsets = tape_.Run({.reads = {hop.counts}, .workspace = row / 64}, row);
    const Data drawn = tape_.Run({.reads = {neighbours_, begins_, frontier, offsets},
                                  .traffic = 3 * row + 4 * kIndex * hop.edges},
                                 kIndex * hop.edges);
    const Data joined = tape_.Run({.reads = {frontier, drawn}}, all);
    const auto sorted = tape_.Run({.reads = {joined}, .workspace = 2 * all}, {all, all});
    const Data first = tape_.Run({.reads = {sorted[0]}}, all);
    const Data places = tape_.Run({.reads = {first}, .workspace = all / 64}, all);
    hop.found = tape_.Run({.reads = {sorted[0], first, places}}, kIndex * hop.nodes);
    hop.ends = tape_.Run({.reads = {places, sorted[1]}, .traffic = 3 * all}, kIndex * hop.edges);
    return hop;
  }
  // The mean over the neighbours, and the node itself.
  Value Run(const Layer& layer, const Value& x, const Hop& hop) {
    const double in = layer.of_self.in;
    const double edge_bytes = kFloat * hop.edges * in;
    const double target_bytes = kFloat * hop.targets * in;
    const Value messages =
        Make(&tape_, {x}, edge_bytes, {.also = {hop.ends}, .traffic = 2 * edge_bytes});
    const Value mean = Make(&tape_, {messages}, target_bytes, {.also = {hop.ends, hop.counts}});
    const Value self = Make(&tape_, {x}, target_bytes, {.traffic = 2 * target_bytes});
    const Value around = Multiplied(&tape_, layer.of_neighbours, mean, hop.targets);
    return Sum(&tape_, around, Multiplied(&tape_, layer.of_self, self, hop.targets));
  }

  Tape& tape_;
  Value features_;
  Data labels_, begins_, neighbours_;
  std::vector<Layer> layers_;
};

// ---- DLRM

class Dlrm {
 public:
  explicit Dlrm(Tape* tape) : tape_(*tape) {
    for (const double rows : kRows) {
      Table table{rows, {}};
      for (double left = rows; left > 0; left -= kBlockRows)
        table.blocks.push_back(tape_.Filled(kRowBytes * std::min(left, kBlockRows)));
      tables_.push_back(std::move(table));
    }
    const auto stack = [tape](std::vector<Dense>* layers, std::vector<double> widths) {
      for (size_t i = 0; i + 1 < widths.size(); ++i)
        layers->push_back(DenseFor(tape, widths[i], widths[i + 1], true));
    };
    stack(&bottom_, {13, 512, 256, kColumns});
    stack(&top_, {415, 512, 512, 256, 1});
  }

  void Train() {
    const Value numbers = tape_.Frozen(kFloat * kBatch * bottom_.front().in);
    std::vector<Value> vectors = {Stacked(bottom_, numbers)};
    for (const Table& table : tables_) vectors.push_back(LookUp(table));
    const double count = static_cast<double>(vectors.size());
    const Value all = Make(&tape_, vectors, kFloat * kBatch * count * kColumns);
    // Each with each, of which half is used.
    const double seconds = tape_.FloatProductSeconds(2 * kBatch * count * count * kColumns);
    const Value products =
        Make(&tape_, {all}, kFloat * kBatch * count * count,
             {.seconds = seconds, .backward_seconds = 2 * seconds, .inputs_kept = 1});
    const Value joined = Make(&tape_, {vectors[0], products}, kFloat * kBatch * top_.front().in);
    vectors.clear();
    const Value click = Stacked(top_, joined);
    Loss(&tape_, click, tape_.Filled(kFloat * kBatch));
  }

 private:
  static constexpr double kRows[] = {9980333, 36084,  17217,   7378,    20134,  3,       7112,
                                     1442,    61,     9758201, 1333352, 313829, 10,      2208,
                                     11156,   122,    4,       970,     14,     9994222, 7267859,
                                     9946608, 415421, 12420,   101,     36};
  static constexpr double kColumns = 64;
  static constexpr double kRowBytes = kFloat * kColumns;
  static constexpr double kBlockRows = 2 * 1024 * 1024 / kRowBytes;
  static constexpr double kExponent = 1.1;
  static constexpr double kBatch = 2048;

  struct Table {
    double rows;
    std::vector<Data> blocks;
  };

  // Zipf's law as if rows were a continuum, which its inverse needs no table for.
  double Row(double rows) {
    const double whole = 1 - std::pow(rows + 1, 1 - kExponent);
    return std::min(rows, std::pow(1 - Unit(tape_.random()) * whole, 1 / (1 - kExponent))) - 1;
  }
  std::vector<Data> Touched(const Table& table) {
    std::set<size_t> touched;
    for (int i = 0; i < static_cast<int>(kBatch); ++i)
      touched.insert(static_cast<size_t>(std::max(0.0, Row(table.rows)) / kBlockRows));
    std::vector<Data> blocks;
    for (const size_t block : touched)
      blocks.push_back(table.blocks[std::min(block, table.blocks.size() - 1)]);
    return blocks;
  }
  // Its rows are learned in the backward pass: where a batch has them more than once, they are
  // sorted and summed up first.
  Value LookUp(const Table& table) {
    const double bytes = kBatch * kRowBytes;
    const Data places = tape_.Filled(kIndex * kBatch);
    std::vector<Data> blocks = Touched(table);
    std::vector<Data> reads = blocks;
    reads.push_back(places);
    Value y{tape_.Run({.reads = reads, .traffic = 2 * bytes}, bytes)};
    tape_.Record([&tape = tape_, blocks, places, bytes, from = y.gradient] {
      const Data gradient = std::move(from->sum);
      const auto sorted = tape.Run({.reads = {places}, .workspace = 2 * places->bytes()},
                                   {places->bytes(), places->bytes()});
      const Data sums = tape.Run({.reads = {gradient, sorted[0], sorted[1]}}, bytes);
      tape.Run({.reads = {sums, sorted[0]}, .changes = blocks, .traffic = 3 * bytes}, {});
    });
    return y;
  }
  Value Stacked(const std::vector<Dense>& layers, Value x) {
    for (const Dense& layer : layers) x = Rectified(&tape_, Multiplied(&tape_, layer, x, kBatch));
    return x;
  }
  Tape& tape_;
  std::vector<Table> tables_;
  std::vector<Dense> bottom_, top_;
};

}  // namespace

Trace GraphSageKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  return Trained<GraphSage>("graphsage", hardware, iterations, seed, {});
}

Trace DlrmKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  return Trained<Dlrm>("dlrm", hardware, kBatchesOfDlrm * iterations, seed, {.together = 24});
}

}  // namespace ravenstore::sim
