"""A program that uses many features of Python; `test_python_featuress.py` tests it in the sandbox, like a response."""

import asyncio
import collections
import contextlib
import dataclasses
import enum
import json
import re
import sys
import typing


class Stack(list):
    def push(self, x):
        self.append(x)

    def peek(self):
        return self[-1]


class Bag:
    def __init__(self, v=()):
        self.v = list(v)

    def add(self, x):
        self.v.append(x)
        return self

    def __contains__(self, x):
        return x in self.v

    def __len__(self):
        return len(self.v)

    def __iter__(self):
        return iter(self.v)

    def __getitem__(self, i):
        return self.v[i]

    def __call__(self, k):
        return k * 2


@dataclasses.dataclass(frozen=True, order=True)
class Vector:
    x: float
    y: float = 0

    def __add__(self, o):
        return Vector(self.x + o.x, self.y + o.y)

    def __mul__(self, k):
        return Vector(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __neg__(self):
        return Vector(-self.x, -self.y)

    def __abs__(self):
        return (self.x**2 + self.y**2) ** 0.5

    def __bool__(self):
        return bool(self.x or self.y)

    @classmethod
    def zero(cls):
        return cls(0, 0)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def low():
    return Level.LOW


def red():
    return Color.RED


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *a):
        self.log.append("out")
        return False


@contextlib.contextmanager
def tag(name):
    print(f"<{name}>")
    yield name
    print(f"</{name}>")


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1


class Sequence:
    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * i


class InsufficientFunds(Exception):
    def __init__(self, need, have):
        super().__init__(f"need {need}, have {have}")
        self.need = need


def pay(n, have):
    if n > have:
        raise InsufficientFunds(n, have)
    return have - n


def convert(x):
    try:
        return int(x)
    except ValueError as e:
        raise InsufficientFunds(1, 2) from e


async def double(x):
    await asyncio.sleep(0.001)
    return 2 * x


async def ticks(n):
    for i in range(n):
        yield i


Pair = collections.namedtuple("Pair", "left right")


class Item(typing.NamedTuple):
    name: str
    price: float

    def tax(self):
        return self.price / 10


def pair(a, b):
    return Pair(a, b)


def items():
    return [Item("a", 10.0)]


def groups(ws):
    d = collections.defaultdict(list)
    for w in ws:
        d[len(w)].append(w)
    return d


def count(ws):
    return collections.Counter(ws)


def shout(s):
    print(s.upper())


def sort_in_place(v):
    v.sort()
    return len(v)


def rotate(m):
    m[:] = [list(r) for r in zip(*m[::-1], strict=False)]


def clear(v):
    v.clear()
    return []


def apply(f, *a):
    return f(*a)


def fold(f, xs):
    it = iter(xs)
    acc = next(it)
    for x in it:
        acc = f(acc, x)
    return acc


def retry(f, n):
    for _i in range(n):
        try:
            return f()
        except ValueError:
            pass
    raise RuntimeError("gave up")


def compose(*fs):
    def run(x):
        for f in fs:
            x = f(x)
        return x

    return run


def memo(f):
    cache = {}

    def inner(x):
        if x not in cache:
            cache[x] = f(x)
        return cache[x]

    return inner


def evens(n):
    for i in range(n):
        if i % 2 == 0:
            yield i


def running():
    total = 0
    while True:
        x = yield total
        if x is None:
            return "end"
        total += x


def keys(d):
    return d.keys()


def matches(s):
    return re.match("a+$", s)


def queue(n):
    return list(range(n))


def bisect(xs, x):
    return sorted([*xs, x])


class calendar:
    year = 2020

    @staticmethod
    def leap(y):
        return y % 4 == 0


class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next


def build(xs):
    head = None
    for x in reversed(xs):
        head = ListNode(x, head)
    return head


def reverse(h):
    p = None
    while h:
        h.next, p, h = p, h, h.next
    return p


def path(root):
    return [root.val] + (path(root.left) if root.left else [])


def gen_close():
    try:
        yield 1
    finally:
        print("closed")


def bad_json(s):
    return json.loads(s)


class A:
    pass


class B(A):
    pass


def kwonly(*, xs):
    xs.append(1)


class Meta:
    @property
    def value(self):
        return 42

    @staticmethod
    def f():
        return 1


def stops():
    raise StopIteration("x")


def exits():
    raise SystemExit(2)


async def apply_async(f, *a):
    return await f(*a)


def write(text):
    sys.stdout.buffer.write(text.encode())
    sys.stdout.reconfigure(encoding="ascii")
    print("end", file=sys.stderr)
    return sys.stdout.fileno()


def chatter(n):
    for i in range(n):
        print(i, "some text that nobody reads")
    return n


def write_to(file, text):
    file.write(text)
    print("end", file=file)


def roll(generator, sides):
    return generator.randint(1, sides)


def set_value(box, value):
    box.value = value
    return box


async def total_of(values):
    return sum([value async for value in values])
