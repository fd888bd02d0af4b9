#!/usr/bin/env python3
"""Draws the pictures of the documentation as SVG files for light and dark themes: docs/tensor_parallel.svg, docs/graph_to_plan.svg.

    scripts/make_pictures.py            update the files
    scripts/make_pictures.py --check    only compare; exit with 1 if a file differs
"""
import argparse
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
STYLE = """
  text {font: 13px sans-serif; text-anchor: middle; fill: #222} .bold {font-weight: bold}
  rect {fill: #eee; stroke: #555} .a {fill: #dbe9f9; stroke: #2a6db0} .b {fill: #fde6cf; stroke: #c46a12} path {stroke: #555; stroke-width: 1.4; fill: none}
  @media (prefers-color-scheme: dark) {
    text {fill: #ddd} rect {fill: #333; stroke: #aaa} .a {fill: #173a5e; stroke: #6aa9e9} .b {fill: #5a3410; stroke: #f0a050} path {stroke: #aaa}
  }"""


class Picture:
    def __init__(self, width: int, height: int):
        self.size = (width, height)
        self.shapes: list[str] = []

    def text(self, x: float, y: float, lines: str, kind: str = ""):
        """Adds lines of text, centred on (x, y). "|" separates the lines."""
        parts = lines.split("|")
        for number, line in enumerate(parts):
            down = y + 5 + 17 * (number - (len(parts) - 1) / 2)
            self.shapes.append(f'<text x="{x:g}" y="{down:g}"{kind and f" class={chr(34)}{kind}{chr(34)}"}>{line}</text>')

    def box(self, x: float, y: float, width: float, height: float, lines: str = "", kind: str = ""):
        """Adds a box. Its upper left corner is at (x, y)."""
        self.shapes.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3"{kind and f" class={chr(34)}{kind}{chr(34)}"}/>')
        self.text(x + width / 2, y + height / 2, lines)

    def arrow(self, x: float, y: float, to_x: float, to_y: float):
        self.shapes.append(f'<path marker-end="url(#tip)" d="M{x},{y} L{to_x},{to_y}"/>')

    def svg(self) -> str:
        width, height = self.size
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n<style>{STYLE}\n</style>\n'
                '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8"/></marker>\n'
                + "\n".join(self.shapes) + "\n</svg>\n")


def tensor_parallel() -> Picture:
    """Draws one layer on two devices with the shares 3 to 1: the weights and the two all-reduces."""
    picture = Picture(860, 256)
    picture.text(270, 18, "attention", "bold")
    picture.text(622, 18, "feed-forward", "bold")
    rows = [("a", "device 0", 36, 108, "3/4"), ("b", "device 1", 186, 36, "1/4")]
    for kind, name, y, height, share in rows:
        picture.text(50, y + height / 2, name, "bold")
        weights = [(130, 74, "Wq Wk|Wv"), (230, 80, "heads and|KV cache"), (336, 74, "Wo"), (520, 90, "Wgate|Wup"), (636, 90, "Wdown")]
        for x, width, what in weights:
            picture.box(x, y, width, height, f"{share} of|{what}" if kind == "a" else share, kind)
        for x, to in [(90, 128), (204, 228), (310, 334), (410, 432), (496, 518), (610, 634), (726, 748), (812, 840)]:
            picture.arrow(x, y + height / 2, to, y + height / 2)
    picture.box(434, 36, 62, 186, "all-|reduce")
    picture.box(750, 36, 62, 186, "all-|reduce")
    picture.text(430, 244, "One layer with --tensor-split 3,1. Only two partial sums travel between the devices.")
    return picture


def graph_to_plan() -> Picture:
    """Draws the inputs of a plan, the two passes of planning, and a plan with its steps on two ranks."""
    picture = Picture(900, 214)
    picture.box(10, 30, 140, 54, "graph:|nodes over leaves")
    picture.box(10, 120, 140, 72, "split-state callback:|layouts of|weights and caches")
    picture.box(200, 66, 140, 90, "propagation:|a layout per tensor,|a strategy|per node")
    picture.box(390, 66, 130, 90, "lowering:|a local graph|per rank,|one list of steps")
    picture.arrow(150, 57, 198, 96)
    picture.arrow(150, 156, 198, 126)
    picture.arrow(340, 111, 388, 111)
    picture.arrow(520, 111, 568, 111)
    picture.text(735, 16, "plan", "bold")
    for kind, y, name in [("a", 44, "rank 0"), ("b", 128, "rank 1")]:
        picture.text(597, y + 27, name)
        picture.box(630, y, 70, 54, "compute", kind)
        picture.box(780, y, 70, 54, "compute", kind)
        picture.arrow(850, y + 27, 890, y + 27)
    picture.box(712, 32, 56, 162, "all-|reduce")
    return picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare new pictures with the files, and write nothing")
    check = parser.parse_args().check
    differ = 0
    for draw in (tensor_parallel, graph_to_plan):
        path = DOCS / f"{draw.__name__}.svg"
        if not check:
            path.write_text(draw().svg())
        elif path.read_text() != draw().svg():
            print(f"{path} is out of date; run scripts/make_pictures.py")
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main())
