"""Files are written completely or not at all."""

import os
import resource
import stat
import sys

import pytest

from rljax.files import AppendFile, atomic_write


def test_atomic_write_creates_and_replaces_a_file(tmp_path):
    path = tmp_path / "data.bin"
    for data in (b"first", b"", bytes(range(256)) * 4096):
        atomic_write(path, data)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["data.bin"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_file_mode_follows_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        atomic_write(tmp_path / "data.bin", b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data.bin").stat().st_mode) == mode


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_no_temporary_file(tmp_path, monkeypatch, step):
    path = tmp_path / "data.bin"
    atomic_write(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["data.bin"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "data.bin", b"new")
    assert os.listdir(tmp_path) == []


def test_the_data_is_on_disk_before_the_file_is_replaced(tmp_path, monkeypatch):
    path, calls = tmp_path / "data.bin", []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(("fsync", os.fstat(file).st_size)), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append(("replace", path.exists())), replace(*names)))
    atomic_write(path, b"whole")
    assert calls == [("fsync", 5), ("replace", False)]


def test_a_missing_folder_and_a_folder_as_target_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "missing" / "data.bin", b"1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        atomic_write(tmp_path / "folder", b"1")
    assert os.listdir(tmp_path) == ["folder"]


def test_the_longest_possible_file_name_can_be_written(tmp_path):
    atomic_write(tmp_path / ("a" * 255), b"1")
    assert os.listdir(tmp_path) == ["a" * 255]


def test_an_append_that_does_not_fit_leaves_the_file_unchanged(tmp_path, monkeypatch):
    """A file-size limit truncates the write, as a full disk would."""
    # the limit would also truncate bytecode files, and Python before 3.14 keeps truncated ones
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = AppendFile(tmp_path / "rows")
    file.append(b"one\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append(b"two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "rows").read_bytes() == b"one\n"
    file.append(b"two\n")
    file.close()
    assert (tmp_path / "rows").read_bytes() == b"one\ntwo\n"
