import pytest

from worker.engine.prefix import Chain, root


def chain(salt: bytes = b"acme", block_size: int = 4) -> Chain:
    return Chain(root(salt), block_size)


def test_a_name_says_the_salt_and_every_token_before():
    tokens = list(range(12))
    names = chain().names(tokens, 3)
    assert names == chain().names(tokens, 3)
    assert len(set(names)) == 3
    assert chain(b"globex").names(tokens, 3)[0] != names[0]
    for changed in range(12):
        other = chain().names([*tokens[:changed], 99, *tokens[changed + 1 :]], 3)
        assert [a == b for a, b in zip(names, other, strict=True)] == [index < changed // 4 for index in range(3)]


def test_equal_blocks_at_different_places_have_different_names():
    assert len(set(chain().names([7] * 16, 4))) == 4


def test_a_salt_cannot_pose_as_the_beginning_of_another():
    # The salt that is what a link of the other's chain is hashed over, byte for byte.
    forged = root(b"l" + root(b"acme") + bytes(range(16)))
    assert forged != chain().names([0x03020100, 0x07060504, 0x0B0A0908, 0x0F0E0D0C], 1)[0]
    assert root(b"") != root(b"r")


def test_tokens_that_are_appended_add_names_and_change_none():
    tokens = list(range(9))
    growing = chain()
    first = growing.names(tokens, 2)
    tokens += range(9, 16)
    assert growing.names(tokens, 4)[:2] == first
    assert growing.names(tokens, 4) == chain().names(tokens, 4)


def test_only_a_full_block_has_a_name():
    with pytest.raises(AssertionError, match="full"):
        chain().names(list(range(7)), 2)


def test_a_fork_goes_on_by_itself():
    tokens = list(range(8))
    leader = chain()
    leader.names([*tokens, 1, 1, 1, 1], 3)
    fork = leader.fork(2)
    assert fork.made() == leader.made()[:2]
    assert fork.names([*tokens, 2, 2, 2, 2], 3) == chain().names([*tokens, 2, 2, 2, 2], 3)
    assert len(leader.made()) == 3
