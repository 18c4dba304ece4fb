"""The committed comparison on a pretrained model: its page matches its rows, and its floor counts a step's operations."""

import json
from pathlib import Path

import pytest

from rljax.programs.roofline import update_flops

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"
ROWS = json.loads((FOLDER / "real_model.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def modules(import_benchmark):
    """The modules `real_model` and `shapes`."""
    return import_benchmark("real_model"), import_benchmark("shapes")


def test_page_matches_rows(modules):
    benchmark, _ = modules
    assert (FOLDER / "real_model.md").read_text(encoding="utf-8") == benchmark.format_table(ROWS)


def test_every_case_is_measured_as_it_is_defined(modules):
    benchmark, _ = modules
    assert {key: (row["title"], row["sizes"]) for key, row in ROWS.items()} == {
        key: (case.title, case.step._asdict()) for key, case in benchmark.CASES.items()
    }


def test_planned_memory_is_at_most_a_fifth_off():
    for key, row in ROWS.items():
        peak = max(each["peak_bytes"] for each in row["rounds"]["rljax"])
        assert peak / 1.2 <= row["planned_bytes"] <= 1.2 * peak, key


def test_floor_counts_the_update(modules):
    """The floor counts the products of the logits three times; `update_flops` also counts that they are computed again."""
    benchmark, shapes = modules
    step, length = benchmark.STEP, 24
    rows, tokens = step.prompts * step.group, step.prompt_tokens + length
    again = update_flops(shapes.SMOLLM2_135M, rows * tokens, tokens / 2, scored=rows * length)
    logits = 2 * rows * length * shapes.SMOLLM2_135M.width * shapes.SMOLLM2_135M.vocab_size
    floor = benchmark.step_flops(shapes.SMOLLM2_135M, step, length)["update"]
    assert floor == pytest.approx(again - logits)


def test_prompts_are_questions(modules):
    benchmark, _ = modules
    prompts = [benchmark.work.prompt(index, benchmark.STEP) for index in range(benchmark.STEP.prompts)]
    assert "What is 17 + 23? Answer with a number." in prompts[1]
    assert len(set(prompts)) == len(prompts)
