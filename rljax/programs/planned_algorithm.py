"""The algorithm of a run that is planned or compiled but not trained, and the settings that cannot be planned."""

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.training.config import TrainConfig
from rljax.training.objective.algorithm import add_correction, fit_group_size, make_algorithm


def plan_algorithm(config: TrainConfig) -> tuple[Algorithm, TrainConfig]:
    """Return the algorithm of the settings, and the settings adapted to it.

    Raises:
        InputError: the run reads a teacher's full distributions, or has a calculator or images; such runs cannot be planned.
    """
    algorithm = add_correction(make_algorithm(config), config)
    if algorithm.teacher_divergence is not None:
        raise InputError(
            f"rljax plan cannot measure {config.algorithm.name}, whose update also reads a teacher; plan "
            "on_policy_distillation instead, and add 4 bytes per parameter of the teacher."
        )
    if config.model.calculator is not None:
        raise InputError(
            f"rljax plan cannot measure calculator={config.model.calculator}, which keeps all logits of a micro-batch in memory; "
            "leave it out, and add 4 bytes for each scored token of a micro-batch times the size of the vocabulary."
        )
    if config.model.images is not None:
        raise InputError(
            f"rljax plan cannot measure images={config.model.images}, because patches have a projection instead of rows of the "
            "embedding table; leave it out, and subtract the 256 rows of the table that the plan then counts in addition."
        )
    return algorithm, fit_group_size(config, algorithm)
