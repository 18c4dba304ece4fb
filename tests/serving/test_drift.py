"""Tests of a server's drift alarm: the compared answers, when the alarm is raised and cleared, and false alarms."""

import httpx
import numpy as np
import pytest
import scipy.stats
from served_model import NAME, make_model, post, serving
from small_runs import SMALL

from rljax.errors import InputError
from rljax.programs.serving import ExtensionSettings, ServeSettings, open_policy
from rljax.programs.serving_extensions import answer_heldout
from rljax.programs.train import train
from rljax.programs.trained_policy import load
from rljax.serving import drift
from rljax.serving.drift import ALPHA, WINDOW, HeldoutAnswers, welch_test

TEXT = "/v1/completions"
HELDOUT = 60
MAX_TOKENS = 20


def make_run(folder, **changes):
    sizes = {"steps": 0, "train_problems": 20, "heldout_problems": HELDOUT, "warm_start_steps": 20, "digits": 2}
    sizes |= {"max_prompt_tokens": 8, "max_response_tokens": MAX_TOKENS}
    train(SMALL.replace(**(sizes | changes), run=str(folder)))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def prompts(run):
    """Token ids of the held-out prompts."""
    return [list(tokens) for tokens in load(run).worker.prompts.tokens]


def serve_with_drift(run, temperature, **more):
    return serving(run, extensions=ExtensionSettings(drift=temperature, **more), context=64, max_response_tokens=MAX_TOKENS)


def drift_metrics(url):
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    pairs = [line.rpartition(" ") for line in lines if line.startswith("rljax_drift")]
    return {name.removeprefix("rljax_drift_"): float(value) for name, _, value in pairs}


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_heldout_answers_match_the_server(run, prompts, temperature):
    with serve_with_drift(run, temperature) as (url, served):
        settings = {"max_tokens": MAX_TOKENS, "temperature": temperature, "logprobs": 0, "return_token_ids": True}
        found = [
            post(url, TEXT, prompt=tokens, seed=index, **settings).json()["choices"][0]
            for index, tokens in enumerate(prompts)
        ]
    values = [(len(choice["token_ids"]), np.mean(choice["logprobs"]["token_logprobs"])) for choice in found]
    np.testing.assert_allclose(served.extensions[0].heldout.values, values, atol=1e-4)
    assert len({length for length, _ in values}) > 1


def test_unusual_prompts_raise_the_alarm_and_usual_ones_clear_it(run, prompts, monkeypatch, capsys):
    monkeypatch.setattr(drift, "WINDOW", 30)
    with serve_with_drift(run, 0) as (url, served):

        def ask(rows):
            body = {"max_tokens": MAX_TOKENS, "temperature": 0}
            assert post(url, TEXT, prompt=rows, **body).status_code == 200
            return drift_metrics(url)

        metrics = ask(prompts[:30])
        assert (metrics["alarm"], metrics["answers_total"]) == (0, 30)
        heldout = served.extensions[0].heldout
        for column, name in enumerate(drift.MEASURES):
            mean = heldout.values[:, column].mean()
            assert metrics[f'mean{{measure="{name}",of="heldout"}}'] == pytest.approx(mean)
            new = metrics[f'mean{{measure="{name}",of="window"}}']
            assert new == pytest.approx(heldout.values[:30, column].mean(), rel=1e-4)
            t = scipy.stats.ttest_ind(heldout.values[:30, column], heldout.values[:, column], equal_var=False).statistic
            assert metrics[f't{{measure="{name}"}}'] == pytest.approx(t, abs=1e-3)
        assert "drift:" not in capsys.readouterr().out
        unusual_prompt = prompts[int(np.abs(heldout.values[:, 1] - heldout.values[:, 1].mean()).argmax())]
        assert ask([unusual_prompt] * 60)["alarm"] == 1
        assert capsys.readouterr().out.count("warning: drift: mean of 30 answers:") == 1
        assert ask(prompts[:30])["alarm"] == 0
        assert ask([unusual_prompt] * 30)["alarm"] == 1
        assert capsys.readouterr().out.count("warning: drift:") == 1


def test_only_answers_sampled_like_heldout_answers_are_compared(run, prompts):
    with serve_with_drift(run, 0.7, best_of=2) as (url, served):
        longest = served.extensions[0].heldout.longest
        settings = {"prompt": prompts[0], "max_tokens": longest, "temperature": 0.7}
        for change in (
            {"temperature": 1},
            {"top_k": 3},
            {"top_p": 0.9},
            {"stop": "7"},
            {"stop_token_ids": [5]},
            {"max_tokens": longest - 1},
        ):
            assert post(url, TEXT, **settings | change).status_code == 200
        assert drift_metrics(url)["answers_total"] == 0
        assert post(url, TEXT, **settings).status_code == 200
        assert drift_metrics(url)["answers_total"] == 1  # Only the first of the two samples counts.


def test_welch_test_matches_scipy_and_accepts_zero_variance():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=30), rng.exponential(size=50)
    expected = scipy.stats.ttest_ind(one, other, equal_var=False)
    np.testing.assert_allclose(welch_test(one, other), (expected.statistic, expected.pvalue))
    assert welch_test(np.ones(3), np.ones(4)) == (0, 1)
    assert welch_test(np.full(100, -0.3), np.full(55, -0.3)) == (0, 1)
    assert welch_test(np.zeros(3), np.ones(4)) == (-np.inf, 0)


def rejection_rate(rng, sample_values, shift, *, heldout, windows=4000):
    """Return the fraction of windows in which one measure differs significantly; each window has new held-out answers."""
    old, new = sample_values(rng, (windows, heldout)), sample_values(rng, (windows, WINDOW)) + shift
    first, second = new.var(1, ddof=1) / WINDOW, old.var(1, ddof=1) / heldout
    freedom = (first + second) ** 2 / (first**2 / (WINDOW - 1) + second**2 / (heldout - 1))
    t = (new.mean(1) - old.mean(1)) / np.sqrt(first + second)
    return float((2 * scipy.stats.t.sf(np.abs(t), freedom) < ALPHA / 2).mean())


@pytest.mark.parametrize("heldout", [drift.MIN_HELDOUT, 256])
@pytest.mark.parametrize(
    "sample_values",
    [
        lambda rng, size: rng.normal(size=size),
        lambda rng, size: rng.exponential(size=size),  # Lengths, if every token ends the answer with the same probability.
        lambda rng, size: -rng.gamma(2.0, size=size) / np.sqrt(2),
    ],
    ids=["normal", "lengths", "mean_logprob"],
)
def test_false_alarms_are_rare_and_shifts_are_detected(sample_values, heldout):
    rng = np.random.default_rng(1)
    # ALPHA is the rate of false alarms per window for both measures together, so ALPHA / 2 for one; skewed data may have more.
    assert rejection_rate(rng, sample_values, 0.0, heldout=heldout, windows=20_000) < 2 * ALPHA
    assert rejection_rate(rng, sample_values, 1.0, heldout=heldout) > 0.9


def test_new_weights_may_have_too_few_heldout_problems(run, tmp_path):
    second = make_run(tmp_path / "second", heldout_problems=8)
    with serve_with_drift(run, 0) as (url, _):
        answer = httpx.post(f"{url}/weights", json={"folder": str(second), "version": 1}, timeout=60, trust_env=False)
        assert answer.json() == {"weights_version": 1}


@pytest.mark.parametrize(
    "words", ["needs the held-out problems of a run", "at least 50 held-out problems, but the run has 8"]
)
def test_too_few_heldout_problems_are_rejected(tmp_path, words):
    folder = make_model(tmp_path / NAME) if "needs" in words else make_run(tmp_path / "run", heldout_problems=8)
    with pytest.raises(InputError, match=words), serve_with_drift(folder, 0):
        pass


@pytest.mark.usefixtures("without_type_checks")
def test_environment_is_rejected(run):
    opened = open_policy(ServeSettings(str(run), extensions=ExtensionSettings(drift=0)), str(run))
    with pytest.raises(InputError, match="has an environment"):
        answer_heldout(opened._replace(skipped="mine.py:World"), None, 0, max_tokens=MAX_TOKENS)


def test_longest_is_the_largest_length_among_the_values():
    assert HeldoutAnswers(np.array([[3, -0.1], [7, -0.2]], np.float64), 0, ()).longest == 7
