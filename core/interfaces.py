"""Everything a policy author needs: what a policy is told, what it sees, what it answers.

A policy is built as `Policy(env, **params)`, owns its data structures and never looks into another object's. It sees
blocks, never tokens, and knows no clock but `env.now()`. The same object decides in the simulator and in the engine. A
hook left as it is costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from core.block import Block as Block
from core.block import BlockKey as BlockKey
from core.leaf import Leaf as Leaf
from core.priority_order import PriorityOrder
from core.scheduler_view import SchedulerView as SchedulerView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from core.batch_eviction import BatchEviction
    from core.request import Request


class Future(Protocol):
    """What the rest of the run will ask for. Only clairvoyant policies look."""

    def next_use(self, key: BlockKey) -> int | None:
        """The number of the next reference to this content by a prompt that has not been admitted yet; None: never.

        References are numbered along the whole run, root to leaf within a prompt. The answer for a key changes only
        when the prompt it names is admitted, and then to a greater number. Amortised O(1).
        """
        ...


@dataclass(frozen=True, slots=True)
class PolicyEnv:
    """What every policy may know of the world it runs in.

    `now()` is the time of the decision being made, in integer picoseconds; `num_blocks` is None for an unbounded pool;
    `seed` is the run's, for policies that draw random numbers. `future` is None but for clairvoyant policies, and for
    them, too, where traffic is not known beforehand.
    """

    now: Callable[[], int]
    num_blocks: int | None
    block_size_tokens: int
    seed: int = 0
    future: Future | None = None


class Change(NamedTuple):
    """The next moment at which a policy would answer differently although nothing happened: a step, a time, or both."""

    step: int | None = None
    time_ps: int | None = None


class Policy(ABC):  # noqa: B024 - each kind of policy adds its own abstract methods
    """Base of every policy. `clairvoyant` ones use knowledge of the future, say so, and are refused unless named.

    A policy that asks for a request's priority or tenant names it in `goes_by` ("priority", "tenant"): a run tells what
    of its trace no policy goes by.
    """

    clairvoyant: ClassVar[bool] = False
    goes_by: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, env: PolicyEnv) -> None:
        self.env = env

    def next_change(self, now_ps: int, step: int) -> Change | None:
        """Bounds the span: until then the policy promises to answer alike. None: it never changes by itself."""
        return None


class EvictionPolicy(Policy):
    """Orders the cached blocks that no request references, and names the next one to lose its content.

    A policy that never evicts a block before the blocks that continue it says so by `is_prefix_closed`: where the head
    of the queue waits for memory, spans are longer under such a policy. Decisions are the same either way. Likewise
    `evicts_in_order_of_release`, said in the very class: the simulator then keeps that order itself, by runs of blocks.
    A policy that thinks the more of a block the deeper it stands in its text would give up beginnings first, and strand
    the rest. It says so by `leaf_first`: then only blocks without resident children are evicted, as `pool.leaf_first`
    has it for any policy (but for models with sliding windows, where beginnings go first by design).

    A policy that can also decide for many blocks at once has `in_batches` in the very class.

    A policy that reads `Block.category` says so by `tells_categories_apart`; one that compares all candidates for each
    victim, in O(n), by `scans_candidates`.
    """

    is_prefix_closed: ClassVar[bool] = False
    evicts_in_order_of_release: ClassVar[bool] = False
    leaf_first: ClassVar[bool] = False
    tells_categories_apart: bool = False
    scans_candidates: ClassVar[bool] = False

    @abstractmethod
    def on_release(self, blocks: Sequence[Block]) -> None:
        """The reference count of `blocks` fell to 0: evictable from now on. Order: leaf to root."""

    @abstractmethod
    def on_acquire(self, blocks: Sequence[Block]) -> None:
        """The reference count of `blocks` rose from 0: no longer evictable. Order: root to leaf."""

    @abstractmethod
    def pop_victim(self, incoming: BlockKey | None) -> Block:
        """Removes and returns one evictable block. `incoming`: the key it makes room for, where known. O(log n).

        It loses its content, of which `on_evict` tells; unless `pool.leaf_first` spares it because of its children:
        then it is as if it had been acquired, and comes back by `on_release`, or is hit, with its content.
        """

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        """A victim for each of these, one after another; or more, where they go together: the others are free then.

        Not asked of a policy that defines `on_evict`, which hears of each victim before it names the next; unless it
        defines this, too, in the same class: then `on_evict` tells only of what others lose.
        """
        return [self.pop_victim(key) for key in incoming]

    def on_insert(self, blocks: Sequence[Block]) -> None:
        """`blocks` were registered in the prefix index (and are referenced)."""

    def on_evict(self, block: Block) -> None:
        """`block` loses its content now; `block.key` still names it (for ghost lists)."""

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        """A request was admitted on these cached blocks (root to leaf); told before `on_acquire`."""

    def in_batches(self, contents: NDArray[np.int64]) -> BatchEviction | None:
        """A new policy that decides the same by ids of blocks; None, where these parameters have no such form.

        `contents`, by id, is the number of what each block holds, equal for equal contents; 0: of what nobody ever held
        before.
        """
        return None

    def eviction_order(self) -> list[Block]:
        """All evictable blocks, next victim first. For tests and parity only: O(n)."""
        raise NotImplementedError(f"{type(self).__name__} does not tell its eviction order")


class PriorityEviction(EvictionPolicy):
    """The score-only tier: write `priority`, and the least goes first (ties: released earlier). O(log n) a victim."""

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._order = PriorityOrder()

    @abstractmethod
    def priority(self, block: Block) -> float:
        """The score of `block`; asked once, when it is released."""

    def on_release(self, blocks: Sequence[Block]) -> None:
        self._order.put(blocks, list(map(self.priority, blocks)))

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        self._order.discard(blocks)

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        return self._order.pop()

    def eviction_order(self) -> list[Block]:
        return self._order.blocks()


class LeafRanking(Policy):
    """Says which leaf of the radix tree goes next (`pool.prefix_index=radix`): write `rank`, and the least goes first.

    A leaf is evicted whole, with all its blocks; then its parent may be one. A waiting request is looked up again in
    every step. A ranking that this leaves in the same order, because only the order of its times counts, says so by
    `ignores_repetition`: spans are longer under it while somebody waits. Decisions are the same either way.
    """

    ignores_repetition: ClassVar[bool] = False

    @abstractmethod
    def rank(self, leaf: Leaf) -> Any:
        """Anything that compares. Asked when the node becomes an evictable leaf and whenever it is touched as one."""


class PreemptMode(Enum):
    """RECOMPUTE drops the KV of the victim; SWAP copies it to host memory and brings it back."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class Shortage(NamedTuple):
    """What was missing when a running request could not grow, or the head of the queue could not start."""

    blocks: int
    slots: int


class Preemption(NamedTuple):
    request: Request
    mode: PreemptMode


class Running(Protocol):
    """The running requests in running order (order of admission)."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def __reversed__(self) -> Iterator[Request]: ...


class PreemptionPolicy(Policy):
    """Who gives way. One that `takes_slots` is also asked when the head of the queue lacks slots (`shortage.slots`).

    One that looks at the blocks in a sequence's tables says so by `reads_tables`: else they may be ids there.
    """

    takes_slots: ClassVar[bool] = False
    reads_tables: ClassVar[bool] = False

    @abstractmethod
    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        """Names the victim, which may be `for_request` itself. None: nobody; `for_request` sits this step out.

        For slots, a victim that would not stand behind `for_request` in the queue is left alone: it would come back.
        """

    def headroom_blocks(self, running: Running) -> int:
        """How many blocks more than `for_request` needs must be free before a preemption is enough.

        Asked after each, of those that still run; `select` is asked on until that is reached.
        """
        return 0


class Admission(Enum):
    ADMIT = "admit"
    WAIT = "wait"
    REJECT = "reject"


class AdmissionPolicy(Policy):
    """Who joins the running requests. A policy that never answers REJECT says so by `rejects` (of the class, or of an
    object): a fleet then looks less often at its replicas.
    """

    rejects: bool = True

    @abstractmethod
    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        """May the head of the queue run now? `num_new_blocks`: what its first chunk takes, idle hits included.

        The answer may depend on the number of free blocks only monotonically (more free blocks never turn ADMIT into
        WAIT), on the counts of the running and the waiting, and on what the hooks below tell; otherwise it may change
        only at moments that `next_change` announces.
        """

    def on_admit(self, request: Request, view: SchedulerView) -> None:
        """`request` runs from now on; its first blocks are not taken yet."""

    def on_stop(self, request: Request, view: SchedulerView) -> None:
        """`request` runs no more: it ended, was cancelled or was preempted."""

    def on_preempt(self, request: Request, view: SchedulerView) -> None:
        """Memory ran short and `request` was preempted; told after `on_stop`."""


class BatchRules(NamedTuple):
    """One step's rules: tokens to hand out; the longest chunk of one prompt (0: no limit); may a prompt be split?

    With `prompts_alone` nobody decodes in a step in which a prompt is computed, and prompts come first. Without
    `admits` nobody joins the running requests.
    """

    budget_tokens: int
    chunk_limit_tokens: int
    split_prompts: bool
    prompts_alone: bool = False
    admits: bool = True


class BatchPolicy(Policy):
    """How a step's tokens are handed out. Rules may depend on who runs and waits; all else announces `next_change`.

    Under a policy that `frees_with_batch`, who ends keeps its blocks until nothing runs. Where steps may hold more than
    `scheduler.max_batch_tokens` it says `exceeds_max_batch_tokens`: whole texts must then fit the pool, windows or not.
    """

    frees_with_batch: ClassVar[bool] = False
    exceeds_max_batch_tokens: ClassVar[bool] = False

    @abstractmethod
    def compose(self, view: SchedulerView) -> BatchRules:
        """The rules of the step that is about to be scheduled."""

    def fixed_rules(self, view: SchedulerView) -> BatchRules | None:
        """What `compose` answers in every step of the run; None: that may change. Asked once, before the first step.

        A class that defines `compose` and not this is asked in every step, whatever it derives from.
        """
        return None


class QueuePolicy(Policy):
    """Who of the waiting comes next. Write `key` and be done, where a request's place does not change while it waits.

    A policy whose order depends on the state of things (what is cached, who was served) overrides `rerank`. Spans then
    end where somebody waits and a slot is free; decisions are the same as step by step.
    """

    window: int = 1 << 62
    """How many of the waiting, in order of their keys, `rerank` is shown; 0 for a policy with books of its own."""

    @abstractmethod
    def key(self, request: Request) -> Any:
        """Least key is the head of the waiting queue. Asked whenever the request joins the queue."""

    def rerank(self, heads: Sequence[Request], view: SchedulerView) -> Iterable[Request]:
        """Whom to try in this step, in order: of `heads`, or of what the policy's own books say waits.

        Asked once in each step in which somebody could be admitted. It may be lazy: the next request is asked for when
        the one before has been admitted or turned away. Whoever it leaves out comes after them, by key.
        """
        return heads

    def on_join(self, request: Request, view: SchedulerView) -> None:
        """`request` arrived, or was preempted, and waits from now on."""

    def on_admit(self, request: Request, view: SchedulerView) -> None:
        """`request` is about to leave the queue because it may run."""

    def on_leave(self, request: Request, view: SchedulerView) -> None:
        """`request` waits no more: admitted, cancelled or turned away."""


class AllocationPolicy(Policy):
    """How many blocks a sequence holds.

    One that takes a block exactly when a token needs it says so by `is_on_demand`: spans are longer, decisions the
    same. One whose blocks cannot belong to two sequences says so by `shares_blocks`: it needs prefix caching off, and
    requests of several samples are turned away.
    """

    is_on_demand: ClassVar[bool] = False
    shares_blocks: ClassVar[bool] = True

    @abstractmethod
    def target_blocks(self, request: Request, num_tokens: int) -> int:
        """How many blocks (per KV group) a sequence of `request` holds once `num_tokens` of its tokens have KV.

        Never falls as `num_tokens` grows. Asked when a chunk starts, and when a decode has used up what is held.
        """

    def why_unservable(self, request: Request) -> str:
        """Why `request` can never have its blocks, however empty the pool; empty if it can."""
        return ""


class Run(NamedTuple):
    """Consecutive blocks of the pool: places `start` to `start + num_blocks - 1`, counted from its first block."""

    start: int
    num_blocks: int


class ContiguousAllocation(AllocationPolicy):
    """Keeps a sequence in one run of blocks, and the books of which runs are free.

    A sequence that outgrows its run gets a longer one, to which its blocks are copied before the old one is free.
    """

    shares_blocks = False

    @abstractmethod
    def can_place(self, num_blocks: int) -> bool:
        """Could a run of `num_blocks` be had now, by `place` or after `compact`? Changes nothing."""

    @abstractmethod
    def place(self, num_blocks: int) -> Run | None:
        """Takes a run of at least `num_blocks`; None, and nothing changed, where no hole is long enough."""

    @abstractmethod
    def free(self, run: Run) -> None:
        """A run that `place` gave, or that `compact` moved, is free again."""

    def compact(self, num_blocks: int) -> list[tuple[Run, int]]:
        """Moves runs until `place(num_blocks)` succeeds: (run, its new start), lowest first, each one downwards.

        Asked only where `can_place` promised it.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot move what it has placed")

    @abstractmethod
    def free_runs(self) -> list[Run]:
        """All free runs, by start. For tests only: O(pool)."""
