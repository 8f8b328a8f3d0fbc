"""What torch's import brings that no worker needs, and how to leave it out.

Never imports torch. Invariant: nothing here changes what torch computes with tensors that have data.
"""

from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

# Shapes of results for tensors without data, which compilers and exporters of models ask for: a quarter of the import.
UNUSED = "torch._meta_registrations"
CUDA_DEVICE = Path("/dev/nvidiactl")


def leave_out(modules: MutableMapping[str, ModuleType], cuda_device: Path = CUDA_DEVICE) -> None:
    """Before torch is imported; `modules` are the interpreter's. Nothing is left out beside a CUDA device, for which
    code may be compiled.
    """
    if "torch" not in modules and not cuda_device.exists():
        modules[UNUSED] = ModuleType(UNUSED)
