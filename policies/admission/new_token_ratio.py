"""Room for a share of what the running requests may still produce; the share adapts (SGLang)."""

from __future__ import annotations

from core.errors import InputError
from core.interfaces import Admission, AdmissionPolicy, Change, PolicyEnv, SchedulerView
from core.request import Request

_FARTHEST_STEP = 1 << 40  # ahead: where the answer does not change before, it never does


class NewTokenRatio(AdmissionPolicy):
    """Admits where prompt and allowed outputs fit beside `ratio` of the outputs that those who run are still allowed.

    Of one request's outputs at most `clip_tokens` count, and those of requests admitted in the same step count in full.
    The ratio begins at 0.7 x `conservativeness` (at most 1), falls by equal steps to `floor_share` of that within
    `decay_steps` steps, and begins anew when nothing runs. A preemption sets it to what the survivors have used of
    their allowance, with `headroom_steps` more tokens each: min(1, (outputs + 20 n) / (allowed + 1)).

    SGLang: what an admission reserves as read in 0.5.9's `schedule_policy.py`; how the ratio falls and begins anew from
    published notes on its defaults, not read. There only decoding steps let it fall; here all do, since prompts are
    computed beside decodes. O(running) where somebody waits for memory, else O(1): spans end
    where the answer may change.
    """

    rejects = False

    def __init__(
        self,
        env: PolicyEnv,
        conservativeness: float = 1.0,
        initial_ratio: float = 0.7,
        floor_share: float = 0.14,
        decay_steps: int = 600,
        clip_tokens: int = 4096,
        headroom_steps: int = 20,
    ) -> None:
        super().__init__(env)
        for name, share in (("initial_ratio", initial_ratio), ("floor_share", floor_share)):
            if not isinstance(share, int | float) or not 0 <= share <= 1:
                raise InputError(f"admission.{name}={share}: expected a ratio in [0, 1]")
        if not isinstance(conservativeness, int | float) or not 0 < conservativeness < float("inf"):
            raise InputError(f"admission.conservativeness={conservativeness}: expected a number above 0")
        for name, least, count in (
            ("decay_steps", 1, decay_steps),
            ("clip_tokens", 1, clip_tokens),
            ("headroom_steps", 0, headroom_steps),
        ):
            if not isinstance(count, int) or count < least:
                raise InputError(f"admission.{name}={count}: expected a whole number of at least {least}")
        self.initial_ratio = min(initial_ratio * conservativeness, 1.0)
        self.floor_ratio = self.initial_ratio * floor_share
        self.decay_per_step = (self.initial_ratio - self.floor_ratio) / decay_steps
        self._clip_tokens = clip_tokens
        self._headroom_steps = headroom_steps
        self._set_ratio = self.initial_ratio
        self._set_step = 0  # when it was set; it decays from there
        self._fresh: set[Request] = set()  # admitted in step `_fresh_step`
        self._fresh_step = -1
        self._refused_step = -1
        self._change: Change | None = None  # of the answer given then

    def ratio(self, step: int) -> float:
        return max(self.floor_ratio, self._set_ratio - self.decay_per_step * (step - self._set_step))

    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        if view.num_running == 0:
            self._set_ratio, self._set_step = self.initial_ratio, view.step
            return Admission.ADMIT
        if view.num_blocks is None:
            return Admission.ADMIT
        room = self._room_tokens(request, view)
        allowances = self._allowances(view)
        fresh = self._fresh if self._fresh_step == view.step else set()
        in_full = sum(min(left, self._clip_tokens) for who, left in allowances if who in fresh)
        others = [left for who, left in allowances if who not in fresh]
        if in_full + self._reserved(others, 0, view.step) < room:
            return Admission.ADMIT
        self._refused_step = view.step
        self._change = self._next_change([left for _, left in allowances], room, view.step)
        return Admission.WAIT

    def _room_tokens(self, request: Request, view: SchedulerView) -> int:
        """What the running ones' outputs may take up, if it comes: it needs its text, and what it is allowed."""
        num_blocks = view.num_free_blocks - view.num_missing_blocks - view.num_full_blocks
        own = sum(min(left, self._clip_tokens) for left in _left_of(request))
        return num_blocks * self.env.block_size_tokens // view.num_kv_groups - own

    def _allowances(self, view: SchedulerView) -> list[tuple[Request, int]]:
        return [(request, left) for request in view.running for left in _left_of(request)]

    def _reserved(self, lefts: list[int], num_steps: int, step: int) -> float:
        """For the outputs left `num_steps` after `step`, if all of them decode until then."""
        tokens = sum(min(max(left - num_steps, 0), self._clip_tokens) for left in lefts)
        return tokens * self.ratio(step + num_steps)

    def _next_change(self, lefts: list[int], room: int, step: int) -> Change | None:
        """The first step whose reservation would leave room: it falls with every step. None: none does."""
        if room <= 0:
            return None
        too_early, enough = 0, 1
        while self._reserved(lefts, enough, step) >= room:
            too_early, enough = enough, 2 * enough
            if enough > _FARTHEST_STEP:
                return None
        while enough - too_early > 1:
            middle = (too_early + enough) // 2
            if self._reserved(lefts, middle, step) < room:
                enough = middle
            else:
                too_early = middle
        return Change(step=step + enough)

    def next_change(self, now_ps: int, step: int) -> Change | None:
        return self._change if self._refused_step == step else None

    def on_admit(self, request: Request, view: SchedulerView) -> None:
        if self._fresh_step != view.step:
            self._fresh, self._fresh_step = set(), view.step
        self._fresh.add(request)

    def on_preempt(self, request: Request, view: SchedulerView) -> None:
        sequences = [sequence for other in view.running for sequence in other.live]
        num_outputs = sum(sequence.num_outputs for sequence in sequences)
        allowed = sum(sequence.request.max_new_tokens for sequence in sequences)
        used = (num_outputs + self._headroom_steps * len(sequences)) / (allowed + 1)
        self._set_ratio, self._set_step = min(1.0, used), view.step


def _left_of(request: Request) -> list[int]:
    """Tokens that each of its samples may still produce."""
    return [max(request.max_new_tokens - sequence.num_outputs, 0) for sequence in request.live]
