"""What `import torch_memory_saver` finds where this package's folder comes first on the path."""

from ravenstore.compat.torch_memory_saver import (
    TorchMemorySaver,
    configure_subprocess,
    refuse_whole_process,
    torch_memory_saver,
)

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

refuse_whole_process()
