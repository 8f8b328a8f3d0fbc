import pytest

from tests.unit.engine.builders import BLOCK_SIZE, make_sequence
from worker.engine.followers import Followers
from worker.engine.sequence import Status


@pytest.fixture
def followers() -> Followers:
    return Followers(BLOCK_SIZE)


@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [
        (1, 1),
        (BLOCK_SIZE - 1, 1),
        (BLOCK_SIZE, 2),  # the last token is computed again, in a block of its own
        (BLOCK_SIZE + 1, 1),
        (2 * BLOCK_SIZE - 1, 1),
    ],
)
def test_a_follower_needs_the_blocks_that_it_does_not_share(followers: Followers, prompt: int, blocks: int) -> None:
    leader, follower = make_sequence(0, prompt, tier=1), make_sequence(1, prompt, tier=1)
    followers.hold(leader, [follower])
    assert follower.status is Status.HELD
    assert (followers.counts[1], followers.blocks[1]) == (1, blocks)


def test_released_followers_wait_and_those_that_left_do_not(followers: Followers) -> None:
    leader, stays, leaves = (make_sequence(arrival, 3) for arrival in range(3))
    followers.hold(leader, [stays, leaves])
    leaves.status = Status.FINISHED
    followers.leave(leaves)
    assert followers.total == 1
    assert followers.release(leader) == [stays]
    assert stays.status is Status.WAITING
    assert followers.release(leader) == []
    followers.check_idle()
