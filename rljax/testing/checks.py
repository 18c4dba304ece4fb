"""Test a function against the papers: `check_loss` and `check_gae` raise an error at the first difference; `conform` reports it.

The function receives its arguments by the names of its parameters, as float64 arrays of NumPy, JAX or PyTorch.
"""

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rljax.errors import InputError
from rljax.importing import import_optional
from rljax.testing.cases import Case, GAECase, gae_cases, gap_cases, larger_case, loss_cases, triple_cases
from rljax.testing.example import Example
from rljax.testing.invariants import BrokenInvariant, Evaluate, broken_invariant
from rljax.testing.loss_conventions import (
    ALTERNATIVES,
    LIKE,
    MAX_CHANGES,
    NUMERIC_FIELDS,
    SLOTS,
    Convention,
    difference,
    loss_and_gradient,
    neighbors,
)

Arrays = Literal["numpy", "jax", "torch"]
Result = tuple[float, np.ndarray]
"""A loss and its gradient with respect to `logp`."""
INPUTS = ("logp", "old_logp", "ref_logp", "rewards", "mask")
"""Arrays that a loss may have as parameters: rewards `[P, G]`, the others `[P, G, T]`."""
RELATIVE, ABSOLUTE = 1e-5, 1e-7
"""Relative and absolute tolerance of comparisons."""


class Report(NamedTuple):
    """The result of comparing a function with an algorithm."""

    equals: Convention | None
    """The convention that the function follows in every case; None if it follows no known convention."""
    slot: str | None
    """The slot in which the function differs from the algorithm; None if it does not differ."""
    text: str
    """The result in a sentence, with the smallest counterexample if there is one."""


def evaluator(function: Callable[..., Any], *, arrays: Arrays, options: dict[str, Any]) -> Evaluate:
    """Wrap a loss as a function that maps a rollout to the loss and its gradient with respect to `logp`.

    JAX (which also compiles the loss) and PyTorch compute the gradient; for NumPy, central differences approximate it.
    """
    compiled = None

    def evaluate(example: Example) -> Result:
        nonlocal compiled
        offered = {name: getattr(example, name) for name in INPUTS}
        inputs = _select_arguments(function, {**offered, **options}, known=(*INPUTS, *asdict(Convention())))
        if "logp" not in inputs:
            raise InputError(
                "The loss has no parameter 'logp', the log-probabilities that it is differentiated with respect to; rename the "
                "parameter that contains them to logp."
            )
        if arrays == "numpy":
            return _numpy_gradient(function, inputs)
        if arrays == "torch":
            return _torch_gradient(function, inputs)
        constants = {name: x for name, x in inputs.items() if not isinstance(x, np.ndarray)}
        compiled = _compile(function, constants) if compiled is None else compiled
        return _jax_gradient(compiled, {name: x for name, x in inputs.items() if name not in constants})

    return evaluate


def _select_arguments(
    function: Callable[..., Any], offered: dict[str, Any], *, known: tuple[str, ...], constants: bool = False
) -> dict[str, Any]:
    """Select a function's arguments: its arrays, and its constants without defaults (if `constants`, also those with defaults)."""
    taken: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in offered and (constants or isinstance(offered[name], np.ndarray) or parameter.default is parameter.empty):
            taken[name] = offered[name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            raise InputError(
                f"The function has an unknown parameter {name!r}; choose from {', '.join(known)}. Rename it, give it a default, or "
                "compute it in the function, such as advantages from rewards."
            )
    return taken


def _number_of(value: Any) -> Any:
    """Return the number that a loss returns, either alone or as the first entry of a tuple.

    Raises:
        InputError: the loss returns something else.
    """
    value = value[0] if isinstance(value, tuple) else value
    is_number = hasattr(value, "__float__")
    if not is_number or np.prod(np.shape(value)) != 1:
        kind = f"an array of shape {list(np.shape(value))}" if is_number else f"a {type(value).__name__}"
        raise InputError(f"The loss returns {kind}; return one number to be minimized, or a tuple that begins with it.")
    return value


def _numpy_gradient(function: Callable[..., Any], inputs: dict[str, Any], step: float = 1e-6) -> Result:
    logp, mask = inputs["logp"], inputs["mask"] if "mask" in inputs else np.ones(inputs["logp"].shape, bool)
    gradient = np.zeros(logp.shape)
    with np.errstate(all="ignore"):
        for index in zip(*np.nonzero(mask), strict=True):
            around = []
            for sign in (1, -1):
                moved = logp.copy()
                moved[index] += sign * step
                around.append(float(_number_of(function(**_copy_arrays({**inputs, "logp": moved})))))
            gradient[index] = (around[0] - around[1]) / (2 * step)
        return float(_number_of(function(**_copy_arrays(inputs)))), gradient


def _copy_arrays(inputs: dict[str, Any]) -> dict[str, Any]:
    """Copy the arrays, because a NumPy function may change its arguments."""
    return {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in inputs.items()}


def _compile(function: Callable[..., Any], constants: dict[str, Any]) -> Callable[..., Any]:
    import jax  # noqa: PLC0415  NumPy functions do not need JAX

    def scalar(logp: Any, others: dict[str, Any]) -> Any:
        return _number_of(function(logp=logp, **others, **constants))

    return jax.jit(jax.value_and_grad(scalar))


def _jax_gradient(compiled: Callable[..., Any], inputs: dict[str, Any]) -> Result:
    import jax  # noqa: PLC0415

    with jax.enable_x64(True):
        arrays = {name: jax.numpy.asarray(x) for name, x in inputs.items()}
        value, gradient = compiled(arrays.pop("logp"), arrays)
        return float(value), np.asarray(gradient, np.float64)


def _torch_gradient(function: Callable[..., Any], inputs: dict[str, Any]) -> Result:
    torch = import_optional("torch", "torch")

    arrays = {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in inputs.items()}
    logp = arrays["logp"].requires_grad_(True)
    value = _number_of(function(**arrays))
    (gradient,) = torch.autograd.grad(value, logp, allow_unused=True) if value.requires_grad else (None,)
    return float(value.detach()), np.zeros(logp.shape) if gradient is None else gradient.numpy()


def expected_loss(example: Example, convention: Convention) -> Result:
    """Compute the loss of a convention and its gradient, for a rollout whose masks may have gaps."""
    value, gradient = loss_and_gradient(example.compact(), convention)
    return value, example.spread(gradient)


def _near(ours: Any, theirs: Any, rtol: float) -> bool:
    return bool(np.allclose(ours, theirs, rtol=rtol, atol=rtol / 100, equal_nan=False))


def _same_gradient(found: Result, expected: Result, rtol: float) -> bool:
    scale = max(float(np.abs(expected[1]).max()), ABSOLUTE)
    return _near(np.asarray(found[1]) / scale, expected[1] / scale, rtol)


def _close(found: Result, expected: Result, convention: Convention, rtol: float) -> bool:
    """Return True if loss and gradient agree. For a surrogate other than `clipped`, only the gradients are compared."""
    has_value = convention.surrogate == "clipped"
    return (not has_value or _near(found[0], expected[0], rtol)) and _same_gradient(found, expected, rtol)


def convention_of(like: str, options: dict[str, Any]) -> Convention:
    """Return the convention of an algorithm, with some of its fields replaced.

    Raises:
        InputError: the algorithm, a field or a field's value is unknown.
    """
    if like not in LIKE:
        raise InputError(f"like is {like!r}; choose one of {', '.join(LIKE)}.")
    unknown = [name for name in options if name not in asdict(Convention())]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not an option; choose from {', '.join(asdict(Convention()))}.")
    for name, value in options.items():
        choices = ALTERNATIVES.get(name, ())
        if value in choices or (isinstance(value, int | float) and (name in NUMERIC_FIELDS or not choices)):
            continue
        some = "a number" if name in NUMERIC_FIELDS or not choices else f"one of {', '.join(map(str, choices))}"
        raise InputError(f"{name} is {value!r}; choose {some}.")
    return replace(LIKE[like], **options)


def conform(
    function: Callable[..., Any], *, like: str, arrays: Arrays = "jax", rtol: float = RELATIVE, **options: Any
) -> Report:
    """Compare a loss with an algorithm, and find the convention that it equals.

    Args:
        function: a function of `logp` and any of `old_logp`, `ref_logp`, `rewards` and `mask`. It returns a number to be minimized,
            or a tuple that begins with this number. Parameters without a default may also be fields of `Convention`, such as `low`.
        like: name of the algorithm, one of `LIKE`.
        arrays: the library whose arrays the function takes.
        rtol: relative tolerance; use 1e-4 for a function that computes in float32.
        options: values of `Convention` fields, which replace those of `like`.

    Returns:
        The report.

    Raises:
        InputError: an argument is unknown, or the function does not return a number or fails for every rollout.
    """
    base = convention_of(like, options)
    evaluate = evaluator(function, arrays=arrays, options=asdict(base))
    cases = _every_case()
    found, errors = _call_on_cases(evaluate, [case.example for case in cases])
    if not found:
        raise _describe_failure(function, errors[0], _LOSS_SHAPES) from errors[0]
    raised = _first_error(errors, [case.example for case in cases])
    right = [_close(result, _expected(base, case_index), base, rtol) for case_index, result in found.items()]
    if all(right):
        broken = raised or _find_broken(evaluate, base, rtol)
        if broken is None:
            return Report(base, None, f"equals {describe_convention(like, base)}\n  {base.in_words()}")
        return Report(None, broken.name, f"differs from {like} in: {broken.name}. {broken.text}")
    first = list(found)[right.index(False)]
    shown = counterexample(cases[first], found[first], _expected(base, first))
    convention = _find_convention(found, base, first, rtol)
    if convention is not None:
        broken = raised or _find_broken(evaluate, convention, rtol)
        shown += "" if broken is None else f"\n  It also depends on: {broken.name}. {broken.text}"
        slot = next(slot for slot, names in SLOTS.items() if set(names) & set(difference(convention, base)))
        equal = f"It equals {describe_convention(like, convention)}\n  {convention.in_words()}"
        return Report(None if raised else convention, slot, f"differs from {like} in: {slot}. {equal}\n{shown}")
    slot, why = _name_unexplained(found, base, cases[first].slot, rtol)
    shown += "" if raised is None else f"\n  It also raises an {raised.name}. {raised.text}"
    unknown = f"It equals no known convention that differs from {like} in at most {MAX_CHANGES} fields"
    return Report(
        None,
        slot,
        f"differs from {like} in: {slot}. {unknown}{why}\n{shown}",
    )


def _call_on_cases(call: Callable[[Any], Any], cases: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Exception]]:
    """Map the index of each case to the function's result, and the index of each failed case to the error.

    Raises:
        InputError: the function has an unknown parameter.
    """
    found, errors = {}, {}
    for case_index, case in enumerate(cases):
        try:
            found[case_index] = call(case)
        except InputError:
            raise
        except Exception as error:
            errors[case_index] = error
    return found, errors


def _first_error(errors: dict[int, Exception], cases: Sequence[Example] | Sequence[GAECase]) -> BrokenInvariant | None:
    """Describe the first exception and the case for which it was raised; None if there is no exception."""
    first = next(iter(errors), None)
    if first is None:
        return None
    return BrokenInvariant("exception", f"{_error_line(errors[first])}\n{_describe_shape(cases[first])}")


_LOSS_SHAPES = "rewards [prompts, responses] and the other arrays [prompts, responses, tokens]"
_GAE_SHAPES = "arrays [rows, tokens], and bootstrap [rows]"


def _describe_failure(function: Callable[..., Any], error: Exception, shapes: str) -> InputError:
    """Describe an error that a function raises for every rollout, with the line of the function's file at which it occurs."""
    code = getattr(inspect.unwrap(function), "__code__", None)  # a callable object has no __code__
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename
    ]
    where = f", at {Path(code.co_filename).name}:{lines[-1]}" if code and lines else ""
    remedy = f"It gets {shapes}."
    if type(error).__module__.startswith("jax"):
        remedy += (
            " JAX traces it: a function that computes with NumPy, or whose branches depend on values, needs arrays='numpy'."
        )
    return InputError(f"The function fails for every rollout{where}: {_error_line(error).rstrip('.: ')}. {remedy}")


def _error_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _describe_shape(case: Example | GAECase) -> str:
    """Describe the shape and the rewards of a case."""
    if isinstance(case, GAECase):
        return f"  mask {case.mask.tolist()}, rewards {case.rewards.tolist()}"
    gaps = not np.array_equal(case.mask, case.compact().mask)
    mask = f"mask {case.mask.astype(int).tolist()}" if gaps else f"lengths {case.lengths.tolist()}"
    return f"  {case.prompts} prompts x {case.group} responses, {mask}\n  rewards {case.rewards.tolist()}"


def _find_broken(evaluate: Evaluate, convention: Convention, rtol: float) -> BrokenInvariant | None:
    """Find the first small rollout with gaps for which a loss differs from its convention, or else the first broken invariant."""
    cases = gap_cases()
    found, errors = _call_on_cases(evaluate, [case.example for case in cases])
    for case_index, result in found.items():
        expected = expected_loss(cases[case_index].example, convention)
        if not _close(result, expected, convention, rtol):
            return BrokenInvariant(
                cases[case_index].slot, "The smallest example:\n" + counterexample(cases[case_index], result, expected)
            )
    if errors:
        return _first_error(errors, [case.example for case in cases])
    try:
        return broken_invariant(evaluate, larger_case().example, rtol=rtol / 10)
    except InputError:
        raise
    except Exception as error:
        return BrokenInvariant("exception", f"With 2 prompts x 4 responses rearranged, it raises {_error_line(error)}")


@lru_cache(maxsize=1)
def _every_case() -> tuple[Case, ...]:
    return (*loss_cases(), *triple_cases(), larger_case())


@lru_cache(maxsize=256)
def _compact(case_index: int) -> Example:
    return _every_case()[case_index].example.compact()


@lru_cache(maxsize=2**15)
def _expected(convention: Convention, case_index: int) -> Result:
    """Compute the loss and the gradient of a convention in the case with this index."""
    value, gradient = loss_and_gradient(_compact(case_index), convention)
    return value, _every_case()[case_index].example.spread(gradient)


@lru_cache(maxsize=32)
def _gradients(base: Convention, case_index: int) -> np.ndarray:
    """Compute the gradients of all neighbors of a convention in one case, `[N, ...]`."""
    return np.stack([_expected(convention, case_index)[1] for convention in neighbors(base)])


def _find_convention(found: dict[int, Result], base: Convention, first: int, rtol: float) -> Convention | None:
    """Find the convention nearest to the base that fits every case; `first` is the index of a case that the base does not fit."""
    gradients = _gradients(base, first)
    away = np.abs(found[first][1] - gradients)
    fits = (away <= 2 * rtol * np.abs(gradients).max((1, 2, 3), keepdims=True) + ABSOLUTE).all((1, 2, 3))
    for index in np.flatnonzero(fits):
        convention = neighbors(base)[index]
        if all(_close(result, _expected(convention, case_index), convention, rtol) for case_index, result in found.items()):
            return convention
    return None


def _name_unexplained(found: dict[int, Result], base: Convention, slot: str, rtol: float) -> tuple[str, str]:
    """Return the slot of a difference that no convention explains, and text that completes the report's sentence about it."""
    pairs = [(ours, _expected(base, case_index)) for case_index, ours in found.items()]
    wrong = [pair for pair in pairs if not _same_gradient(*pair, rtol)]
    if not wrong:
        return "value", ". Its gradient is right in every case; its value alone differs."
    # At ratio 1, the loss is 0 if the advantages sum to 0; its value then proves nothing.
    has_values = any(abs(right[0]) > ABSOLUTE for _, right in wrong)
    if base.surrogate == "clipped" and has_values and all(_near(ours[0], right[0], rtol) for ours, right in pairs):
        return "gradient", ". Its value is right in every case: a stop_gradient is missing, or there is one too many."
    return slot, _find_hint(found, base, rtol)


def _find_hint(found: dict[int, Result], base: Convention, rtol: float) -> str:
    """Return text that completes the report's sentence with a likely cause of a difference that no convention explains."""
    pairs = [(ours, _expected(base, case_index)) for case_index, ours in found.items()]
    if all(_close((-ours[0], -ours[1]), right, base, rtol) for ours, right in pairs):
        return ". It is the negative of the loss in every case: return a number to be minimized, not an objective."
    if not any(ours[1].any() for ours, _ in pairs):
        return ". Its gradient is 0 in every case: nothing in it depends on logp, or there is one stop_gradient too many."
    for wider in (1e-4, 1e-3, 1e-2):
        if wider > rtol and all(_close(*pair, base, wider) for pair in pairs):
            return f". It agrees in every case within rtol={wider:g}, which is enough if it computes in a lower precision."
    for case_index, (value, gradient) in found.items():
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            rewards = _every_case()[case_index].example.rewards.tolist()
            return f". It is also not finite for some rollouts, such as one with rewards {rewards}."
    return "."


def describe_convention(like: str, convention: Convention) -> str:
    """Return an algorithm's name and the fields in which a convention differs from the convention of its paper."""
    changed = difference(convention, LIKE[like])
    return like + (f" with {', '.join(f'{name}={value}' for name, value in changed.items())}" if changed else "")


def counterexample(case: Case, found: Result, expected: Result) -> str:
    """Return text with the few numbers that show a difference, token by token."""
    example = case.example
    lines = [_describe_shape(example), f"  loss: {_format_pair(expected[0], found[0])}"]
    wrong = np.abs(np.asarray(found[1]) - expected[1]) > ABSOLUTE + RELATIVE * np.abs(expected[1])
    wrong |= ~np.isfinite(found[1])
    for p, i, t in np.argwhere(wrong)[:4]:
        ratio = np.exp(example.logp[p, i, t] - example.old_logp[p, i, t]) if example.mask[p, i, t] else np.nan
        numbers = _format_pair(expected[1][p, i, t], found[1][p, i, t])
        lines.append(f"  gradient by logp[{p}, {i}, {t}] (ratio {ratio:.4g}): {numbers}")
    return "\n".join(lines)


def _format_pair(expected: Any, found: Any) -> str:
    return f"expected {expected + 0.0:.6g}, found {found + 0.0:.6g}"  # adding 0 turns -0 into 0


def check_loss(function: Callable[..., Any], *, like: str, arrays: Arrays = "jax", **options: Any) -> None:
    """Assert that a loss equals an algorithm's loss, in value and gradient; see `conform` for the arguments.

    Raises:
        AssertionError: the loss differs; the message names the slot and shows one small counterexample.
        InputError: an argument is unknown.

    Example:
        >>> import numpy as np
        >>> def loss(logp, old_logp, rewards, mask):
        ...     advantage = rewards - rewards.mean(-1, keepdims=True)
        ...     ratio = np.exp(np.where(mask, logp - old_logp, 0.0))
        ...     surrogate = np.minimum(ratio * advantage[..., None], np.clip(ratio, 0.8, 1.2) * advantage[..., None])
        ...     return -(surrogate * mask).sum(-1).mean() / 3
        >>> check_loss(loss, like="dr_grpo", arrays="numpy")
    """
    report = conform(function, like=like, arrays=arrays, **options)  # the options may contain rtol
    if report.slot is not None:
        raise AssertionError(report.text)


def expected_gae(case: GAECase) -> np.ndarray:
    """Compute Eq. 16 of GAE (arXiv:1506.02438), from the last token to the first."""
    out = np.zeros(case.mask.shape)
    for row, is_token in enumerate(case.mask):
        advantage, following = 0.0, float(case.bootstrap[row])
        for t in reversed(np.flatnonzero(is_token)):
            error = case.rewards[row, t] + case.gamma * following - case.values[row, t]
            advantage = error + case.gamma * case.lambda_ * advantage
            out[row, t], following = advantage, float(case.values[row, t])
    return out


class GAEConvention(NamedTuple):
    """Whether and how the advantages of GAE are normalized."""

    ddof: Literal[0, 1] | None = None
    """Delta degrees of freedom of the standard deviation, if advantages are normalized over the batch's tokens; None without
    normalization, as in the paper."""

    def apply(self, advantage: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Normalize plain GAE advantages according to this convention."""
        if self.ddof is None:
            return advantage
        tokens = advantage[mask]
        deviation = np.sqrt(((tokens - tokens.mean()) ** 2).sum() / (len(tokens) - self.ddof))
        return (advantage - tokens.mean()) / (deviation + 1e-8)

    def in_words(self) -> str:
        """Describe the convention in words."""
        return "GAE" if self.ddof is None else f"GAE, normalized over the tokens of the batch (ddof {self.ddof})"


def conform_gae(
    function: Callable[..., Any], *, arrays: Arrays = "jax", rtol: float = RELATIVE
) -> tuple[GAEConvention | None, str]:
    """Compare a function with GAE (arXiv:1506.02438), plain or normalized over the tokens; see `check_gae`.

    Returns:
        The convention that the function equals, or None; and a sentence, with the smallest counterexample unless it is plain GAE.

    Raises:
        InputError: the function has an unknown parameter, or fails for every case.
    """
    takes_bootstrap = "bootstrap" in inspect.signature(function).parameters
    cases, cases_with_gaps = (
        [case for case in gae_cases(gaps=gaps) if takes_bootstrap or not case.bootstrap.any()] for gaps in (False, True)
    )

    def call(case: GAECase) -> Any:
        return _call(function, _gae_inputs(function, case), arrays)

    found, errors = _call_on_cases(call, cases)
    if not found:
        raise _describe_failure(function, errors[0], _GAE_SHAPES) from errors[0]
    raised = _first_error(errors, cases)
    different: dict[GAEConvention, str] = {}
    for convention in (GAEConvention(), GAEConvention(0), GAEConvention(1)):
        first = _first_gae_difference(cases, found, convention, rtol)
        if first is None and raised is None:
            gaps, errors = _call_on_cases(call, cases_with_gaps)
            raised = _first_error(errors, cases_with_gaps)
            text = _first_gae_difference(cases_with_gaps, gaps, convention, rtol)
            if text is not None:
                return None, f"{text}\n  Without gaps it equals {convention.in_words()}."
            if raised is None and convention == GAEConvention():
                return convention, "equals GAE"
            if raised is None:
                _, *numbers = different[GAEConvention()].splitlines()
                title = f"differs from GAE in: normalization. It equals {convention.in_words()}"
                return convention, "\n".join([title, *numbers])
        if first is not None:
            different[convention] = first
    if raised is None:
        return None, different[GAEConvention()]
    if GAEConvention() in different:
        return None, f"{different[GAEConvention()]}\n  It also raises an exception. {raised.text}"
    return None, f"differs from GAE in: {raised.name}. {raised.text}"


def _first_gae_difference(
    cases: Sequence[GAECase], found: dict[int, Any], convention: GAEConvention, rtol: float
) -> str | None:
    wrong = (_gae_difference(cases[case_index], result, convention, rtol) for case_index, result in found.items())
    return next((text for text in wrong if text is not None), None)


def check_gae(function: Callable[..., Any], *, arrays: Arrays = "jax") -> None:
    """Assert that a function computes GAE.

    Args:
        function: a function of `rewards`, `values` and `mask` `[R, T]`, `gamma`, `lambda_` or `lam`, and optionally `bootstrap`
            `[R]`. It returns the advantages `[R, T]`, or a tuple of advantages and returns; only those in the mask are compared.
        arrays: the library whose arrays the function takes.

    Raises:
        AssertionError: the results differ; the message names the part of the recursion and shows one small counterexample.
        InputError: the function has an unknown parameter.
    """
    convention, text = conform_gae(function, arrays=arrays)
    if convention != GAEConvention():
        raise AssertionError(text)


def _gae_inputs(function: Callable[..., Any], case: GAECase) -> dict[str, Any]:
    offered = {name: getattr(case, name) for name in ("rewards", "values", "mask", "gamma", "lambda_", "bootstrap")}
    offered["lam"] = case.lambda_
    return _select_arguments(function, offered, known=tuple(offered), constants=True)


def _gae_difference(case: GAECase, found: Any, convention: GAEConvention, rtol: float) -> str | None:
    advantage = expected_gae(case)
    ours, returns = found if isinstance(found, tuple) else (found, None)
    # Implementations add the eps of a normalization in different places, such as under the root or next to it.
    tolerance = (rtol, rtol / 100) if convention.ddof is None else (1e-4, 1e-4)
    text = _describe_difference(case, "advantage", ours, convention.apply(advantage, case.mask), *tolerance)
    if text is not None or returns is None:
        return text
    return _describe_difference(case, "return", returns, advantage + case.values, rtol, rtol / 100)


def _call(function: Callable[..., Any], inputs: dict[str, Any], arrays: Arrays) -> Any:
    if arrays == "torch":
        torch = import_optional("torch", "torch")
        return function(**{name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in inputs.items()})
    if arrays == "numpy":
        with np.errstate(all="ignore"):
            return function(**_copy_arrays(inputs))
    import jax  # noqa: PLC0415

    with jax.enable_x64(True):
        return function(**{name: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in inputs.items()})


def _describe_difference(
    case: GAECase, name: str, found: Any, expected: np.ndarray, rtol: float, atol: float
) -> str | None:
    found = np.asarray(found, float)
    if found.shape != expected.shape:
        return f"differs from GAE: the {name} must have shape {list(expected.shape)}, got {list(found.shape)}"
    wrong = case.mask & ~np.isclose(found, expected, rtol=rtol, atol=atol)
    for row, t in np.argwhere(wrong)[:1]:
        shown = row if len(case.mask) == 1 else slice(None)
        where = f"token {t}" if len(case.mask) == 1 else f"row {row}, token {t}"
        mask, rewards, values, bootstrap = (
            x[shown].tolist() for x in (case.mask, case.rewards, case.values, case.bootstrap)
        )
        lines = [
            f"differs from GAE in: {case.slot}",
            f"  gamma {case.gamma}, lambda {case.lambda_}, mask {mask}",
            f"  rewards {rewards}, values {values}, bootstrap {bootstrap}",
            f"  {name} at {where}: {_format_pair(expected[row, t], found[row, t])}",
        ]
        return "\n".join(lines)
    return None
