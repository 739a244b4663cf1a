"""What the grader and a child say to each other: two pipes, and the only order of messages allowed.

The child says ready; one "cell done" for each cell, in order; waits; "done" with results, in the
order of the tasks that it was given, some at a time; waits again, or end. All else is nonsense, and
ends the conversation: what comes in is checked field by field before anything is kept.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autograder.exercise import Case, Failure, Outcome
from autograder.values import MAX_ENTRIES, PLAIN_TYPES, Unpacked, Value

MAX_LINE = 8_000_000  # bytes of one message; a hundred thousand numbers take less
MAX_TOTAL = 64_000_000
MAX_NESTED = 300_000  # lists and objects in one message: each costs the grader a hundred bytes


@dataclass
class Execution:
    """All that came out: outcomes by case id, and what became of each cell."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # exercises that nothing defines
    cell_errors: dict[int, Failure] = field(default_factory=dict)
    printed: dict[int, str] = field(default_factory=dict)  # by cell
    starts: int = 0
    hidden_seen: bool = False  # whether a child has been given hidden inputs
    cpu: float = 0.0  # seconds that its children used
    peak: int = 0  # kilobytes that the largest of them held, what it shares with others included


class Pipes:
    """The two pipes to a child: its messages come out of one, its tasks go into the other."""

    def __init__(self) -> None:
        self._read, self.messages = os.pipe()
        self.tasks, self._write = os.pipe()
        self._open = {self._read, self.messages, self.tasks, self._write}
        self._waiting = b""  # for the child; written as it reads
        os.set_blocking(self._write, False)

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def forked(self) -> None:
        """The child has its ends: ours of them go."""
        self._close(self.messages, self.tasks)

    def close(self) -> None:
        self._close(*self._open)

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        self._open -= set(descriptors)

    def give(self, line: str) -> None:
        self._waiting += line.encode() + b"\n"

    def _feed(self) -> bool:
        """Write what fits; whether something is left."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._write, self._waiting) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            self._waiting = b""  # it reads no more: its end will be seen
        return False

    def events(self, wall: float, wall_total: float) -> Iterator[dict[str, Any]]:
        """Messages as they come; TimeoutError after `wall` seconds without one or `wall_total` in
        all, ValueError if one is too long or no JSON object."""
        waiting, total, last = b"", 0, time.monotonic()
        stop = last + wall_total
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            feeding = False
            while True:
                if self._waiting and not feeding and self._feed():
                    selector.register(self._write, selectors.EVENT_WRITE)
                    feeding = True
                patience = min(last + wall, stop) - time.monotonic()
                if patience <= 0:
                    raise TimeoutError
                ready = {key.fd for key, _ in selector.select(patience)}
                if self._write in ready and not self._feed():
                    selector.unregister(self._write)
                    feeding = False
                if self._read not in ready:
                    continue
                chunk = os.read(self._read, 1 << 16)
                if not chunk:
                    return
                total += len(chunk)
                *lines, waiting = (waiting + chunk).split(b"\n")
                if len(waiting) > MAX_LINE or total > MAX_TOTAL:
                    raise ValueError("too much of it")
                for line in lines:
                    last = time.monotonic()
                    if line.count(b"[") + line.count(b"{") > MAX_NESTED:
                        raise ValueError("too much of it")
                    try:
                        event = json.loads(line)
                    except (RecursionError, UnicodeDecodeError) as error:
                        raise ValueError(type(error).__name__) from None
                    if not isinstance(event, dict):
                        raise ValueError("not an object")
                    yield event


class Conversation:
    """What one child has still to do, and what becomes of what it says."""

    def __init__(
        self,
        cells: Sequence[int],
        tasks: Sequence[str],
        cases: Sequence[Case],
        done: Execution,
        finished: set[int],
    ) -> None:
        self.ready = self.ended = False
        self.cells, self.given = deque(cells), deque[int]()
        self.tasks, self.cases, self.done, self.finished = tasks, cases, done, finished

    @property
    def busy(self) -> tuple[str, int]:
        """What the child is busy with, as far as it has said."""
        if self.ended:
            return "end", -1
        if not self.ready:
            return "start", -1
        if self.cells:
            return "cell", self.cells[0]
        return ("task", self.given[0]) if self.given else ("between", -1)

    def take(self, event: dict[str, Any]) -> str | None:
        """Take one message in; returns the line to answer with, if any. Raises ValueError."""
        kind = event.get("event")
        if kind == "ready" and not self.ready:
            self.ready = True
        elif kind == "cell done" and self.ready and self.cells:
            self._cell(_expected(event, self.cells), event)
            self.cells.popleft()
        elif kind == "waits" and self.busy == ("between", -1):
            return self._next_tasks()
        elif kind == "done" and self.busy[0] == "task":
            results, numbers = event.get("results"), Unpacked(event.get("numbers"))
            if not isinstance(results, list) or not results:
                raise ValueError("no results")
            for result in results:
                if not isinstance(result, dict) or not self.given:
                    raise ValueError("a result that is none")
                self._task(_expected(result, self.given), result, numbers)
                self.given.popleft()  # not before: who sent nonsense is busy with it
            numbers.end()
        elif kind == "end" and self.busy[0] == "between" and len(self.finished) == len(self.cases):
            self.ended = True
        else:
            raise ValueError("an unexpected message")
        return None

    def _next_tasks(self) -> str:
        """The next tasks: hidden inputs only when every visible case has its outcome, so that
        nothing a learner is shown in full can tell them."""
        left = [n for n in range(len(self.cases)) if n not in self.finished]
        batch = [n for n in left if not self.cases[n].hidden] or left
        if not batch:
            return ""
        self.done.hidden_seen = self.done.hidden_seen or self.cases[batch[0]].hidden
        self.given.extend(batch)
        return f"[{', '.join(self.tasks[n] for n in batch)}]"

    def _cell(self, index: int, event: dict[str, Any]) -> None:
        self.done.cell_errors.pop(index, None)
        if event.get("error") is not None:
            failure = _failure(event["error"])
            if self.done.hidden_seen:  # it may be spelling out what an earlier process was given
                failure = replace(failure, message="", line=0)
            self.done.cell_errors[index] = failure
        if not self.done.hidden_seen:
            self.done.printed[index] = _text(event.get("captured"))[:4000]

    def _task(self, index: int, result: dict[str, Any], numbers: Unpacked) -> None:
        case = self.cases[index]
        operations = _operations(result.get("operations"))
        failure, outputs = None, {}
        if result.get("failure") is not None:
            failure = _failure(result["failure"])
        elif result.get("missing") is not True:
            outputs = _outputs(result.get("outputs"), numbers)
        self.finished.add(index)
        if result.get("missing") is True:
            self.done.missing.add(case.exercise)
        else:
            self.done.outcomes[case.id] = Outcome(outputs, failure, operations)


def _text(data: Any) -> str:
    """Text as a file takes it: half a surrogate pair becomes "?"."""
    return data.encode("utf-8", "replace").decode() if isinstance(data, str) else ""


def _expected(message: dict[str, Any], order: deque[int]) -> int:
    """The index that a message must have: that of what is busy."""
    if type(message.get("index")) is not int or message["index"] != order[0]:
        raise ValueError("out of order")
    return order[0]


def _outputs(data: Any, numbers: Unpacked) -> dict[str, Value]:
    if not isinstance(data, dict) or len(data) > 50:
        raise ValueError("outputs are an object")
    outputs = {str(name): numbers.value(value) for name, value in data.items()}
    room = MAX_ENTRIES  # for all together, which are kept until it is judged
    for name, value in outputs.items():
        room -= 0 if value.array is None else value.array.size
        if room < 0:
            many = "far more entries than expected"
            outputs[name] = replace(value, array=None, problem=many)
    return outputs


def _operations(data: Any) -> tuple[str, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > 300:
        raise ValueError("operations are a list")
    return tuple(str(name)[:80] for name in data)


def _failure(data: Any) -> Failure:
    if not isinstance(data, dict):
        raise ValueError("a failure is an object")
    message, line = _text(data.get("message"))[:300], data.get("line", 0)
    if data.get("kind") == "returned":  # shown to learners, so only in words of our own
        kinds = "|".join(sorted(PLAIN_TYPES))
        known = re.fullmatch(
            rf"({kinds}|nothing \(None\)|object of another type|too (few|many) values)"
            r" where \([\w, ]+\) is expected",
            message,
        )
        return Failure("returned", message=message if known else "something unexpected")
    number = line if isinstance(line, int) and 0 < line < 100_000 else 0
    kind, code = str(data.get("type", ""))[:60], str(data.get("code", ""))[:120]
    return Failure("raised", kind, message, number, code)
