"""A program of PyTorch's for bench/elastic_bench.py: one routine on batches of small matrices.

    linalg_sample.py ROUTINE | --list

The matrices and the results are kept from turn to turn, so that they leave where memory is short.
Libraries find them by tables of addresses that kernels make. Prints a digest of all results.
"""

import ctypes
import hashlib
import sys

import torch

TURNS = 4
SIZES = (64, 128, 256)
# Of one batch. Some routines take each matrix by itself.
BYTES = 96 << 20
SLOW_BYTES = 4 << 20
SLOW = ("eigh", "svd", "pinv")


def eye(batch):
    return torch.eye(batch.shape[-1], device=batch.device)


def positive(batch):
    return batch @ batch.mT + batch.shape[-1] * eye(batch)


def grouped(batch):
    """In products of fewer than 1024 groups, for PyTorch refuses more."""
    parts = []
    for part in batch.split(1000):
        count, rows, _ = part.shape
        flat = part.to(torch.bfloat16).reshape(count * rows, rows)
        ends = torch.arange(rows, count * rows + 1, rows, device="cuda", dtype=torch.int32)
        parts.append(torch._grouped_mm(flat, part.to(torch.bfloat16).mT, offs=ends))
    return torch.cat(parts)


def pointers(batch):
    """A table of the matrices' addresses, made on the device as PyTorch makes its own."""
    step = batch.stride(0) * batch.element_size()
    begin = batch.data_ptr()
    return torch.arange(begin, begin + len(batch) * step, step, device="cuda")


def cublas():
    library = ctypes.CDLL("libcublas.so.13")
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    return library, handle


def must(result, what):
    if result != 0:
        raise RuntimeError(f"{what} returned {result}")


def gemm_batched(batch):
    library, handle = cublas()
    rows = batch.shape[-1]
    to = torch.empty_like(batch)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    tables = [pointers(each) for each in (batch, batch, to)]
    a, b, c = (ctypes.c_void_p(table.data_ptr()) for table in tables)
    real, compute = 0, 68  # CUDA_R_32F, CUBLAS_COMPUTE_32F
    must(library.cublasGemmBatchedEx(
        handle, 0, 0, rows, rows, rows, ctypes.byref(one), a, real, rows, b, real, rows,
        ctypes.byref(zero), c, real, rows, len(batch), compute, -1,
    ), "cublasGemmBatchedEx")  # fmt: skip
    return to


def gemm_grouped(batch):
    library, handle = cublas()
    rows = batch.shape[-1]
    to = torch.empty_like(batch)
    whole, real = ctypes.c_int * 2, ctypes.c_float * 2
    size, plain = whole(rows, rows), whole(0, 0)
    half = len(batch) // 2
    tables = [pointers(each) for each in (batch, batch, to)]
    a, b, c = (ctypes.c_void_p(table.data_ptr()) for table in tables)
    must(library.cublasSgemmGroupedBatched(
        handle, plain, plain, size, size, size, real(1, 1), a, size, b, size, real(0, 0), c, size,
        2, whole(half, len(batch) - half),
    ), "cublasSgemmGroupedBatched")  # fmt: skip
    return to


ROUTINES = {
    "eigh": lambda x: torch.linalg.eigh(x + x.mT)[0],
    "svd": torch.linalg.svdvals,
    "solve": lambda x: torch.linalg.solve(x, x.mT),
    "cholesky": lambda x: torch.linalg.cholesky(positive(x)),
    "lu": lambda x: torch.linalg.lu_factor(x)[0],
    "inv": torch.linalg.inv,
    "qr": lambda x: torch.linalg.qr(x)[1].abs(),
    "lstsq": lambda x: torch.linalg.lstsq(x, x.mT).solution,
    "pinv": torch.linalg.pinv,
    "grouped_mm": grouped,
    "gemm_batched": gemm_batched,
    "gemm_grouped": gemm_grouped,
}


def main():
    if sys.argv[1] == "--list":
        print(*ROUTINES)
        return
    torch.manual_seed(7)
    routine = ROUTINES[sys.argv[1]]
    bytes_ = SLOW_BYTES if sys.argv[1] in SLOW else BYTES
    batches = [
        torch.randn(bytes_ // (4 * rows * rows), rows, rows, device="cuda")
        for rows in SIZES
        for _ in range(4)
    ]
    results = [None] * len(batches)
    digest = hashlib.sha256()
    for _ in range(TURNS):
        sums = []
        for number, batch in enumerate(batches):
            results[number] = routine(batch)
            sums.append(results[number].double().abs().sum())
        digest.update(" ".join(f"{one.item():.6e}" for one in sums).encode())
    for result in results:
        digest.update(f"{result.double().abs().sum().item():.6e}".encode())
    print(sys.argv[1], digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
