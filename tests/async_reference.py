"""A second opinion on async scheduling: vLLM's control plane (0.33, 0.32, 0.20) in plain lists, token by token.

It shares no code with the product: no sums, no spans, no deferred anything. `recorded_log(header)` plays a scenario and
returns it as the JSON lines of a recorded log, which `kvtwin parity` replays. `"async_scheduling": False` gives the
synchronous scheduler, `"version"` beside the configuration an older one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

Fields = dict[str, Any]
LISTS = ("blk", "touch", "alloc", "evict", "cache", "preempt", "upd", "cache_upd", "fin")


@dataclass(eq=False)
class Req:
    name: str
    num_prompt: int
    output: list[int]
    rank: tuple[Any, ...]  # (priority, arrival time, id)
    tokens: list[int]
    computed: int = 0
    table: list[int] = field(default_factory=list)
    num_cached: int = 0
    state: str = "waiting"
    was_preempted: bool = False
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


class Reference:
    """One engine. Every list is walked from end to end: slow, and hard to get wrong."""

    def __init__(self, header: Fields) -> None:
        self.header, self.config = header, header["config"]
        version = header.get("version", "0.33")
        self.ends_step = version < "0.33"  # who is its own victim ends the running loop
        self.is_old = version < "0.25"  # freed blocks all go to the tail, and nobody is exempt when alone
        self.size: int = self.config["block_size"]
        self.queue: list[int] = list(range(1, self.config["num_gpu_blocks"]))  # free, head first
        self.count = [0] * self.config["num_gpu_blocks"]
        self.hash_of: dict[int, str] = {}
        self.index: dict[str, list[int]] = {}
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.known: dict[str, Req] = {}
        self.flight: list[list[tuple[Req, int, bool]]] = []
        self.step: Fields = {}

    # ---- blocks -------------------------------------------------------------------------------------------------

    def hashes(self, req: Req) -> list[str]:
        parent, chain = "00" * 8, []
        for first in range(0, len(req.tokens) - self.size + 1, self.size):
            text = parent + ":" + ",".join(str(token) for token in req.tokens[first : first + self.size])
            parent = hashlib.sha256(text.encode()).digest()[:8].hex()
            chain.append(parent)
        return chain

    def pop(self) -> int:
        block = self.queue.pop(0)
        if block in self.hash_of:
            key = self.hash_of.pop(block)
            self.index[key].remove(block)
            if not self.index[key]:
                del self.index[key]
            self.step["evict"].append([block, key])
        self.count[block] = 1
        return block

    def release(self, req: Req) -> None:
        bare, hashed = [], []
        for block in reversed(req.table):
            self.count[block] -= 1
            if self.count[block] == 0:
                (hashed if block in self.hash_of else bare).append(block)
        if self.is_old:
            bare, hashed = [], [block for block in reversed(req.table) if self.count[block] == 0]
        self.queue = bare + self.queue + hashed
        req.table, req.num_cached = [], 0

    def register(self, req: Req, num_tokens: int, into: str) -> None:
        if not self.config["enable_prefix_caching"]:
            return
        chain = self.hashes(req)
        for place in range(req.num_cached, num_tokens // self.size):
            self.hash_of[req.table[place]] = chain[place]
            self.index.setdefault(chain[place], []).append(req.table[place])
            self.step[into].append([req.table[place], chain[place]])
            req.num_cached = place + 1

    def look_up(self, req: Req) -> list[int]:
        hits: list[int] = []
        if self.config["enable_prefix_caching"]:
            for key in self.hashes(req)[: (len(req.tokens) - 1) // self.size]:
                if key not in self.index:
                    break
                hits.append(self.index[key][0])
        return hits

    def allocate(self, req: Req, num_new: int, hits: list[int]) -> bool:
        base, have = req.computed + len(hits) * self.size, len(req.table) + len(hits)
        idle = sum(self.count[block] == 0 for block in hits)
        is_admission = req.state != "running"
        watermark = (
            int(self.config["watermark"] * self.config["num_gpu_blocks"]) if is_admission and self.running else 0
        )
        need = max(math.ceil((base + num_new) / self.size) - have, 0)
        full = max(math.ceil(len(req.tokens) / self.size) - have, 0)
        reserves = is_admission and self.config["scheduler_reserve_full_isl"]
        if (reserves and full + idle + watermark > len(self.queue)) or need + idle + watermark > len(self.queue):
            self.step["blk"].append(req.name)
            return False
        for block in hits:
            if self.count[block] == 0:
                self.queue.remove(block)
            self.count[block] += 1
        if hits:
            self.step["touch"].append([req.name, list(hits)])
            req.table, req.num_cached = list(hits), len(hits)
        if need:
            self.step["alloc"].append([req.name, [self.pop() for _ in range(need)]])
            req.table += self.step["alloc"][-1][1]
        self.register(req, min(base + num_new, len(req.tokens)), "cache")
        return True

    # ---- one iteration ------------------------------------------------------------------------------------------

    def pop_order(self) -> list[Req]:
        if self.config["policy"] == "priority":
            return sorted(self.waiting, key=lambda req: req.rank)
        return list(self.waiting)

    def preempt(self, victim: Req) -> None:
        self.running.remove(victim)
        self.release(victim)
        victim.computed, victim.state, victim.was_preempted = 0, "preempted", True
        victim.stale, victim.placeholders = victim.in_flight, 0
        self.waiting.insert(0, victim)
        self.step["preempt"].append(victim.name)

    def schedule(self) -> None:
        budget = self.config["max_num_batched_tokens"]
        is_alone = len(self.running) + len(self.waiting) <= 1 and not self.is_old
        long = 0 if is_alone else self.config["long_prefill_token_threshold"]
        done: list[tuple[Req, str, int, int]] = []
        index = 0
        while index < len(self.running) and budget > 0:
            req = self.running[index]
            if req.placeholders > 0 and req.computed + 2 - req.placeholders >= req.num_prompt + len(req.output):
                index += 1
                continue
            num_new = len(req.tokens) + req.placeholders - req.computed
            if 0 < long < num_new:
                num_new = long
            num_new = min(num_new, budget, self.config["max_model_len"] - req.computed - 1)
            if num_new == 0:
                index += 1
                continue
            while not (has_room := self.allocate(req, num_new, [])):
                if self.config["policy"] == "priority":
                    victim = max(self.running, key=lambda other: other.rank[:2])
                    if self.running.index(victim) < index:
                        index -= 1
                    budget += sum(n for other, _, _, n in done if other is victim)
                    done = [row for row in done if row[0] is not victim]
                else:
                    victim = self.running[-1]
                self.preempt(victim)
                if victim is req:
                    break
            if not has_room:
                if self.config["policy"] == "priority" and not self.ends_step:
                    continue
                break
            done.append((req, "R", req.computed, num_new))
            budget -= num_new
            index += 1
        if not self.step["preempt"]:
            self.admit(budget, long, done)
        self.step["sched"] = [[req.name, kind, before, num_new] for req, kind, before, num_new in done]
        self.advance(done)

    def admit(self, budget: int, long: int, done: list[tuple[Req, str, int, int]]) -> None:
        for req in self.pop_order():
            if budget <= 0 or len(self.running) >= self.config["max_num_seqs"]:
                return
            if req.stale > 0:
                continue
            hits = self.look_up(req)
            num_new = len(req.tokens) - len(hits) * self.size
            if 0 < long < num_new:
                num_new = long
            if not self.config["enable_chunked_prefill"] and num_new > budget:
                return
            num_new = min(num_new, budget)
            if not self.allocate(req, num_new, hits):
                return
            self.waiting.remove(req)
            self.running.append(req)
            req.computed = len(hits) * self.size
            self.step["hit"][req.name] = req.computed
            done.append((req, "P" if req.was_preempted else "N", req.computed, num_new))
            req.state = "running"
            budget -= num_new

    def advance(self, done: list[tuple[Req, str, int, int]]) -> None:
        rows = []
        for req, _, _, num_new in done:
            req.computed += num_new
            req.in_flight += num_new
            samples = req.computed >= len(req.tokens) + req.placeholders
            req.placeholders += samples
            rows.append((req, num_new, samples))
        if rows:
            self.flight.append(rows)

    def process(self, rows: list[tuple[Req, int, bool]]) -> None:
        """The output of a step."""
        for req, num_new, samples in rows:
            if req.state == "done":
                continue
            self.step["upd"].append(req.name)
            req.in_flight -= num_new
            is_stale = req.stale > 0
            if is_stale:
                req.stale -= num_new
            if samples:
                token = req.output[req.num_output]
                req.tokens.append(token)
                self.step["tok"][req.name] = token
                req.placeholders -= not is_stale
            if self.config["async_scheduling"] and not is_stale and req.state == "running":
                self.register(req, min(req.computed - req.in_flight, len(req.tokens)), "cache_upd")
            if samples and (req.num_output == len(req.output) or len(req.tokens) >= self.config["max_model_len"]):
                self.end(req)
                self.step["fin"].append([req.name, "length"])

    def end(self, req: Req) -> None:
        (self.running if req.state == "running" else self.waiting).remove(req)
        self.release(req)
        req.state = "done"

    # ---- the log ------------------------------------------------------------------------------------------------

    def abort(self, number: int, when: str) -> list[str]:
        wanted = [row["id"] for row in self.header["aborts"] if (row["step"], row["when"]) == (number, when)]
        aborted = []
        for name in wanted:
            if name in self.known and self.known[name].state != "done":
                self.end(self.known[name])
                aborted.append(name)
        return aborted

    def arrive(self, number: int) -> list[str]:
        arrived = []
        for place, row in enumerate(self.header["requests"]):
            if row["arrive"] == number:
                rank = (row.get("priority", 0), row.get("arrival_time", place), row["id"])
                req = Req(row["id"], len(row["prompt"]), row["output"], rank, list(row["prompt"]))
                self.known[req.name] = req
                self.waiting.append(req)
                arrived.append(req.name)
        return arrived

    def iteration(self, number: int) -> Fields | None:
        step = self.step = {name: [] for name in LISTS} | {"t": number, "hit": {}, "tok": {}}
        step["arr"], step["abort"] = self.arrive(number), self.abort(number, "before")
        if self.running or self.waiting:
            num_before = len(self.flight)
            self.schedule()
            step["free"] = len(self.queue)
            step["run"] = [req.name for req in self.running]
            step["wait"] = [req.name for req in self.pop_order()]
            step["abort_during"] = self.abort(number, "during")
            is_due = len(self.flight) == 2 or len(self.flight) == num_before or not self.config["async_scheduling"]
        elif step["arr"] or step["abort"] or self.flight:
            step["idle"], is_due = 1, True
        else:
            return None
        if self.flight and is_due:
            self.process(self.flight.pop(0))
        if not self.config["async_scheduling"]:
            del step["upd"]
        step["free_end"], step["cached_end"], step["fq"] = len(self.queue), len(self.index), list(self.queue)
        return step if "idle" not in step or step["arr"] or step["abort"] else None


def recorded_log(header: Fields, at_most: int = 3000) -> list[Fields]:
    """The header and a line per step, until nothing is left to do. At most 79 blocks, so that `fq` is in every line."""
    engine, lines, number = Reference(header), [header], 0
    last_arrival = max(row["arrive"] for row in header["requests"])
    while number <= last_arrival or engine.running or engine.waiting:
        line = engine.iteration(number)
        if line is not None:
            lines.append(line)
        number += 1
        assert number < at_most, "the reference does not get done"
    return lines
