"""The reference in a checkpoint: an item of its own. Checkpoints of a run with the same reference share its files.

Most references stay as they are from the beginning of RL. Their numbers are then on the disk once for all checkpoints:
each of these has links to the files, so that it is whole by itself. A disk without links holds copies.
"""

import hashlib
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.tree_util import tree_leaves_with_path

from rljax.models import Params
from rljax.models.model_folder import read_json
from rljax.models.policy import HostParams
from rljax.parallel.mesh import path_names
from rljax.training.checkpoints.manifest import MANIFEST, Rows, sound_rows
from rljax.training.checkpoints.retention import link

NOTES = "notes"
"""Name of the item in a checkpoint that the results of its evaluations are in."""
ITEM = "reference"
"""Name of the item in a checkpoint, and of the entry of its notes with the hash of the content."""


def content_hash(params: Params | HostParams) -> str:
    """SHA-256 of all numbers, and of how they are spread over processes; all processes call it together.

    Example:
        >>> content_hash({"a": np.zeros(2)}) == content_hash({"a": np.zeros(2)}) != content_hash({"a": np.ones(2)})
        True
    """
    digest = hashlib.sha256()
    for path, leaf in tree_leaves_with_path(params):
        digest.update(repr((path_names(path), leaf.shape, str(leaf.dtype))).encode())
        whole = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        for index, part in [("", leaf)] if whole else [(shard.index, shard.data) for shard in leaf.addressable_shards]:
            digest.update(repr(index).encode())
            digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    own = np.frombuffer(digest.digest(), np.uint8)
    return hashlib.sha256(process_allgather(own).tobytes()).hexdigest()


def same_reference(folder: Path, wanted: str) -> list[tuple[Path, Rows]]:
    """Find a checkpoint that has this reference; on this host alone.

    Args:
        folder: of the checkpoints of one kind; those of the other kinds lie beside it.
        wanted: hash of its content.

    Returns:
        The checkpoint, and the rows of the reference's files in its manifest, which were compared with the files (with several
        processes only in their lengths); empty if there is none.
    """
    for checkpoint in sorted(path.parent for path in folder.parent.glob(f"*/*/{MANIFEST}")):
        if sound_rows(checkpoint, NOTES) is None or read_json(checkpoint / NOTES / "metadata").get(ITEM) != wanted:
            continue
        rows = sound_rows(checkpoint, ITEM, by_hash=jax.process_count() == 1)  # other processes wait here for the first one
        if rows is not None:
            return [(checkpoint, rows)]
    return []


def link_reference(source: Path, checkpoint: Path) -> None:
    """Give a checkpoint the reference of another one."""
    for file in sorted((source / ITEM).rglob("*")):
        place = checkpoint / file.relative_to(source)
        if file.is_dir():
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(exist_ok=True)
            link(file, place)
