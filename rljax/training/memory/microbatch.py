"""Size of the micro-batches of an update."""

from jax.sharding import Mesh

from rljax.parallel import row_shards
from rljax.training.config import MICROBATCH_TOKENS, TrainConfig


def rows_at_once(config: TrainConfig, mesh: Mesh, prompt_length: int, responses: int) -> int:
    """Rows of a micro-batch in an update on so many responses: a multiple of the devices.

    Responses share rows, so there are fewer rows than responses, and micro-batches without a row cost nothing. Small ones
    therefore leave less padding: they have a 32nd of the responses, or 1,024 tokens where that is more.
    """
    slots, devices = prompt_length + config.sampling.max_response_tokens, row_shards(mesh)
    chosen = config.optimization.microbatch_rows
    most = MICROBATCH_TOKENS // slots if chosen is None else chosen
    small = max(-(-responses // 32), -(-1024 // slots))
    return max(min(most, small) // devices, 1) * devices
