"""The genealogy as a picture: one box per algorithm, with its paper and the slots in which it differs from its parent."""

import textwrap
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from rljax.book.genealogy import GenealogyEntry, genealogy, genealogy_text
from rljax.errors import InputError

SUFFIXES = (".png", ".svg")
INK, MUTED, LINE, BOX = "#1b1f24", "#57606a", "#8b949e", "#f6f8fa"
CHARACTERS = 50
"""Maximum number of characters per line in a box."""
BOX_WIDTH, COLUMN, LINE_HEIGHT, PAD, GAP = 3.3, 3.75, 0.165, 0.09, 0.14
"""Width of a box, distance between columns, height of a line, margin in a box and distance between boxes, in inches."""
HEAD_LINES = 1.25
"""Height of a box's heading, in lines."""
CAPTION = """Each algorithm is next to the older one that
has the same function in the most slots,
with what it changed: slot: before → after;
+ a new slot; - a slot left empty.
Drawn from the records."""
DOTS_PER_INCH = 90


class Box(NamedTuple):
    """A box of the picture; lengths are in inches."""

    entry: GenealogyEntry
    lines: tuple[str, ...]
    x: float
    y: float
    """Upper edge, measured downwards from the top of the picture."""
    height: float

    def middle(self) -> float:
        """Return the y coordinate at which connecting lines reach the box."""
        return self.y + self.height / 2


def draw_genealogy(path: Path | str) -> None:
    """Draw the genealogy of all algorithms, with the oldest on the left; the file's metadata contains the genealogy as text.

    Args:
        path: file of the picture, `.png` or `.svg`; its folder is created.

    Raises:
        InputError: the suffix is unknown.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} must end in {' or '.join(SUFFIXES)}.")
    boxes = {box.entry.name: box for box in place_boxes(genealogy())}
    width = max(box.x for box in boxes.values()) + BOX_WIDTH + 2 * GAP
    height = max(box.y + box.height for box in boxes.values()) + 2 * GAP
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-GAP, width - GAP), ylim=(height - GAP, -GAP))
    axes.set_axis_off()
    for box in boxes.values():
        if box.entry.parent is not None:
            parent = boxes[box.entry.parent]
            start, bend = parent.x + BOX_WIDTH, box.x - (COLUMN - BOX_WIDTH) / 2
            axes.plot((start, bend, bend, box.x), (parent.middle(),) * 2 + (box.middle(),) * 2, color=LINE, lw=1, zorder=0)
        axes.add_patch(
            FancyBboxPatch((box.x, box.y), BOX_WIDTH, box.height, "square,pad=0", facecolor=BOX, edgecolor=LINE, lw=0.8)
        )
        top, left = box.y + PAD, box.x + PAD
        axes.text(left, top, box.entry.name, va="top", fontsize=10, weight="bold", color=INK)
        axes.text(left + BOX_WIDTH - 2 * PAD, top, box.entry.paper, va="top", ha="right", fontsize=8, color=MUTED)
        for index, line in enumerate(box.lines):
            y = top + (HEAD_LINES + index) * LINE_HEIGHT
            axes.text(left, y, line, va="top", fontsize=7.5, family="monospace", color=INK)
    axes.text(0, 0, CAPTION, va="top", fontsize=10, color=MUTED, linespacing=1.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Description": genealogy_text()})


def place_boxes(entries: tuple[GenealogyEntry, ...]) -> list[Box]:
    """Place a box for each entry: children are stacked in the column to the right of their parent, and the parent is centered.

    Args:
        entries: the algorithms; parents must come before their children, and the first entry must have no parent.

    Returns:
        The boxes, from the leaves to the root.
    """
    children: dict[str | None, list[GenealogyEntry]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry)
    boxes: list[Box] = []

    def place(entry: GenealogyEntry, depth: int, top: float) -> tuple[Box, float]:
        """Place an entry and its descendants below `top`; return the entry's box and the `top` for the next entry."""
        lines = tuple(_wrap_changes(entry))
        height = (HEAD_LINES + len(lines)) * LINE_HEIGHT + 2 * PAD
        bottom, middles = top, []
        for child in children.get(entry.name, ()):
            box, bottom = place(child, depth + 1, bottom)
            middles.append(box.middle())
        y = top if not middles else max(top, (middles[0] + middles[-1] - height) / 2)
        boxes.append(Box(entry, lines, depth * COLUMN, y, height))
        return boxes[-1], max(bottom, y + height + GAP)

    place(entries[0], 0, 0.0)
    return boxes


def _wrap_changes(entry: GenealogyEntry) -> list[str]:
    return [line for change in entry.changes for line in textwrap.wrap(change.text(), CHARACTERS, subsequent_indent="    ")]
