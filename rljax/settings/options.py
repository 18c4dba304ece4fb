"""Named values on the command line: `--algorithm-options clip_high=0.3 cache=8`."""

from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec


def read_options(words: list[str]) -> dict[str, int | float]:
    """Parse words of the form `name=number`.

    Raises:
        ValueError: a word does not have this form, or a name occurs twice.

    Example:
        >>> read_options(["clip_high=0.3", "cache=8"])
        {'clip_high': 0.3, 'cache': 8}
    """
    options: dict[str, int | float] = {}
    for name, value in read_words(words).items():
        number = str(value)
        try:
            options[name] = int(number) if number.lstrip("+-").isdigit() else float(number)
        except ValueError as error:
            raise ValueError(f"{f'{name}={number}'!r} must have the form name=number, such as clip_high=0.3") from error
    return options


def read_words(words: list[str]) -> dict[str, int | float | str]:
    """Parse words of the form `name=value`. Values stay text; the caller, who knows the option's type, converts them.

    Raises:
        ValueError: a word does not have this form, or a name occurs twice.

    Example:
        >>> read_words(["terms=2", "text=007"])
        {'terms': '2', 'text': '007'}
    """
    values: dict[str, int | float | str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise ValueError(f"{word!r} must have the form name=value, such as cache=8")
        if name in values:
            raise ValueError(f"{name!r} appears twice; leave one of them out")
        values[name] = text
    return values


Options = Annotated[
    dict[str, int | float],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=NUMBER",
        instance_from_str=read_options,
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda instance: [f"{name}={number}" for name, number in instance.items()],
    ),
]

Words = Annotated[
    dict[str, int | float | str],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=read_words,
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda instance: [f"{name}={value}" for name, value in instance.items()],
    ),
]
