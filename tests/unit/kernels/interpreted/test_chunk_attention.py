"""What `paged_attention` as a whole does not show: what each of its kernels leaves alone."""

import torch

from kernels.chunk_attention import _chunk_attention_kernel, chunk_attention
from kernels.on_device import on_device
from kernels.split_attention import split_attention
from tests.unit.kernels.interpreted.attention_step import NAN, Step, call_of


def test_each_kernel_leaves_the_other_s_sequences_alone() -> None:
    step = Step.of([(1, 20), (3, 20), (1, 5)])
    single = torch.tensor([True, False, False, False, True])
    for launch, own in ((lambda call, tile: split_attention(call, tile, None, 1), single), (chunk_attention, ~single)):
        call = call_of(step)
        call.out.fill_(NAN)
        launch(call, call.tiles()[0])
        assert torch.equal(call.out.isfinite().all(-1).all(-1), own)


def test_a_tile_writes_no_token_of_the_next() -> None:
    """A group of 5 leaves rows of a tile over. The next tile would write the same place: here it does not run."""
    call = call_of(Step.of([(40, 40)], heads=5, kv_heads=1))
    call.out.fill_(NAN)
    tile = call.tiles()[1]
    own = call.rows(tile) // call.group
    on_device(call.q.device, _chunk_attention_kernel, (1, 1))(
        call.out, *call.tensors(), call.sequences, *call.numbers(), **call.constants(tile)
    )
    assert call.rows(tile) % call.group
    assert call.out[:own].isfinite().all()
    assert call.out[own:].isnan().all()
