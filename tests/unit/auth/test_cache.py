import uuid
from dataclasses import dataclass

from gateway.auth.cache import KeyCache
from gateway.db.changes import ALL


@dataclass(frozen=True)
class Value:
    tenant_id: uuid.UUID


ONE, TWO = Value(uuid.uuid4()), Value(uuid.uuid4())


def cache(known_max: int = 10, unknown_max: int = 10) -> KeyCache[Value]:
    return KeyCache(known_max=known_max, unknown_max=unknown_max, unknown_s=5)


def stale(keys: KeyCache[Value], public_id: str) -> bool:
    entry = keys.known(public_id)
    assert entry is not None
    return entry.stale


def test_a_change_marks_the_keys_of_its_tenant_alone() -> None:
    keys = cache()
    keys.put("a", ONE, generation=0)
    keys.put("b", TWO, generation=0)
    keys.invalidate(frozenset({ONE.tenant_id}))
    assert stale(keys, "a")
    assert not stale(keys, "b")
    keys.invalidate(ALL)
    assert stale(keys, "b")


def test_no_change_marks_nothing() -> None:
    keys = cache()
    keys.put("a", ONE, generation=0)
    keys.put_unknown("x", 0, generation=0)
    keys.invalidate(frozenset())
    assert not stale(keys, "a")
    assert keys.is_unknown("x", 1)


def test_what_was_read_before_a_change_is_not_fresh_after_it() -> None:
    keys = cache()
    begun = keys.generation
    keys.invalidate(frozenset({TWO.tenant_id}))
    keys.put("a", ONE, generation=begun)
    keys.put_unknown("x", 0, generation=begun)
    assert stale(keys, "a")
    assert not keys.is_unknown("x", 0)


def test_an_unknown_id_is_asked_for_again_after_a_while_or_any_change() -> None:
    keys = cache()
    keys.put_unknown("x", 100, generation=0)
    assert keys.is_unknown("x", 104.9)
    assert not keys.is_unknown("x", 105)
    keys.put_unknown("x", 200, generation=0)
    keys.invalidate(frozenset({ONE.tenant_id}))
    assert not keys.is_unknown("x", 200)


def test_a_key_that_is_gone_is_forgotten() -> None:
    keys = cache()
    keys.put("a", ONE, generation=0)
    keys.put_unknown("a", 0, generation=0)
    assert keys.known("a") is None


def test_both_sides_are_bounded_and_the_least_used_goes_first() -> None:
    keys = cache(known_max=2, unknown_max=2)
    for public_id in ("a", "b"):
        keys.put(public_id, ONE, generation=0)
    keys.known("a")
    keys.put("c", ONE, generation=0)
    assert keys.known("b") is None
    assert keys.known("a") is not None
    for public_id in ("x", "y", "z"):
        keys.put_unknown(public_id, 0, generation=0)
    assert [keys.is_unknown(public_id, 1) for public_id in ("x", "y", "z")] == [False, True, True]


def test_a_refused_key_is_due_when_an_unknown_id_is() -> None:
    keys = cache()
    keys.put("a", ONE, generation=0)
    assert not keys.is_refused("a", 100)
    for at_s in (100, 200):
        keys.put_unknown("x", at_s, generation=keys.generation)
        keys.note_refused("a", at_s)
        for later_s in (4.9, 5):
            assert keys.is_refused("a", at_s + later_s) == keys.is_unknown("x", at_s + later_s) == (later_s < 5)
        keys.invalidate(frozenset({TWO.tenant_id}))
        assert not keys.is_refused("a", at_s)
        assert not stale(keys, "a")
    keys.note_refused("nobody", 100)
    assert not keys.is_refused("nobody", 100)
