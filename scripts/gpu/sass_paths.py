"""Ways through a kernel: its blocks, its loops, and how many instructions a warp issues from its beginning to its end.

Two counts are made. The *shortest* way is the lower limit of what a warp issues that does all of the work: it loads weights,
goes through the main loop so many times, each time by all loads and products that one pass can have, and stores. The
*straight* way takes no branch forwards unless it has to, as compilers lay out what they think is usual; optional work is
mostly in it, what is behind an `else` is not.
"""
import dataclasses
import functools
import heapq
import re

from gpu.sass_code import Instruction

# What computes, most telling first: those of the first kind that a kernel has are its work.
WORK = [re.compile(one) for one in (r"[HQIB]GMMA", r"[HIQ]MMA", r"IDP", r"FFMA|HFMA2")]
# What loads weights, the same: copies to shared memory and prefetches, wide loads, any load.
LOADS = [re.compile(one) for one in (r"UBLKCP|UBLKPF|UTMALDG|UTMAPF|LDGSTS", r"LDG\..*128", r"LDG")]
STORE = re.compile(r"STG|ST\.|UBLKRED|UTMASTG|RED|ATOM")
WIDTH = re.compile(r"\.(32|64|128)\b")
LANES = 32
MOST_STEPS = 1_000_000  # of a walk, which a loop without an end would make endless


@dataclasses.dataclass
class Block:
    """Instructions that are always executed together. `next`: indices of blocks, the one behind it first."""

    code: list[Instruction]
    next: list[int] = dataclasses.field(default_factory=list)
    ends: bool = False  # a warp may end here
    call: int | None = None  # the address of a subroutine

    @property
    def start(self) -> int:
        return self.code[0].address

    @property
    def last(self) -> Instruction:
        return self.code[-1]


@dataclasses.dataclass(frozen=True)
class Loop:
    header: int
    body: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Way:
    """Blocks one after the other, and the instructions in them."""

    blocks: tuple[int, ...]
    count: int


def is_leap(one: Instruction) -> bool:
    return one.base in ("BRA", "JMP", "BRX", "EXIT", "RET", "CALL")


def cut_into_blocks(code: list[Instruction]) -> list[Block]:
    starts = {one.target for one in code if one.target is not None}
    blocks: list[Block] = []
    fresh = True
    for one in code:
        if fresh or one.address in starts:
            blocks.append(Block([]))
        blocks[-1].code.append(one)
        fresh = is_leap(one)
    return blocks


def connect(blocks: list[Block]) -> None:
    """BRA.DIV goes where the lanes of a warp have parted, which none of the counted ways does."""
    at = {block.start: i for i, block in enumerate(blocks)}
    for i, block in enumerate(blocks):
        last = block.last
        goes_on = not is_leap(last) or last.is_conditional or last.base == "CALL"
        block.next = [i + 1] if goes_on and i + 1 < len(blocks) else []
        block.ends = last.base in ("EXIT", "RET")
        if last.base == "CALL":
            block.call = last.target
        elif last.target in at and not last.name.startswith("BRA.DIV"):
            block.next.append(at[last.target])


class Flow:
    """Of one kernel."""

    def __init__(self, code: list[Instruction]):
        self.blocks = cut_into_blocks(code)
        connect(self.blocks)
        self.starts = {block.start: i for i, block in enumerate(self.blocks)}
        self.ends = frozenset(i for i, block in enumerate(self.blocks) if block.ends)
        self.known_costs: dict[int, int] = {}
        self.reached = self.find_reached()
        self.loops = self.find_loops()

    def find_reached(self) -> frozenset[int]:
        seen, todo = {0}, [0]
        while todo:
            for following in self.blocks[todo.pop()].next:
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return frozenset(seen)

    @functools.cached_property
    def before(self) -> dict[int, list[int]]:
        found = {i: [] for i in self.reached}
        for i in self.reached:
            for following in self.blocks[i].next:
                found[following].append(i)
        return found

    def find_loops(self) -> list[Loop]:
        """Branches back to a block that all ways to them go through; loops of one header are one."""
        found: dict[int, set[int]] = {}
        for i in self.reached:
            for header in self.blocks[i].next:
                if header <= i and (body := self.body_of(header, i)):
                    found.setdefault(header, set()).update(body)
        return [Loop(header, frozenset(body)) for header, body in sorted(found.items())]

    def body_of(self, header: int, latch: int) -> set[int]:
        """What reaches `latch` without going through `header`; empty where the entry does, too."""
        body, todo = {header, latch}, [latch] if latch != header else []
        while todo:
            one = todo.pop()
            if one == 0 and header != 0:
                return set()
            for before in self.before[one]:
                if before not in body:
                    body.add(before)
                    todo.append(before)
        return body

    # Kinds of instructions

    def holding(self, pattern: re.Pattern, among=None) -> dict[int, int]:
        """How many instructions of a kind each block has that has any."""
        counts = {i: sum(bool(pattern.match(one.name)) for one in self.blocks[i].code)
                  for i in (self.reached if among is None else among)}  # fmt: skip
        return {i: count for i, count in counts.items() if count}

    def first_kind(self, kinds: list[re.Pattern], among=None) -> re.Pattern | None:
        return next((kind for kind in kinds if self.holding(kind, among)), None)

    def innermost(self, loops: list[Loop]) -> list[Loop]:
        return [one for one in loops if not any(other.body < one.body for other in loops)]

    def main_loop(self, loads: re.Pattern | None) -> Loop | None:
        """The innermost loop that both loads weights and computes, else that computes; of several the one with most
        of it."""
        in_loops = frozenset().union(*(loop.body for loop in self.loops))
        work = self.first_kind(WORK, in_loops)
        if work is None:
            return None
        weight = {loop: sum(self.holding(work, loop.body).values()) for loop in self.loops}
        working = [loop for loop in self.loops if weight[loop]]
        loading = [loop for loop in working if loads and self.holding(loads, loop.body)]
        return max(self.innermost(loading or working), key=lambda loop: (weight[loop], -loop.header))

    def loop_around(self, body: frozenset[int]) -> Loop | None:
        """The smallest loop that has all of this and more."""
        return min((loop for loop in self.loops if body < loop.body), key=lambda loop: len(loop.body), default=None)

    # Ways

    def cost(self, i: int) -> int:
        block = self.blocks[i]
        return len(block.code) + (0 if block.call is None else self.subroutine(block.call))

    def subroutine(self, address: int) -> int:
        """Instructions of its shortest way."""
        if address not in self.known_costs and address in self.starts:
            way = self.search(self.starts[address], [], self.ends)
            self.known_costs[address] = way.count if way else 0
        return self.known_costs.get(address, 0)

    def search(self, start: int, stops: list, goal, within=None) -> Way | None:
        """The shortest way from the beginning of a block through one block of each set of stops, in their order, to the
        end of one of the goal. Dijkstra's algorithm over pairs of a block and the number of stops that were made."""

        def made(i: int, count: int) -> int:
            while count < len(stops) and i in stops[count]:
                count += 1
            return count

        first = (start, made(start, 0))
        queue, done = [(self.cost(start), first, (start,))], set()
        while queue:
            count, (i, stopped), blocks = heapq.heappop(queue)
            if (i, stopped) in done:
                continue
            done.add((i, stopped))
            if stopped == len(stops) and i in goal:
                return Way(blocks, count)
            for following in self.blocks[i].next:
                state = (following, made(following, stopped))
                if state not in done and (within is None or following in within):
                    heapq.heappush(queue, (count + self.cost(following), state, (*blocks, following)))
        return None

    def latches(self, loop: Loop) -> set[int]:
        return {i for i in loop.body if loop.header in self.blocks[i].next}

    def full_pass(self, loop: Loop, work: dict[int, int]) -> Way:
        """From a loop's header to the end of a latch with the most work, of such ways the shortest; loops inside once."""
        best = {loop.header: (work.get(loop.header, 0), -self.cost(loop.header), (loop.header,))}
        for i in self.in_order(loop):
            done, cost, blocks = best[i]
            for one in self.blocks[i].next:
                if one in loop.body and one not in blocks:
                    found = (done + work.get(one, 0), cost - self.cost(one), (*blocks, one))
                    best[one] = max(best.get(one, found), found, key=lambda way: way[:2])
        _, cost, blocks = max((best[i] for i in self.latches(loop)), key=lambda way: way[:2])
        return Way(blocks, -cost)

    def in_order(self, loop: Loop) -> list[int]:
        """The blocks of a loop, each behind those before it but for what goes back."""
        order, seen, stack = [], {loop.header}, [(loop.header, iter(self.blocks[loop.header].next))]
        while stack:
            i, following = stack[-1]
            one = next((one for one in following if one in loop.body and one not in seen), None)
            if one is None:
                order.append(stack.pop()[0])
            else:
                seen.add(one)
                stack.append((one, iter(self.blocks[one].next)))
        return order[::-1]

    def leave(self, loop: Loop, stops: list, goal, within=None) -> Way | None:
        """The shortest way from the end of a pass to a goal outside of the loop. A loop that ends elsewhere than at a
        latch is begun once more for that."""
        latches, found = self.latches(loop), []
        for i in loop.body:
            for following in self.blocks[i].next:
                if following in loop.body or (within is not None and following not in within):
                    continue
                begun = Way((), 0) if i in latches else self.search(loop.header, [], {i}, loop.body)
                rest = self.search(following, stops, goal, within)
                if begun and rest:
                    found.append(Way(begun.blocks + rest.blocks, begun.count + rest.count))
        return min(found, key=lambda way: way.count, default=None)

    def straight(self, passes: dict[int, int]) -> Way | None:
        """The straight way. `passes`: how many times the loop of a header is taken; others once."""
        counts = {loop.header: passes.get(loop.header, 1) for loop in self.loops}
        left = dict(counts)
        by_header = {loop.header: loop for loop in self.loops}
        blocks, count, i = [], 0, 0
        for _ in range(MOST_STEPS):
            if i in left:
                left[i] -= 1
            blocks.append(i)
            count += self.cost(i)
            following = self.step(i, left, by_header)
            if following is None:
                return Way(tuple(blocks), count) if self.blocks[i].ends else None
            for header, loop in by_header.items():  # entered anew: all passes again
                if following == header and i not in loop.body:
                    left[header] = counts[header]
            i = following
        return None

    def step(self, i: int, left: dict[int, int], loops: dict[int, Loop]) -> int | None:
        """The block that follows on the straight way."""
        block = self.blocks[i]
        if not block.next:
            return None
        if len(block.next) == 1:
            return block.next[0]
        ahead, leap = block.next
        if leap <= i:
            return leap if left.get(leap, 0) > 0 else ahead
        over = [loop for header, loop in loops.items() if i in loop.body and left[header] < 0]
        leaves = any(ahead in loop.body and leap not in loop.body for loop in over)
        return leap if leaves else ahead
