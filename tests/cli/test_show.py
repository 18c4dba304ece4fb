"""`rljax show`: a run's rollouts in the terminal and as an HTML page, whatever text they contain."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from fake_runs import write, write_run
from small_cli import printed, refused

from rljax.cli import transcript_text
from rljax.tracking import rollout_page
from rljax.tracking.rollout_rows import Filter, check_rollout, evenly_spaced, outcomes_of, read_rollouts

MALICIOUS = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def make_row(step=1, reward=1.0, tokens=("4", "+", "<eos>", "\n", "<b>", "?", "\x1b[31m"), **changes):
    """Return a row of rollouts.jsonl: a turn of three tokens, an observation of one token, and a turn with the others."""
    count = len(tokens)
    kinds = "".join("o" if index == 3 else "t" for index in range(count))
    default = {
        "step": step,
        "problem": 7,
        "member": 0,
        "sampled_at": step - 1,
        "trained": True,
        "prompt": "2+2=",
        "question": "2+2=",
        "answer": "4",
        "reward": reward,
        "correct": None,
        "failure": None,
        "remark": None,
        "truncated": False,
        "turns": 2,
        "length": count,
        "parts": {},
        "metrics": {},
        "spans": [
            {"role": "policy", "start": 0, "end": 3, "calls": [{"name": "add", "arguments": '{"a": 1}'}]},
            {"role": "tool", "start": 3, "end": 4},
            {"role": "policy", "start": 4, "end": count, "malformed": ["the tool call '<b>' is not JSON"]},
        ],
        "tokens": list(tokens),
        "kinds": kinds,
        "logp": [None if kind == "o" else -0.25 for kind in kinds],
        "advantage": [None if kind == "o" else 1.5 for kind in kinds],
        "ratio": [None if kind == "o" else 1.25 for kind in kinds],
    }
    return default | changes


ROWS = [
    make_row(1, 1.0),
    make_row(1, 0.0, problem=8, truncated=True, metrics={"tool_errors": 2.0}),
    make_row(20, None, failure="timed_out", parts={"form": 0.5}),
    make_row(20, None),
    make_row(40, 0.5, correct=False, remark="unstated", question="what is 日本?", prompt="<|im_start|>user\nwhat is 日本?"),
]


def log_rollouts(path, rows=ROWS):
    folder = write_run(path, steps=3)
    write(folder.rollouts, rows)
    return folder


def render(page, fragment="", size="1280,1300", *flags):
    """Return the HTML of the page after Chromium has rendered it."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed, and the page's script runs in a browser")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'chromium'}"]
    arguments = [
        *command,
        *flags,
        "--virtual-time-budget=3000",
        f"--window-size={size}",
        "--dump-dom",
        f"{page.as_uri()}{fragment}",
    ]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120).stdout


def test_show_prints_a_list_and_a_transcript(tmp_path, capsys):
    log_rollouts(tmp_path / "run")
    text = printed(capsys, "show", str(tmp_path / "run"))
    page = tmp_path / "run" / "rollouts.html"
    assert max(len(line) for line in text.replace(str(page), "").splitlines()) <= 80
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()[1:6]]
    assert [words[:3] for words in rows] == [
        ["1", "1", "1"],
        ["2", "1", "0"],
        ["3", "20", "-"],
        ["4", "20", "-"],
        ["5", "40", "0.5"],
    ]
    assert "wrong, cut off, tool error" in text
    assert "Rollout 5: step 40, problem 7, response 0; reward 0.5, wrong" in text
    assert "no answer stated" in text
    lines = text.splitlines()
    assert lines[lines.index("policy, turn 1") + 1 :][:2] == ["4+<eos>", 'calls add {"a": 1}']
    assert "call that cannot be read: the tool call '<b>' is not JSON" in text
    assert "<b>?\\x1b[31m" in text
    assert f"Page: {page}" in text


def test_show_selects_rollouts(tmp_path, capsys):
    run = str(log_rollouts(tmp_path / "run").path)
    text = printed(capsys, "show", run, "--outcome", "failed")
    assert "Rollout 1: step 20, problem 7, response 0; reward -, failed" in text
    assert "timed out; form 0.5" in text
    assert "reward 0.5, wrong" in printed(capsys, "show", run, "--reward", "0.1", "0.9")
    assert "reward 0, wrong, cut off" in printed(capsys, "show", run, "--step", "1", "--rollout", "2", "--color", "ratio")
    refused(
        capsys,
        r"none of the run's rollouts \(5 in total\) meets these conditions; they are from the steps 1, 20, 40",
        "show",
        run,
        "--step",
        "2",
    )
    refused(capsys, "none of the run's rollouts", "show", run, "--length", "8", "9")
    refused(capsys, "--rollout is 6, but the list has the rollouts 1 to 5", "show", run, "--rollout", "6")
    refused(capsys, "must end in .html", "show", run, "--out", str(tmp_path / "page.txt"))


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        (Filter(), [0, 1, 2, 3, 4]),
        (Filter(step=20), [2, 3]),
        (Filter(reward=(0.0, 0.5)), [1, 4]),
        (Filter(length=(7, 7)), [0, 1, 2, 3, 4]),
        (Filter(length=(1, 6)), []),
        (Filter(outcome="right"), [0]),
        (Filter(outcome="wrong"), [1, 4]),
        (Filter(outcome="unjudged"), [3]),
        (Filter(outcome="failed"), [2]),
        (Filter(outcome="cut_off"), [1]),
        (Filter(outcome="tool_error"), [1]),
    ],
)
def test_filter_accepts_rollouts(conditions, numbers):
    assert [number for number, rollout in enumerate(ROWS) if conditions.accepts(rollout)] == numbers


def test_run_without_rollouts_file_shows_its_samples(tmp_path, capsys):
    write_run(tmp_path / "old", steps=3)
    text = printed(capsys, "show", str(tmp_path / "old"))
    assert "This run has no rollouts.jsonl" in text
    assert "<script>alert(1)</script>" in text
    assert "\\x1b[31m" in text
    page = (tmp_path / "old" / "rollouts.html").read_text()
    assert "This run has no rollouts.jsonl" in page
    assert "alert(1)</script>" not in page


def test_folders_without_rollouts_are_refused(tmp_path, capsys):
    refused(capsys, "is not the folder of a run", "show", str(tmp_path / "nowhere"))
    new = write_run(tmp_path / "new", steps=0)
    new.samples.unlink()
    refused(capsys, r"has logged no rollouts yet: they are written after its first RL step", "show", str(new.path))
    new.rollouts.write_text("")
    refused(capsys, "has logged no rollouts yet", "show", str(new.path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, 'must have a whole number "step"'),
        ({"tokens": ["a"]}, 'must have one of the letters t, s, o per token as "kinds"'),
        ({"tokens": "abc"}, 'must have a list of strings as "tokens"'),
        ({"logp": [0.0]}, 'must have a number or null per token as "logp"'),
        ({"ratio": ["1"] * 7}, 'must have a number or null per token as "ratio"'),
        ({"spans": [{"role": "policy", "start": 0, "end": 6}]}, 'must have turns as "spans" that divide the tokens'),
        ({"spans": None}, 'must have turns as "spans" that divide the tokens'),
        (
            {"spans": [{"role": "policy", "start": 0, "end": 7, "calls": [1]}]},
            'must have the tool calls of each turn as "calls"',
        ),
        ({"reward": "high"}, 'must have a number or null as "reward"'),
        ({"correct": 1}, 'must have true, false or null as "correct"'),
        ({"metrics": {"tool_errors": None}}, 'must have an object of numbers as "metrics"'),
        ({"prompt": None}, 'must have text as "prompt"'),
        ({"left_out": 3}, 'must have whole numbers "at" and "tokens" in "left_out"'),
    ],
)
def test_damaged_row_is_named_with_its_line(tmp_path, capsys, change, message):
    folder = log_rollouts(tmp_path / "run", [make_row(), make_row() | change])
    refused(capsys, rf"rollouts\.jsonl line 2 {re.escape(message)}", "show", str(folder.path))


def test_unfinished_and_invalid_rows(tmp_path, capsys):
    folder = log_rollouts(tmp_path / "run", [make_row()])
    with folder.rollouts.open("a") as file:
        file.write('{"step": 2, "tok')
    assert len(read_rollouts(folder).rows) == 1
    folder.rollouts.write_text('{"step"\n')
    refused(capsys, r"rollouts\.jsonl line 1 is not valid JSON", "show", str(folder.path))


class Elements(HTMLParser):
    """Collect the names and attributes of a page's elements."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def make_malicious_rows():
    span = {
        "role": MALICIOUS,
        "start": 0,
        "end": 7,
        "calls": [{"name": MALICIOUS, "arguments": MALICIOUS}],
        "malformed": [MALICIOUS],
    }
    texts = dict.fromkeys(("prompt", "question", "answer"), MALICIOUS)
    tokens = [MALICIOUS, "<!--", "<script>", "]]>", "\u2028", "\ud800", "&lt;b&gt;"]
    return [make_row(tokens=tokens, spans=[span], remark=MALICIOUS, parts={MALICIOUS: 1.0}, **texts)]


def test_model_output_stays_text(tmp_path, capsys):
    folder = log_rollouts(tmp_path / "run", make_malicious_rows())
    assert check_rollout(make_malicious_rows()[0]) is None
    printed(capsys, "show", str(folder.path))
    page = (folder.path / "rollouts.html").read_text()
    plain = (
        printed(capsys, "show", str(log_rollouts(tmp_path / "plain").path)),
        (tmp_path / "plain" / "rollouts.html").read_text(),
    )[1]
    scripts = [attrs for tag, attrs in Elements(page).found if tag == "script"]
    assert [attrs.get("id") for attrs in scripts] == ["index", "scales", "r0", None]
    assert {tag for tag, _ in Elements(page).found} == {tag for tag, _ in Elements(plain).found}
    assert not {"img", "link", "iframe"} & {tag for tag, _ in Elements(page).found}
    outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)\s*=|url\(|https?://|@import", outside), "the page loads nothing"
    policy = next(attrs["content"] for tag, attrs in Elements(page).found if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    (body,) = re.findall(r'<script type="application/json" id="r0">(.*?)</script>', page, re.DOTALL)
    assert json.loads(body)["tokens"][:-2] == make_malicious_rows()[0]["tokens"][:-2]
    assert json.loads(body)["tokens"][-2] == "\ufffd" * 3, "half a surrogate pair is not a character"


def test_browser_executes_no_model_output(tmp_path, capsys):
    folder = log_rollouts(tmp_path / "run", make_malicious_rows())
    printed(capsys, "show", str(folder.path))
    for color in ("logp", "mask"):
        dom = render(folder.path / "rollouts.html", f"#color={color}")
        assert "<title>run: rollouts</title>" in dom
        assert "onerror=&quot;" not in dom.replace("&lt;img", "").split("<article")[0]
        assert "&lt;/script&gt;&lt;script&gt;" in dom.split("<article")[1]
        assert "<img" not in dom.split("<article")[1].split("</article>")[0]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = log_rollouts(tmp_path_factory.mktemp("page") / "run")
    return rollout_page.write_page(folder, read_rollouts(folder))


@pytest.mark.parametrize(
    ("fragment", "count"),
    [
        ("", 5),
        ("#step=20", 2),
        ("#reward_low=0&reward_high=0.5", 2),
        ("#length_high=6", 0),
        ("#outcome=failed", 1),
        ("#outcome=tool_error&step=1", 1),
        ("#text=%E6%97%A5", 1),
    ],
)
def test_page_filters_rollouts(page, fragment, count):
    dom = render(page, fragment)
    assert len(re.findall(r'role="option"', dom)) == count
    assert ("No rollout matches these filters." in dom.split("</article>")[0]) == (count == 0)
    assert f"{count} of 5 rollouts" in dom if count < 5 else "5 rollouts" in dom


def test_page_shows_turns_calls_and_values(page):
    article = render(page, "#rollout=4&color=advantage").split("<article")[1]
    assert "Step 40, problem 7, response 0" in article
    assert re.findall(r"<b>(.*?)</b>", article) == ["policy, turn 1", "tool", "policy, turn 2"]
    assert re.search(r'calls <span class="name">add</span> \{"a": 1\}', article)
    assert "malformed call" in article
    colors = re.findall(r'data-place="(\d)"[^>]*style="background: ([^"]*)"', article)
    assert [place for place, color in colors if "--high" in color] == ["0", "1", "2", "4", "5", "6"]
    assert "as the algorithm scales it" in article
    assert "no answer stated" in article


def test_oversized_page_has_evenly_spaced_steps(tmp_path, monkeypatch):
    rows = [make_row(step) for step in range(1, 8)]
    assert [rollout["step"] for rollout in evenly_spaced(rows, [10] * 7, 30)] == [1, 4, 7]
    assert [rollout["step"] for rollout in evenly_spaced(rows, [10] * 7, 1)] == [7]
    monkeypatch.setattr(rollout_page, "MOST_BYTES", 3 * len(rollout_page._script_json(rows[0])))
    text = rollout_page.render_page(
        rollout_page.Heading("run", "runs/run", "dapo", "now"), read_rollouts(log_rollouts(tmp_path / "r", rows))
    )
    assert "The page has 3 of the 7 logged steps" in text


def test_terminal_colors():
    scale = rollout_page.scales(ROWS)
    assert scale == {"logp": 5.0, "advantage": 1.5, "ratio": 1.25}
    rollout = make_row(logp=[-5.0, -0.001, None, None, 0, 0, 0], ratio=[0.5, 2.0, None, None, 1, 1, 1])
    assert transcript_text.style_of(rollout, 0, "logp", scale).bgcolor.get_truecolor() == transcript_text.LOW_COLOR
    assert transcript_text.style_of(rollout, 1, "logp", scale) is None
    assert transcript_text.style_of(rollout, 2, "logp", scale) is None
    shades = [transcript_text.style_of(rollout, index, "ratio", scale).bgcolor.get_truecolor() for index in (0, 1)]
    assert shades == [transcript_text.LOW_COLOR, transcript_text.HIGH_COLOR]
    assert transcript_text.style_of(rollout, 3, "mask", scale) is None


def test_failure_is_not_a_wrong_answer():
    assert outcomes_of(make_row(reward=None, failure="raised")) == ["failed"]
    assert outcomes_of(make_row(reward=0.5, correct=False)) == ["wrong"]
    assert outcomes_of(make_row(reward=-1.0, correct=True, metrics={"malformed_calls": 1.0})) == ["right", "tool_error"]


PRESS_KEYS = """
const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
setTimeout(() => { for (const key of KEYS) press(key); }, 200);
"""


@pytest.mark.parametrize(
    ("keys", "title", "token", "color"),
    [
        (["ArrowDown"], "Step 20, problem 7, response 0", None, "logp"),
        (["j", "j", "j", "k", "3"], "Step 20, problem 7, response 0", None, "ratio"),
        (["ArrowRight", "ArrowRight", "2"], "Step 40, problem 7, response 0", "1", "advantage"),
        (["ArrowUp", "ArrowRight", "ArrowLeft", "ArrowLeft"], "Step 40, problem 7, response 0", "0", "logp"),
    ],
)
def test_keys_move_between_rollouts_and_tokens(page, tmp_path, keys, title, token, color):
    """A script presses keys in the page; the page's security policy, which would block the script, is removed."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    driven = tmp_path / "driven.html"
    driven.write_text(text.replace("</body>", f"<script>const KEYS = {json.dumps(keys)};{PRESS_KEYS}</script></body>"))
    dom = render(driven)
    article = dom.split("<article")[1].split("</article>")[0]
    assert title in article
    assert re.findall(r'class="t[^"]* at" data-place="(\d+)"', article) == ([] if token is None else [token])
    values = dom.split('id="values"')[1].split("</div>")[0]
    assert ("nats (p = 0.7788)" in values) == (token is not None)
    legends = {"logp": "under the policy before", "advantage": "as the algorithm scales it", "ratio": "after the updates"}
    assert legends[color] in article.split('class="legend"')[1]


MEASURE = """<script>setTimeout(() => parent.postMessage({
    widths: [innerWidth, document.documentElement.scrollWidth],
    outside: [...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1
        && getComputedStyle(one.parentElement).overflowX === "visible").map(one => one.outerHTML.slice(0, 80)),
    colors: [document.body, document.querySelector("article")].map(one => getComputedStyle(one))
        .map(style => [style.backgroundColor, style.color]),
}, "*"), 300);</script>"""
FRAME = """<body style="margin: 0"><script>addEventListener("message", event => {
    document.getElementById("found").textContent = JSON.stringify(event.data); });</script><pre id="found"></pre>
<iframe src="inner.html#step=7" style="border: 0; width: WIDTHpx; height: 1300px"></iframe></body>"""
"""A Chromium window is at least 500 px wide, so the page is shown in a frame, which may be narrower."""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_fits_its_window(tmp_path, width, dark):
    long_row = make_row(
        7,
        1.0,
        question="x" * 400,
        prompt="wide " * 80 + "y" * 300,
        parts={"a_name_of_a_reward_part_that_goes_on_and_on": 0.25},
        tokens=["z" * 300, "\t" * 50, "<eos>", "\n", "a" * 200, "b", "c"],
    )
    folder = log_rollouts(tmp_path / "run", [*ROWS, long_row])
    text = rollout_page.write_page(folder, read_rollouts(folder)).read_text()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (tmp_path / "inner.html").write_text(text.replace("</body>", f"{MEASURE}</body>"))
    (tmp_path / "outer.html").write_text(FRAME.replace("WIDTH", str(width)))
    dom = render(tmp_path / "outer.html", "", "1400,1300", *(["--force-dark-mode"] if dark else []))
    found = json.loads(html.unescape(dom.split('<pre id="found">')[1].split("</pre>")[0]))
    inner, scrolled = found["widths"]
    assert inner == width >= scrolled, "nothing extends beyond the window"
    assert not found["outside"]
    for colors in found["colors"]:
        sums = [sum(map(float, re.findall(r"[\d.]+", color)[:3])) for color in colors]  # red, green and blue, at most 765
        background, foreground = reversed(sums) if dark else sums
        assert background > 550
        assert foreground < 200
