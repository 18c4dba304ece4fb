"""TensorBoard event files, written synchronously.

tensorboardX encodes the records. Its own writer is not used, because the writer's thread dies when the disk is full, and the run
would then wait for that thread forever.
"""

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  created on import
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]  as above
from tensorboardX.record_writer import masked_crc32c

from rljax.files import AppendFile


class EventFile:
    """A new event file in a folder; each event is completely written when the call returns.

    Args:
        folder: folder of the run's events; it is created if it does not exist.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        # The number of earlier files keeps the name unique if a run is resumed within the same second.
        earlier = len(list(folder.glob("events.out.tfevents.*")))
        self._file = AppendFile(folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{earlier}")
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, numbers: Mapping[str, float], step: int) -> None:
        """Add the scalars of one step; `numbers` maps tags to values."""
        values = [summary.scalar(tag, 0.0).value[0] for tag in numbers]
        for value, number in zip(values, numbers.values(), strict=True):
            value.simple_value = number  # `summary.scalar` would print a warning for each number that is not finite
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def text(self, tag: str, text: str, step: int) -> None:
        """Add a text, which TensorBoard shows as Markdown."""
        self._add(Event(wall_time=time.time(), step=step, summary=summary.text(tag, text)))

    def close(self) -> None:
        """Close the file; closing again is harmless."""
        self._file.close()

    def _add(self, event: Event) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        record = (length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data)))
        self._file.append(b"".join(record))
