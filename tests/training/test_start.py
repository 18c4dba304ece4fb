"""`resume="auto"`: what is continued, what is started from the beginning, and what is left alone."""

import fcntl

import pytest

from rljax.errors import InputError
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.start import resumable


def test_the_files_of_a_process_that_has_not_saved_yet_stay(tmp_path):
    path = tmp_path / "run"
    config = TrainConfig.flat(run=str(path))
    RunFolder.create(path, config.to_json())
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"another process is training in .*; wait until it ends, or stop it"):
            resumable(config)
        assert (path / "config.json").exists()
    assert resumable(config) is None, "the process has ended without a save"
    assert not (path / "config.json").exists()
