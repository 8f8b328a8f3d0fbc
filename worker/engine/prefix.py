"""The prefix cache: which block contains which tokens under which salt, and which of these blocks are idle (not held).

Owns the names of full blocks and the order in which idle ones are evicted. Knows no sequence and no reference count:
the pool reports when a block loses its last holder, and when it gets one again.

A name is a link of a hash chain: SHA-256 over the previous name and the block's tokens, starting from a hash of the
request's salt. So it identifies everything that the block's content depends on: the salt, and every token from the
first. Names under two salts never coincide, and with 256 bits nobody can construct two prompts with one name, so tokens
need not be compared. Invariant: a name has one block and a block has one name; a block is idle only if it has one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256

# The hashed texts differ in their first byte, so that no salt can be taken for a link.
_ROOT, _LINK = b"r", b"l"


def root(salt: bytes) -> bytes:
    """The start of all chains of this salt."""
    return sha256(_ROOT + salt).digest()


class Chain:
    """The names of one sequence's full blocks, computed on first use. Tokens are only ever appended."""

    __slots__ = ("_block_size", "_names", "_root")

    def __init__(self, start: bytes, block_size: int, names: Iterable[bytes] = ()) -> None:
        self._root = start
        self._block_size = block_size
        self._names = list(names)

    def names(self, tokens: list[int], count: int) -> list[bytes]:
        """The names of the first `count` blocks, which `tokens` fills."""
        for index in range(len(self._names), count):
            start = index * self._block_size
            block = array("I", tokens[start : start + self._block_size])
            assert len(block) == self._block_size, "only a full block has a name"
            before = self._names[-1] if self._names else self._root
            self._names.append(sha256(_LINK + before + block.tobytes()).digest())
        return self._names[:count]

    def made(self) -> list[bytes]:
        """All names computed so far."""
        return self._names

    def fork(self, count: int) -> "Chain":
        """The chain of a sequence that shares the first `count` blocks with this one."""
        return Chain(self._root, self._block_size, self._names[:count])


class PrefixCache:
    """All operations are O(1) per block."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # longest idle first

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known run of names, from the first on."""
        found: list[int] = []
        for name in names:
            block = self._blocks.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, name: bytes, block: int) -> None:
        """Register a held block's content. If two blocks have the same content, the first stays registered."""
        if name not in self._blocks:
            assert block not in self._names
            self._blocks[name] = block
            self._names[block] = name

    def withdraw(self, name: bytes) -> int | None:
        """Remove a name. Returns its block if that was idle: it then belongs to the caller."""
        block = self._blocks.pop(name, None)
        if block is None:
            return None
        del self._names[block]
        if block not in self._idle:
            return None
        del self._idle[block]
        return block

    def park(self, block: int) -> bool:
        """The block has no holder any more. False if it has no name, so that there is no reason to keep its content."""
        if block not in self._names:
            return False
        self._idle[block] = None
        return True

    def unpark(self, block: int) -> None:
        """The block has a holder again."""
        del self._idle[block]

    def evict(self) -> int:
        """Remove the block that has been idle longest: it then belongs to the caller."""
        block, _ = self._idle.popitem(last=False)
        del self._blocks[self._names.pop(block)]
        return block

    def check_integrity(self) -> None:
        assert len(self._blocks) == len(self._names)
        assert all(self._blocks[name] == block for block, name in self._names.items())
        assert self._idle.keys() <= self._names.keys(), "an idle block has no name"
        assert 0 not in self._names

    def idle(self) -> list[int]:
        """Longest idle first."""
        return list(self._idle)
