"""A right program that returns, raises, prints and changes many kinds of values: all of its many tests pass."""

from pathlib import Path

import pytest

from rljax.rewards.sandbox import Limits, Program, judge

PROGRAM = Path(__file__).with_name("python_features.py").read_text(encoding="utf-8")

TESTS = r"""
s = Stack()
s.push(3)
s.append(4)
assert s == [3, 4] and s.peek() == 4 and len(s) == 2 and isinstance(s, Stack)
assert isinstance(s, list)

s = Stack([1])
s[0] = 5
assert s.pop() == 5
assert not s

b = Bag()
b.add(3).add(4)
assert 3 in b and 5 not in b and len(b) == 2 and list(b) == [3,4] and b[0] == 3
assert b[-1] == 4 and b[:1] == [3]

assert 3 in Bag([1, 3])

assert not Bag()

assert Bag([1])(4) == 8

assert callable(Bag()) and not callable(Vector(1,2))

assert Vector(1,2) + Vector(3,4) == Vector(4,6)

assert Vector(1,2) * 2 == Vector(2,4) == 2 * Vector(1,2)

assert -Vector(1,2) == Vector(-1,-2) and abs(Vector(3,4)) == 5.0

assert Vector(1,2) != Vector(1,3) and Vector(1,2) < Vector(1,3)

assert repr(Vector(1,2)) == 'Vector(x=1, y=2)' == str(Vector(1,2))

assert f'{Vector(1, 2)}' == 'Vector(x=1, y=2)'

assert len({Vector(1,2), Vector(1,2), Vector(2,1)}) == 2

assert sorted([Vector(2,1), Vector(1,2)])[0].x == 1

assert not Vector.zero() and Vector(1,1)

assert max([Vector(1), Vector(2)], key=lambda v: v.x) == Vector(2)

import copy
v = Vector(1,2)
assert copy.deepcopy(v) == v and copy.copy(v) == v

assert isinstance(Vector(1,2), Vector) and not isinstance(Vector(1), Bag)
assert not isinstance(3, Vector)

assert type(Vector(1)) == Vector and type(Vector(1)) is Vector
assert Vector(1).__class__.__name__ == 'Vector'

import dataclasses
try:
    Vector(1).x = 3
except dataclasses.FrozenInstanceError:
    pass
else:
    assert False

assert red() == Color.RED and red() is Color.RED and Color(2) == Color.BLUE
assert Color['BLUE'].value == 2 and [c.name for c in Color] == ['RED', 'BLUE']
assert Color.RED in Color and {Color.RED: 1}[red()] == 1

assert red() in (Color.RED, Color.BLUE) and red() != Color.BLUE

assert low() == 1 and low() == Level.LOW and low().name == 'LOW'
assert Level.HIGH > Level.LOW and low() < 2

log = []
with Manager(log) as m:
    log2 = m.log
assert log2 == ['in'] and m.log == ['in', 'out']

import io, contextlib
out = io.StringIO()
with contextlib.redirect_stdout(out):
    with tag('b') as name:
        print(name)
assert out.getvalue() == '<b>\nb\n</b>\n'

c = Countdown(2)
assert next(c) == 2 and next(c) == 1 and next(c, None) is None

assert list(Countdown(3)) == [3,2,1] and sum(Countdown(3)) == 6

c = Countdown(0)
try:
    next(c)
    assert False
except StopIteration:
    pass

assert list(Sequence()) == [0, 1, 4] and 4 in Sequence()
assert [x for x in Sequence()][1] == 1

try:
    pay(5, 3)
    assert False
except InsufficientFunds as error:
    assert str(error) == 'need 5, have 3' and error.need == 5
    assert error.args == ('need 5, have 3',)
    assert type(error).__name__ == 'InsufficientFunds'

import unittest
t = unittest.TestCase()
with t.assertRaises(InsufficientFunds) as caught:
    pay(5, 3)
assert 'need 5' in str(caught.exception)
t.assertRaises(InsufficientFunds, pay, 5, 3)
t.assertRaisesRegex(InsufficientFunds, 'need', pay, 5, 3)
t.assertEqual(pay(3, 5), 2)

try:
    convert('x')
except InsufficientFunds as e:
    assert isinstance(e.__cause__, ValueError)
else:
    assert False

assert issubclass(InsufficientFunds, Exception)

e = InsufficientFunds(1, 2)
assert e.need == 1 and str(e) == 'need 1, have 2'

import contextlib
paid = False
with contextlib.suppress(InsufficientFunds):
    pay(5, 3)
    paid = True
assert not paid

import asyncio
assert asyncio.run(double(4)) == 8

import asyncio
async def both():
    return await asyncio.gather(double(1), double(2))
assert asyncio.run(both()) == [2, 4]

import asyncio
async def all_ticks():
    return [i async for i in ticks(3)]
assert asyncio.run(all_ticks()) == [0, 1, 2]

import inspect
c = double(3)
assert inspect.iscoroutine(c)
c.close()

assert pair(1, 2) == (1, 2) and pair(1, 2).left == 1
assert pair(1,2)._asdict() == {'left': 1, 'right': 2} and pair(1,2) == Pair(1,2)
assert repr(pair(1,2)) == 'Pair(left=1, right=2)'

assert isinstance(pair(1,2), Pair) and isinstance(pair(1,2), tuple)

a, b = pair(3, 4)
assert a == 3 and b == 4

assert items()[0].tax() == 1.0 and items() == [('a', 10.0)]
assert items() == [Item('a', 10.0)]

import collections
g = groups(['a', 'bb', 'c'])
assert g == {1: ['a', 'c'], 2: ['bb']} and g[7] == []
assert isinstance(g, collections.defaultdict)

assert count('aab').most_common(1) == [('a', 2)] and count('aab') == {'a': 2, 'b': 1}
assert count('a')['z'] == 0

import io, sys
old = sys.stdout
sys.stdout = io.StringIO()
shout('hi')
text = sys.stdout.getvalue()
sys.stdout = old
assert text == 'HI\n'

v = [3, 1]
assert sort_in_place(v) == 2 and v == [1, 3]

v = [3, 1]
n = sort_in_place(v)
assert n == 2
assert v == [1, 3]

m = [[1, 2], [3, 4]]
row = m[0]
rotate(m)
assert m == [[3, 1], [4, 2]] and row == [3, 1]

xs = []
kwonly(xs=xs)
assert xs == [1]

assert apply(lambda x, y: x + y, 1, 2) == 3 and apply(len, 'abc') == 3
assert apply(sorted, [2, 1]) == [1, 2] and apply(str.upper, 'a') == 'A'

import operator
assert fold(operator.mul, [1, 2, 3, 4]) == 24 and fold(max, [1, 5, 2]) == 5

assert fold(lambda a, b: a + b, iter([1, 2])) == 3
assert fold(min, (x for x in [3, 2])) == 2

calls = []
def fails():
    calls.append(1)
    if len(calls) < 3:
        raise ValueError
    return 'ok'
assert retry(fails, 5) == 'ok' and len(calls) == 3

def fails():
    raise ValueError
try:
    retry(fails, 2)
    assert False
except RuntimeError as e:
    assert str(e) == 'gave up'

assert compose(lambda x: x + 1, str)(3) == '4'

n = []
def slow(x):
    n.append(x)
    return x * x
f = memo(slow)
assert f(3) == 9 and f(3) == 9 and n == [3]

class MyError(Exception):
    pass
def fails():
    raise MyError('mine')
try:
    apply(fails)
    assert False
except MyError as e:
    assert str(e) == 'mine'

assert list(evens(5)) == [0, 2, 4] and next(evens(3)) == 0
assert sorted(evens(4), reverse=True) == [2, 0]
assert tuple(map(str, evens(3))) == ('0', '2')

g = running()
next(g)
assert g.send(3) == 3 and g.send(4) == 7

import types
g = evens(2)
assert iter(g) is g

import itertools
assert list(itertools.islice(evens(10), 2)) == [0, 2]
assert list(zip(evens(3), 'ab')) == [(0, 'a'), (2, 'b')]

assert keys({'a': 1}) == {'a'} and list(keys({'a': 1})) == ['a']

assert matches('aa') and not matches('b')
assert matches('aa')
assert not matches('b')
assert matches('aaa').group(0) == 'aaa'

assert queue(3) == [0, 1, 2]

assert bisect([1, 3], 2) == [1, 2, 3]

assert calendar.year == 2020 and calendar.leap(2020)

node = reverse(build([1, 2, 3]))
out = []
while node:
    out.append(node.val)
    node = node.next
assert out == [3, 2, 1]

head = ListNode(1, ListNode(2))
assert reverse(head).val == 2 and head.next is None

class Tree:
    def __init__(self, val, left=None):
        self.val = val
        self.left = left
assert path(Tree(1, Tree(2))) == [1, 2]

import json
try:
    bad_json('{')
    assert False
except json.JSONDecodeError:
    pass

assert issubclass(B, A) and isinstance(B(), A)

assert Meta().value == 42 and Meta.f() == 1 and hasattr(Meta(), 'value')
assert not hasattr(Meta(), 'other')

assert apply.__name__ == 'apply'

import unittest
with unittest.TestCase().assertRaises(SystemExit):
    exits()

try:
    stops()
    assert False
except StopIteration:
    pass

import inspect
assert inspect.isclass(Vector) and isinstance(Vector, type)

import collections.abc
assert isinstance(evens(2), collections.abc.Iterator)
assert isinstance(Bag(), collections.abc.Sized)
assert not isinstance(Vector(1), collections.abc.Iterable)

from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    assert list(pool.map(queue, [1, 2])) == [[0], [0, 1]]

assert vars(Bag([1])) == {'v': [1]}

import asyncio
async def increase(x):
    await asyncio.sleep(0)
    return x + 1
assert asyncio.run(apply_async(increase, 3)) == 4

import contextlib, io
out, errors = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
    assert write("bytes") == 1
assert out.getvalue() == "bytes" and errors.getvalue() == "end\n"

import io
out = io.StringIO()
write_to(out, "text ")
assert out.getvalue() == "text end\n"

import random
assert roll(random.Random(3), 6) == random.Random(3).randint(1, 6)

class Box:
    value = 1
box = Box()
assert set_value(box, 3) is box and box.value == 3

import asyncio
async def values():
    yield 1
    yield 2
assert asyncio.run(total_of(values())) == 3

assert chatter(50_000) == 50_000
""".strip().split("\n\n")


@pytest.fixture(scope="module")
def verdict():
    """The verdict on the program. All tests run in one process, as a dataset's list of assertions does."""
    return judge(Program(PROGRAM, tuple(TESTS)), Limits(seconds=30.0))


@pytest.mark.parametrize("position", range(len(TESTS)))
def test_python_features_passes(verdict, position):
    assert verdict.ended == "done"
    assert verdict.pass_rates[position] == 1.0, TESTS[position]
