"""Drawings of the site as SVG, in the colors of the page's theme: the path of the data, and a map of the algorithms."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from xml.sax.saxutils import escape

INK, MUTED, LINE, FILL, ACCENT = (
    f"var(--color-{name})"
    for name in (
        *("foreground-primary", "foreground-muted", "background-border"),
        *("background-secondary", "brand-primary"),
    )
)


class Station(NamedTuple):
    """A record on the path of the data."""

    name: str
    """Its class."""
    shape: str
    """Its axes, or what it is."""
    function: str
    """The function that turns it into the next record; empty for the last one."""


PATH = (
    Station("Problem", "prompt, answer", "encode"),
    Station("Request", "prompt token ids", "engine"),
    Station("Response", "tokens, log-probs", "judge"),
    Station("Rollout", "[P, G, T], rewards", "prepare"),
    Station("Batch", "[B, T], advantages", "pack"),
    Station("Packed", "rows of tokens", "score"),
    Station("Scores", "[B, T] log-probs", "loss, gradient"),
    Station("TrainState", "parameters, optimizer", ""),
)
"""From a problem to the next parameters."""

MAP: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "a critic": {"credit per token": ("ppo", "vc_ppo", "open_reasoner_zero", "vapo", "vapo_grpo")},
        "the group of responses": {
            "advantage": ("grpo", "dr_grpo", "rloo", "gpg", "t1", "max_rl", "pass_at_k", "pkpo", "lite_ppo", "gdpo"),
            "clip or gate of tokens": (
                "dapo",
                "dapo_grpo",
                "cispo",
                "scale_rl",
                "sapo",
                "gmpo",
                "vespo",
                "dppo",
                "deepseek_v32",
            ),
            "which tokens": ("clip_cov", "kl_cov", "forking_tokens"),
            "ratio of responses": ("gspo", "gspo_token", "gepo", "luspo", "kimi_k15", "a_star_po"),
            "preferences": ("online_dpo", "xpo", "nash_md"),
            "steps": ("grpo_process", "mt_grpo"),
        },
        "another baseline": {
            "the greedy response": ("remax",),
            "the batch": ("reinforce_pp", "reinforce_pp_baseline"),
            "the best variance": ("opo", "otb"),
        },
        "a teacher": {"its distribution": ("gkd", "on_policy_distillation", "minillm")},
    }
)
"""Where an algorithm's credit comes from -> the idea it is known for -> algorithms."""


def text(
    x: float, y: float, words: str, *, size: int = 13, fill: str = INK, anchor: str = "start", weight: int = 400
) -> str:
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float) -> str:
    """A rounded rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{FILL}" stroke="{LINE}"/>'


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """An SVG that is as wide as its page, with a title for readers who cannot see it."""
    return (
        f'<svg class="drawing" viewBox="0 0 {width:g} {height:g}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def data_path() -> str:
    """The path of the data in two rows of four stations: to the right, down, and back to the left."""
    wide, high, gap, down = 150, 62, 66, 66
    places = [(column * (wide + gap) + 4, 10) for column in range(4)]
    places += [(column * (wide + gap) + 4, 10 + high + down) for column in reversed(range(4))]
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{ACCENT}"/></marker></defs>'
    ]
    for at, (station, (x, y)) in enumerate(zip(PATH, places, strict=True)):
        parts += [box(x, y, wide, high), text(x + 12, y + 26, station.name, size=15, weight=600)]
        parts.append(text(x + 12, y + 46, station.shape, size=12, fill=MUTED))
        if not station.function:
            continue
        if at == 3:
            start, end = (x + wide / 2, y + high + 3), (x + wide / 2, y + high + down - 3)
            parts.append(text(x + wide / 2 + 10, y + high + down / 2 + 4, station.function, fill=ACCENT))
        else:
            step = 1 if at < 3 else -1
            edge = x + wide if step > 0 else x
            start, end = (edge + 3 * step, y + high / 2), (edge + (gap - 3) * step, y + high / 2)
            label = station.function.split(", ")
            for line, words in enumerate(reversed(label)):
                parts.append(text(edge + step * gap / 2, y + high / 2 - 8 - 15 * line, words, fill=ACCENT, anchor="middle"))
        parts.append(
            f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}" stroke="{ACCENT}" '
            'stroke-width="1.5" marker-end="url(#tip)"/>'
        )
    names = " to ".join(station.name for station in PATH)
    return drawing(4 * wide + 3 * gap + 8, 2 * high + down + 20, f"The path of the data: {names}", parts)


def algorithm_map(anchors: Mapping[str, str]) -> str:
    """The algorithms by the source of their credit and by the idea they are known for; each leads to its page.

    Args:
        anchors: algorithm -> address of its page.
    """
    parts, y, wide = [], 8.0, 720
    for source, ideas in MAP.items():
        rows = [(idea, _lines(names, 500)) for idea, names in ideas.items()]
        high = 40 + sum(22 * len(lines) + 8 for _, lines in rows)
        parts += [box(4, y, wide - 8, high), text(18, y + 24, f"credit from {source}", size=15, weight=600)]
        at = y + 48
        for idea, lines in rows:
            parts.append(text(36, at, idea, fill=MUTED))
            for line in lines:
                x = 208.0
                for name in line:
                    word = text(x, at, name, fill=ACCENT, weight=500)
                    parts.append(f'<a href="{escape(anchors[name])}">{word}</a>')
                    x += _width(name)
                at += 22
            at += 8
        y += high + 10
    return drawing(wide, y, "The algorithms by where their credit comes from", parts)


def _width(name: str) -> float:
    """Room for a name and the gap after it, at 13 pixels."""
    return 7.6 * len(name) + 22


def _lines(names: Sequence[str], width: float) -> list[list[str]]:
    """Break a list of names into lines."""
    lines: list[list[str]] = [[]]
    for name in names:
        if lines[-1] and sum(map(_width, [*lines[-1], name])) > width:
            lines.append([])
        lines[-1].append(name)
    return lines
