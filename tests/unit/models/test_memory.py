from tests.unit.models.folder import HEAD_DIM, KV_HEADS, LAYERS, Folder
from worker.models.hf_config import read_config
from worker.models.json_file import Fields
from worker.models.memory import memory_of

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
