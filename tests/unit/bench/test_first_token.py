from bench import first_token


def test_an_engine_as_a_worker_s_answers_in_process() -> None:
    found = first_token.in_process(prompt_tokens=40, output_tokens=3, requests=4)
    assert 0 < found.p50 <= found.p95 <= found.p99
