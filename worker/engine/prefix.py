"""The prefix cache: which block contains which tokens under which salt, and which of these blocks nobody holds.

Owns the names of full blocks and the order in which idle ones are evicted. Knows no sequence and no reference count:
the pool says when a block loses its last holder, and when it has one again.

A name is a link of a hash chain: SHA-256 over the name before it and the block's tokens, from a root that is the hash
of the request's salt. So it says everything that the block's content depends on: the salt, and every token from the
first. Two salts never meet in a name, and with 256 bits nobody can make two prompts meet either; tokens need not be
compared. Invariant: a name leads to one block and a block has one name; a block is idle only if it has one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256

# What a hash is over differs in its first byte, so that no salt can be taken for a link.
_ROOT, _LINK = b"r", b"l"


def root(salt: bytes) -> bytes:
    """Where all chains of this salt start."""
    return sha256(_ROOT + salt).digest()


class Chain:
    """The names of one sequence's full blocks, made when they are first asked for. Tokens are only ever appended."""

    __slots__ = ("_block_size", "_names", "_root")

    def __init__(self, start: bytes, block_size: int, names: Iterable[bytes] = ()) -> None:
        self._root = start
        self._block_size = block_size
        self._names = list(names)

    def names(self, tokens: list[int], count: int) -> list[bytes]:
        """Of the first `count` blocks, which `tokens` fills."""
        for index in range(len(self._names), count):
            start = index * self._block_size
            block = array("I", tokens[start : start + self._block_size])
            assert len(block) == self._block_size, "only a full block has a name"
            before = self._names[-1] if self._names else self._root
            self._names.append(sha256(_LINK + before + block.tobytes()).digest())
        return self._names[:count]

    def made(self) -> list[bytes]:
        """All names that were ever asked for."""
        return self._names

    def fork(self, count: int) -> "Chain":
        """The chain of a sequence that has the first `count` blocks in common with this one."""
        return Chain(self._root, self._block_size, self._names[:count])


class PrefixCache:
    """All operations are O(1) per block."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # the one idle for longest first

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The blocks of the longest run of names from the first that is known."""
        found: list[int] = []
        for name in names:
            block = self._blocks.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, name: bytes, block: int) -> None:
        """The block, which is held, contains what the name says. When two have computed the same, the first stays."""
        if name not in self._blocks:
            assert block not in self._names
            self._blocks[name] = block
            self._names[block] = name

    def withdraw(self, name: bytes) -> int | None:
        """Never give out this block again. The block if it was idle: it is its caller's now."""
        block = self._blocks.pop(name, None)
        if block is None:
            return None
        del self._names[block]
        if block not in self._idle:
            return None
        del self._idle[block]
        return block

    def park(self, block: int) -> bool:
        """Nobody holds the block any more. False if it has no name: then there is nothing to keep it for."""
        if block not in self._names:
            return False
        self._idle[block] = None
        return True

    def unpark(self, block: int) -> None:
        """Somebody holds the block again."""
        del self._idle[block]

    def evict(self) -> int:
        """Forget the block that has been idle for longest; it is its caller's now."""
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
