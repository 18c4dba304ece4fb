"""`rljax algorithms`, `equations`, `errata` and `claims`: their output is complete and fits the terminal."""

import io
import json
import re

import pytest

from rljax.algorithms import BY_NAME
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.parts import PARTS
from rljax.book.claims_summary import LABELS, SIGNS, SUMMARY
from rljax.book.equations import equations
from rljax.book.errata import ERRATA, Evidence
from rljax.book.slots import table
from rljax.book.text_search import search
from rljax.cli import main
from rljax.cli.equations_text import links, show_equations
from rljax.cli.terminal_text import columns_of, formula_lines, rewrap_descriptions, with_label, wrap
from rljax.errors import InputError


def printed(capsys, *arguments) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments) -> str:
    assert main(list(arguments)) == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("rljax: ")
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def index():
    stream = io.StringIO()
    show_equations("", stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    "command",
    [
        ("equations",),
        ("equations", "what", "bounds", "the", "ratio?"),
        ("equations", "dapo"),
        ("equations", "--limit", "200", "policy", "loss"),
        ("algorithms",),
        ("algorithms", *sorted(BY_NAME)),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_every_line_fits_80_columns(command, capsys):
    text = printed(capsys, *command)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_index_has_every_name_summary_source_and_test(index):
    words = " ".join(index.split())
    for entry in equations():
        assert f"\n  {entry.name}\n" in index
        assert " ".join(f"{entry.summary} [{entry.source}]".split()) in words
        assert entry.test in words
    assert f"{len(equations())} equations." in words


def test_index_begins_with_the_most_used_equations(index):
    first, *rest = index.split("\n\nAdvantage\n=========\n")
    assert len(rest) == 1
    counts = [int(count) for count in re.findall(r"\[(\d+)\s+algorithms\]", first)]
    assert len(counts) == 10
    assert counts == sorted(counts, reverse=True)
    used = [names["used by"] for names in links().values() if "used by" in names]
    assert counts[0] == max(sum(name in BY_NAME for name in names) for names in used)
    positions = [
        index.index(f"\n{role}\n{'=' * len(role)}\n")
        for role in ("Advantage", "Ratio", "Loss", "Weights", "KL", "Algorithms")
    ]
    assert positions == sorted(positions)


def test_entry_has_its_formula_source_and_links(capsys):
    text = printed(capsys, "equations", "gae.gae")
    assert "\n    A_t = Σ_l (γλ)^l δ_{t+l}" in text
    assert "arXiv:1506.02438" in text
    assert "tests/ops/test_gae.py" in text
    assert "    used by     open_reasoner_zero, ppo, vapo, vapo_grpo, vc_ppo" in text
    assert "    called by   gae.lambda_returns, gae.decoupled_gae" in text
    assert "    calls       masked.zero_outside" in text


def test_preference_losses_are_listed_as_callers(capsys):
    assert "    used by     preference --loss dpo, preference --loss" in printed(capsys, "equations", "dpo_loss")
    callers = ("preference --loss dpo", "preference --loss dpo_average", "preference --loss rpo")
    assert links()["direct_preference.dpo_loss"]["used by"] == callers
    assert links()["reference_free.simpo_loss"]["used by"] == ("preference --loss simpo",)


def test_algorithm_entry_lists_the_equations_of_its_slots(capsys):
    text = printed(capsys, "equations", "ppo")
    assert "        critic.advantage: gae.gae\n" in text
    assert "        reward_kl (with beta): divergence.kl_in_reward\n" in text
    assert "    options     rljax algorithms ppo\n" in text


def test_query_shows_the_best_match_first(capsys):
    text = printed(capsys, "equations", "clip", "higher")
    assert text.startswith("surrogate.clipped: ")
    assert "\ndapo: " in text
    assert "\nalso\n  " in text
    assert "surrogate.dual_clipped" in text
    found = len(search("clip higher"))
    assert f"10 of {found} entries, best first; --limit {found} shows all." in " ".join(text.split())


def test_limit_applies_to_full_entries(capsys):
    text = printed(capsys, "equations", "--limit", "1", "clip", "higher")
    assert text.startswith("surrogate.clipped: ")
    assert "\ndapo: " not in text
    assert "also" not in text
    assert "--limit is 0; it must be at least 1" in refused(capsys, "equations", "--limit", "0", "clip")


def test_query_names_words_that_no_entry_combines(capsys):
    text = " ".join(printed(capsys, "equations", "sigmoid", "percentiles").split())
    assert "No entry has all of these words: sigmoid, percentiles." in text


def test_query_without_matches_is_refused(capsys):
    error = refused(capsys, "equations", "clippedd")
    assert "; did you mean clipped or dual_clipped? `rljax equations` without a query lists all equations." in error
    assert "lists all equations" in refused(capsys, "equations", "qqqqqqqqqqqq")


def test_bibtex_of_all_and_of_a_query(capsys):
    everything = printed(capsys, "equations", "--bibtex")
    assert everything.count("@") > 55
    assert "@misc{yu2025dapo,\n" in everything
    some = printed(capsys, "equations", "--bibtex", "clipped")
    assert "schulman2017ppo" in some
    assert some.count("\n@") == 1
    assert "has a BibTeX entry" in refused(capsys, "equations", "--bibtex", "zero_outside")


def test_json_of_equations(capsys):
    rows = json.loads(printed(capsys, "equations", "--json"))
    assert [row["name"] for row in rows] == [entry.name for entry in equations()]
    assert all(row["equation"] and row["ideas"] and "score" not in row for row in rows)
    found = json.loads(printed(capsys, "equations", "--json", "clip", "higher"))
    assert found[0]["name"] == "surrogate.clipped"
    assert found[0]["score"] == 28
    assert "dapo" in found[0]["links"]["used by"]
    assert found[0]["references"] == ["schulman2017ppo", "yu2025dapo"]


def test_algorithms_are_listed_with_their_options(capsys):
    text = printed(capsys, "algorithms")
    assert "    DAPO (arXiv:2503.14476, Eqs. 8-13): separate clip bounds, " in text
    assert "clip_high=0.28" in text
    assert all(f"\n{name}\n" in f"\n{text}" for name in BY_NAME)
    assert all(f"\n--correction {name}\n" in text for name in CORRECTIONS)
    assert "--correction-low 0.5 --correction-high 5" in text
    assert "--without clip_higher soft_overlong token_level dynamic_sampling" in text


def test_algorithm_is_shown_slot_by_slot(capsys):
    text = printed(capsys, "algorithms", "dapo")
    assert "        surrogate: clipped low=0.2 high=0.28 [surrogate.clipped]\n" in text
    assert "    closest     grpo, the earlier algorithm that shares the most slots" in text
    assert "    changes to grpo\n        surrogate: low=0.2 high=0.2 → low=0.2 high=0.28\n" in text
    assert "--correction" not in text
    assert "reward_kl, with the option beta: [divergence.kl_in_reward]" in printed(capsys, "algorithms", "rloo")
    assert "'dado' is unknown" in refused(capsys, "algorithms", "dado")


def test_json_of_algorithms(capsys):
    found = json.loads(printed(capsys, "algorithms", "--json"))
    assert [row["name"] for row in found["algorithms"]] == sorted(BY_NAME)
    assert [row["name"] for row in found["corrections"]] == list(CORRECTIONS)
    (only,) = json.loads(printed(capsys, "algorithms", "--json", "ppo"))["algorithms"]
    assert only["options"]["dual_clip"] == "inf"
    assert only["parent"] is None
    assert {"slot": "critic.advantage", "function": "gae", "numbers": "gamma=1 lambda_=0.95", "ops": ["gae.gae"]} in only[
        "slots"
    ]
    assert {"slot": "reward_kl", "ops": ["divergence.kl_in_reward"], "option": "beta"} in only["optional"]


def test_parts_are_listed_with_defaults_and_equations(capsys):
    text = printed(capsys, "algorithms", "--parts")
    for part in PARTS:
        assert f"{part.spec}\n    {part.summary[:20]}" in text
    assert "low=0.2 high=0.8" in text
    assert "[selection.in_difficulty_window]" in text
    found = json.loads(printed(capsys, "algorithms", "--json"))["parts"]
    assert [(row["slot"], row["name"]) for row in found] == [(part.slot, part.name) for part in PARTS]
    assert [row["name"] for row in found if not row["ops"]] == ["entropy"], "the model computes the entropy"


def test_table_and_picture(capsys, tmp_path):
    assert printed(capsys, "algorithms", "--table") == f"{table()}\n"
    path = tmp_path / "tree.svg"
    assert printed(capsys, "algorithms", "--genealogy", str(path)) == f"{path}\n"
    assert path.is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ("algorithms", "--table", "--json"),
        ("algorithms", "dapo", "--parts"),
        ("algorithms", "dapo", "--table"),
        ("algorithms", "dapo", "--genealogy", "x.png"),
        ("equations", "--json", "--bibtex"),
    ],
)
def test_exclusive_options_are_refused(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "exclude each other" in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("confirms", [True, False])
def test_errata_and_their_exit_code(confirms, capsys, monkeypatch):
    """The counterexamples themselves run in tests/book/test_errata.py."""
    entries = [(ERRATA[0], Evidence("1 + 1 = 2", confirms)), (ERRATA[1], None)]
    monkeypatch.setattr("rljax.book.errata.run_all", lambda: entries)
    code = 0 if confirms else 1
    assert main(["errata"]) == code
    text = " ".join(capsys.readouterr().out.split())
    assert f"1 + 1 = 2. {'The readings differ' if confirms else 'They do NOT differ'}." in text
    assert f"2 errata: {int(confirms)} of 1 examples confirm their entries; 1 entries have only a source." in text
    assert main(["errata", "--json"]) == code
    rows = json.loads(capsys.readouterr().out)
    assert [(row["computed"], row["confirmed"]) for row in rows] == [("1 + 1 = 2", confirms), (None, None)]
    assert [row["refuted"] for row in rows] == [confirms, None], "the earlier key"
    assert [row["number"] for row in rows] == [entry.number for entry, _ in entries]
    assert "check" not in rows[0]


def test_long_formulas_are_broken_at_their_gaps():
    assert formula_lines("a = 1        b = 2", 80) == ["    a = 1        b = 2"]
    assert formula_lines("a = 1        b = 2", 20) == ["    a = 1", "    b = 2"]
    assert formula_lines("a = one + two + three", 16) == ["    a = one +", "        two +", "        three"]
    assert formula_lines("a\n\nb", 80) == ["    a", "", "    b"]


def test_names_are_never_broken():
    long = "x" * 40
    assert long in wrap(f"a {long} b", 20)
    assert "well-known-name" in wrap("aaaa well-known-name", 10)
    assert with_label("source", "one two", 80) == "    source      one two"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("width", "columns"), [(40, 60), (100, 100), (300, 120)])
def test_columns_of_follows_the_terminal_within_limits(width, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert columns_of(Terminal()) == columns
    assert columns_of(io.StringIO()) == 80


def test_blank_query_shows_the_index(index):
    stream = io.StringIO()
    show_equations("  ", stream)
    assert stream.getvalue() == index
    with pytest.raises(InputError, match="No equation has 'qqqq'"):
        show_equations("qqqq", stream)


def test_claims_begin_with_a_summary_and_a_key(capsys):
    lines = printed(capsys, "claims").splitlines()
    first = lines[:10]
    assert [line.split()[0] for line in first] == list(LABELS)
    assert lines[10] == ""
    assert lines[11].split("  ") == [f"{sign} {verdict}" for verdict, sign in SIGNS.items()]
    assert max(map(len, lines)) <= 80
    verdicts = {row["name"]: row["verdict"] for row in json.loads(printed(capsys, "claims", "--json"))}
    for line, claims in zip(first, SUMMARY.values(), strict=True):
        assert line.split()[1:] == [f"{SIGNS[verdicts[name]]}{name}" for name in claims]


@pytest.mark.parametrize("dim", ["", "\x1b[2m"], ids=["plain", "color"])
def test_rewrap_descriptions_fills_short_lines(dim):
    end = "\x1b[0m" if dim else ""
    rows = ["  --flag INT   One two", "               three four", "  --other      Nothing to do", ""]
    colored = [f"{row[:15]}{dim}{row[15:]} {end}" for row in rows[:3]] + rows[3:]
    shown = rewrap_descriptions("\n".join(colored), 30)
    plain = [line.rstrip() for line in shown.replace(dim or "\0", "").replace(end or "\0", "").split("\n")]
    assert plain == ["  --flag INT   One two three", "               four", "  --other      Nothing to do", ""]
    assert rewrap_descriptions(shown, 30) == shown
    assert rewrap_descriptions("\n".join(colored), 25) == "\n".join(colored), "no word fits into the preceding line"


@pytest.mark.parametrize("dim", ["", "\x1b[2m"], ids=["plain", "color"])
def test_rewrap_descriptions_joins_words_that_tyro_broke_at_a_comma(dim):
    end = "\x1b[0m" if dim else ""
    rows = ["A part and,", "e.g. `--with a=b,", "c=1", "d=2`, all"]
    indented = [f"        {dim}{row:<20}{end}" for row in rows]
    shown = rewrap_descriptions("\n".join(["  --with STR", *indented]), 60)
    assert " ".join(re.sub(r"\x1b\[\d*m", "", shown).split()) == "--with STR A part and, e.g. `--with a=b,c=1 d=2`, all"
