"""How a device's memory is divided: the sum, and what is refused."""

import pytest

from worker.engine.device_memory import GIB, GRAPH_BYTES, DeviceMemory, divide

H200 = {
    "total_bytes": 140 * GIB,
    "free_bytes": 123 * GIB,  # 16 of weights, 1 of a context
    "share": 0.9,
    "weights_bytes": 16 * GIB,
    "activations_bytes": 2 * GIB,
    "graphs": 20,
    "token_bytes": 128 * 1024,
    "block_size": 16,
    "context_length": 131_072,
}


def sizes(**changes: float) -> DeviceMemory:
    return divide(**(H200 | changes))


def test_the_pool_takes_what_the_others_leave_of_the_share():
    memory = sizes()
    assert memory.others_bytes == GIB
    left = 126 * GIB - GIB - 16 * GIB - 2 * GIB - 20 * GRAPH_BYTES
    assert 0 <= left - memory.kv_bytes < 16 * 128 * 1024
    assert memory.kv_tokens == (memory.blocks - 1) * 16
    assert memory.full_contexts == memory.kv_tokens // 131_072 == 6


def test_a_pool_of_a_given_size_is_taken_if_it_fits():
    assert sizes(kv_bytes_wanted=GIB).blocks == 512
    with pytest.raises(ValueError, match="not enough memory"):
        sizes(kv_bytes_wanted=120 * GIB)


def test_no_room_for_a_pool_shows_the_sum():
    with pytest.raises(ValueError, match=r"- weights +16\.00 GiB"):
        sizes(share=0.13)


def test_the_lines_add_up():
    memory = sizes()
    numbers = [float(line.split()[-2]) for line in memory.lines()[:-1]]
    assert numbers[0] - sum(numbers[1:-1]) == pytest.approx(numbers[-1], abs=0.03)
    assert memory.lines()[-1].endswith("6 full contexts at once")
