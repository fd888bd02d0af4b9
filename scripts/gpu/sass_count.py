"""The numbers of a kernel that scripts/gpu/sass.py prints and limits."""
import dataclasses
import re

from gpu.sass_code import Instruction, Kernel
from gpu.sass_paths import LANES, LOADS, STORE, WIDTH, WORK, Block, Flow, Loop, Way

# By key in sass_limits.toml: the heading of the table's column.
COLUMNS = {
    "registers": "registers",
    "stack": "stack",
    "shared": "shared, static",
    "instructions": "in the code",
    "first_load": "first load",
    "first_load_straight": "(straight)",
    "path": "whole way",
    "path_straight": "(straight)",
    "row": "per row",
    "loop": "per pass",
    "loop_code": "in the loop",
    "bytes": "bytes per pass",
    "per_byte": "per byte",
    "divisions": "divisions",
    "path_divisions": "on the way",
    "local": "local",
    "byte_loads": "byte loads",
}

ADVICE = {
    "registers": "fewer blocks fit on a multiprocessor; use less of them, or allow more where that was meant",
    "stack": "an array with changing indices, or registers that were spilled; unroll its loops, or hold fewer values",
    "shared": "fewer blocks fit on a multiprocessor",
    "instructions": "unrolled or inlined more than before; see that all of it is needed",
    "first_load": "the memory waits meanwhile; move what the first load does not need behind it, or to the host",
    "first_load_straight": "the memory waits meanwhile; move what the first load does not need behind it, or to the host",
    "path": "move work of each warp to the host, or share it between more rows",
    "path_straight": "move work of each warp to the host, or share it between more rows",
    "row": "move what is the same for all rows out of their loop",
    "loop": "move what is the same for all passes out of the loop; use wider loads and fewer 64-bit additions",
    "loop_code": "move what is the same for all passes out of the loop; use wider loads and fewer 64-bit additions",
    "bytes": "the table's bytes_per_pass is no longer true",
    "per_byte": "instructions keep the memory waiting; move what is the same for all passes out of the loop",
    "divisions": "divide on the host, or multiply with a reciprocal made there",
    "path_divisions": "divide on the host, or multiply with a reciprocal made there",
    "local": "registers were spilled, or an array has changing indices",
    "byte_loads": "load whole words, or vectors of 16 bytes",
}


@dataclasses.dataclass(frozen=True)
class Work:
    """What a kernel is counted with; keys of an entry of the table, beside its limits."""

    passes: int = 1  # of the main loop, for a row
    copy_passes: int = 1  # of the loop in front of it that starts loads, where there is one
    bytes_per_pass: int | None = None  # of weights, by a warp; not given: what its loads of 16 bytes could bring
    loads: str | None = None  # a pattern of the instructions that load weights, where LOADS is not right
    through: tuple[str, ...] = ()  # patterns of what else the shortest way has to go through before the main loop


def divisions_in(code: list[Instruction]) -> set[int]:
    """Addresses of reciprocals of what was an integer."""
    found, from_integers = set(), set()
    for one in code:
        if one.name.startswith("MUFU.RCP") and one.operands.split(", ")[-1] in from_integers:
            found.add(one.address)
        if one.base in ("I2F", "I2FP", "UI2F"):
            from_integers.add(one.result)
        else:
            from_integers.discard(one.result)
    return found


def count_of(code: list[Instruction], pattern: str) -> int:
    return sum(bool(re.match(pattern, one.name)) for one in code)


def bytes_of(blocks: list[Block], loads: re.Pattern) -> int | None:
    """What the loads of a warp bring when none is masked; None where that is not in the instruction."""
    widths = [WIDTH.search(one.name) for block in blocks for one in block.code if loads.match(one.name)]
    return LANES * sum(int(width.group(1)) // 8 for width in widths) if widths and all(widths) else None


class Ways:
    """The counted ways of one kernel."""

    def __init__(self, flow: Flow, work: Work):
        self.flow, self.work = flow, work
        self.loads = re.compile(work.loads) if work.loads else flow.first_kind(LOADS)
        self.loading = flow.holding(self.loads) if self.loads else {}
        self.main = flow.main_loop(self.loads)
        among = self.main.body if self.main else None
        kind = flow.first_kind(WORK, among)
        self.working = flow.holding(kind, among) if kind else {}
        self.storing = flow.holding(STORE)
        self.through = [flow.holding(re.compile(one)) for one in work.through]
        self.copying = self.copy_loop()
        self.dividing = divisions_in([one for block in flow.blocks for one in block.code])

    def copy_loop(self) -> Loop | None:
        """The innermost loop of loads that come before the main loop."""
        if self.main is None:
            return None
        others = [loop for loop in self.flow.loops if loop.header < self.main.header and not self.main.body <= loop.body
                  and self.loading.keys() & loop.body]  # fmt: skip
        return min(self.flow.innermost(others), key=lambda loop: loop.header, default=None)

    def main_pass(self) -> Way | None:
        """A pass of the main loop that loads and computes."""
        if self.main is None:
            return None
        blocks = self.working.keys() | self.loading.keys()
        return self.flow.full_pass(self.main, {i: self.working.get(i, 0) + self.loading.get(i, 0) for i in blocks})

    def shortest(self) -> Way | None:
        """Through loads, main loop and stores, where they are there in this order, else through fewer of them."""
        inside = self.main.body if self.main else frozenset()
        loads = self.loading.keys() - inside
        for load in ([loads], []) if loads else ([],):
            for store in ([self.storing], []) if self.storing else ([],):
                if way := self.through_all([*load, *self.through], store):
                    return way
        return None

    def through_all(self, before: list, behind: list) -> Way | None:
        flow = self.flow
        if self.main is None:
            return flow.search(0, before + behind, flow.ends)
        to, leave = flow.search(0, before, {self.main.header}), flow.leave(self.main, behind, flow.ends)
        return self.joined(to, self.copies(), leave)

    def copies(self) -> int:
        """Instructions of the copy loop's passes but the first."""
        more = self.work.copy_passes - 1
        return more * self.flow.full_pass(self.copying, self.loading).count if self.copying and more else 0

    def joined(self, to: Way | None, more: int, leave: Way | None) -> Way | None:
        """With the passes of the main loop in between, at whose header `to` ends."""
        if to is None or leave is None:
            return None
        one = self.main_pass()
        count = to.count - self.flow.cost(self.main.header) + self.work.passes * one.count + leave.count
        return Way(to.blocks[:-1] + one.blocks + leave.blocks, count + more)

    def straight(self) -> Way | None:
        passes = {loop.header: count for loop, count in ((self.main, self.work.passes),
                                                         (self.copying, self.work.copy_passes)) if loop}  # fmt: skip
        way = self.flow.straight(passes)
        return way if way and (not self.main or self.main.header in way.blocks) else None

    def row(self) -> int | None:
        """Instructions of a pass of the loop around the main loop: what a warp needs that goes on to the next row."""
        around = self.flow.loop_around(self.main.body) if self.main else None
        if around is None:
            return None
        to = self.flow.search(around.header, [], {self.main.header}, around.body)
        way = self.joined(to, 0, self.flow.leave(self.main, [], self.flow.latches(around), around.body))
        return way.count if way else None

    def before_first_load(self, way: Way | None) -> int | None:
        """Instructions of a way up to its first load."""
        count = 0
        for i in way.blocks if way else ():
            for at, one in enumerate(self.flow.blocks[i].code):
                if i in self.loading and self.loads.match(one.name):
                    return count + at
            count += self.flow.cost(i)
        return None

    def divisions(self, way: Way | None) -> int | None:
        return sum(map(self.divisions_of, way.blocks)) if way else None

    def divisions_of(self, i: int) -> int:
        """Of a block; a subroutine that divides is one."""
        block = self.flow.blocks[i]
        inline = sum(one.address in self.dividing for one in block.code)
        return inline + (block.call is not None and self.divides(block.call))

    def divides(self, address: int) -> bool:
        """A subroutine, whose code goes on to its RET."""
        behind = [one for block in self.flow.blocks[self.flow.starts[address] :] for one in block.code]
        end = next((one.address for one in behind if one.base == "RET" and not one.guard), behind[-1].address)
        return any(address <= one <= end for one in self.dividing)


def count(kernel: Kernel, work: Work) -> dict:
    """By the keys of COLUMNS; None: there is nothing to count, or no way."""
    code = kernel.instructions
    counts = dict.fromkeys(COLUMNS)
    counts.update(registers=kernel.registers, stack=kernel.stack, shared=kernel.shared, instructions=len(code),
                  divisions=len(divisions_in(code)), local=count_of(code, r"LDL|STL"),
                  byte_loads=count_of(code, r"LDG\..*[US]8\b"))  # fmt: skip
    if code:
        counts.update(count_ways(Ways(Flow(code), work)))
    return counts


def count_ways(ways: Ways) -> dict:
    flow, shortest, straight, one_pass = ways.flow, ways.shortest(), ways.straight(), ways.main_pass()
    to_load = flow.search(0, [ways.loading], ways.loading.keys()) if ways.loading else None
    found = {
        "first_load": ways.before_first_load(to_load),
        "first_load_straight": ways.before_first_load(straight),
        "path": shortest.count if shortest else None,
        "path_straight": straight.count if straight else None,
        "path_divisions": ways.divisions(shortest),
        "row": ways.row(),
    }
    if one_pass is None:
        return found
    loop_blocks = [flow.blocks[i] for i in ways.main.body]
    moved = ways.work.bytes_per_pass or (bytes_of(loop_blocks, ways.loads) if ways.loads else None)
    return {**found, "loop": one_pass.count, "loop_code": sum(len(block.code) for block in loop_blocks), "bytes": moved,
            "per_byte": one_pass.count / moved if moved else None}  # fmt: skip
