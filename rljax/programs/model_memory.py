"""Check that a trained model fits into memory before it is evaluated, sampled from or exported."""

from jax.sharding import Mesh

from rljax.errors import InputError
from rljax.models import Policy
from rljax.rollout.environment import Environment
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import bytes_on_a_device, cache_room, measure_needs, parameter_shapes, place_shapes
from rljax.training.parts.adapter import base_shapes


def check_model_fits(
    config: TrainConfig,
    policy: Policy,
    mesh: Mesh,
    available: int | None,
    *,
    prompt_length: int | None = None,
    environment: Environment | None = None,
) -> int | None:
    """Reject a model whose parameters do not fit into memory together with the engine's weights and smallest possible cache.

    The arguments and the result are those of `check_room` in `rljax.training.memory_plan`; `config` contains the settings of
    the model's run.

    Raises:
        InputError: the model does not fit; the message reports the bytes.
    """
    if policy.shapes is None:
        return None
    resident = bytes_on_a_device(parameter_shapes(policy, mesh))
    if config.adapter.rank is not None:
        resident += bytes_on_a_device(place_shapes(policy, mesh, base_shapes(config, policy, mesh)))
    needs = measure_needs(config.replace(lora_rank=None, quantize=None), policy, mesh, prompt_length, environment, resident)
    if available is None:
        return None
    room = available // mesh.size
    if needs.total > room:
        raise InputError(
            f"{needs.refusal('model', mesh, room)} It needs devices with more memory, or several devices and a run whose "
            "parameters are sharded over them (--fsdp, --tensor)."
        )
    return cache_room(needs, room)
