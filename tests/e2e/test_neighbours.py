"""A tenant past its limit is told when to come back, and the others notice nothing."""

from tests.e2e.api import Api, bystander
from tests.e2e.stack import Stack


def test_a_tenant_past_its_tokens_disturbs_nobody(stack: Stack, api: Api) -> None:
    greedy = Api(stack.base_urls[0], stack.create_tenant(rpm=None, tpm=300, tier=2))
    with bystander(api):
        answers = [greedy.chat(max_tokens=200) for _ in range(30)]
        api.probe()
    refused = [answer for answer in answers if answer.status_code == 429]
    assert answers[0].status_code == 200
    assert len(refused) >= 20
    assert all(0 < int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert all(answer.json()["error"]["type"] == "tokens" for answer in refused)
