"""Checkpoints that stay, and the deletion of the others."""

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rljax.files import no_room
from rljax.parallel import is_first
from rljax.records import documented
from rljax.training.checkpoints.manifest import MANIFEST


@documented
class Retention(NamedTuple):
    """Rule for the checkpoints of a kind that stay."""

    max_to_keep: int = 2
    """Number of the newest ones: if the newest is damaged, the one before it is used."""
    keep_period: int | None = None
    """Those of every n-th RL step stay too, in `step-N` beside the folder of the kind; None: no others."""


def prune(folder: Path, step: int, keep: Retention) -> None:
    """Delete checkpoints that need not stay, and then copy the newest one apart if it is of an n-th step.

    Only a checkpoint with a manifest counts among those that stay. An older one without it was never whole, and is deleted. It may
    be called again after a failure.

    Args:
        folder: the checkpoints of one kind; the newest one is whole.
        step: RL step of the newest one.
        keep: which stay.
    """
    newest, *older = sorted(numbers_in(folder), reverse=True)
    saved = [number for number in older if (folder / str(number) / MANIFEST).exists()]
    for number in set(older) - set(saved[: keep.max_to_keep - 1]):
        # Without its manifest, a checkpoint whose deletion is cut short does not look whole.
        (folder / str(number) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder / str(number))
    if keep.keep_period is not None and step and step % keep.keep_period == 0:
        _copy_apart(folder / str(newest), folder.parent / f"step-{step}" / "0")


def numbers_in(folder: Path) -> list[int]:
    """Numbers of the checkpoints in a folder, whole or not."""
    return [int(path.name) for path in folder.glob("*") if path.is_dir() and path.name.isdecimal()]


@contextmanager
def remove_on_error(folder: Path, number: int) -> Generator[None]:
    """Remove what a failed save of a checkpoint has left; the first process does it."""
    try:
        yield
    except BaseException:
        if is_first():
            for part in (folder / str(number), *folder.glob(f"{number}.*")):
                shutil.rmtree(part, ignore_errors=True)
        raise


def _copy_apart(checkpoint: Path, place: Path) -> None:
    """Copy a checkpoint, by links to its files where the disk has them; what lay at the place is replaced."""
    part = place.with_name(f".unfinished-{secrets.token_hex(4)}")
    try:
        for source in (checkpoint, *checkpoint.rglob("*")):  # `shutil.copytree` hides that there was no room
            target = part / source.relative_to(checkpoint)
            if source.is_dir():
                target.mkdir(parents=True)
            else:
                link(source, target)
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def link(source: Path, place: Path) -> None:
    """Give a file a second place; on a disk without links it is copied."""
    try:
        os.link(source, place)
    except OSError as error:
        if no_room(error) is not None:
            raise
        shutil.copy2(source, place)  # a disk without links
