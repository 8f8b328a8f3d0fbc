import pytest
import torch

from kernels.reference import ReferenceOps
from kernels.triton_ops import TritonOps


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


@pytest.fixture
def ops() -> TritonOps:
    return TritonOps()


@pytest.fixture
def truth() -> ReferenceOps:
    return ReferenceOps()


@pytest.fixture(params=[torch.float32, torch.float16], ids=["fp32", "fp16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """bfloat16 is left to real devices: numpy has no such type, and the interpreter's tl.dot is wrong on it."""
    return request.param
