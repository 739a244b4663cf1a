"""What a learner's code returned, as plain data: capture an object, write it as JSON, read it back.

This file is also loaded, alone, inside the sandbox: it imports nothing of the package.
"""

from __future__ import annotations

import binascii
import contextlib
import io
import linecache
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

FLOAT = np.dtype(float)
MAX_ENTRIES = 100_000  # exercises return tiny arrays; more is refused before it is copied

DTYPES = frozenset(
    ["bool", "float16", "bfloat16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)

# type names that may be shown to a learner: others could carry a hidden input in their spelling
PLAIN_TYPES = frozenset(
    [kind.__name__ for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set)]
    + ["NoneType", "ndarray", "Tensor", "Parameter", "function", "type", "generator", "range"]
)


class Bounded(io.StringIO):
    """Captured text kept to its first 4,000 characters: a million lines cost nothing."""

    KEPT = 4_000

    def write(self, text: str) -> int:
        room = self.KEPT - self.tell()
        if room > 0:
            super().write(str(text)[:room])
        return len(text)

    def close(self) -> None:
        """Learners' code may close what it takes for standard output: it is read afterwards."""


class WrongReturn(Exception):
    """The learner's function returned something of the wrong kind; the text says what."""


@dataclass(frozen=True, eq=False)
class Value:
    """One returned object: an array with its exact type, dtype and shape, or why it is none.

    `array` is float64 (or int64, bool) data on this machine, None where the object holds no
    numbers or too many; `problem` then says so in a phrase.
    """

    type: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    array: np.ndarray | None = None
    device: str = ""
    problem: str = ""

    @cached_property
    def plain(self) -> np.ndarray:
        """The numbers as float64, without axes of length 1: a right answer in the wrong shape
        stays right."""
        assert self.array is not None
        return self.array.reshape([n for n in self.array.shape if n != 1]).astype(float)

    @cached_property
    def scale(self) -> float:
        """The largest finite entry's size, 1 where all are zero."""
        finite = np.abs(self.plain[np.isfinite(self.plain)])
        return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def true_name(kind: type) -> str:
    """The name of a type, even where a metaclass answers for it."""
    return str(type.__dict__["__name__"].__get__(kind))


def type_name(obj: Any) -> str:
    """The name of an object's type, if it is one that everybody knows."""
    name = true_name(type(obj))
    return name if name in PLAIN_TYPES else "object of another type"


def take(result: Any, *names: str) -> tuple[Any, ...]:
    """Unpack what a function returned: exactly len(names) values, else WrongReturn says why."""
    wanted = f"({', '.join(names)})"
    if not isinstance(result, (tuple, list)):
        name = type_name(result).replace("NoneType", "nothing (None)")
        raise WrongReturn(f"{name} where {wanted} is expected")
    if len(result) != len(names):
        many = "too few" if len(result) < len(names) else "too many"
        raise WrongReturn(f"{many} values where {wanted} is expected")
    return tuple(result)


def numeric_gradient(f: Callable[[Any], Any], x: Any, dout: Any, h: float = 1e-5) -> np.ndarray:
    """The gradient of sum(dout * f(x)) by central differences, in float64: x's shape.

    Unwatched, at torch's own speed: a probe asks for it last, when what it judges is done.
    """
    x = np.array(x, dtype=float)
    gradient = np.zeros_like(x)
    with _unwatched():
        for index in np.ndindex(x.shape):
            ahead, behind = x.copy(), x.copy()
            ahead[index] += h
            behind[index] -= h
            change = np.asarray(f(ahead), dtype=float) - np.asarray(f(behind), dtype=float)
            gradient[index] = (change * dout).sum() / (2 * h)
    return gradient


def _unwatched() -> Any:
    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def run_probe(
    probe: Callable[..., Any],
    learners: Any,
    inputs: Mapping[str, Any],
    also: Mapping[str, Any],
    watch: bool = False,
) -> tuple[dict[str, Value], dict[str, Any] | None, list[str]]:
    """Drive the learner's object with one probe: captured outputs, or why there are none, and
    (with `watch`) the operations that torch dispatched.

    `also` holds device and dtype for a torch probe, and the earlier exercises that the probe
    asks for. Every input array is a fresh copy. Nothing that the learner's code raises gets out,
    KeyboardInterrupt aside.
    """
    operations: list[str] = []
    if watch and isinstance(learners, type):  # a class may inherit what it should do itself
        bases = [f"{kind.__module__}.{kind.__qualname__}" for kind in type.mro(learners)]
        operations += [f"is a {name}"[:80] for name in bases if name.startswith("torch.nn.mod")]
    fresh = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    left = _torch_modes()  # what a function leaves switched off must not spoil the next one's
    try:
        with _watched(operations, also.get("device"), watch):
            returned = probe(learners, **also, **fresh)
        outputs = {name: capture(obj) for name, obj in returned.items()}
        return outputs, None, operations
    except KeyboardInterrupt:
        raise
    except WrongReturn as wrong:
        failure = {"kind": "returned", "message": str(wrong)}
        return {}, failure, operations
    except BaseException as error:
        return {}, described_exception(error), operations
    finally:
        _torch_modes(left)


def _torch_modes(put_back: tuple[bool, Any] | None = None) -> tuple[bool, Any] | None:
    """Whether torch records gradients, and its default dtype; or put these back."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_grad_enabled"):
        return None
    if put_back is not None:
        torch.set_grad_enabled(put_back[0])
        torch.set_default_dtype(put_back[1])
    return torch.is_grad_enabled(), torch.get_default_dtype()


def _watched(operations: list[str], device: str | None, watch: bool) -> Any:
    """Records torch's operations, where torch is in use; on the meta device, refuses those that
    mix tensors of two devices, as a GPU would."""
    if "torch" not in sys.modules or not watch:
        return contextlib.nullcontext()
    return _watch_class()(operations, device == "meta")


@lru_cache
def _watch_class() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        def __init__(self, operations: list[str], strict: bool) -> None:
            super().__init__()
            self.operations, self.strict, self.known = operations, strict, set[Any]()

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch wraps what follows, which takes longer than most operations

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            if func not in self.known and len(self.known) < 300:
                self.known.add(func)
                self.operations.append(str(func))
            if self.strict:
                _must_agree(str(func), tree_leaves((args, kwargs or {})))
            return func(*args, **(kwargs or {}))

    return Watch


def _must_agree(operation: str, leaves: list[Any]) -> None:
    """Raises where an operation mixes tensors of two devices (numbers in tensors aside)."""
    torch = sys.modules["torch"]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    devices = sorted({str(tensor.device.type) for tensor in tensors})
    if len(devices) > 1 and "copy" not in operation:
        raise RuntimeError(f"{operation} mixes tensors on {' and '.join(devices)}")


def described_exception(error: BaseException) -> dict[str, Any]:
    """An exception as plain text: its type, message, and the line of the learner's code."""
    try:
        message = str(error)[:300]
    except BaseException:
        message = ""
    line, code = 0, ""
    with contextlib.suppress(Exception):  # an exception can lie about its own traceback
        frames: list[tuple[str, int]] = []
        trace = error.__traceback__
        while trace is not None and len(frames) < 200:
            frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        # behind our two frames; not in a library's, as torch's between a module and its forward
        ours = described_exception.__code__.co_filename
        learners = [
            (f, n) for f, n in frames[2:]
            if "-packages" not in f and not f.startswith("<f") and f != ours
        ]  # fmt: skip
        if learners:
            line, code = learners[-1][1], linecache.getline(*learners[-1])
        if isinstance(error, SyntaxError):
            message, line, code = str(error.msg), int(error.lineno or 0), str(error.text or "")
    return {
        "kind": "raised",
        "type": true_name(type(error))[:60],
        "message": " ".join(message.split()),
        "line": line,
        "code": " ".join(code.split())[:120],
    }


def too_many(shape: Iterable[int]) -> bool:
    """Whether a shape has more entries than we take; an axis of none does not hide the others."""
    return math.prod(n or 1 for n in shape) > MAX_ENTRIES


def capture(obj: Any) -> Value:
    """Copy an object into a Value, whatever it is and however it lies about itself."""
    if type(obj) is np.ndarray:  # what most functions return
        return _capture_array(obj, "ndarray")
    name = type_name(obj)
    try:
        if isinstance(obj, (bool, int, float, np.generic)) and not isinstance(obj, np.void):
            array = np.asarray(obj)
            if name == "object of another type" and isinstance(obj, np.generic):
                name = "float" if array.dtype.kind == "f" else "int"
        elif isinstance(obj, np.ndarray):
            # the base class's own view: a subclass cannot answer for it
            array = np.ndarray.view(obj, np.ndarray)
            name = "ndarray"
        elif "torch" in sys.modules:
            return _capture_tensor(obj, name)
        else:
            return Value(name, problem=_not_an_array(name))
        return _capture_array(array, name)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return Value(name, problem="an object that cannot be read as an array")


def _not_an_array(name: str) -> str:
    article = "an" if name[0] in "aeio" else "a"
    what = "nothing (None)" if name == "NoneType" else f"{article} {name}"
    return f"{what} where numbers are expected"


def _capture_array(array: np.ndarray, name: str, device: str = "", dtype: str = "") -> Value:
    dtype = dtype or (array.dtype.name if array.dtype != FLOAT else "float64")
    shape = tuple(int(n) for n in array.shape)
    if dtype not in DTYPES:
        what = "objects" if array.dtype.kind == "O" else array.dtype.kind and "no real numbers"
        return Value(name, "", shape, None, device, f"an array of {what}")
    if too_many(shape):
        return Value(name, dtype, shape, None, device, "far more entries than expected")
    kept = "bool" if dtype == "bool" else "float64" if "float" in dtype else "int64"
    return Value(name, dtype, shape, np.array(array, dtype=kept), device)


def _capture_tensor(obj: Any, name: str) -> Value:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.Tensor):
        return Value(name, problem=_not_an_array(name))
    dtype, device = str(obj.dtype).removeprefix("torch."), str(obj.device.type)
    shape = tuple(int(n) for n in obj.shape)
    if too_many(shape):
        return Value("Tensor", dtype, shape, None, device, "far more entries than expected")
    plain = obj.detach().as_subclass(torch.Tensor).to("cpu")
    if dtype in ("float16", "bfloat16"):
        plain = plain.to(torch.float32)
    return _capture_array(plain.numpy(), "Tensor", device, dtype)


def to_json(value: Any, digits: int | None = None) -> Any:
    """A Value, array, number or string as JSON; floats rounded to `digits` significant digits."""
    if not isinstance(value, Value):
        if value is None or isinstance(value, (str, bool)):
            return value
        value = capture(value)
    if value.array is None:
        return {"type": value.type, "dtype": value.dtype, "shape": list(value.shape),
                "problem": value.problem, "device": value.device}  # fmt: skip
    data = value.array.tolist()
    if digits is not None and value.array.dtype.kind == "f":
        data = _rounded(data, digits)
    if value.type == "float" and value.dtype == "float64":
        return data
    if value.type == "int" and value.dtype == "int64":
        return data
    if value.type == "ndarray" and value.dtype == "float64" and value.array.size and value.shape:
        return data
    return {"type": value.type, "dtype": value.dtype, "shape": list(value.shape), "data": data,
            "device": value.device}  # fmt: skip


def _rounded(data: Any, digits: int) -> Any:
    if isinstance(data, list):
        return [_rounded(entry, digits) for entry in data]
    return float(f"{data:.{digits}g}") + 0.0  # no negative zero


def from_json(data: Any) -> Value:
    """Read a Value back, trusting nothing: raises ValueError where the data do not fit together."""
    if isinstance(data, bool) or not isinstance(data, (int, float, list, dict)):
        raise ValueError("not a number, an array or an object")
    if isinstance(data, float):
        return Value("float", "float64", (), np.array(data, dtype="float64"))
    if isinstance(data, int):
        return Value("int", "int64", (), _array(data, "int64"))
    if isinstance(data, list):
        array = _array(data, "float64")
        return Value("ndarray", "float64", array.shape, array)
    problem = data.get("problem", "")
    if not isinstance(problem, str):
        raise ValueError("a problem is a string")
    asked = (data.get("type"), data.get("dtype"), data.get("shape"), data.get("device", ""))
    kind, dtype, shape, device = _form(*asked)
    if "data" not in data:
        known = dtype if dtype in DTYPES else ""
        return Value(kind, known, shape, None, device, _known_problem(problem, kind))
    if too_many(shape):
        raise ValueError("too many entries")
    if kind == "NoneType":
        raise ValueError("nothing holds no numbers")  # and would be excused from its form
    if dtype not in DTYPES:
        raise ValueError("an unknown dtype")
    kept = "bool" if dtype == "bool" else "float64" if "float" in dtype else "int64"
    array = _array(data["data"], kept)
    if math.prod(shape) != array.size:
        raise ValueError("shape and data do not fit together")
    return Value(kind, dtype, shape, array.reshape(shape), device)


def to_wire(value: Value, numbers: list[np.ndarray]) -> Any:
    """A Value as JSON without its floats, which are appended to `numbers`; `packed` sends those of
    a whole message as one block."""
    if value.array is None or value.array.dtype != FLOAT:
        return to_json(value)
    numbers.append(value.array.ravel())
    return [value.type, value.dtype, value.shape, value.device]


def packed(numbers: list[np.ndarray]) -> str:
    """The floats of a message: their bytes in base64."""
    together = np.concatenate(numbers) if numbers else np.zeros(0)
    return binascii.b2a_base64(together.tobytes(), newline=False).decode("ascii")


class Unpacked:
    """The floats of a message, taken off one value after another; raises ValueError."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, str):
            raise ValueError("numbers are a text")
        self.numbers, self.taken = np.frombuffer(binascii.a2b_base64(data), float), 0

    def value(self, data: Any) -> Value:
        """What `to_wire` made of a Value, trusting nothing."""
        if not isinstance(data, list):
            return from_json(data)
        if len(data) != 4:
            raise ValueError("type, dtype, shape and device")
        kind, dtype, shape, device = _form(*data)
        if kind == "NoneType" or dtype not in DTYPES or "float" not in dtype or too_many(shape):
            raise ValueError("no form of floats")
        begin, self.taken = self.taken, self.taken + math.prod(shape)
        if self.taken > self.numbers.size:
            raise ValueError("too few numbers")
        array = self.numbers[begin : self.taken].reshape(shape).copy()  # else it keeps all of them
        return Value(kind, dtype, shape, array, device)

    def end(self) -> None:
        """No number may be left."""
        if self.taken != self.numbers.size:
            raise ValueError("too many numbers")


def input_from_json(data: Any) -> Any:
    """An input as probes take it: array, number, string or None."""
    if data is None or isinstance(data, (str, bool, float)):
        return data
    if isinstance(data, list):
        return _array(data, "float64")
    value = from_json(data)
    if value.array is None:
        return None
    return value.array.item() if value.type in ("float", "int") else value.array.astype(value.dtype)


def _form(kind: Any, dtype: Any, shape: Any, device: Any) -> tuple[str, str, tuple[int, ...], str]:
    """A value's type, dtype, shape and device as one may use them; raises ValueError."""
    if not all(isinstance(text, str) for text in (kind, dtype, device)):
        raise ValueError("type, dtype and device are strings")
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(n) is int and 0 <= n < 2**63 for n in shape)
    ):  # before anything is multiplied
        raise ValueError("a shape is a list of whole numbers")
    kind = kind if kind in PLAIN_TYPES else "object of another type"
    return kind, dtype, tuple(shape), device[:10]


def _known_problem(problem: str, kind: str) -> str:
    """One of our own phrases: text from the sandbox never reaches a learner as it is."""
    ours = ("an array of objects", "an array of no real numbers", "far more entries than expected",
            "an object that cannot be read as an array")  # fmt: skip
    return problem if problem in ours else _not_an_array(kind)


def _array(data: Any, dtype: str) -> np.ndarray:
    try:
        array = np.array(data, dtype=dtype)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if array.size > MAX_ENTRIES:
        raise ValueError("too many entries")
    return array
