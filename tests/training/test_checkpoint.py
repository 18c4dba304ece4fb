"""Checkpoints: damage, earlier versions, other optimizers and meshes, retention, and the choice of the best one."""

import errno
import json
import re
import shutil
from collections import namedtuple

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from rljax.data.history import no_history
from rljax.errors import InputError
from rljax.programs.trained_policy import find_run
from rljax.tracking.run_folder import describe_content
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import (
    Checkpoint,
    Notes,
    Quality,
    find_abandoned,
    newest_complete,
    quality_of,
    restore,
    set_aside,
)
from rljax.training.checkpoints.manifest import MANIFEST, Retention, fault_of, files_of, prune
from rljax.training.state import create

FILE_STATES = {"metrics.jsonl": describe_content(b"rows")}
KEEP = Retention()


def state_of(value):
    params = {"weight": jnp.full((3, 2), value, jnp.float32)}
    return create(params, optax.adam(1e-3), 0, with_reference=False)


def save(folder, checkpoint, file_states, keep=KEEP):
    checkpoints.save(folder, checkpoint, file_states)
    prune(folder, int(checkpoint.state.step), keep)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder in which checkpoints with the values 0, 1 and 2 were saved."""
    folder = tmp_path_factory.mktemp("run") / "last"
    for value in range(3):
        save(folder, Checkpoint(state_of(value), no_history(2)), FILE_STATES)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "last")


def value_in(folder):
    restored = restore(folder, lambda phase: state_of(-1))
    assert restored.file_states == FILE_STATES
    return float(restored.checkpoint.state.params["weight"][0, 0]), [str(damaged) for damaged in restored.damaged]


def test_by_default_the_newest_two_are_kept_and_the_newest_is_read(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    assert value_in(folder) == (2.0, [])
    chex.assert_trees_all_equal(restore(folder, lambda phase: state_of(-1)).checkpoint.state, state_of(2))


def flip_one_bit(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_every_change_to_any_file_is_detected(folder):
    files = [*files_of(folder / "2").values(), folder / "2" / MANIFEST]
    assert len(files) > 10
    changes = 0
    for file in files:
        content = file.read_bytes()
        for changed in (None, content[:-1], content + b" ", flip_one_bit(content) if content else b" "):
            file.unlink()
            if changed is not None:
                file.write_bytes(changed)
            if not (file.name == MANIFEST and changed == content + b" "):  # the same JSON
                assert newest_complete(folder)[0] == 1, (file, changed)
                changes += 1
            file.write_bytes(content)
        assert fault_of(folder / "2") is None
    assert changes > 40


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda newest: (newest / MANIFEST).unlink(), "its save was not finished, or an older version of rljax wrote it."),
        (lambda newest: shutil.rmtree(newest / "history"), "history/_METADATA is missing."),
        (
            lambda newest: [shutil.rmtree(newest), newest.mkdir()],
            "its save was not finished, or an older version of rljax wrote it.",
        ),
        (lambda newest: (newest / MANIFEST).write_text("[1]"), "sha256.json cannot be read"),
        (lambda newest: (newest / MANIFEST).write_text('{"a": 1}'), "sha256.json cannot be read"),
    ],
    ids=["no manifest", "an item gone", "empty", "manifest is a list", "entry is a number"],
)
def test_a_damaged_checkpoint_is_skipped_and_set_aside(folder, damage, message):
    damage(folder / "2")
    (folder / "3.orbax-checkpoint-tmp-1").mkdir()  # a save that was killed
    value, damaged = value_in(folder)
    assert value == 1.0
    assert damaged[0].startswith(f"{folder / '2'}: ")
    assert message in damaged[0]
    (notice,) = set_aside(restore(folder, lambda phase: state_of(-1)).damaged)
    assert notice.startswith(f"{folder / '2'} cannot be used: ")
    assert [path.name[:7] for path in (folder.parent / "damaged").iterdir()] == ["last-2-"]
    assert (folder / "3.orbax-checkpoint-tmp-1").exists(), "a reader does not delete an unfinished save"
    save(folder, Checkpoint(state_of(7), no_history(2)), FILE_STATES)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    assert value_in(folder) == (7.0, [])


def test_a_folder_without_a_complete_checkpoint_is_refused(folder, tmp_path):
    for number in (1, 2):
        (folder / str(number) / MANIFEST).unlink()
    with pytest.raises(
        InputError, match=r"No checkpoint in .* is complete\. .*2: it has no manifest.* .*1: it has no manifest"
    ):
        restore(folder, lambda phase: state_of(-1))
    with pytest.raises(InputError, match=r"There is no checkpoint in .*: the run ended before it wrote one"):
        restore(tmp_path / "nowhere", lambda phase: state_of(-1))


@pytest.mark.parametrize("value", [None, jnp.float32(0.3)])
def test_a_checkpoint_of_an_earlier_version_gives_a_one_paragraph_error(tmp_path, value):
    """The saved state has a field that later versions lack."""
    state = state_of(0)
    fields = state._asdict() | {"temperature": value}
    earlier = namedtuple("Earlier", fields)(**fields)
    save(tmp_path, Checkpoint(earlier, no_history(2)), FILE_STATES)
    with pytest.raises(
        InputError, match=r"An earlier version of rljax saved this checkpoint: continue with that version"
    ) as refusal:
        restore(tmp_path, lambda phase: state)
    assert "\n" not in str(refusal.value)
    assert "optimizer" not in str(refusal.value)


CLIPPED = optax.chain(optax.clip(1.0), optax.scale(-0.1))
STRUCTURES = {
    "first entry nested": (CLIPPED, optax.chain(CLIPPED, optax.identity()), "'opt_state/0'", "None", "[None, None]"),
    "second entry nested": (CLIPPED, optax.chain(optax.clip(1.0), CLIPPED), "'opt_state/1'", "None", "[None, None]"),
    "one entry more": (CLIPPED, optax.chain(*3 * [optax.identity()]), "'opt_state'", "[None, None]", "[None, None, None]"),
    "one entry more, with a state": (
        optax.chain(optax.scale_by_adam(), optax.scale(-0.1)),
        optax.chain(optax.scale_by_adam(), optax.clip(1.0), optax.scale(-0.1)),
        "'opt_state'",
        "[{count: array, mu: {weight: array}, nu: {weight: array}}, None]",
        "[{count: array, mu: {weight: array}, nu: {weight: array}}, None, None]",
    ),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_the_error_names_where_optimizer_structures_differ(tmp_path, case):
    """The arrays are the same, so shapes alone cannot reveal the difference."""
    first, second, entry, expected, found = STRUCTURES[case]
    params = {"weight": jnp.zeros((3, 2), jnp.float32)}
    states = [create(params, optimizer, 0, with_reference=False) for optimizer in (first, second)]
    assert len(jax.tree.leaves(states[0])) == len(jax.tree.leaves(states[1]))
    for saved, wanted, texts in ((*states, (expected, found)), (*states[::-1], (found, expected))):
        folder = tmp_path / f"{wanted is states[0]}"
        save(folder, Checkpoint(saved, no_history(2)), FILE_STATES)
        chex.assert_trees_all_equal(restore(folder, lambda phase, own=saved: own).checkpoint.state, saved)
        with pytest.raises(InputError) as refusal:
            restore(folder, lambda phase, own=wanted: own)
        assert str(refusal.value) == (
            f"optimizer: the checkpoint in {str(folder)!r} can only be restored into a state like the one that was saved; {entry} "
            f"has the structure {texts[0]} in the checkpoint and {texts[1]} now. Pass the same optimizer as when the run was "
            "started; if none was passed, use the version of rljax that saved the run."
        )


def test_a_long_structure_is_shortened(tmp_path):
    states = [
        create({"weight": jnp.zeros(2)}, optax.chain(*count * [optax.identity()]), 0, with_reference=False)
        for count in (90, 91)
    ]
    save(tmp_path, Checkpoint(states[0], no_history(2)), FILE_STATES)
    nones = ", ".join(20 * ["None"])
    message = (
        f"structure [{nones[:59]} … {nones[-59:]}] (90 entries) in the checkpoint and [{nones[:59]} … {nones[-59:]}] (91 "
    )
    with pytest.raises(InputError, match=f"^optimizer: .*{re.escape(message)}entries\\) now"):
        restore(tmp_path, lambda phase: states[1])


def test_a_checkpoint_restores_onto_another_mesh(folder):
    """The state is restored with the sharding of the current mesh."""
    devices = jax.sharding.Mesh(jax.devices()[:3], "rows")
    sharding = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("rows"))
    wanted = state_of(-1)
    wanted = wanted._replace(params=jax.device_put(wanted.params, sharding))
    found = restore(folder, lambda phase: wanted).checkpoint.state
    assert found.params["weight"].sharding == sharding
    assert float(found.params["weight"].sum()) == 12.0


def test_the_newest_checkpoints_and_every_nth_are_kept(tmp_path):
    folder = tmp_path / "checkpoints" / "last"
    for step in range(5):
        state = state_of(step)._replace(step=jnp.int32(step))
        save(folder, Checkpoint(state, no_history(2)), FILE_STATES, Retention(max_to_keep=3, keep_period=2))
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "4"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["last", "step-2", "step-4"]
    assert value_in(folder.parent / "step-2") == (2.0, [])
    (tmp_path / "config.json").write_text("{}")
    assert find_run(folder.parent / "step-2", "best") == (tmp_path, "step-2")


def test_incomplete_saves_do_not_count_and_are_deleted(folder):
    (folder / "1" / MANIFEST).unlink()
    save(folder, Checkpoint(state_of(3), no_history(2)), FILE_STATES)
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]


def test_a_save_that_fails_leaves_nothing(folder, monkeypatch):
    def fail(checkpoint):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rljax.training.checkpoints.checkpoint.write_manifest", fail)
    with pytest.raises(OSError, match="No space"):
        save(folder, Checkpoint(state_of(3), no_history(2)), FILE_STATES)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    assert value_in(folder) == (2.0, [])


def test_best_checkpoints_after_the_resumed_best_step_are_found(tmp_path):
    for step in (1, 3):
        save(tmp_path / "best", Checkpoint(state_of(step), no_history(2), notes=Notes(best_step=step)), FILE_STATES)
    assert [damaged.path.name for damaged in find_abandoned(tmp_path / "best", 1)] == ["1"]  # of step 3
    assert find_abandoned(tmp_path / "best", 3) == []
    assert find_abandoned(tmp_path / "best", 2) == [], "the best one of step 2 is gone, and a later one is better than none"
    assert find_abandoned(tmp_path / "none", None) == []


def test_checkpoints_of_other_programs_are_recognized_as_models(tmp_path):
    foreign = tmp_path / "checkpoints" / "step-1000"
    foreign.mkdir(parents=True)
    (foreign / "config.json").write_text("{}")
    assert find_run(foreign, "best") == (None, "best")


def quality(right, judged, *, reward=None, metric="accuracy"):
    share = right / judged if judged else float("nan")
    mean = share if reward is None else reward
    return Quality(share, mean, judged, 10, metric, share if metric == "accuracy" else mean)


@pytest.mark.parametrize(
    ("before", "after", "best"),
    [
        (quality(9, 10), quality(1, 1), 0),  # one judged answer is weak evidence
        (quality(1, 1), quality(9, 10), 5),
        (quality(9, 10), quality(9, 9), 5),
        (quality(5, 10), quality(5, 10), 5),  # a tie: the trained checkpoint wins
        (quality(5, 10, reward=0.9), quality(5, 10, reward=0.8), 0),  # the reward decides a tie of the accuracies
        (quality(5, 10, reward=0.9), quality(6, 10, reward=0.8), 5),
        (quality(6, 10, reward=0.8, metric="reward"), quality(5, 10, reward=0.9, metric="reward"), 5),
        (quality(9, 10), quality(0, 0), 0),
        (quality(0, 0), quality(0, 10), 5),
        (quality(9, 10, reward=0.9, metric="reward"), quality(3, 10), 5),  # not comparable: different metrics
        (Quality(0.5, 0.5), quality(5, 10), 5),  # earlier versions did not record the numbers of answers
        (Quality(0.5, 0.5), quality(4, 10), 0),
    ],
)
def test_the_best_checkpoint_needs_a_better_metric_and_enough_answers(before, after, best):
    notes = Notes.from_json(json.loads(json.dumps(Notes().with_result(before, 0)._asdict())))
    assert notes.with_result(after, 5).best_step == best


def test_a_missing_metric_is_named_in_the_error():
    metrics = {"accuracy": 0.5, "reward": 0.4, "reward_brief": 0.1, "judged": 3, "answers": 4}
    assert quality_of(metrics, "reward_brief") == Quality(0.5, 0.4, 3, 4, "reward_brief", 0.1)
    with pytest.raises(
        InputError, match=r"--best-metric speed is not .* choose one of accuracy, answers, judged, reward, "
    ):
        quality_of(metrics, "speed")
