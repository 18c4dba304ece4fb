"""Removal of the files that programs leave behind: every kind is removed, and none prevents the next start."""

import os
import resource

import pytest

from rljax.errors import InputError
from rljax.rewards.sandbox import Program, fork_server_client, judge, leftovers

RIGHT = Program("def f(x): return x + 1", ("assert f(1) == 2",))


def nest_folders(folder, depth):
    """Create nested folders with a file in each. At a depth of 3,000, their path is longer than the system accepts."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
            open("file", "w").close()
    finally:
        os.chdir(here)


def test_deeply_nested_folders_are_removed(tmp_path):
    nest_folders(tmp_path, 3_000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, limits[1]))
    try:
        leftovers.remove_folder(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not tmp_path.exists()


def test_removal_does_not_follow_links(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder.mkdir()
    for name in (b"\xff\n", b"-rf", b"*", b"a" * 255, b"x" * 32):
        os.makedirs(os.path.join(os.fsencode(folder), name, b"inner", name))
    os.symlink(outside, folder / "link")
    os.symlink(folder, folder / "loop")
    os.link(outside / "kept", folder / "hard")
    os.mkfifo(folder / "pipe")
    for mode in (0, 0o100, 0o200, 0o400):
        (folder / f"m{mode}" / "inner").mkdir(parents=True)
        os.chmod(folder / f"m{mode}", mode)
    os.chmod(folder, 0)
    leftovers.remove_folder(str(folder))
    assert not folder.exists()
    assert (outside / "kept").read_text() == "kept"
    assert os.stat(outside / "kept").st_nlink == 1
    leftovers.remove_folder(str(folder))  # a missing folder is not an error


def test_unremovable_folder_stays_and_the_rest_is_removed(tmp_path, monkeypatch):
    (tmp_path / "a" / "mount").mkdir(parents=True)
    (tmp_path / "a" / "b").mkdir()
    (tmp_path / "c").mkdir()
    rename = os.rename

    def refuse(name, *arguments, **named):
        if name == "mount":
            raise OSError(16, "busy")
        rename(name, *arguments, **named)

    monkeypatch.setattr(leftovers.os, "rename", refuse)
    leftovers.remove_folder(str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "mount"]


@pytest.mark.parametrize("damage", ["deep", "closed", "a file", "a link", "a link to nothing"])
def test_damaged_leftover_does_not_prevent_a_start(tmp_path, damage):
    old = tmp_path / "rljax-sandbox-0123456789ab"
    if damage in ("deep", "closed"):
        old.mkdir()
        nest_folders(old, 3_000 if damage == "deep" else 2)
        os.chmod(old, 0o700 if damage == "deep" else 0)
    elif damage == "a file":
        old.write_text("")
    else:
        os.symlink(tmp_path if damage == "a link" else "nothing", old)
    folder, lock = leftovers.claim_folder(str(tmp_path))
    os.close(lock)
    assert os.path.isdir(folder)
    assert old.exists() is (damage in ("a file", "a link"))


def test_failed_server_start_is_retried_for_the_next_program(monkeypatch, tmp_path):
    private_service = fork_server_client.Service()
    monkeypatch.setattr("rljax.rewards.sandbox.judging.shared_service", lambda: private_service)
    assert judge(RIGHT).pass_rates == (1.0,)
    private_service._server[0].kill()
    private_service._server[0].wait()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    for _ in range(2):
        with pytest.raises(InputError, match="cannot start"):
            judge(RIGHT, at="rlimits")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    assert judge(RIGHT, at="rlimits").pass_rates == (1.0,)
    private_service.close()
