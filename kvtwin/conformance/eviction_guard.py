"""Between pool and eviction policy: sees that every answer is one that the pool may act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.block_pool import hears_of_each
from core.interfaces import Block, BlockKey, EvictionPolicy
from kvtwin.conformance.fault import PolicyFault
from kvtwin.conformance.line_meter import Endless, LineMeter
from kvtwin.failures import failure_line

GIVEN = "names only what it was given"
ONCE = "names each block once"
REFERENCED = "never names a referenced block"
DRAINS = "drains fully"
READS = "only reads its blocks"
RAISES = "raises nothing"
ENDS = "comes to an end"
ORDER = "tells the order it evicts in"


class EvictionGuard(EvictionPolicy):
    """Hands on every call, and keeps books of its own. Raises PolicyFault at the first answer that breaks a rule.

    `num_handed` counts the blocks that went to the policy and came from it: what its cost is measured by.
    """

    def __init__(self, policy: EvictionPolicy, meter: LineMeter) -> None:
        super().__init__(policy.env)
        self.num_handed = 0
        self._policy = policy
        self._meter = meter
        self._evictable: set[Block] = set()
        self._named: set[Block] = set()  # and not given again since

    def on_release(self, blocks: Sequence[Block]) -> None:
        self._evictable.update(blocks)
        self._named.difference_update(blocks)
        self._tell("on_release", blocks, blocks)

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        self._evictable.difference_update(blocks)
        self._tell("on_acquire", blocks, blocks)

    def on_insert(self, blocks: Sequence[Block]) -> None:
        self._tell("on_insert", blocks, blocks)

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        self._tell("on_hit", blocks, blocks, readmission)

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        self.num_handed += 1
        left = f"with {len(self._evictable)} evictable"
        return self._checked("pop_victim", self._call("pop_victim", left, incoming), left)

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        if type(self._policy).pop_victims is EvictionPolicy.pop_victims:
            return super().pop_victims(incoming)
        left = f"with {len(self._evictable)} evictable"
        blocks = self._call("pop_victims", f"for {len(incoming)} {left}", incoming)
        if len(blocks) < len(incoming):
            raise PolicyFault(DRAINS, f"pop_victims returned {_ids(blocks)}; {len(incoming)} were wanted {left}")
        self.num_handed += len(blocks)
        return [self._checked("pop_victims", block, left) for block in blocks]

    def _checked(self, hook: str, block: Any, left: str) -> Block:
        if not isinstance(block, Block):
            raise PolicyFault(DRAINS, f"{hook} returned {block!r} {left}")
        if block not in self._evictable:
            raise PolicyFault(*self._why_not(hook, block))
        self._evictable.remove(block)
        self._named.add(block)
        return block

    def _why_not(self, hook: str, block: Block) -> tuple[str, str]:
        named = f"{hook} returned block {block.block_id}"
        if block in self._named:
            return ONCE, f"{named} again, which it had named before and was not given since"
        if block.ref_count:
            return REFERENCED, f"{named}, which is referenced"
        return GIVEN, f"{named}, which it was not given"

    def eviction_order(self) -> list[Block]:
        order = self._call("eviction_order", "")
        if not isinstance(order, list):
            raise PolicyFault(ORDER, f"eviction_order returned {type(order).__name__}; expected a list of blocks")
        if len(order) != len(self._evictable) or set(order) != self._evictable:
            told, held = _ids(order), _ids(sorted(self._evictable, key=lambda block: block.block_id))
            raise PolicyFault(ORDER, f"eviction_order tells {told}, evictable are {held}")
        return list(order)

    def tells_order(self) -> bool:
        return type(self._policy).eviction_order is not EvictionPolicy.eviction_order

    def _tell(self, hook: str, blocks: Sequence[Block], *args: Any) -> None:
        self.num_handed += len(blocks)
        before = {block: _state(block) for block in blocks}
        self._call(hook, f"for {_ids(blocks)}", *args)
        _check_unchanged(hook, before)

    def _call(self, hook: str, place: str, *args: Any) -> Any:
        call: Callable[..., Any] = getattr(self._policy, hook)
        told = f"{hook} {place}".rstrip()
        try:
            return self._meter.call(call, *args)
        except Endless:
            raise PolicyFault(ENDS, f"{told} does not end") from None
        except Exception as error:
            rule = DRAINS if hook == "pop_victim" and isinstance(error, IndexError | KeyError) else RAISES
            raise PolicyFault(rule, f"{told} raised {failure_line(error)}") from error


class HearingGuard(EvictionGuard):
    """For a policy that hears of each victim before it names the next."""

    def on_evict(self, block: Block) -> None:
        self._tell("on_evict", (block,), block)


class NamingGuard(HearingGuard):
    """For one that names victims together, and hears of other losses."""

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        return super().pop_victims(incoming)


def guarded(policy: EvictionPolicy, meter: LineMeter) -> EvictionGuard:
    guard = HearingGuard if hears_of_each(policy) else NamingGuard
    return guard(policy, meter)


_State = tuple[int, BlockKey | None, int, int]


def _state(block: Block) -> _State:
    return block.ref_count, block.key, block.position, block.category


def _check_unchanged(hook: str, before: dict[Block, _State]) -> None:
    for block, state in before.items():
        if _state(block) != state:
            raise PolicyFault(READS, f"{hook} changed block {block.block_id}; a policy may write its `link` alone")


def _ids(blocks: Sequence[Block]) -> str:
    if not blocks:
        return "no block"
    word = "block" if len(blocks) == 1 else "blocks"
    return f"{word} {', '.join(str(block.block_id) for block in blocks)}"
