// Traces of programs that people run, from the formulas of their shapes.
//
// Sources: saved activations of a transformer layer after Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models" (2022), 34 sbh bytes in 16 bit with flash attention,
// 34 sbh + 5 a s^2 b without; its time (24 b s h^2 + 4 b s^2 h) / flops forward and twice that
// backward. Convolutions: their own and the normalisation's input, b C H W each.
// Only what a store would hold is in them: saved activations of training, rows, experts and caches
// of the others. Seeds make what is random repeatable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// The tuning set: "gpt2-small", "bert-large", ... in the order of reports.
const std::vector<std::string>& GeneratorNames();
// Two jobs on one device, who know nothing of each other.
inline constexpr std::string_view kTwoTenants = "two-tenants";
// The validation set (sim/validation_traces.h): "t5-large", "llama-7b-lora", ... in the order of
// reports.
const std::vector<std::string>& ValidationNames();
// In words: what runs, its batch, its sequence and its precision.
const std::string& DescriptionOf(std::string_view name);
// Those whose iterations repeat, so that they can be learned.
bool IsPeriodic(std::string_view name);
// Those whose calls are a kernel's each (sim/kernel_traces.h), not a layer's.
bool IsKernelLevel(std::string_view name);
// REQUIRES, of these four: `name` is of one of the two sets. No hints are given.
Trace Generate(std::string_view name, const Hardware& hardware, int iterations, uint64_t seed = 1);

enum class Hints : uint8_t { kNone, kOrder, kTime };
// With every put's next use as the trace's own future has it: the order of the gets, or the
// compute time until the next. `share` of them, chosen by the seed, are given; the others are
// unknown.
Trace WithHints(Trace trace, Hints hints, double share = 1, uint64_t seed = 1);

// Every compute time times a factor from 1 - by to 1 + by.
Trace WithTimesPerturbed(Trace trace, double by, uint64_t seed);
// In each iteration `share` of the gets change places with the next one, where both are free to.
Trace WithReorder(Trace trace, double share, uint64_t seed);
// From iteration `from` on, what is created and what is computed is `factor` of what it was: a
// shorter sequence, a smaller batch.
Trace WithPeriodChanged(Trace trace, size_t from, double factor);

}  // namespace ravenstore::sim
