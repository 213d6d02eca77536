"""What happened, plan by plan and request by request, as flat arrays: the raw material of every metric."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from core.block_tables import BlockTables
from core.durations import EvenDurations, total_ps
from core.int_column import MOST_NEW, IntColumn
from core.plan import StepPlan
from core.pool import Pool
from core.request import Request
from core.request_log import RequestLog
from core.units import NEVER_PS

if TYPE_CHECKING:
    from core.condenser import Condenser

Ints = NDArray[np.int64]

UNEVEN = -1  # in place of a growth: the durations are listed one by one

PLAN = (
    "num_steps",
    "start_ps",
    "first_ps",  # duration of the first step; where they grow unevenly, the place of the durations in `uneven_ps`
    "growth_ps",  # what each further step takes longer; or UNEVEN
    "num_prefill_tokens",
    "num_decodes",
    "decode_context_tokens",  # of the plan's first step
    "num_filled_tokens",  # slots of referenced blocks that hold a token, in its first step
    "num_regular_gaps",  # decodes whose last token came with the step before
    "num_running",
    "referenced_blocks_after",  # when its ended sequences have freed theirs
)


class Series:
    """A count along the steps, kept where it changes. Before it is first noted it is `first`."""

    def __init__(self, first: int = 0) -> None:
        self._places = IntColumn()
        self._values = IntColumn()
        self.first = self.last = first

    def note(self, place: int, value: int) -> None:
        """From this place on it is `value`."""
        if value != self.last:
            self._places.new.append(place)
            self._values.new.append(value)
            self.last = value

    def note_all(self, places: list[int], values: list[int]) -> None:
        """As many `note`, of values each of which differs from the one before it."""
        if values:
            self._places.new += places
            self._values.new += values
            self.last = values[-1]

    def pack(self) -> None:
        """A change that is packed takes 16 bytes."""
        self._places.pack()
        self._values.pack()

    @property
    def places(self) -> Ints:
        """Where it changes."""
        return np.frombuffer(self._places.packed(), dtype=np.int64)

    def at(self, places: Ints) -> Ints:
        """The count at each of these places, which ascend."""
        if not len(self._places):
            return np.broadcast_to(np.int64(self.first), len(places))
        bounds = np.searchsorted(places, self.places)
        return np.repeat(self._levels(), np.diff(bounds, prepend=0, append=len(places)))

    def expand(self, num_places: int) -> Ints:
        """The count at each of the first places, [num_places]."""
        if not len(self._places):
            return np.full(num_places, self.first, dtype=np.int64)
        places = self.places
        num = int(np.searchsorted(places, num_places))
        return np.repeat(self._levels()[: num + 1], np.diff(places[:num], prepend=0, append=num_places))

    def _levels(self) -> Ints:
        """What it is at first, and after each change."""
        return np.append(self.first, np.frombuffer(self._values.packed(), dtype=np.int64))

    def cut(self, begin: int, end: int) -> Series:
        """Takes out what it was from `begin`, before which nothing is left, up to `end`: from place 0 on."""
        part, places = Series(self.first), self.places
        num = bisect_left(places, end)
        if num:
            self._places.pop_first(num)
            part._places.new += (places[:num] - begin).tolist()
            part._values = self._values.pop_first(num)
            part.last = self.first = int(part._levels()[-1])
        return part


@mypyc_attr(allow_interpreted_subclasses=True)
class Recorder:
    """Columns per plan, and per step only what cannot be told from its plan; what became of the requests that are done.

    Appending costs O(1) a plan. A decoding sequence gets a token in every step, so its gaps are the times from one
    step's end to the next: they are not stored again. Only the gaps of sequences that sat out (preempted, passed over)
    are, in `late_gaps_ps`. A `condenser` takes the plans over as they come: then only the newest are here.
    """

    def __init__(self, condenser: Condenser | None = None) -> None:
        self.condenser = condenser
        self.block_size = 1
        self.num_kv_groups = 1
        self.decides_ahead = False  # a further step of a plan is decided when the step before it starts
        self.num_swap_fallbacks = 0
        self.num_unpriced_spans = 0
        self.requests = RequestLog()
        self.late_gaps_ps = array("q")

        self.num_plans_taken = self.num_steps_taken = 0  # by the condenser
        self.plans = IntColumn()  # row after row, of the columns PLAN
        self.plan_decided_ps = array("q")  # kept only where plans are decided ahead
        self.uneven_ps = array("q")
        # Rare, so kept by the place of their plan.
        self.lost_decodes: dict[int, int] = {}  # in the plan's last step
        self.preempted: dict[int, int] = {}
        self.swapped_blocks: dict[int, int] = {}
        self.moved_blocks: dict[int, int] = {}
        self.cached_blocks_after = Series()
        self.orphan_blocks_after = Series()

        self.num_steps_begun = 0
        self.step_referenced_blocks = Series()
        self.step_cached_blocks = Series()
        self.step_shared_references = Series()  # to blocks, beyond the first of each
        self.step_orphan_blocks = Series()
        self.step_evictions_before_end = Series()  # in the run, this step's included
        self.step_internal_tokens = Series()
        self.step_external_tokens = Series()
        self.num_preempted_before = 0

    @property
    def num_plans(self) -> int:
        """Of the whole run."""
        return self.num_plans_taken + len(self.plans) // len(PLAN)

    @property
    def num_steps(self) -> int:
        """Of these plans."""
        return self.num_steps_taken + int(self.plan_column("num_steps").sum())

    def plan_column(self, name: str) -> Ints:
        """One of the columns PLAN, of the plans that are here, [num_plans - num_plans_taken]."""
        rows = np.frombuffer(self.plans.packed(), dtype=np.int64).reshape(-1, len(PLAN))
        return np.array(rows[:, PLAN.index(name)])

    def on_empty_plan(self, plan: StepPlan) -> None:
        """Nothing was carried out, but some were preempted: they count with the next plan."""
        self.num_preempted_before += len(plan.preempted)

    def pop_preempted_before(self) -> int:
        """Preempted in the empty plans since the last one with work."""
        number, self.num_preempted_before = self.num_preempted_before, 0
        return number

    def on_steps(self, plan: StepPlan, tables: BlockTables, num_steps: int) -> None:
        """So many further steps of the plan began, of which the first has taken its blocks; the others take none: in
        each of them the decodes fill a slot that was reserved.
        """
        pool, place = tables.pool, self.num_steps_begun
        self.step_referenced_blocks.note(place, pool.num_referenced)
        self.step_cached_blocks.note(place, pool.num_cached)
        self.step_shared_references.note(place, pool.num_shared)
        self.step_orphan_blocks.note(place, pool.num_orphans)
        self.step_evictions_before_end.note(place, pool.num_evictions)
        self.step_internal_tokens.note(place, tables.num_surplus_tokens)
        self.step_external_tokens.note(place, tables.num_external_tokens(bool(plan.blocked)))
        self.num_steps_begun = place + num_steps

    def on_step(self, pool: Pool, num_internal_tokens: int) -> None:
        """One further step began, and has taken its blocks, in a pool of which any block serves anybody."""
        place = self.num_steps_begun
        if pool.num_referenced != self.step_referenced_blocks.last:
            self.step_referenced_blocks.note(place, pool.num_referenced)
        if num_internal_tokens != self.step_internal_tokens.last:
            self.step_internal_tokens.note(place, num_internal_tokens)
        if pool.num_cached != self.step_cached_blocks.last:
            self.step_cached_blocks.note(place, pool.num_cached)
        if pool.num_shared != self.step_shared_references.last:
            self.step_shared_references.note(place, pool.num_shared)
        if pool.num_orphans != self.step_orphan_blocks.last:
            self.step_orphan_blocks.note(place, pool.num_orphans)
        if pool.num_evictions != self.step_evictions_before_end.last:
            self.step_evictions_before_end.note(place, pool.num_evictions)
        self.num_steps_begun = place + 1

    def on_plan(self, plan: StepPlan, durations_ps: Sequence[int], pool: Pool) -> None:
        """A plan was carried out, and what ended with it has freed its blocks."""
        end_ps = plan.start_ps + total_ps(durations_ps)
        if end_ps > NEVER_PS:
            raise OverflowError(f"{end_ps} ps")
        place = self.num_plans
        self.num_unpriced_spans += plan.is_unpriced
        first_ps, growth_ps = self._even(durations_ps)
        self.plans.new += (
            len(durations_ps),
            plan.start_ps,
            first_ps,
            growth_ps,
            plan.num_prefill_tokens,
            plan.num_decodes,
            plan.decode_context_tokens,
            plan.num_filled_tokens,
            plan.num_decodes - len(plan.late),
            plan.num_running,
            pool.num_referenced,
        )
        if self.decides_ahead:
            self.plan_decided_ps.append(plan.now_ps)
        for number, column in (
            (plan.num_lost_decodes, self.lost_decodes),
            (plan.num_preempted, self.preempted),
            (len(plan.swap_outs) + len(plan.swap_ins), self.swapped_blocks),
            (len(plan.moves), self.moved_blocks),
        ):
            if number:
                column[place] = number
        self.cached_blocks_after.note(place, pool.num_cached)
        self.orphan_blocks_after.note(place, pool.num_orphans)

    def _even(self, durations_ps: Sequence[int]) -> tuple[int, int]:
        """First duration and growth; or, once the durations are listed, their place and UNEVEN."""
        if isinstance(durations_ps, EvenDurations):
            return durations_ps.first_ps, durations_ps.growth_ps
        if len(durations_ps) == 1:
            return durations_ps[0], 0
        place = len(self.uneven_ps)
        self.uneven_ps.extend(durations_ps)
        return place, UNEVEN

    def on_late_token(self, gap_ps: int) -> None:
        self.late_gaps_ps.append(gap_ps)

    def on_done(self, request: Request) -> None:
        self.requests.add(request)
        if len(self.plans.new) >= MOST_NEW:
            self._pack()
        if self.condenser is not None:
            self.condenser.on_done(self)

    def _pack(self) -> None:
        self.plans.pack()
        for series in self._all_series():
            series.pack()

    def _all_series(self) -> tuple[Series, ...]:
        return (
            self.cached_blocks_after,
            self.orphan_blocks_after,
            self.step_referenced_blocks,
            self.step_cached_blocks,
            self.step_shared_references,
            self.step_orphan_blocks,
            self.step_evictions_before_end,
            self.step_internal_tokens,
            self.step_external_tokens,
        )

    def cut(self) -> Recorder:
        """Takes out the plans that are here, and their steps, as the record of a run that they are all of.

        Of what is counted by plan or step only that comes along which changes what sums over time and gaps are.
        """
        part, num_steps = Recorder(), int(self.plan_column("num_steps").sum())
        first_plan, first_step = self.num_plans_taken, self.num_steps_taken
        end_plan, end_step = self.num_plans, first_step + num_steps
        part.block_size, part.num_kv_groups = self.block_size, self.num_kv_groups
        part.plans = self.plans.pop_first(len(self.plans))
        part.uneven_ps, part.late_gaps_ps = self.uneven_ps[:], self.late_gaps_ps[:]
        part.lost_decodes = {place - first_plan: number for place, number in self.lost_decodes.items()}
        part.cached_blocks_after = self.cached_blocks_after.cut(first_plan, end_plan)
        part.orphan_blocks_after = self.orphan_blocks_after.cut(first_plan, end_plan)
        part.step_referenced_blocks = self.step_referenced_blocks.cut(first_step, end_step)
        part.step_cached_blocks = self.step_cached_blocks.cut(first_step, end_step)
        part.step_orphan_blocks = self.step_orphan_blocks.cut(first_step, end_step)
        part.step_evictions_before_end = self.step_evictions_before_end.cut(first_step, end_step)
        part.step_shared_references = self.step_shared_references.cut(first_step, end_step)
        part.step_internal_tokens = self.step_internal_tokens.cut(first_step, end_step)
        part.step_external_tokens = self.step_external_tokens.cut(first_step, end_step)
        # In place: whoever appends to these holds on to them.
        del self.plan_decided_ps[:], self.uneven_ps[:], self.late_gaps_ps[:]
        self.lost_decodes.clear()
        self.num_plans_taken, self.num_steps_taken = end_plan, end_step
        return part
