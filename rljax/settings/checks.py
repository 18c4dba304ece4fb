"""Checks that several groups of settings share, and length options that are derived from the run's length limit.

Each error names the setting, its value and the allowed values.
"""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from rljax.errors import InputError
from rljax.settings.flat import flat_names
from rljax.text import nearest_first, replace_surrogates

TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Path: "a path",
}
"""Type of a setting -> how messages describe it."""

LARGEST_INTEGER = 2**31 - 1
"""Largest value of an integer setting, because counters on devices have 32 bits."""

YEAR = 365 * 24 * 3600
"""Longest waiting time that a setting allows, in seconds, because thread timers overflow at some longer time."""

MAY_BE_INFINITE = frozenset({"algorithm_options", "correction_high"})
"""Settings for which infinity means no bound."""

LENGTHS = ("max_length", "cache")
"""Options of algorithms that are lengths, in tokens."""


def check_numbers(settings: object) -> None:
    """Reject numbers that are not finite, and whole numbers beyond 32 bits, in any setting of a group."""
    for name, flag in flat_names(type(settings)).items():
        for number in _numbers_in(getattr(settings, name)):
            if math.isnan(number) or (math.isinf(number) and flag not in MAY_BE_INFINITE):
                raise InputError(f"{flag} is {number}; it must be a finite number.")
            if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                raise InputError(
                    f"{flag} is {number}; a whole number must be between -{LARGEST_INTEGER:,} and {LARGEST_INTEGER:,}."
                )


def _numbers_in(value: object) -> Iterator[int | float]:
    """Yield the numbers in a setting, which may be a sequence or a mapping."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _numbers_in(entry)
    elif isinstance(value, int | float):
        yield value


def check_stop(stop: Iterable[str]) -> None:
    """Reject a single text instead of a list, and stop strings that are empty or contain an incomplete or invalid character."""
    if isinstance(stop, str):
        raise InputError(f"stop is the text {stop!r}; give a list of texts, such as [{stop!r}].")
    if "" in stop:
        raise InputError(
            "stop contains an empty text, which would end every response at once; give texts of at least one character."
        )
    broken = next((text for text in stop if "\N{REPLACEMENT CHARACTER}" in replace_surrogates(text)), None)
    if broken is not None:
        raise InputError(
            f"stop contains {broken!r}, whose surrogate or replacement character stands for bytes that are not text; give "
            "plain text."
        )


def check_at_least(least: int, settings: object, names: Iterable[str]) -> None:
    """Reject settings below `least`, and settings of the wrong type; None is allowed."""
    for flag, value in _typed_values(settings, names):
        if value is not None and not value >= least:
            bound = "must not be negative" if least == 0 else f"must be at least {least}"
            raise InputError(f"{flag} is {value}; it {bound}.")


def _typed_values(settings: object, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the flat name and the value of some settings of a group; a value of the wrong type is an error."""
    flat, hints = flat_names(type(settings)), hints_of(type(settings))
    for name in names:
        yield flat[name], fit_setting(flat[name], getattr(settings, name), hints[flat[name]])


def check_at_most_a_year(settings: object, names: Iterable[str]) -> None:
    """Reject waiting times, in seconds, of more than a year; None is allowed."""
    for flag, value in _typed_values(settings, names):
        if value is not None and not value <= YEAR:
            raise InputError(f"{flag} is {value:g}; it must be at most {YEAR:,}, a year in seconds.")


def check_positive(settings: object, names: Iterable[str]) -> None:
    """Reject settings that are not above 0; None is allowed."""
    for flag, value in _typed_values(settings, names):
        if value is not None and not value > 0:
            raise InputError(f"{flag} is {value}; it must be positive.")


def check_share(settings: object, names: Iterable[str]) -> None:
    """Reject settings outside [0, 1]."""
    for flag, value in _typed_values(settings, names):
        if not 0 <= value <= 1:
            raise InputError(f"{flag} is {value}; it must be between 0 and 1.")


def check_positive_share(settings: object, names: Iterable[str]) -> None:
    """Reject settings outside (0, 1]; None is allowed."""
    for flag, value in _typed_values(settings, names):
        if value is not None and not 0 < value <= 1:
            raise InputError(f"{flag} is {value}; it must be above 0 and at most 1.")


def check_options(owner: str, options: Mapping[str, int | float], factory: Callable[..., object]) -> None:
    """Reject unknown options of an algorithm, a loss or a value head, and fractions for options that are integers.

    Args:
        owner: what has the options, for messages.
        options: the options.
        factory: the function that builds the algorithm, loss or head; its keyword arguments are the known options.

    Raises:
        InputError: an option is unknown, or is not an integer although the argument is annotated as `int`.
    """
    parameters = inspect.signature(factory).parameters
    known, unknown = sorted(parameters), sorted(set(options) - set(parameters))
    if unknown:
        advice = nearest_first(unknown[0], known, f"it has {', '.join(known) or 'none'}.")
        raise InputError(f"{owner} has no option {', '.join(map(repr, unknown))}{advice}")
    for name, value in options.items():
        if parameters[name].annotation in (int, "int") and not isinstance(value, int):
            raise InputError(f"{owner}: the option {name} is {value}; an integer is expected.")


def check_seed(seed: int) -> None:
    """Reject a seed that JAX cannot make a random key from.

    Raises:
        InputError: the seed is not an integer, is negative, or needs more than 63 bits.
    """
    fit_setting("--seed", seed, int)
    if not 0 <= seed < 1 << 63:
        raise InputError(f"--seed is {seed}; it must be at least 0 and below 2 ** 63.")


def check_new_file(path: Path) -> None:
    """Reject an output file that already exists, or whose folder does not exist, before any work begins.

    Raises:
        InputError: the file exists, or its folder does not exist.
    """
    if path.exists():
        raise InputError(f"{str(path)!r} already exists; choose another file.")
    if not path.parent.is_dir():
        raise InputError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}; create it first.")


def check_engine(config: Any) -> None:
    """Reject settings of `EngineConfig` that cannot work.

    Raises:
        InputError: a setting cannot work; the message names it.
    """
    check_at_least(0, config, ["delay"])
    check_at_least(1, config, ["staleness"])
    check_positive(config, ["engine_patience"])
    check_positive_share(config, ["paged_cache"])
    if config.delay and config.staleness:
        raise InputError(
            f"sampler_delay={config.delay} and staleness={config.staleness} both set the age of the sampler's parameters; leave "
            "one of them out."
        )
    if config.engine_server not in (None, "rljax", "vllm", "sglang"):
        raise InputError(f"engine_server is {config.engine_server!r}; choose rljax, vllm or sglang.")
    if config.engine_in_flight and not (config.engine_url and config.staleness and config.engine_server in (None, "rljax")):
        raise InputError(
            "engine_in_flight needs a server of rljax (engine_url), which reports the weight version of each token, and staleness "
            "of at least 1, so that the learner has new weights while the server samples."
        )
    if config.paged_cache is not None and config.engine_url is not None:
        raise InputError(
            f"paged_cache={config.paged_cache} is for the built-in engine, but engine_url samples on a server; leave one out."
        )
    if config.engine_url is not None and not is_server_address(config.engine_url):
        raise InputError(f"engine_url is {config.engine_url!r}; give an address such as http://127.0.0.1:8000.")


def is_server_address(text: str) -> bool:
    """Return whether a text is the address of an HTTP server.

    Example:
        >>> [is_server_address(text) for text in ("http://127.0.0.1:8000/v1/", "127.0.0.1:8000", "http://", "http://here:port")]
        [True, False, False, False]
    """
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:  # the port is not a number from 0 to 65535, or a bracket is missing
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and len(text.split()) == 1


def check_sampling_mask(size: int | None, top_k: int | None, top_p: float | None) -> None:
    """Reject a sampling mask that would have nothing to record, or no room for all tokens that can be sampled.

    Raises:
        InputError: neither `top_k` nor `top_p` is set, or `top_k` keeps more tokens than the mask has room for.
    """
    if size is not None and top_k is None and top_p is None:
        raise InputError(
            f"sampling_mask={size} records what top_k and top_p keep, but neither is set; set one, or leave sampling_mask out."
        )
    if size is not None and top_k is not None and top_k > size:
        raise InputError(
            f"sampling_mask={size} is too small for the top_k={top_k} tokens that can be sampled; set it to at least {top_k}."
        )


def truncation_warnings(chosen: Mapping[str, object], top_k: int | None, top_p: float | None) -> list[str]:
    """Return warnings about corrections that treat truncation by top-k or top-p as a difference between policies.

    Args:
        chosen: name of a setting -> the correction that it selects; None or "none" means off.
        top_k: the sampler's top-k.
        top_p: the sampler's top-p.
    """
    if top_k is None and top_p is None:
        return []
    return [
        f"{name}={value} counts top_k={top_k} and top_p={top_p} as a difference between sampler and learner; "
        f"--sampling-mask {512 if top_k is None else top_k} compares the two over the tokens that could be sampled"
        for name, value in chosen.items()
        if value not in (None, "none")
    ]


def default_lengths(known: Collection[str], options: Mapping[str, float], limit: int) -> dict[str, int]:
    """Derive default values of an algorithm's length options from the run's limit, or from `max_length` if that option is set.

    DAPO's overlong penalty covers the last fifth before the limit, as in its paper: 4,096 of 20,480 tokens. Dr.GRPO divides by the
    limit.

    Args:
        known: names of the algorithm's options.
        options: the options that are set.
        limit: the run's maximum number of tokens per response.

    Example:
        >>> default_lengths(("max_length", "cache"), {}, 250), default_lengths(("beta",), {}, 250)
        ({'max_length': 250, 'cache': 50}, {})
    """
    limit = int(options.get("max_length", limit))
    return {name: value for name, value in {"max_length": limit, "cache": max(1, limit // 5)}.items() if name in known}


def misfit_lengths(weights: Callable, penalty: Callable | None, limit: int) -> list[str]:
    """Describe the lengths in two slots of an algorithm that do not fit the run's limit; the list is empty if all fit.

    Only the keywords of a `functools.partial` are read, as in the built-in algorithms.

    Args:
        weights: the algorithm's token weights.
        penalty: its penalty on long responses, if it has one.
        limit: the run's maximum number of tokens per response.

    Example:
        >>> from rljax.ops.shaping import soft_overlong_penalty
        >>> from rljax.ops.weights import constant_length, token_mean
        >>> misfit_lengths(token_mean, partial(soft_overlong_penalty, max_length=64, cache=12), 64)
        []
        >>> (note,) = misfit_lengths(partial(constant_length, max_length=3000), None, 64)
        >>> note.rpartition(", ")[2]
        'so gradients are 0.021 times as large as with max_length=64'
    """
    divisor, lengths = (slot.keywords if isinstance(slot, partial) else {} for slot in (weights, penalty))
    notes = []
    if (longest := divisor.get("max_length", limit)) != limit:
        notes.append(
            f"the algorithm divides by max_length={longest}, and a response has at most {limit} tokens, so gradients are "
            f"{limit / longest:.2g} times as large as with max_length={limit}"
        )
    if set(LENGTHS) <= set(lengths) and (start := lengths["max_length"] - lengths["cache"]) >= limit:
        notes.append(
            f"the overlong penalty begins after {start} tokens, and a response has at most {limit}, so there is no penalty; "
            f"max_length={limit} and cache={max(1, limit // 5)} fit this run"
        )
    return notes


def paper_lengths(known: Mapping[str, float], options: Mapping[str, float]) -> dict[str, float]:
    """Add the paper's lengths to the options of a run that an earlier version of rljax started, as that version did.

    Args:
        known: the algorithm's options and their defaults.
        options: the options that are set.

    Example:
        >>> paper_lengths({"max_length": 20480, "cache": 4096, "eps": 1e-6}, {"cache": 8})
        {'max_length': 20480, 'cache': 8}
    """
    return {name: known[name] for name in LENGTHS if name in known} | dict(options)


@cache
def hints_of(group: type) -> Mapping[str, Any]:
    """Return the type of each setting in a group, by its flat name.

    Example:
        >>> from rljax.training.config.setting_groups import WarmStartConfig
        >>> hints_of(WarmStartConfig)["warm_start_batch"]
        <class 'int'>
    """
    hints, flat = get_type_hints(group, include_extras=True), flat_names(group)
    return MappingProxyType({setting: _strip_annotations(hints[name]) for name, setting in flat.items()})


def fit_value(value: object, hint: Any) -> Any:
    """Convert a value to a type: lists become tuples, and integers become floats where a float is expected.

    Args:
        value: the value, from a YAML or JSON parser.
        hint: int, float, str, bool, None, Path, Literal, tuple, Sequence, dict, or a union of these.

    Raises:
        ValueError: the value does not have this type; the message says what is expected.

    Example:
        >>> fit_value([1, 2], tuple[float, float] | None), fit_value("bfloat16", Literal["float32", "bfloat16"])
        ((1.0, 2.0), 'bfloat16')
    """
    hint = _strip_annotations(hint)
    value = float(value) if hint is float and type(value) is int else value
    value = Path(value) if hint is Path and isinstance(value, str) else value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for choice in arguments:
            try:
                return fit_value(value, choice)
            except ValueError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin in (tuple, Sequence) and isinstance(value, list | tuple):
        kinds = [arguments[0]] * len(value) if _is_homogeneous(hint) else list(arguments)
        if len(kinds) == len(value):
            return tuple(fit_value(entry, kind) for entry, kind in zip(value, kinds, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {fit_value(name, arguments[0]): fit_value(number, arguments[1]) for name, number in value.items()}
    elif type(value) is hint or (hint is Path and isinstance(value, Path)):  # isinstance would accept True as a number
        return value
    raise ValueError(f"{describe_type(hint)} is expected")


def fit_setting(name: str, value: Any, hint: Any) -> Any:
    """Convert a Python value to the type of its setting; paths count as text, and NumPy and JAX scalars as numbers.

    Raises:
        InputError: the value does not have this type; the message names the setting and says what is expected.

    Example:
        >>> fit_setting("stop", "###", tuple[str, ...])
        Traceback (most recent call last):
            ...
        rljax.errors.InputError: stop is '###', but a list (each text) is expected.
    """
    is_scalar = getattr(value, "shape", None) == ()  # a scalar of NumPy or JAX
    plain = str(value) if isinstance(value, Path) else value.item() if is_scalar else value
    if get_origin(_strip_annotations(hint)) is Literal and plain not in get_args(_strip_annotations(hint)):
        *most, last = get_args(_strip_annotations(hint))
        raise InputError(f"{name} is {value!r:.80}; choose {', '.join(most)} or {last}.")
    try:
        return fit_value(plain, hint)
    except ValueError as error:
        raise InputError(f"{name} is {value!r:.80}, but {error}.") from error


def check_types(settings: object) -> None:
    """Reject a group of settings if a value does not have the type of its setting.

    Raises:
        InputError: a type is wrong; the message names the setting and says what is expected.
    """
    flat, hints = flat_names(type(settings)), hints_of(type(settings))
    for name, flag in flat.items():
        fit_setting(flag, getattr(settings, name), hints[flag])


def describe_type(hint: Any) -> str:
    """Describe a type in words.

    Example:
        >>> describe_type(tuple[float, float] | None), describe_type(Literal["best", "last"])
        ('a list of 2 entries (each a number) or null', "'best' or 'last'")
    """
    hint = _strip_annotations(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (tuple, Sequence):
        count = "" if _is_homogeneous(hint) else f" of {len(arguments)} entries"
        return f"a list{count} (each {describe_type(arguments[0])})"
    if origin is dict:
        return "a mapping of names to numbers" + (" or texts" if str in get_args(arguments[1]) else "")
    return TYPE_NAMES[hint] if hint in TYPE_NAMES else str(hint)


def _is_homogeneous(hint: Any) -> bool:
    """True for a list of any length, whose entries have one type."""
    return get_origin(hint) is Sequence or get_args(hint)[-1] is Ellipsis


def _strip_annotations(hint: Any) -> Any:
    """Strip the command line's annotations from a type."""
    return _strip_annotations(get_args(hint)[0]) if get_origin(hint) is Annotated else hint
