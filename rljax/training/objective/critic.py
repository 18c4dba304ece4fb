"""Build the critic of a run: check its settings, choose its value head, and initialize or load its parameters."""

from functools import partial
from typing import NamedTuple

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from rljax.algorithms import Algorithm
from rljax.algorithms.value_head import HEADS, ValueHead
from rljax.errors import InputError
from rljax.models import Packed, Params, Policy, ValueFunction
from rljax.models.huggingface import locate
from rljax.models.policy import refuse_to_save
from rljax.models.transformer_policy import value_function
from rljax.models.value_model import load_value_model
from rljax.settings.checks import check_options
from rljax.text import nearest_first
from rljax.training.config import TrainConfig
from rljax.training.state import CriticState

CRITIC_FOLDER = "critic"
"""Name of the subfolder of a run folder that contains the pretrained critic."""


class CriticModel(NamedTuple):
    """A critic without its parameters."""

    function: ValueFunction
    """The critic's model."""
    head: ValueHead
    """The value head, which turns the outputs of the model into values."""
    frozen_trunk: bool
    """Whether only the head is trained."""
    loaded: bool
    """Whether the critic's parameters come from a folder, in which they were trained before this run."""

    def trained_params(self, params: Params) -> Params:
        """Return the trained parameters: all of them, or only the head's if the trunk is frozen."""
        return {"head": params["head"]} if self.frozen_trunk else params

    def values(self, params: Params, packed: Packed) -> Float[Array, "B T"]:
        """Return the value before each response token, in units of the reward."""
        return self.head.value(self.function.outputs(params, packed))

    def without_builders(self) -> "CriticModel":
        """Return the critic without the functions that initialize or save parameters, so that cached programs retain none."""
        return self._replace(function=self.function._replace(init=_no_init, save=refuse_to_save, contents=None))


def _no_init(key: PRNGKeyArray, policy: Params | None) -> Params:
    raise AssertionError("this critic has no function that initializes parameters")


def make_head(name: str, options: dict[str, int | float]) -> ValueHead:
    """Build the value head of this name with these options.

    Raises:
        InputError: the name or an option is unknown, or the head rejects a value.
    """
    if name not in HEADS:
        advice = f"choose one of {', '.join(HEADS)}."
        raise InputError(f"The critic_head {name!r} is unknown{nearest_first(name, HEADS, advice)}")
    check_options(f"The head {name}", options, HEADS[name])
    try:
        return HEADS[name](**options)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit the head {name}: {error}.") from error


def check_critic(algorithm: Algorithm, config: TrainConfig) -> None:
    """Reject critic settings that do not fit the algorithm or each other.

    Raises:
        InputError: critic settings are set, but the algorithm has no critic; or it has a critic, but `critic` is "none" or the
            settings contradict each other.
    """
    settings, name = config.critic, config.algorithm.name
    if algorithm.critic is None:
        changed = {
            "critic": settings.start not in (None, "none"),
            "critic_head": settings.head is not None,
            "critic_frozen_trunk": settings.frozen_trunk,
            "critic_surprisal": settings.surprisal,
            "value_pretraining_steps": bool(settings.pretraining_steps),
            "mix_pretrained_value": settings.mix_pretrained_value,
        }
        if named := [flag for flag, is_changed in changed.items() if is_changed]:
            raise InputError(
                f"{name} has no critic, so {', '.join(named)} cannot be used; leave out these settings, or choose an algorithm "
                "with a critic (ppo, vc_ppo, vapo, vapo_grpo, open_reasoner_zero)."
            )
        return
    if settings.start == "none":
        raise InputError(
            f"critic is 'none', but {name} needs a critic; choose 'policy', 'fresh' or a folder, or another algorithm."
        )
    if settings.surprisal and settings.frozen_trunk:
        raise InputError(
            "critic_surprisal adds an input to the critic's trunk, but critic_frozen_trunk keeps the trunk from learning to use "
            "it; choose one of the two."
        )
    if settings.mix_pretrained_value and algorithm.critic.blend is not None:
        raise InputError(
            "mix_pretrained_value sets critic.blend, which the algorithm already has; leave mix_pretrained_value out."
        )


def make_critic(
    algorithm: Algorithm, config: TrainConfig, policy: Policy, mesh: Mesh, *, bos: int | None, eos: int
) -> CriticModel | None:
    """Build the critic. Parameters from a folder are read into host memory now; the critic's `init` puts them on the devices.

    Raises:
        InputError: the policy has no value function; or the folder has no critic, or a critic that does not fit the policy
            or the algorithm's head.
    """
    if algorithm.critic is None:
        return None
    settings, head = config.critic, algorithm.critic.head
    if policy.value_function is None:
        raise InputError(
            f"policy.value_function: {config.algorithm.name} needs a critic, which the policy must be able to make; got None. "
            "Give the policy a value_function, or choose an algorithm without a critic."
        )
    critic = partial(CriticModel, head=head, frozen_trunk=settings.frozen_trunk)
    if settings.start in (None, "policy", "fresh"):
        function = policy.value_function(head.size, settings.surprisal)
        if settings.start == "fresh":
            function = function._replace(init=lambda key, _, init=function.init: init(key, None))
        return critic(function, loaded=False)
    folder = locate(settings.start)
    run_critic = folder / CRITIC_FOLDER
    model, params = load_value_model(
        run_critic if run_critic.is_dir() else folder,
        vocab_size=policy.vocab_size,
        size=head.size,
        surprisal=settings.surprisal,
        compute_dtype=config.model.dtype,
        remat=config.model.remat,
    )
    model = model._replace(trunk=model.trunk._replace(mesh=mesh))
    host = jax.device_get(params)
    init = lambda key, policy_params: jax.tree.map(jax.numpy.asarray, host)  # noqa: E731
    return critic(value_function(model, bos=bos, eos=eos, init=init), loaded=True)


def initial_critic_state(
    critic: CriticModel, optimizer: optax.GradientTransformation, policy: Params, seed: int, *, blended: bool
) -> CriticState:
    """Return the critic's initial state, with a copy of its parameters if the algorithm blends in their values (`blended`)."""
    params = critic.function.init(jax.random.fold_in(jax.random.key(seed), 1), policy)
    pretrained = jax.tree.map(jax.numpy.copy, params) if blended else None
    return CriticState(params, optimizer.init(critic.trained_params(params)), pretrained)
