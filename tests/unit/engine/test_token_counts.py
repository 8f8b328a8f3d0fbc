from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 40), max_size=120)


@settings(max_examples=50)
@given(TOKENS, st.lists(TOKENS, max_size=4))
def test_every_token_is_there_once_with_its_count(prompt: list[int], outputs: list[list[int]]):
    counts = TokenCounts(prompt)
    output: list[int] = []
    for more in outputs:
        counts.add(more)
        output += more
        generated = dict(zip(counts.ids.tolist(), counts.generated.tolist(), strict=True))
        assert generated == dict.fromkeys(prompt, 0) | Counter(output)
        assert len(counts.ids) == len(generated)
        assert counts.length == len(prompt) + len(output)
        assert sorted(counts.ids[counts.output].tolist()) == sorted(set(output))


@settings(max_examples=50)
@given(TOKENS, TOKENS, TOKENS)
def test_choices_of_one_prompt_count_apart(prompt: list[int], one: list[int], other: list[int]):
    first = TokenCounts(prompt)
    second = first.another()
    first.add(one)
    second.add(other)
    for counts, output in ((first, one), (second, other)):
        generated = dict(zip(counts.ids.tolist(), counts.generated.tolist(), strict=True))
        assert generated == dict.fromkeys(prompt, 0) | Counter(output)
