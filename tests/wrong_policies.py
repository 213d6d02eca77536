"""Policies that each break one promise, and break no other."""

from __future__ import annotations

import random
from itertools import count

from kvtwin import (
    Admission,
    AdmissionPolicy,
    AllocationPolicy,
    BatchPolicy,
    BatchRules,
    EvictionPolicy,
    LeafRanking,
    Preemption,
    PreemptionPolicy,
    PreemptMode,
    QueuePolicy,
    RoutingPolicy,
    StaticRouting,
)


class OldestFirst(EvictionPolicy):
    """Keeps every promise: the wrong ones derive from it."""

    def __init__(self, env):
        super().__init__(env)
        self.idle = {}

    def on_release(self, blocks):
        self.idle.update(dict.fromkeys(blocks))

    def on_acquire(self, blocks):
        for block in blocks:
            del self.idle[block]

    def pop_victim(self, incoming):
        block = next(iter(self.idle))
        del self.idle[block]
        return block


class NamesReferenced(OldestFirst):
    """Forgets that a hit makes a block unavailable."""

    def on_acquire(self, blocks):
        pass


class NamesTwice(OldestFirst):
    def pop_victim(self, incoming):
        return next(iter(self.idle))


class NamesStranger(OldestFirst):
    """Holds what is registered for evictable; nobody has released it yet."""

    def on_insert(self, blocks):
        self.latest = blocks[0]

    def pop_victim(self, incoming):
        super().pop_victim(incoming)
        return type(self.latest)(99)


class KeepsOne(OldestFirst):
    """Takes the last of them for pinned."""

    def pop_victim(self, incoming):
        if len(self.idle) == 1:
            raise IndexError("nothing to evict")
        return super().pop_victim(incoming)


class ReturnsNothing(OldestFirst):
    def pop_victim(self, incoming):
        return super().pop_victim(incoming) if len(self.idle) > 2 else None


class WritesBlocks(OldestFirst):
    def on_hit(self, blocks, readmission):
        blocks[0].category = 7


class Raises(OldestFirst):
    def on_hit(self, blocks, readmission):
        if readmission:
            raise LookupError("never seen it")


class NeedsASize(OldestFirst):
    """`num_blocks` is None for an unbounded pool."""

    def __init__(self, env):
        super().__init__(env)
        self.half = env.num_blocks // 2


class NeverEnds(OldestFirst):
    def pop_victim(self, incoming):
        while len(self.idle) > 1:
            pass
        return super().pop_victim(incoming)


class DrawsAtLarge(OldestFirst):
    """Draws from a generator that the run's seed does not set."""

    def pop_victim(self, incoming):
        block = random.choice(list(self.idle))
        del self.idle[block]
        return block


class ForetellsWrongly(OldestFirst):
    def eviction_order(self):
        return list(self.idle)[::-1]


class ForetellsTooFew(OldestFirst):
    def eviction_order(self):
        return list(self.idle)[1:]


class ForetellsByIterator(OldestFirst):
    def eviction_order(self):
        return iter(self.idle)


class CannotBeSpared(OldestFirst):
    """Thinks that a victim is gone for good; `pool.leaf_first` brings it back with its content."""

    def __init__(self, env):
        super().__init__(env)
        self.age = {}

    def on_insert(self, blocks):
        self.age.update(dict.fromkeys(blocks, 0))

    def on_hit(self, blocks, readmission):
        for block in blocks:
            self.age[block] += 1

    def pop_victim(self, incoming):
        block, _ = self.idle.popitem()  # beginnings first: they are the ones to be spared
        self.age.pop(block, None)
        return block


class ScansInPython(OldestFirst):
    def pop_victim(self, incoming):
        block = min(self.idle, key=lambda each: each.block_id)
        del self.idle[block]
        return block


class ScansInC(OldestFirst):
    def on_release(self, blocks):
        self.idle.update((block, block.block_id) for block in blocks)

    def pop_victim(self, incoming):
        block = min(self.idle, key=self.idle.get)
        del self.idle[block]
        return block


class ClaimsTailsFirst(OldestFirst):
    """Says that ends go before their beginnings, and does the opposite."""

    is_prefix_closed = True

    def pop_victim(self, incoming):
        return self.idle.popitem()[0]


class Unready(AdmissionPolicy):
    """Lets nobody in for the first 100 ps of every 200, and does not announce it."""

    def admit(self, request, num_new_blocks, view):
        is_open = self.env.now() // 100 % 2 == 1 or view.num_running == 0
        return Admission.ADMIT if is_open and num_new_blocks <= view.num_free_blocks else Admission.WAIT


class WantsScarcity(AdmissionPolicy):
    def admit(self, request, num_new_blocks, view):
        is_right = num_new_blocks <= view.num_free_blocks < view.num_blocks + 5
        return Admission.ADMIT if is_right else Admission.WAIT


class LetsNobodyIn(AdmissionPolicy):
    def admit(self, request, num_new_blocks, view):
        return Admission.WAIT


class AnswersYes(AdmissionPolicy):
    def admit(self, request, num_new_blocks, view):
        return True


class NamesTheAbsent(PreemptionPolicy):
    """Remembers the first it ever saw run."""

    first = None

    def select(self, running, shortage, for_request):
        self.first = self.first or next(iter(running))
        return Preemption(self.first, PreemptMode.RECOMPUTE)


class NamesNobody(PreemptionPolicy):
    def select(self, running, shortage, for_request):
        return None


class NamesARequest(PreemptionPolicy):
    def select(self, running, shortage, for_request):
        return for_request


class NamesByLot(PreemptionPolicy):
    def select(self, running, shortage, for_request):
        return Preemption(random.choice(list(running)), PreemptMode.RECOMPUTE)


class MixedKeys(QueuePolicy):
    def key(self, request):
        return request.arrival_ps if request.priority else None


class NotANumber(QueuePolicy):
    def key(self, request):
        return float("nan")


class RockPaperScissors(QueuePolicy):
    def key(self, request):
        return Hand(request.request_id % 3)


class Hand:
    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return (other.number - self.number) % 3 == 1

    def __eq__(self, other):
        return self.number == other.number

    __hash__ = None

    def __repr__(self):
        return ("rock", "paper", "scissors")[self.number]


class ByLot(QueuePolicy):
    def key(self, request):
        return random.random()


class NoBudget(BatchPolicy):
    def compose(self, view):
        return BatchRules(0 if view.num_running else 8, 0, True)


class ATuple(BatchPolicy):
    def compose(self, view):
        return 8, 0, True


class NotFixed(BatchPolicy):
    """Says that its rules never change, and halves its budget once anybody runs."""

    def compose(self, view):
        return BatchRules(16 if view.num_running else 32, 0, True)

    def fixed_rules(self, view):
        return self.compose(view)


class Counting(AllocationPolicy):
    """A block too few for long texts."""

    def target_blocks(self, request, num_tokens):
        needed = -(-num_tokens // self.env.block_size_tokens)
        return needed - 1 if needed > 3 else needed


class GivesBack(AllocationPolicy):
    """More than enough at first, just enough later."""

    def target_blocks(self, request, num_tokens):
        needed = -(-num_tokens // self.env.block_size_tokens)
        return needed + 2 if needed == 1 else needed


class Fractions(AllocationPolicy):
    def target_blocks(self, request, num_tokens):
        return num_tokens / self.env.block_size_tokens + 1


class RanksMixed(LeafRanking):
    def rank(self, leaf):
        return leaf.depth_pages or "root"


class RanksByLot(LeafRanking):
    numbers = count()

    def rank(self, leaf):
        return next(self.numbers) * 7919 % 101


class NamesNoReplica(RoutingPolicy):
    """Counts from 1."""

    def route(self, request, replicas):
        return request.request_id % len(replicas) + 1


class MarksReplicas(RoutingPolicy):
    """Keeps its books in the views."""

    def route(self, request, replicas):
        replicas[0].num_mine = 1
        return 0


class RoutesByLot(RoutingPolicy):
    """Draws from nobody's seed."""

    def route(self, request, replicas):
        return random.randrange(len(replicas))


class NotStatic(StaticRouting):
    """Says that it goes by the request alone, and counts."""

    def __init__(self, env):
        super().__init__(env)
        self.turns = count()

    def place(self, request, num_replicas):
        return next(self.turns) % num_replicas


class LooksAtMore(StaticRouting):
    """Says that it goes by the session alone."""

    placed_by = "session_id"

    def place(self, request, num_replicas):
        return request.num_prompt_tokens % num_replicas
