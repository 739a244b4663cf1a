"""Whatever a learner's function returns gives a clear verdict, never an exception of ours."""

from __future__ import annotations

import json
import types
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
from helpers import OURS, TOY, at_criterion

from autograder.display import as_html, text
from autograder.drive import outcome
from autograder.judge import FAILED, PASSED, RAISED, judge
from autograder.learn import check_object
from autograder.values import DTYPES, Unpacked, Value, capture, from_json, packed, to_json, to_wire

LESSON, CENTER = TOY.find("center")
BANK = TOY.bank(LESSON)


# ---- objects that lie ----------------------------------------------------------------------


class Agreeable(np.ndarray):
    """Equal to everything, of any dtype and shape that is asked for."""

    dtype = property(lambda self: np.dtype("float64"))
    shape = property(lambda self: (3, 2))
    ndim = property(lambda self: 2)
    __eq__ = lambda self, other: np.ones((3, 2), bool)
    __ne__ = lambda self, other: np.zeros((3, 2), bool)
    __sub__ = __rsub__ = lambda self, other: np.zeros((3, 2))
    __array__ = lambda self, *args, **kw: np.zeros((3, 2))
    __array_ufunc__ = lambda self, *args, **kw: np.ones((3, 2), bool)
    __array_function__ = lambda self, *args, **kw: True
    astype = reshape = view = copy = lambda self, *args, **kw: self
    tolist = lambda self: [[0.0, 0.0]] * 3


class PretendsToBe:
    """Its class is said to be another one."""

    def __init__(self, kind: type) -> None:
        object.__setattr__(self, "kind", kind)

    __class__ = property(lambda self: object.__getattribute__(self, "kind"))  # type: ignore[assignment]


class RaisesAs:
    """Raises as soon as somebody asks for its class, its array or its name."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("hands off")

    def __array__(self, *args: object, **kw: object) -> np.ndarray:
        raise RuntimeError("hands off")


class ExitsAs:
    __class__ = property(lambda self: exit(3))  # type: ignore[assignment]


class NamelessType(type):
    __name__ = property(lambda cls: 1 / 0)  # type: ignore[assignment]
    __module__ = property(lambda cls: 1 / 0)  # type: ignore[assignment]


class Nameless(metaclass=NamelessType):
    pass


class EqualName(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__


class RaisingFloat(float):
    __float__ = __array__ = __index__ = lambda self, *args: 1 / 0


class LyingInt(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class NamelessException(Exception, metaclass=NamelessType):
    pass


def petabyte(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float64(1.0), shape)


def shaped(array: np.ndarray) -> np.ndarray:
    """Any numbers, as an Agreeable."""
    return array.view(Agreeable)


STRUCTURED = np.zeros(3, dtype=[("a", "f8"), ("b", "i4")])

ODD = {
    "None": None,
    "a string": "out",
    "bytes": b"out",
    "a list of lists": [[1.0, 2.0], [3.0, 4.0]],
    "an empty list": [],
    "a tuple": (np.zeros((3, 2)), None),
    "a named tuple": namedtuple("Pair", "out cache")(1, 2),
    "a dict": {"out": np.zeros((3, 2))},
    "a set": {1.0},
    "a number": 0.5,
    "a huge int": 10**400,
    "a bool": True,
    "Ellipsis": ...,
    "NotImplemented": NotImplemented,
    "a function": len,
    "a type": int,
    "a module": types,
    "a generator": (n for n in range(3)),
    "a range": range(3),
    "NaN": np.full((3, 2), np.nan),
    "infinities": np.full((3, 2), -np.inf),
    "a 0-d array": np.array(1.5),
    "an empty array": np.zeros((0, 2)),
    "objects": np.array([[None, "a"], [[], {}], [1, 2.0]], dtype=object),
    "numbers as objects": np.zeros((3, 2), dtype=object),
    "strings": np.array([["a", "b"]] * 3),
    "complex": np.ones((3, 2)) * 1j,
    "a complex number": 1j,
    "a structured array": STRUCTURED,
    "a structured scalar": STRUCTURED[0],
    "dates": np.zeros((3, 2), dtype="datetime64[s]"),
    "long double": np.zeros((3, 2), dtype=np.longdouble),
    "a masked array": np.ma.masked_equal(np.zeros((3, 2)), 0),
    "numbers whose difference overflows": np.array([[1.7e308, -1.7e308]] * 3),
    "a petabyte": petabyte(10**6, 10**9),
    "a petabyte in one axis": petabyte(10**15),
    "nothing, but a trillion rows of it": np.zeros((10**12, 0)),
    "nothing, but a trillion columns of it": np.zeros((0, 10**12)),
    "64 axes": np.zeros((1,) * 64),
    "one that agrees with everything": shaped(np.ones((2, 3))),
    "a string that equals everything": EqualName("ndarray"),
    "an int that equals everything": LyingInt(7),
    "a float that raises": RaisingFloat(1.0),
    "one that pretends to be an array": PretendsToBe(np.ndarray),
    "one that pretends to be a float": PretendsToBe(float),
    "one that pretends to be a tuple": PretendsToBe(tuple),
    "one that pretends to be a generic": PretendsToBe(np.generic),
    "one that raises when touched": RaisesAs(),
    "one that exits when touched": ExitsAs(),
    "one whose type has no name": Nameless(),
    "a type without a name": Nameless,
    "a lock": __import__("threading").Lock(),
}
odd = pytest.mark.parametrize("what", ODD)  # by name: pytest looks at what it is given


def returns(value: object):
    return lambda *args, **kwargs: value


def clear_failure(learners: object) -> str:
    """Judge it in this process: it must fail or raise, in words; gives the whole text."""
    result, _ = check_object(CENTER, BANK, learners)
    assert at_criterion(result, "values").verdict in (FAILED, RAISED)
    assert at_criterion(result, "form").verdict != PASSED
    assert result.earned == 0
    assert as_html(result)
    return text(result)


@odd
def test_odd_return_is_a_clear_failure(what: str) -> None:
    assert "values: " in clear_failure(returns(ODD[what]))


@odd
def test_odd_return_survives_the_wire(what: str) -> None:
    """As in the sandbox: probe, JSON, and what comes out of it judged."""
    outcomes = {}
    for case in (c for c in BANK if c.exercise == "center"):
        found = outcome(CENTER.criterion(case.criterion), returns(ODD[what]), case.inputs)
        numbers: list[np.ndarray] = []
        line = json.dumps({n: to_wire(value, numbers) for n, value in found.outputs.items()})
        unpacked = Unpacked(packed(numbers))
        read = {name: unpacked.value(data) for name, data in json.loads(line).items()}
        unpacked.end()
        outcomes[case.id] = replace(found, outputs=read)
    result = judge(CENTER, [c for c in BANK if c.exercise == "center"], outcomes)
    assert at_criterion(result, "values").verdict in (FAILED, RAISED)
    assert result.earned == 0
    assert text(result)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "out is nothing (None)"),
        ("out", "out is a str"),
        ((), "out is a tuple"),
        ([[1.0]], "out is a list"),
        ({"out": 1}, "out is a dict"),
        (ODD["objects"], "out is an array of objects"),
        (ODD["complex"], "out is an array of no real numbers"),
        (petabyte(10**15), "out is far more entries than expected"),
        (ODD["a generator"], "out is a generator"),
        (np.zeros((2, 2)), "out has the wrong shape"),
        (np.full((3, 2), np.nan), "out differs (6 of 6 entries)"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "returned",
)
def test_odd_return_is_described_in_words(returned: object, words: str) -> None:
    if isinstance(returned, np.ndarray) and returned.shape == (3, 2):
        first = [c for c in BANK if c.exercise == "center"][:1]
        result, _ = check_object(CENTER, first, returns(returned))
    else:
        result, _ = check_object(CENTER, BANK, returns(returned))
    assert words in at_criterion(result, "values").message.headline


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned nothing (None)"),
        ((np.ones(2),), "returned too few values"),
        ((1, 2, 3), "returned too many values"),
        (np.ones((2, 2)), "returned ndarray"),
        ({"out": 1}, "returned dict"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_number_of_returned_values_is_said(returned: object, words: str) -> None:
    lesson, exercise = OURS.find("batchnorm_forward")
    result, _ = check_object(exercise, OURS.bank(lesson), returns(returned))
    found = at_criterion(result, "training values")
    assert found.verdict in (FAILED, RAISED)
    assert result.earned == 0
    assert words in found.message.headline
    assert "(out, cache)" in found.message.headline


@odd
def test_odd_return_where_several_values_are_expected_is_a_clear_failure(what: str) -> None:
    lesson, exercise = OURS.find("batchnorm_forward")
    result, _ = check_object(exercise, OURS.bank(lesson), returns(ODD[what]))
    assert at_criterion(result, "training values").verdict in (FAILED, RAISED)
    assert result.earned == 0
    assert text(result)


ERRORS = {
    "whose text raises": Unprintable,
    "whose type has no name": NamelessException,
    "that holds an object which raises": lambda: KeyError(RaisesAs()),
    "SystemExit": lambda: SystemExit(0),
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "a group": lambda: BaseExceptionGroup("g", [ValueError()]),
    "with a megabyte of text": lambda: ValueError("x" * 10**6),
    "with many lines": lambda: ValueError("a\nb\tc" * 50),
}


@pytest.mark.parametrize("what", ERRORS)
def test_any_exception_is_raised_not_ours(what: str) -> None:
    def learners(x: np.ndarray) -> None:
        raise ERRORS[what]()

    assert "raised" in clear_failure(learners)


def test_a_stub_that_raises_after_some_work_is_told_from_an_untouched_one() -> None:
    def learners(x: np.ndarray) -> np.ndarray:
        if x.shape == (3, 2):
            return x - x.mean(axis=0)
        raise NotImplementedError

    result, _ = check_object(CENTER, BANK, learners)
    found = at_criterion(result, "values")
    assert found.verdict == FAILED
    assert found.message.headline == "not attempted yet for this input"


def test_a_lying_subclass_is_judged_by_its_true_entries() -> None:
    result, _ = check_object(CENTER, BANK, lambda x: shaped(x - x.mean(axis=0)))
    assert result.earned == 10
    result, _ = check_object(CENTER, BANK, lambda x: shaped(x))
    assert result.earned == 0


def test_every_call_gets_fresh_inputs() -> None:
    """What one call spoils, the next one does not see."""

    def learners(x: np.ndarray) -> np.ndarray:
        out = x - x.mean(axis=0)
        x[:] = np.nan
        return out

    result, _ = check_object(CENTER, BANK, learners)
    assert at_criterion(result, "values").verdict == PASSED
    assert at_criterion(result, "form").verdict == FAILED
    assert result.earned == 8
    assert all(np.isfinite(case.inputs["x"]).all() for case in BANK)


# ---- the wire ------------------------------------------------------------------------------


KEPT = {
    "float64": np.array([[0.1, -2.5], [1e300, 5e-324]]),
    "float32": np.array([0.1, 3.0], dtype="float32"),
    "float16": np.array([0.1, 3.0], dtype="float16"),
    "int64": np.array([[1, -(2**62)]]),
    "int8": np.array([1, -128], dtype="int8"),
    "bool": np.array([True, False]),
    "nan and inf": np.array([np.nan, np.inf, -np.inf]),
    "empty": np.zeros((0, 3)),
    "0-d": np.array(2.5),
    "a float": 0.1,
    "an int": 3,
    "a bool": True,
    "a numpy float": np.float32(0.5),
}


@pytest.mark.parametrize("obj", KEPT.values(), ids=KEPT)
def test_json_and_wire_keep_type_dtype_shape_and_entries(obj: object) -> None:
    value, numbers = capture(obj), list[np.ndarray]()
    if not isinstance(obj, bool):
        wired = json.loads(json.dumps(to_wire(value, numbers)))
        for read in (from_json(json.loads(json.dumps(to_json(value)))),
                     Unpacked(packed(numbers)).value(wired)):  # fmt: skip
            assert (read.type, read.dtype, read.shape) == (value.type, value.dtype, value.shape)
            np.testing.assert_array_equal(read.array, value.array)


def test_the_numbers_of_a_message_come_back_in_their_order() -> None:
    values = [capture(obj) for obj in (np.arange(6.0).reshape(2, 3).T, 7, 8.0, np.zeros((0, 2)))]
    numbers: list[np.ndarray] = []
    wired = json.loads(json.dumps([to_wire(value, numbers) for value in values]))
    unpacked = Unpacked(packed(numbers))
    for value, data in zip(values, wired, strict=True):
        np.testing.assert_array_equal(unpacked.value(data).array, value.array)
    unpacked.end()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
def test_wire_keeps_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    value = capture(torch.tensor([[0.5, 2.0], [1.0, 0.0]]).to(getattr(torch, dtype)))
    numbers: list[np.ndarray] = []
    wired = json.loads(json.dumps(to_wire(value, numbers)))
    read = Unpacked(packed(numbers)).value(wired)
    assert (read.type, read.dtype, read.shape, read.device) == ("Tensor", dtype, (2, 2), "cpu")
    np.testing.assert_array_equal(read.array, value.array)


def test_a_tensor_that_learns_is_captured_without_its_graph() -> None:
    torch = pytest.importorskip("torch")
    value = capture(torch.nn.Parameter(torch.ones(2)))
    assert (value.type, value.dtype) == ("Tensor", "float32")
    assert type(value.array) is np.ndarray


@pytest.mark.parametrize("layout", ["sparse", "meta"])
def test_a_tensor_without_plain_entries_has_a_problem(layout: str) -> None:
    torch = pytest.importorskip("torch")
    odd = torch.eye(2).to_sparse() if layout == "sparse" else torch.ones(2, device="meta")
    assert capture(odd).problem


def array(**changes: object) -> dict[str, object]:
    good = {"type": "ndarray", "dtype": "float32", "shape": [2], "data": [1.0, 2.0], "device": ""}
    return good | changes


NONSENSE = {
    "null": None,
    "a string": "1.0",
    "a bool": True,
    "a ragged list": [[1.0], [1.0, 2.0]],
    "strings": ["a", "b"],
    "objects": [{}, {}],
    "nested beyond numpy": json.loads("[" * 80 + "1" + "]" * 80),
    "too many": [0.0] * 100_001,
    "a huge int": 10**40,
    "a huge int inside": [10**400],
    "an empty object": {},
    "no shape": {"type": "ndarray", "dtype": "float64", "data": [1.0]},
    "an unknown dtype": array(dtype="object"),
    "a pickle": array(dtype="O", data="gASV"),
    "dtype no string": array(dtype=["f8"]),
    "type no string": array(type=None),
    "device no string": array(device=5),
    "problem no string": {"type": "x", "dtype": "", "shape": [], "problem": {}},
    "shape no list": array(shape=2),
    "shape with floats": array(shape=[2.0]),
    "shape with bools": array(shape=[True, 2]),
    "negative shape": array(shape=[-1]),
    "shape does not fit": array(shape=[3]),
    "more axes than numpy has": array(shape=[1] * 70, data=[1.0]),
    "a trillion empty rows": array(shape=[10**12, 0], data=[]),
    "more empty rows than a machine counts": array(shape=[10**30, 0], data=[]),
    "data no list": array(data={"a": 1}),
    "infinity as a whole number": array(dtype="int64", data=[float("inf"), 1.0]),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_wire_refuses_nonsense(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(data)


FORMS = {
    "too short": ["ndarray", "float64", [1]],
    "no floats": ["ndarray", "int64", [1], ""],
    "an unknown dtype": ["ndarray", "a float", [1], ""],
    "nothing with numbers": ["NoneType", "float64", [1], ""],
    "type no string": [["ndarray"], "float64", [1], ""],
    "shape no list": ["ndarray", "float64", 1, ""],
    "a negative shape": ["ndarray", "float64", [-1], ""],
    "too many": ["ndarray", "float64", [100_001], ""],
    "a trillion empty rows": ["ndarray", "float64", [10**12, 0], ""],
    "more than there are": ["ndarray", "float64", [2], ""],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_wire_refuses_forms_that_fit_no_numbers(form: list) -> None:
    with pytest.raises(ValueError, match=r"."):
        Unpacked(packed([np.ones(1)])).value(form)


@pytest.mark.parametrize("data", [None, 1, "é", "AAAA", "A"])
def test_wire_refuses_numbers_that_are_none(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        Unpacked(data)


def test_wire_refuses_numbers_that_are_left() -> None:
    with pytest.raises(ValueError, match="too many"):
        Unpacked(packed([np.ones(1)])).end()


def test_wire_lets_no_text_of_the_sandbox_through() -> None:
    """Type, problem and dtype could spell out a hidden input."""
    secret = "x = [1.5, 2.5]"
    data = {"type": secret, "dtype": secret, "shape": [], "problem": secret, "device": ""}
    read = from_json(data)
    assert secret not in f"{read.type} {read.dtype} {read.problem}"


def test_capture_knows_every_dtype_that_the_wire_takes() -> None:
    numpy_has = [name for name in DTYPES if name != "bfloat16"]
    for name in numpy_has:
        assert capture(np.zeros(2, dtype=name)).dtype == name


def test_value_tells_numbers_from_arrays() -> None:
    assert isinstance(capture(1.0), Value)
    assert capture(1.0).plain.shape == ()
    assert capture(np.zeros((1, 2, 1))).plain.shape == (2,)
