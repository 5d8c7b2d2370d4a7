"""A program of CuPy's for bench/elastic_bench.py: prints a number made of each of its results."""

import zlib

import cupy

COUNT = 1 << 24


def show(name, array):
    print(name, array.shape, zlib.crc32(cupy.asnumpy(array).tobytes()), flush=True)


def main():
    words = cupy.arange(COUNT, dtype=cupy.uint32) * cupy.uint32(2654435761)
    show("elementwise", words ^ (words >> cupy.uint32(7)))
    show("sort", cupy.sort(words))
    show("scan", cupy.cumsum(words, dtype=cupy.uint64))
    show("histogram", cupy.bincount((words & cupy.uint32(255)).astype(cupy.int64)))
    show("unique", cupy.unique(words >> cupy.uint32(8)))
    square = (words[: 1 << 22] & cupy.uint32(15)).reshape(2048, 2048).astype(cupy.float32)
    show("matrix product", square @ square.T)  # small whole numbers: exact in any order
    show("transpose", cupy.ascontiguousarray(square.T))
    twice = cupy.RawKernel(
        'extern "C" __global__ void twice(unsigned* x, int n) {'
        " for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
        " x[i] = x[i] * 2 + 1; }",
        "twice",
    )
    for _ in range(10):
        twice((512,), (256,), (words, cupy.int32(COUNT)))
    show("raw kernel", words)
    with cupy.cuda.Stream(non_blocking=True):
        show("another stream", cupy.concatenate([cupy.arange(COUNT), cupy.arange(COUNT)])[::3])
    cupy.get_default_memory_pool().free_all_blocks()
    show("after a trim", cupy.full(COUNT, 7, dtype=cupy.int64) + 1)


if __name__ == "__main__":
    main()
