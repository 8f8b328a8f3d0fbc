import pytest

from tests.unit.models.folder import HEAD_DIM, KV_HEADS, LAYERS, Folder
from worker.models.hf_config import read_config
from worker.models.json_file import Fields
from worker.models.memory import POOL_DEFAULT, memory_of, pool_bytes

CONFIG = read_config(Fields("x", Folder().config))


SIZES = {"weights_bytes": 7, "item_bytes": 2, "kv_item_bytes": 4, "kv_tokens": 200, "step_tokens": 8, "step_samples": 1}


def test_the_parts():
    memory = memory_of(CONFIG, gathers=False, **SIZES)
    assert memory.weights_bytes == 7
    assert memory.kv_bytes == 200 * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
    assert memory.full_contexts == 200 // CONFIG.context_length == 3
    assert memory.activations_bytes > 8 * CONFIG.intermediate * 3 * 2


def test_a_gathered_context_counts():
    plain, gathered = (memory_of(CONFIG, gathers=gathers, **SIZES).activations_bytes for gathers in (False, True))
    assert gathered - plain == CONFIG.context_length * 4 * 2 * KV_HEADS * HEAD_DIM


def test_a_pool_is_never_more_than_there_is_room_for():
    assert pool_bytes(None, None) == pool_bytes(None, 2**40) == POOL_DEFAULT
    assert pool_bytes(None, 1000) == pool_bytes(1000, 1000) == 1000
    assert pool_bytes(2**40, None) == 2**40
    assert pool_bytes(None, -1) == 0
    with pytest.raises(ValueError, match="FOREBAY_KV_BYTES=1001 does not fit: 1000 bytes are left"):
        pool_bytes(1001, 1000)
