r"""Canonical notation for mathematical answers: rewrite the many forms of LaTeX, Unicode and plain text as one form of LaTeX.

Everything here only rewrites text and changes no value. The comparisons are in `rljax.rewards.quantity` (numbers, units, bases),
`rljax.rewards.answer_form` (lists, tuples, equations), `rljax.rewards.intervals` and `rljax.rewards.algebra` (everything else).
"""

import functools
import re
from types import MappingProxyType

_DEEPEST = 20
_DASH = "[\u2010-\u2013]"  # hyphens and the en dash
_MINUS_SIGN = re.compile(
    "[\N{MINUS SIGN}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}]"
    # A dash between two numbers may mean a range, such as 3–5. After the index in `x^2` or `x_2`, it is a minus sign.
    rf"|{_DASH}(?! ?(?:\\?[$])?\d)|(?<![\d%°])(?<![\d%°] ){_DASH}|(?<=[_^]\d){_DASH}|(?<=[_^]\d ){_DASH}"
)
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"
_CHARACTERS = {
    **{0xFF01 + offset: chr(0x21 + offset) for offset in range(94)},  # full-width characters
    **dict.fromkeys(map(ord, "\u00a0\u2002\u2003\u2007\u2008\u2009\u200a\u202f\u3000\t\r\n"), " "),
    **dict.fromkeys(map(ord, "\u200b\u2060\ufeff\ufe0f"), ""),
    **{ord("，"): ", ", ord("、"): ", ", ord("；"): "; "},
    **{ord(char): command for char, command in zip("×·⋅∙÷≤⩽≥⩾≠∞∪∩∈±∓∅≈", (
        *(r"\cdot ",) * 4, r"\div ", *(r"\le ",) * 2, *(r"\ge ",) * 2, r"\ne ", r"\infty ", r"\cup ", r"\cap ", r"\in ",
        *(r"\pm ", r"\mp ", r"\emptyset ", r"\approx ")), strict=True)},
    **{ord(char): rf"\{name} " for char, name in zip("πθαβγλμφωσ", (
        "pi", "theta", "alpha", "beta", "gamma", "lambda", "mu", "phi", "omega", "sigma"), strict=True)},
    **{ord(char): rf"\frac{{{top}}}{{{bottom}}}" for char, top, bottom in zip(
        "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", "112131234115357"[:15], "233445555668888"[:15], strict=True)},
    ord("º"): "°", ord("˚"): "°", ord("⟨"): "(", ord("⟩"): ")", ord("ℝ"): r"\mathbb{R}", ord("…"): r"\ldots ",
    ord("‖"): "|", ord("⁄"): "/", ord("∕"): "/", ord("∶"): ":", ord("√"): r"\sqrt ",
}  # fmt: skip
_SUPERSCRIPT_RUN = re.compile(f"[{_SUPERSCRIPTS}]+")
_SUBSCRIPT_RUN = re.compile(f"[{_SUBSCRIPTS}]+")
_SUPERSCRIPT_TO_PLAIN = str.maketrans(_SUPERSCRIPTS, "0123456789-+n")
_SUBSCRIPT_TO_PLAIN = str.maketrans(_SUBSCRIPTS, "0123456789")

_SPACES = (*",;: >/", *"quad qquad enspace thinspace medspace thickspace hfill space".split())  # noqa: SIM905 - one line
_DROPPED = (
    *"!()[]",
    *"left right middle displaystyle textstyle scriptstyle limits nolimits mathstrut checkmark negthinspace".split(),  # noqa: SIM905
    *("underline", "underbrace", "boxed", "fbox"),
    *"tiny small normalsize large Large LARGE huge Huge bf bfseries it rm sf tt".split(),  # noqa: SIM905
    *(f"{size}{side}" for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r")),
)
_COMMANDS = MappingProxyType(
    {
        **dict.fromkeys(_SPACES, " "),
        **dict.fromkeys(_DROPPED, ""),
        **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac"),
        **dict.fromkeys(("dbinom", "tbinom"), r"\binom"),
        **dict.fromkeys(("leq", "leqslant", "leqq"), r"\le "),
        **dict.fromkeys(("geq", "geqslant", "geqq"), r"\ge "),
        **dict.fromkeys(("neq", "not="), r"\ne "),
        **dict.fromkeys(("times", "cdot", "ast", "cdotp", "bullet"), r"\cdot "),
        **dict.fromkeys(("varnothing", "O"), r"\emptyset "),
        **dict.fromkeys(("dots", "cdots", "dotsc", "dotsb", "ldots"), r"\ldots "),
        **dict.fromkeys(("lbrace",), r"\{"),
        **dict.fromkeys(("rbrace",), r"\}"),
        **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
        **dict.fromkeys(("lbrack",), "["),
        **dict.fromkeys(("rbrack",), "]"),
        **dict.fromkeys(("langle", "lparen"), "("),
        **dict.fromkeys(("rangle", "rparen"), ")"),
        **dict.fromkeys(("textdollar", "$"), r"\$"),
        **dict.fromkeys(("simeq", "sim"), r"\approx "),
        **dict.fromkeys(("Longleftrightarrow", "iff", "Leftrightarrow"), r"\iff "),
        **dict.fromkeys(("smallsetminus", "backslash"), r"\setminus "),
        **{"lt": "<", "gt": ">", "colon": ":", "%": "%", "degree": "°", "R": r"\mathbb{R}", "&": r"\text{ and }"},
        **{"euro": "€", "pounds": "£", "epsilon": r"\varepsilon ", "triangle": r"\triangle "},
    }
)
_COMMAND = re.compile(r"\\(?:([a-zA-Z]+) ?|(.))", re.DOTALL)
_TEXT_COMMANDS = r"text(?:bf|it|rm|sf|tt|up|normal|md)?|mbox|hbox|emph"
_FONT_COMMANDS = r"math(?:rm|it|bf|sf|tt|normal)|operatorname\*?|boldsymbol|bm|pmb"
_IN_TEXT = re.compile(rf"\\(?:{_TEXT_COMMANDS})\s*\{{([^{{}}]*)\}}")
_IN_FONT = re.compile(rf"\\(?:{_FONT_COMMANDS})(?![a-zA-Z])\s*(?:\{{([^{{}}]*)\}}|([a-zA-Z0-9]))")
_POWER_IN_TEXT = re.compile(rf"\\((?:{_TEXT_COMMANDS}|{_FONT_COMMANDS})\s*\{{[^{{}}^]*)\^(?:\{{(-?\d)\}}|(\d)) ?\}}")
_OLD_FONT = re.compile(r"\{\\(rm|it|bf|sf) ?([^{}]*)\}")
_INVISIBLE = re.compile(r"\\(?:[hv]?phantom|[hv]space\*?|label|tag\*?|(?:text)?color|colorbox)\s*(?:\{[^{}]*\}|.)")
_SEPARATED_DIGITS = re.compile(r"(?<=\d)(?:\{,\}|,\\! ?|\\!, ?|\\!)(?=\d{3}(?!\d))")
_SUPERSCRIPT_TEXT = re.compile(r"\^ ?(\\text\{[^{}]*\})")
_DEGREES = re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-zA-Z]))")
_FUNCTIONS = r"arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|max|min|gcd|lcm|det|deg"
_BARE_FUNCTION = re.compile(
    r"(?<![a-zA-Z\\])((?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|ln|log|exp)(?=[ ({\\_^0-9])"
)
_BARE_NAME = re.compile(r"(?<![a-zA-Z\\])(pi|sqrt|infinity|infty)(?![a-zA-Z])")
_COMBINATIONS = re.compile(r"(?:\{\})?[\^_]\{?(\d+|n)\}? ?C_\{?(\d+|[kr])\}?")
_LINE_END = re.compile(r"(?:\\\\|\\newline|\\par)\s*$")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose ([^{}]*)\}")
_GROUPED_BY_SPACE = re.compile(r"(?<![\d.,] )(?<![\d.,_^])\d{1,3}(?: \d{3})+(?! ?[\d/])")
_CONJUNCTION = re.compile(r"\\text\{[^{}]*\}|(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])")
_GROUPED_BY_COMMA = re.compile(r"(?<![\d.,_^{])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d+,)")
_REDUNDANT_SPACE = re.compile(
    r"(?<![0-9a-zA-Z.°%}]) | (?=\\\})| (?![0-9a-zA-Z\\€£])|(?<=\}) (?=\\(?!\{))|(?<=[a-z]) (?=\\(?!\$))"
)


@functools.lru_cache(maxsize=4096)  # a group's responses share their reference, and often their answer
def canonicalize(text: str) -> str:
    r"""Rewrite an answer in canonical form.

    Args:
        text: an answer in LaTeX, Unicode or plain text, with or without dollar signs.

    Returns:
        LaTeX without sizes, fonts, redundant spaces and math delimiters; numbers without thousands separators where
        these are unambiguous; `\$` for a dollar amount, `°` for degrees, `\text{...}` for words in any text command. The text is
        returned unchanged if brackets or arguments are nested more than 20 levels deep, or if the braces do not balance.

    Example:
        >>> canonicalize(r"$\left( \dfrac{1}{2},\, 3 \right)$"), canonicalize(r"12{,}345\text{ cm}^{2}"), canonicalize("６０ º")
        ('(\\frac{1}{2},3)', '12345\\text{cm}^{2}', '60°')
        >>> canonicalize("2√3 ≤ x²"), canonicalize(r"\mathrm{e}^{x} \text{ or } \operatorname{ln} 2")
        ('2\\sqrt{3}\\le x^{2}', 'e^{x}\\text{or}\\ln 2')
    """
    if not 0 <= nesting_depth(text) <= _DEEPEST:
        return text
    original, text = text, _LINE_END.sub("", _strip_marks(write_minus_signs(text)))
    text = re.sub(r"√ ?(\d+)", r"\\sqrt{\1}", text)
    text = _SUPERSCRIPT_RUN.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPT_TO_PLAIN)}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda found: f"_{{{found[0].translate(_SUBSCRIPT_TO_PLAIN)}}}", text)
    text = _strip_delimiters(text.translate(_CHARACTERS)).replace("**", "^").replace("*", r"\cdot ").replace("~", " ")
    text = text.replace("...", r"\ldots ").replace("<=", r"\le ").replace(">=", r"\ge ").replace("==", "=")
    text = _DEGREES.sub("°", _SEPARATED_DIGITS.sub("", _INVISIBLE.sub(" ", text)))
    text = _OLD_FONT.sub(r"\\math\1{\2}", text)
    text = _POWER_IN_TEXT.sub(lambda found: rf"\{found[1]}}}^{{{found[2] or found[3]}}}", text)
    text = _IN_FONT.sub(_strip_font, text)
    text = _IN_TEXT.sub(lambda found: rf"\text{{{' '.join(found[1].replace('~', ' ').split())}}} ", text)
    text = _COMMAND.sub(_rewrite_command, _SUPERSCRIPT_TEXT.sub(r"^{\1}", text.replace("{:}", ":")))
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", _COMBINATIONS.sub(r"\\binom{\1}{\2}", text))
    text = _BARE_FUNCTION.sub(r"\\\1", _BARE_NAME.sub(lambda found: "\\" + found[1].replace("inity", "ty") + " ", text))
    text = _GROUPED_BY_SPACE.sub(lambda found: found[0].replace(" ", ""), " ".join(text.split()))
    text = _CONJUNCTION.sub(lambda found: rf"\text{{{found[1]}}}" if found[1] else found[0], text)
    text = _GROUPED_BY_COMMA.sub(_join_outside_brackets, text)
    try:
        text = _Writer(text).write_until("")
    except _TooDeepError:
        return original
    return _REDUNDANT_SPACE.sub("", text).strip().rstrip(".,;:").rstrip()


def write_minus_signs(text: str) -> str:
    """Write every Unicode minus sign as `-`, and also hyphens and en dashes that are not between two numbers.

    Example:
        >>> write_minus_signs("\N{MINUS SIGN}5, \N{EN DASH}5, 3\N{MINUS SIGN}5"), write_minus_signs("3\N{EN DASH}5") == "3-5"
        ('-5, -5, 3-5', False)
    """
    return _MINUS_SIGN.sub("-", text)


def _strip_marks(text: str) -> str:
    """Remove what Markdown or prose puts around a complete answer: asterisks, backticks and double quotes."""
    bare = text.strip().strip("*")
    for opening, closing in ("``", '""', "“”"):
        inner = bare[1:-1]
        if inner and (bare[0], bare[-1]) == (opening, closing) and not (opening in inner or closing in inner):
            bare = inner.strip()
    return bare


def _strip_delimiters(text: str) -> str:
    """Remove the dollar signs that delimit mathematics; write those that denote the currency as `\\$`."""
    bare = text.replace(r"\$", "\0")
    if bare.count("$") % 2:
        bare = re.sub(r"\$(?= ?\.?\d)", "\0", bare)
    return bare.replace("$", "").replace("\0", r"\$ ").replace(r"\$ \$ ", r"\$ ")


def _strip_font(found: re.Match) -> str:
    content = found[1] if found[2] is None else found[2]
    word = content.strip()
    if len(word) == 1 or word.isdigit() or word.startswith("\\"):
        return word
    return rf"\{word} " if re.fullmatch(_FUNCTIONS, content) else rf"\text{{{content}}}"


def _join_outside_brackets(found: re.Match) -> str:
    """Join `1,200` to one number, except inside brackets, where it is two numbers. Commas before a space are never matched."""
    before = found.string[: found.start()]
    inside = any(before.count(left) > before.count(right) for left, right in ("()", "[]", (r"\{", r"\}")))
    return found[0] if inside else found[0].replace(",", "")


def _rewrite_command(found: re.Match) -> str:
    name = found[1] if found[2] is None else found[2]
    if name in _COMMANDS:
        return _COMMANDS[name]
    if found[1] is None:
        return found[0]
    return rf"\{name}" if found.end() < len(found.string) and found.string[found.end()] in "{[_^" else rf"\{name} "


_ARGUMENTS = MappingProxyType({r"\frac": 2, r"\binom": 2, r"\sqrt": 1, "^": 1, "_": 1})
_TOKEN = re.compile(r"\\[a-zA-Z]+ ?|\\.|\d+(?:\.\d+)?|.", re.DOTALL)


class _TooDeepError(ValueError):
    """An answer is nested too deeply to be written in canonical form."""


class _Writer:
    r"""Puts arguments of fractions, roots, powers and indices into braces: `\frac12` becomes `\frac{1}{2}`, `2^-1` `2^{-1}`."""

    def __init__(self, text: str):
        self.tokens = _TOKEN.findall(text)
        self.tokens.reverse()  # so that the next token is at the end of the list
        self.depth = 0

    def write_until(self, closing: str) -> str:
        """Write the tokens up to a closing bracket, which is dropped, or up to the end of the text."""
        written = []
        while self.tokens:
            if self.tokens[-1] == closing:
                self.tokens.pop()
                break
            written.append(self.write_item())
        return "".join(written)

    def write_item(self) -> str:
        """Write a token with its arguments.

        Raises:
            _TooDeepError: arguments are nested too deeply, as in `^^^...`.
        """
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _TooDeepError
        written = self.write_token(self.tokens.pop())
        self.depth -= 1
        return written

    def write_token(self, token: str) -> str:
        name = token.strip()
        if name == "{":
            return f"{{{self.write_until('}')}}}"
        if name not in _ARGUMENTS:
            return token
        option = ""
        if name == r"\sqrt" and self.tokens and self.tokens[-1] == "[":
            self.tokens.pop()
            option = f"[{self.write_until(']')}]"
        return name + option + "".join(f"{{{self.write_argument(name)}}}" for _ in range(_ARGUMENTS[name]))

    def write_argument(self, command: str) -> str:
        signs = ""
        while self.tokens and (not self.tokens[-1].strip() or (self.tokens[-1] in "+-" and command == "^")):
            signs += self.tokens.pop().strip()  # `2^-1` without braces is not valid LaTeX, but common
        return signs + self.write_unsigned(command) if self.tokens else signs

    def write_unsigned(self, command: str) -> str:
        token = self.tokens[-1]
        if token == "{" or (token == "(" and command in ("^", r"\sqrt")):
            self.tokens.pop()
            return self.write_until("}" if token == "{" else ")")
        if token[0].isdigit() and command not in ("^", "_"):
            self.tokens[-1:] = [token[1:], token[0]] if len(token) > 1 else [token]
        return self.write_item().strip()


def nesting_depth(text: str) -> int:
    r"""Return the depth to which a text's brackets are nested; -1 if its braces do not balance. `\{` is a bracket, not a brace.

    Example:
        >>> nesting_depth("((1+2)^{3})"), nesting_depth(r"\{1\}"), nesting_depth("{1"), nesting_depth("}{")
        (2, 1, -1, -1)
    """
    depth = deepest = braces = 0
    for token in re.findall(r"\\.|[][(){}]", text):
        if token in ("{", "}"):
            braces += 1 if token == "{" else -1
        if braces < 0:
            return -1
        depth += (token in ("{", "(", "[", r"\{")) - (token in ("}", ")", "]", r"\}"))
        deepest = max(deepest, depth)
    return deepest if braces == 0 else -1
