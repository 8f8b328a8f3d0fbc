from worker.engine.live import Prompt


def started(length: int, found: int = 0) -> Prompt:
    prompt = Prompt(length, known=length)
    prompt.start(found)
    return prompt


def test_a_prompt_in_chunks_counts_each_token_once():
    prompt = started(10)
    assert [prompt.computed(0, 4), prompt.computed(4, 8), prompt.computed(8, 10)] == [4, 4, 2]
    assert prompt.computed(10, 11) == 0  # output


def test_what_was_cached_does_not_count():
    prompt = started(10, found=8)
    assert prompt.cached == 8
    assert prompt.computed(8, 10) == 2


def test_computing_again_does_not_count():
    prompt = started(10)
    assert prompt.computed(0, 6) == 6
    assert prompt.computed(0, 6) == 0
    assert prompt.computed(4, 10) == 4
    assert prompt.computed(8, 10) == 0  # another choice


def test_what_others_have_cached_meanwhile_does_not_count():
    prompt = started(20)
    assert prompt.computed(0, 4) == 4
    assert prompt.computed(16, 20) == 4
    assert prompt.cached == 0


def test_the_requests_own_blocks_are_not_cached_tokens():
    prompt = Prompt(10, known=4)
    prompt.start(8)
    assert prompt.cached == 4
