"""A prompt stream in stages, each of which uses its own subset of the records."""

from collections.abc import Sequence

from rljax.data.prompts import PromptStream
from rljax.errors import InputError


class StagedStream(PromptStream):
    """An endless order of records in stages. Each stage has its own epochs, reshuffled each time; the last stage never ends.

    The index of the record at a position depends only on the stages, `prompts` and the seed.

    Args:
        records: the records, for instance `range(n)`.
        stages: for each stage, the indices of its records.
        prompts: the length of each stage except the last, in positions, at least 1.
        seed: seed of the shuffling, 0 or more.

    Raises:
        InputError: there are no records, a stage has none, `prompts` is below 1, or the seed is negative.

    Example:
        >>> StagedStream("abcd", [[0, 1], [2, 3]], prompts=3, seed=0).take(0, 7)
        ['b', 'a', 'b', 'd', 'c', 'd', 'c']
    """

    def __init__(self, records: Sequence, stages: Sequence[Sequence[int]], *, prompts: int, seed: int):
        super().__init__(records, seed=seed)
        if prompts < 1:
            raise InputError(f"a stage has {prompts} prompts; it must have at least 1.")
        empty = [number for number, indices in enumerate(stages, 1) if not indices]
        if empty or not stages:
            raise InputError(f"stage {empty[0] if empty else 1} has no records; give each stage at least one.")
        self._order = _Order([PromptStream(indices, seed=seed) for indices in stages], prompts)


class _Order:
    """The record index at each position."""

    def __init__(self, stages: Sequence[PromptStream], prompts: int):
        self._stages = stages
        self._prompts = prompts

    def __getitem__(self, position: int) -> int:
        stage = min(position // self._prompts, len(self._stages) - 1)
        return self._stages[stage].take(position - stage * self._prompts, 1)[0]
