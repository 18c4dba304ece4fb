"""`rljax runs`, `doctor` and `compare`, on the folders of recorded runs."""

import json
import os
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from fake_runs import PROBLEMS, write, write_run
from filelock import FileLock
from small_cli import printed, refused

from rljax.evaluation.statistics import wilson_interval


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a finished run, a run that collapsed and stopped, a run that has not begun, and a model."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "good", algorithm="dapo")
    write_run(folder / "bad", steps=28, accuracy=(0.25, 0.5), entropy=0.001, algorithm="grpo", learning_rate=0.01)
    write_run(folder / "new-with-a-name-that-is-far-too-long-for-its-column", steps=0)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_runs_lists_progress_and_accuracy(runs, capsys):
    text = printed(capsys, "runs", str(runs))
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["run", "algorithm", "steps", "status", "before", "last", "best", "alarms"]
    assert rows[1] == ["bad", "grpo", "28/30", "stopped", "25.0%", "50.0%", "50.0%", "1"]
    assert rows[2] == ["good", "dapo", "30/30", "finished", "25.0%", "75.0%", "75.0%", "0"]
    assert rows[3] == ["new-with-a-name-that-is-far-too-long-for-its-column"]
    assert rows[4][-5:] == ["stopped", "-", "-", "-", "0"]
    assert len(rows) == 5, "a model is not a run"


def test_run_with_a_locked_folder_is_running(tmp_path, capsys):
    write_run(tmp_path / "a", steps=3)
    with FileLock(tmp_path / "a" / ".lock"):
        assert "running" in printed(capsys, "runs", str(tmp_path))
    assert "stopped" in printed(capsys, "runs", str(tmp_path))


def test_runs_json_and_unreadable_runs(tmp_path, capsys):
    write_run(tmp_path / "a")
    broken = write_run(tmp_path / "b")
    broken.metrics.write_text('{"phase": "rl"}\n')
    first, second = json.loads(printed(capsys, "runs", str(tmp_path), "--json"))
    assert (first["status"], first["before"]["accuracy"], first["alarms"]) == ("finished", 0.25, [])
    assert "metrics.jsonl line 1 must have a whole number" in second["error"]
    assert second["error"] in " ".join(printed(capsys, "runs", str(tmp_path)).split())


def test_invalid_folders_are_refused(runs, tmp_path, capsys):
    refused(capsys, "There is no folder", "runs", str(tmp_path / "nowhere"))
    refused(capsys, "is the folder of a run itself", "runs", str(runs / "good"))
    refused(capsys, "is not the folder of a run.*It contains the runs bad, good, model and others", "doctor", str(runs))
    refused(capsys, "is the folder of a model, not of a run", "doctor", str(runs / "model"))
    refused(capsys, "must end in .html", "doctor", str(runs / "good"), "--out", str(tmp_path / "report.txt"))
    refused(capsys, "at least two run folders", "compare", str(runs / "good"))
    refused(capsys, "too many to compare", "compare", *[str(runs / "good")] * 27)


def test_plot_draws_complete_rows_and_refuses_what_is_no_run(runs, tmp_path, capsys):
    torn = write_run(tmp_path / "torn")
    with torn.metrics.open("ab") as file:
        file.write(b'{"phase": "eval", "st')
    older = write_run(tmp_path / "older")
    older.write_config({name: group for name, group in older.config.items() if name != "warm_start"})
    for name in ("torn", "older"):
        printed(capsys, "plot", str(tmp_path / name))
    printed(capsys, "plot", str(tmp_path / "torn"), str(runs / "good"), "--out", str(tmp_path / "both.png"))
    for flags in ((), ("--group",)):
        refused(capsys, "is the folder of a model, not of a run", "plot", str(runs / "model"), *flags)
        refused(capsys, "is not the folder of a run: there is no config.json", "plot", str(tmp_path / "no"), *flags)
    unseeded = write_run(tmp_path / "unseeded")
    unseeded.write_config(unseeded.config | {"run": {"name": "a"}})
    refused(capsys, "config.json has no integer `seed` under `run`", "plot", "--group", str(unseeded.path))


def test_commands_that_need_a_model_refuse_a_run_without_checkpoints(tmp_path, capsys):
    run = write_run(tmp_path / "run").path
    commands = (
        ("sample", run, "--prompt", "a"),
        ("eval", run),
        ("export", run, tmp_path / "out"),
        ("average", run, run, tmp_path / "mean"),
    )
    message = "is the folder of a run without checkpoints: the run ended before it wrote one, or they were deleted. "
    for command in commands:
        refused(capsys, f"{message}Repeat the command that started the run", *map(str, command))
    (run / "last").mkdir()
    refused(capsys, f"{message}Name a model: {run / 'last'}", "sample", str(run), "--prompt", "a")


def test_doctor_names_the_alarm_and_the_remedy(runs, tmp_path, capsys):
    text = printed(capsys, "doctor", str(runs / "bad"), "--out", str(tmp_path / "r.html"))
    assert max(len(line.replace(str(runs), "runs").replace(str(tmp_path), "runs")) for line in text.splitlines()) <= 80
    words = " ".join(text.split())
    low, high = wilson_interval(20, PROBLEMS)
    assert f"last (step 28) 50.0% ({100 * low:.0f} to {100 * high:.0f})" in words
    assert "10 problems became right, 0 became wrong, 10 stayed right, 20 stayed wrong." in words
    assert "Time spent in RL, 0:00:56 in total: sampling 75 %, updates 25 %." in words
    assert "1 alarm: entropy collapse at step 1" in words
    assert "Divide --learning-rate by 3, or use an algorithm" in words
    assert "These alarms could not be raised, because this run does not measure their metrics:" in words
    assert "No alarm was raised." in printed(capsys, "doctor", str(runs / "good"), "--out", str(tmp_path / "r.html"))


def test_best_evaluation_has_no_interval(runs, tmp_path, capsys):
    words = " ".join(printed(capsys, "doctor", str(runs / "bad"), "--out", str(tmp_path / "r.html")).split())
    assert "(none for the best, since a maximum is biased)" in words
    assert "best of all evaluations (step 28) 50.0%." in words
    found = json.loads(printed(capsys, "compare", str(runs / "good"), str(runs / "bad"), "--json"))
    assert found["runs"][0]["best"] == {"step": 30, "accuracy": 0.75}


def test_accuracies_without_answers_have_no_interval(tmp_path, capsys):
    folder = write_run(tmp_path / "a")
    folder.heldout.unlink()
    words = " ".join(printed(capsys, "doctor", str(folder.path)).split())
    assert "Held-out accuracy: before RL 25.0%; last (step 30) 75.0%; best of all evaluations (step 30) 75.0%." in words


def test_doctor_before_the_first_step(tmp_path, capsys):
    folder = write_run(tmp_path / "a")
    rows, heldout_rows = folder.metrics.read_text().splitlines(keepends=True), folder.read_heldout()
    folder.metrics.write_text("".join(rows[:2]))
    for answers, interval in (([row for row in heldout_rows if row["step"] == 0], " (14 to 40)"), ([], "")):
        write(folder.heldout, answers)
        words = " ".join(printed(capsys, "doctor", str(folder.path)).split())
        assert f"before RL 25.0%{interval}." in words
        assert "RL has not begun." in words


def test_unknown_setting_does_not_stop_the_report(tmp_path, capsys):
    folder, other = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    config = json.loads(folder.config_file.read_text())
    config["optimization"] |= {"momentum_of_old": 0.5, "learning_rate": 0.25}
    folder.config_file.write_text(json.dumps(config))
    note = "Settings are shown as in config.json. The run's config.json has settings unknown to this version"
    assert note in " ".join(printed(capsys, "doctor", str(folder.path)).split())
    report = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "optimization.momentum_of_old" in report
    assert "Settings are shown as in config.json." in report
    words = " ".join(printed(capsys, "compare", str(folder.path), str(other.path)).split())
    assert note in words
    assert "learning_rate: A 0.25" in words
    assert "seed:" not in words


@pytest.mark.parametrize(
    ("file", "change", "fault"),
    [
        ("samples", {"reward": ...}, 'a number or null as "reward"'),
        ("samples", {"reward": "good"}, 'a number or null as "reward"'),
        ("samples", {"reward": 10**400}, 'a number or null as "reward"'),
        ("samples", {"completion": None}, 'a string as "completion"'),
        ("heldout", {"answer": ...}, 'a string, a number or null as "answer"'),
        ("heldout", {"reward": True}, 'a number or null as "reward"'),
        ("heldout", {"problem": [1]}, 'a whole number "problem"'),
        ("heldout", {"step": 10**30}, 'a whole number "step"'),
        ("starts", {"command": 5}, 'a list of strings as "command"'),
        ("metrics", {"reward": 10**400}, 'a number or null as "reward"'),
    ],
)
def test_invalid_row_is_named_with_its_line(tmp_path, capsys, file, change, fault):
    folder = write_run(tmp_path / "a")
    path = folder.path / f"{file}.jsonl"
    first, *others = (json.loads(line) for line in path.read_text().splitlines())
    row = {name: value for name, value in (first | change).items() if value is not ...}
    write(path, [*others, row])
    refused(capsys, rf"{file}.jsonl line {len(others) + 1} must have {fault}", "doctor", str(folder.path))
    if file in ("heldout", "metrics"):
        refused(capsys, rf"{file}.jsonl line", "compare", str(folder.path), str(folder.path))


def test_doctor_json_writes_no_file(runs, capsys):
    found = json.loads(printed(capsys, "doctor", str(runs / "bad"), "--json"))
    (alarm,) = found["alarms"]
    assert found["seconds"] == {"sample": 42.0, "update": 14.0}
    assert (alarm["alarm"], alarm["flag"], found["raised"]) == ("entropy_collapse", "--learning-rate", ["entropy_collapse"])
    assert not (runs / "bad" / "report.html").exists()


def test_doctor_reads_a_run_that_is_being_written(tmp_path, capsys):
    folder = write_run(tmp_path / "a", steps=3)
    with folder.metrics.open("a") as file:
        file.write('{"phase": "rl", "st')
    assert "step 3 of 30, stopped" in " ".join(printed(capsys, "doctor", str(folder.path)).split())
    assert (folder.path / "report.html").is_file()
    empty = write_run(tmp_path / "b", steps=0)
    assert "RL has not begun." in printed(capsys, "doctor", str(empty.path))


class Page(HTMLParser):
    """Collect the tags, texts and attributes of a page, and check that every tag is closed."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, source):
        super().__init__()
        self.tags, self.texts, self.attributes, self.open = [], [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """The HTML report of the run that collapsed."""
    from rljax.cli import main

    out = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["doctor", str(runs / "bad"), "--out", str(out)]) == 0
    return out


def test_report_is_complete_offline_and_safe(report):
    page = Page(report.read_text(encoding="utf-8"))
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not [
        value for name, value in page.attributes if name in ("src", "href") and not value.startswith("data:image/png")
    ]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in dict(page.attributes)["content"] or "default-src 'none'" in report.read_text()
    text = " ".join(" ".join(page.texts).split())
    assert "<script>alert(1)</script>" in text, "model output is included as text"
    assert "\x1b" not in text
    assert "no idea <b>" in text
    assert page.tags.count("img") == 2
    for part in (
        "entropy collapse , since step",
        "Divide --learning-rate by 3",
        "learning_rate 0.01",
        "rljax train",
        "alarms could not be raised",
    ):
        assert part in text, part


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_browser_shows_the_report(report, tmp_path):
    picture = tmp_path / "page.png"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    screen = [*command, "--window-size=1000,2400", f"--screenshot={picture}", report.as_uri()]
    environment = os.environ | {"HOME": str(tmp_path)}
    subprocess.run(screen, check=True, capture_output=True, timeout=120, env=environment)
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 40_000, "the screenshot contains the plots"
    shown = subprocess.run(
        [*command, "--dump-dom", report.as_uri()], check=True, capture_output=True, timeout=120, env=environment, text=True
    ).stdout
    assert "entropy collapse" in shown
    assert shown.count("<img") == 2


def test_compare_shows_runs_side_by_side(runs, tmp_path, capsys):
    out = tmp_path / "curves.png"
    text = printed(capsys, "compare", str(runs / "good"), str(runs / "bad"), "--out", str(out))
    assert out.is_file()
    assert text.splitlines()[-1] == f"Curves: {out}"
    assert max(map(len, text.splitlines()[:-1])) <= 80
    words = " ".join(text.split())
    assert "A good: dapo, step 30 of 30, finished" in words
    assert "B bad: grpo, step 28 of 30, stopped; alarms: entropy collapse" in words
    assert "B - A at the last evaluation: -25.0 points" in words
    assert f"on the same {PROBLEMS} problems" in words
    assert "algorithm: A dapo B grpo" in words
    assert "learning_rate:" in words
    assert "seed:" not in words, "equal settings are left out"
    assert "20+20= (answer 40)" in words
    assert "28 - 50.0%" in words
    assert "30 75.0% -" in words


def test_compare_json(runs, capsys):
    found = json.loads(printed(capsys, "compare", str(runs / "good"), str(runs / "bad"), "--json", "--samples", "1"))
    low, high = wilson_interval(30, PROBLEMS)
    assert found["runs"][0]["last"] == {
        "step": 30,
        "accuracy": 0.75,
        "low": pytest.approx(low),
        "high": pytest.approx(high),
        "problems": PROBLEMS,
    }
    assert found["differences"][0] is None
    assert found["differences"][1]["low"] < found["differences"][1]["value"] == -0.25 < found["differences"][1]["high"] < 0
    assert found["settings"]["algorithm"] == ["dapo", "grpo"]
    (answer,) = found["answers"]
    assert answer["rewards"] == [1.0, 0.0]


def test_compare_equal_names_and_no_common_problems(tmp_path, capsys):
    write_run(tmp_path / "a" / "x")
    other = write_run(tmp_path / "b" / "x")
    write(other.heldout, [])
    text = printed(capsys, "compare", str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x"))
    assert f"A  {tmp_path / 'a' / 'x'}" in text.replace("\n   ", " ")
    assert "All settings are the same." in text
    assert "No problem was answered by all runs" in text
