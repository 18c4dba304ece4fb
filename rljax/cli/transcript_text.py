"""Print rollouts of a run in a terminal, at most 80 columns wide; one value of each token determines its color."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from rljax.text import counted, one_paragraph, printable, shorten
from rljax.tracking.rollout_page import scales
from rljax.tracking.rollout_rows import outcomes_of
from rljax.tracking.rows import Row

COLUMNS = 80
MAX_LISTED = 20
"""Maximum number of rollouts in the list."""
MAX_PROMPT_LENGTH = 600
"""Maximum number of characters shown of a prompt or a reference answer."""
MAX_TOKENS = 1200
"""Maximum number of tokens shown of a transcript."""
Color = Literal["logp", "advantage", "ratio", "mask"]
LOW_COLOR, HIGH_COLOR, GRAY = (217, 72, 15), (31, 95, 191), (107, 114, 128)
"""Red, green and blue, from 0 to 255."""
LEGENDS: Mapping[Color, str] = {
    "logp": "orange: low log-probability of the token; strongest at -{logp:g} nats",
    "advantage": "blue: positive advantage, orange: negative; strongest at {advantage:g}",
    "ratio": "blue: likelier after the updates, orange: less likely; strongest at x {ratio:g}",
    "mask": "blue: trained on; gray: sampled, not trained on; no color: observed",
}
REMARK_TEXTS = {"unstated": "no answer stated"}
OUTCOME_NAMES = {"unjudged": "not judged", "cut_off": "cut off", "tool_error": "tool error"}


def print_rollouts(rows: Sequence[Row], chosen: int, color: Color, *, columns: int) -> None:
    """Print a list of rollouts, and the transcript of one of them.

    Args:
        rows: the rollouts, at least one.
        chosen: number of the rollout whose transcript is printed, counted from 1.
        color: value that determines the color of tokens.
        columns: columns to fill.
    """
    console = Console(width=min(columns, COLUMNS), highlight=False, soft_wrap=False)
    first = max(0, min(chosen - 1 - MAX_LISTED // 2, len(rows) - MAX_LISTED))
    console.print(table(rows, first))
    if len(rows) > MAX_LISTED:
        last = min(first + MAX_LISTED, len(rows))
        console.print(f"Rollouts {first + 1} to {last} of {len(rows)}. --rollout N shows another rollout.", style="dim")
    console.print()
    for part in transcript(rows[chosen - 1], chosen, color, scales(rows)):
        console.print(part)


def table(rows: Sequence[Row], first: int) -> Table:
    """Build a table of rollouts, starting with index `first`."""
    listing = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    for name in ("no.", "step", "reward", "outcome", "tokens", "turns"):
        listing.add_column(name, justify="left" if name == "outcome" else "right", no_wrap=True)
    listing.add_column("problem", no_wrap=True, overflow="ellipsis", ratio=1)
    for number, row in enumerate(rows[first : first + MAX_LISTED], first + 1):
        outcome = ", ".join(OUTCOME_NAMES.get(name, name) for name in outcomes_of(row))
        length = "" if row["length"] is None else str(row["length"])
        cells = (str(number), str(row["step"]), number_text(row["reward"]), outcome, length, str(row["turns"]))
        listing.add_row(*cells, Text(one_paragraph(row["question"])))
    return listing


def number_text(value: float | None) -> str:
    """Format a number; "-" if it is unknown.

    Example:
        >>> number_text(0.5), number_text(None)
        ('0.5', '-')
    """
    return "-" if value is None else f"{value:.4g}"


def transcript(row: Row, number: int, color: Color, scale: Mapping[str, float]) -> list[Text]:
    """Format a rollout: its reward and metrics, the prompt, and its turns with their tool calls."""
    problem = "" if row["problem"] is None else f", problem {row['problem']}, response {row['member']}"
    outcome = ", ".join(OUTCOME_NAMES.get(name, name) for name in outcomes_of(row))
    lines = [
        Text(f"Rollout {number}: step {row['step']}{problem}; reward {number_text(row['reward'])}, {outcome}", style="bold")
    ]
    reason = row["failure"] or REMARK_TEXTS.get(row["remark"], row["remark"])
    metrics = [f"{name} {number_text(value)}" for name, value in {**row["parts"], **row["metrics"]}.items()]
    facts = ([] if reason is None else [reason.replace("_", " ")]) + metrics
    lines += [Text("; ".join(facts), style="dim")] if facts else []
    if row["length"] is not None:
        lines.append(Text(LEGENDS[color].format(**scale), style="dim"))
    lines += [Text(), Text("prompt", style="bold"), Text(printable(shorten(row["prompt"], MAX_PROMPT_LENGTH)))]
    if row["answer"]:
        lines.append(Text(f"Reference answer: {one_paragraph(shorten(row['answer'], MAX_PROMPT_LENGTH))}", style="dim"))
    turn, room = 0, MAX_TOKENS
    for span in row["spans"]:
        turn += span["role"] == "policy"
        head = f"policy, turn {turn}" if span["role"] == "policy" else one_paragraph(span["role"])
        lines += [
            Text(),
            Text(head, style="bold"),
            _color_tokens(row, span["start"], min(span["end"], span["start"] + room), color, scale),
        ]
        lines += [
            Text(printable(f"calls {call['name']} {call['arguments']}"), style="bold") for call in span.get("calls", ())
        ]
        lines += [Text(printable(f"call that cannot be read: {text}"), style="red") for text in span.get("malformed", ())]
        room -= span["end"] - span["start"]
        if room <= 0:
            rest = row["spans"][-1]["end"] - MAX_TOKENS
            lines += [Text(f"The HTML page also shows the last {counted(rest, 'token')}.", style="dim")] if rest else []
            break
    return lines


def _color_tokens(row: Row, start: int, end: int, color: Color, scale: Mapping[str, float]) -> Text:
    text = Text()
    for index in range(start, end):
        text.append(printable(row["tokens"][index]), style_of(row, index, color, scale))
    return text


def style_of(row: Row, index: int, color: Color, scale: Mapping[str, float]) -> Style | None:
    """Return the style of the token at an index; None if the token has no value, or one too small to be visible as a color."""
    if color == "mask":
        shade = {"t": HIGH_COLOR, "s": GRAY}.get(row["kinds"][index])
        return None if shade is None else _background(shade, 0.8)
    value = row[color][index]
    if value is None:
        return None
    if color == "logp":
        return _background(LOW_COLOR, -value / scale["logp"])
    size = value / scale["advantage"] if color == "advantage" else math.log(max(value, 1e-12)) / math.log(scale["ratio"])
    return _background(HIGH_COLOR if size >= 0 else LOW_COLOR, abs(size))


def _background(color: Sequence[int], strength: float) -> Style | None:
    """Return the style of white text on a shade of a color; None if the shade would be invisible."""
    strength = min(strength, 1.0)
    if strength < 0.08:
        return None
    red, green, blue = (round(part * (0.25 + 0.75 * strength)) for part in color)
    return Style(color="#ffffff", bgcolor=f"#{red:02x}{green:02x}{blue:02x}")
