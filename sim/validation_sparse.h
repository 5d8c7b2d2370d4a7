// Networks of the validation set (sim/generators.h) that touch a part of their data by chance.
#pragma once

#include <cstdint>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// GraphSAGE (Hamilton et al. 2017) on ogbn-products (Hu et al. 2020: 2,449,029 nodes of 100
// features, 61,859,140 edges both ways, 47 classes) with the widths of its published example: three
// layers of 256, fan-outs 15, 10 and 5, 206,895 parameters in 32 bit. An update for every four
// batches of 16,384 nodes, which are sampled on the device: how many neighbours they have differs
// each time.
Trace GraphSageKernels(const Hardware& hardware, int iterations, uint64_t seed);
// DLRM (Naumov et al. 2019) as its code runs Criteo Terabyte with at most 10 million rows a table:
// 26 tables of 64 columns, 49 million rows in 32 bit, products 13-512-256-64 and 415-512-512-256-1.
// 2048 samples each, and eight times as many iterations as asked for. Rows are sorted by how
// frequent they are and lie in blocks of 2 MiB; Zipf's law with exponent 1.1 says which are read
// and learned.
Trace DlrmKernels(const Hardware& hardware, int iterations, uint64_t seed);

}  // namespace ravenstore::sim
