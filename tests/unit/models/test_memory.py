from dataclasses import replace

from tests.unit.models.folder import HEAD_DIM, KV_HEADS, LAYERS, Folder
from worker.models.hf_config import read_config
from worker.models.json_file import Fields
from worker.models.memory import memory_of

CONFIG = read_config(Fields("x", Folder().config))


def test_the_parts():
    memory = memory_of(CONFIG, item_bytes=2, kv_item_bytes=4, kv_tokens=200, step_tokens=8, step_samples=1)
    assert memory.weights_bytes == 2 * sum(tensor.size for tensor in Folder().tensors.values())
    assert memory.kv_bytes == 200 * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
    assert memory.full_contexts == 200 // CONFIG.context_length == 3
    assert memory.activations_bytes > 8 * CONFIG.intermediate * 3 * 2


def test_a_tied_head_is_counted_once():
    def weights(config):
        kv = {"kv_item_bytes": 1, "kv_tokens": 1, "step_tokens": 1, "step_samples": 1}
        return memory_of(config, item_bytes=1, **kv).weights_bytes

    assert weights(CONFIG) - weights(replace(CONFIG, tied=True)) == CONFIG.vocab_size * CONFIG.hidden
