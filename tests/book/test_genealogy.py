"""The algorithm genealogy: it agrees with the records and the papers, and its committed files are up to date."""

import itertools
from pathlib import Path

import pytest
from PIL import Image

from rljax.algorithms import BY_NAME
from rljax.book.genealogy import (
    NOTHING,
    UNDATED,
    Change,
    advantage_inputs,
    changes,
    genealogy,
    genealogy_text,
    paper_of,
)
from rljax.book.genealogy_picture import draw_genealogy, place_boxes
from rljax.book.slots import SlotContent, slot_contents, table
from rljax.errors import InputError

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
CLIP = SlotContent("clipped", "low=0.2 high=0.2")
TAUGHT = {"gkd", "minillm", "on_policy_distillation"}
ENTRIES = {entry.name: entry for entry in genealogy()}


def test_every_algorithm_is_newer_than_its_parent():
    assert set(ENTRIES) == set(BY_NAME)
    roots = [entry.name for entry in genealogy() if entry.parent is None]
    assert roots == ["ppo"]
    order = list(ENTRIES)
    for entry in genealogy():
        if entry.parent is not None:
            assert order.index(entry.parent) < order.index(entry.name)
            assert ENTRIES[entry.parent].paper <= entry.paper
            assert entry.changes


@pytest.mark.parametrize(
    ("name", "parent"),
    [
        ("grpo", "ppo"),
        ("minillm", "ppo"),
        ("gkd", "minillm"),
        ("on_policy_distillation", "gkd"),
        ("vc_ppo", "ppo"),
        ("dapo", "grpo"),
        ("dr_grpo", "grpo"),
        ("gspo", "grpo"),
        ("gspo_token", "gspo"),
        ("luspo", "gspo"),
        ("vapo", "vc_ppo"),
        ("vapo_grpo", "vapo"),
        ("scale_rl", "cispo"),
        ("forking_tokens", "dapo"),
    ],
)
def test_parents_agree_with_the_papers(name, parent):
    assert ENTRIES[name].parent == parent


def test_changes_agree_with_the_paper():
    assert [change.text() for change in ENTRIES["dapo"].changes] == [
        "surrogate: low=0.2 high=0.2 → low=0.2 high=0.28",
        "weights: sequence_mean → token_mean",
        "- terms.reference_kl",
        "+ shape_reward: soft_overlong_penalty max_length=20480 cache=4096",
        "+ keep_group: has_mixed_outcomes",
    ]
    assert "- critic" in [change.text() for change in ENTRIES["grpo"].changes]


def test_no_older_algorithm_is_closer_than_the_parent():
    def count_changed_functions(found):
        return sum(c.before.function != c.after.function and not c.slot.startswith("terms.") for c in found)

    def read_different_inputs(*names):
        read = {advantage_inputs(BY_NAME[name]()) for name in names}
        return len(read) > 1 and None not in read

    contents, order = {name: slot_contents(BY_NAME[name]()) for name in BY_NAME}, list(ENTRIES)
    for position, name in enumerate(order[1:], 1):
        older = [other for other in order[:position] if (other in TAUGHT) == (name in TAUGHT)] or order[:position]
        distances = {
            other: count_changed_functions(changes(contents[other], contents[name])) + read_different_inputs(other, name)
            for other in older
        }
        assert distances[ENTRIES[name].parent] == min(distances.values())


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (CLIP, CLIP, []),
        (CLIP, SlotContent("clipped", "low=0.2 high=0.28"), ["surrogate: low=0.2 high=0.2 → low=0.2 high=0.28"]),
        (CLIP, SlotContent("clipped", ""), ["surrogate: low=0.2 high=0.2 → -"]),
        (CLIP, SlotContent("reinforce", ""), ["surrogate: clipped → reinforce"]),
        (None, CLIP, ["+ surrogate: clipped low=0.2 high=0.2"]),
        (CLIP, None, ["- surrogate"]),
    ],
)
def test_change_text(before, after, text):
    records = [{} if contents is None else {"surrogate": contents} for contents in (before, after)]
    assert [change.text() for change in changes(*records)] == text


def test_changes_ignore_sizes_and_merge_a_removed_critic():
    assert changes({"group_size": SlotContent("", "8")}, {}) == ()
    critic = {"critic.advantage": SlotContent("gae", ""), "critic.loss": SlotContent("value_loss", "")}
    assert changes(critic, {}) == (Change("critic", critic["critic.advantage"], NOTHING),)
    assert [change.slot for change in changes(critic, {"critic.advantage": SlotContent("gae", "")})] == ["critic.loss"]


def test_paper_of_reads_the_docstring():
    assert paper_of("ppo") == "1707.06347"
    assert paper_of("dapo_grpo") == UNDATED
    assert UNDATED > "9912.99999"


def test_committed_table_matches_the_command():
    assert (EXPERIMENTS / "algorithms_slots.md").read_text(encoding="utf-8") == f"{table()}\n", (
        "run `rljax algorithms --table > experiments/algorithms_slots.md`"
    )


def test_committed_picture_is_up_to_date():
    with Image.open(EXPERIMENTS / "algorithms_genealogy.png") as picture:
        assert picture.text["Description"] == genealogy_text(), (
            "run `rljax algorithms --genealogy experiments/algorithms_genealogy.png`"
        )


def test_boxes_are_disjoint_and_right_of_their_parents():
    boxes = {box.entry.name: box for box in place_boxes(genealogy())}
    assert set(boxes) == set(BY_NAME)
    for box in boxes.values():
        if box.entry.parent is not None:
            assert box.x > boxes[box.entry.parent].x
    placed = sorted(boxes.values(), key=lambda box: (box.x, box.y))
    for upper, lower in itertools.pairwise(placed):
        assert upper.x < lower.x or upper.y + upper.height < lower.y


@pytest.mark.parametrize("suffix", [".svg"])
def test_picture_names_every_algorithm(tmp_path, suffix):
    path = tmp_path / "new" / f"tree{suffix}"
    draw_genealogy(path)
    drawn = path.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in BY_NAME)


def test_unknown_picture_suffix_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"tree\.gif must end in \.png or \.svg\."):
        draw_genealogy(tmp_path / "tree.gif")
