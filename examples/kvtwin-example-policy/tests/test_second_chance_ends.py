"""Does the policy keep its promises, and decide what it is for?"""

from kvtwin_example_policy import SecondChanceEnds

from kvtwin import Block, PolicyEnv
from kvtwin.conformance import FAST, check_policy


def test_it_keeps_the_promises_of_its_kind():
    check_policy(SecondChanceEnds, effort=FAST)


def test_what_was_of_use_stays():
    policy = SecondChanceEnds(PolicyEnv(now=lambda: 0, num_blocks=8, block_size_tokens=16))
    blocks = [Block(number, key=number, position=number) for number in range(3)]
    policy.on_insert(blocks)
    policy.on_hit(blocks[2:], False)
    policy.on_release(blocks[::-1])
    assert [policy.pop_victim(None).block_id for _ in blocks] == [1, 0, 2]
