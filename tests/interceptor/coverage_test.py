#!/usr/bin/python3
"""Every allocating function of the installed toolkit's headers is in the table: hooked, or passed
on with a reason. A new one makes this fail, and names it."""

import pathlib
import re
import sys

TABLE = pathlib.Path("interceptor/hooks.def")
HEADERS = ("cuda.h", "cuda_runtime_api.h")
# Names of functions that make, free or report device memory.
WORDS = (
    "Malloc|MemAlloc|MemFree(?!Node)|MemCreate|MemRelease|MemRetain|ArrayCreate|Array3DCreate",
    "ArrayDestroy|FreeArray|FreeMipmapped|MemGetInfo|TotalMem|MemPoolCreate|MulticastCreate",
    "GetProcAddress|GetDriverEntryPoint|PrimaryCtx(Retain|Release|Reset)|CtxCreate|CtxDestroy",
    "GraphMemTrim|AddMemAlloc",
    # Those take memory in addition to their purpose, or announce it to other processes.
    "ModuleLoad|LibraryLoad|SetLimit|GraphUpload|Ipc(Get|Open)MemHandle",
)
# Names of functions that name memory, or end something that was reported. Only the elastic mode
# needs these, and only the driver's: the runtime's functions end in those.
TOUCHING = (
    "Memcpy|Memset|Launch|GraphInstantiate|GraphExec(?!GetFlags)|TensorMap|StreamDestroy",
    "Stream(Begin|End)Capture|Stream(Write|Wait)Value|StreamBatchMemOp|PointerGetAttribute",
    "MemGetAddressRange|TexObjectCreate|TexRefSetAddress|(Module|Library)Unload|ExportPointer",
    "HandleForAddressRange",
)
SUSPECT = re.compile(rf"^(cu|cuda)(.*({'|'.join(WORDS)}).*|Free(Async)?|Mem(Map|Unmap))$")
TOUCHES = re.compile(rf"^cu(?=[A-Z]).*({'|'.join(TOUCHING)})")
DECLARED = re.compile(r"\b(?:CUresult|cudaError_t)\s+(?:CUDAAPI|CUDARTAPI)\s+(cu\w+)\s*\(")


def declared(text):
    names = set(DECLARED.findall(text))
    # Macros give a function's newest version the oldest name.
    newest = r"(?:__CUDA_API_PT[DS][SZ]\()?(cu\w+_v\d+(?:_ptsz)?)\)?"
    newer = dict(re.findall(rf"#define\s+(cu\w+)\s+{newest}\s*$", text, re.M))
    return {newer.get(name, name) for name in names} | set(newer.values())


def main():
    table = TABLE.read_text()
    hooked = set(re.findall(r'^HOOK(?:_ELASTIC)?\(\w+, "\w*", (\w+),', table, re.M))
    passed = dict(re.findall(r'^PASS\((\w+), "([^"]+)"\)', table, re.M))
    if len(hooked) < 50 or hooked & set(passed):
        sys.exit(f"the table makes no sense: {sorted(hooked & set(passed))}")
    folder = pathlib.Path("../cuda/include")
    if not folder.exists():
        folder = pathlib.Path("external/cuda/include")
    names = set()
    for header in HEADERS:
        names |= declared((folder / header).read_text(errors="replace"))
    if "cuMemAlloc_v2" not in names or "cudaMalloc" not in names:
        sys.exit("the headers were not understood")
    # A runtime function ends in the driver: only those that users name themselves are hooked there.
    suspects = {n for n in names if SUSPECT.match(n) or TOUCHES.match(n)}
    new = sorted(suspects - hooked - set(passed))
    version = re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text()).group(1)
    print(f"CUDA {version}: {len(names)} functions, {len(hooked & names)} hooked; new: {new}")
    if new:
        sys.exit("neither hooked nor passed on: " + ", ".join(new))


if __name__ == "__main__":
    main()
