"""The warm parent: imports what submissions need, once, and forks one child for each.

Not imported: executed in a fresh interpreter, from source sent over a socket, so that no path of
the grader's is in it. No learner's code ever runs in this process, and it holds nothing worth
reading: no reference, mistake, expected array or seed.

Messages are JSON lines. It says {"ready": level} or {"refused": why}; then, for each
{"fork": …} with three descriptors (the child's messages, its job, its working folder), {"pid": …};
and for {"end": patience}, {"code": …, "cpu": …, "peak": …} of the child, which is then gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import types
from typing import Any

MANY = 5  # at this fork memory is laid into huge pages: for fewer that does not pay


def main(
    control: socket.socket,
    preload: list[str],
    level: str,
    modules: dict[str, types.ModuleType],
) -> None:
    try:
        serve(control, preload, level, modules)
    except (BrokenPipeError, ConnectionResetError):  # the grader is gone in the middle of it
        pass
    finally:
        shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # it may have been killed


def serve(
    control: socket.socket,
    preload: list[str],
    level: str,
    modules: dict[str, types.ModuleType],
) -> None:
    """Fork a child for each request, until the grader is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # workers ignore it, which we inherit
    isolation, child = modules["isolation"], modules["child"]
    sys.path[:] = [p for p in sys.path if p.startswith((sys.prefix, sys.base_prefix, "/usr/"))]
    shell = warm(preload, child, modules["values"])
    rules = -1
    if level == isolation.LEVEL:
        try:
            allowed = isolation.interpreter_paths() | {os.getcwd(): isolation.READ_DIR}
            rules = isolation.ruleset(allowed)
        except OSError as error:
            answer(control, refused=str(error))
            return
    answer(control, ready=level)
    gc.collect()
    gc.freeze()
    forks = 0
    while (request := receive(control, 3)) is not None:
        message, descriptors = request
        forks += 1
        if forks == MANY:
            with contextlib.suppress(OSError, AttributeError, ValueError):  # not Linux
                isolation.huge_pages()
        pid = os.fork()
        if pid == 0:
            try:
                isolation.end_with_parent()
                control.close()
                child.begin(*descriptors, rules, message["fork"], shell, modules)
            finally:
                os._exit(1)  # nothing of the learner's goes on in our code below
        for descriptor in descriptors:
            os.close(descriptor)
        ending = None
        try:
            answer(control, pid=pid)
            ending = receive(control, 0)
        finally:
            code, usage = end(pid, ending[0]["end"] if ending else 0.0)
        if ending is None:
            return
        answer(control, code=code, cpu=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss)


def warm(preload: list[str], child: types.ModuleType, values: types.ModuleType) -> Any:
    """Import, and provoke what the libraries import late; IPython's shell, ready to run cells."""
    for name in preload:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if torch := sys.modules.get("torch"):
        warm_torch(torch)
    shell = child.quiet_shell()
    plain = ("import math\n[math.pi]", "def f(x):\n    return x", "1 / 0")
    for source in (*plain * 10, "(", "%time 1"):
        child.run_cell(shell, source, values)
    warm_probes(child, values)
    for name in ("math", "f"):
        shell.user_ns.pop(name, None)
    return shell


def warm_probes(child: types.ModuleType, values: types.ModuleType) -> None:
    """Run a probe some fifty times: children inherit our code as Python has specialized it by
    then (PEP 659)."""
    probe = (
        "def probe(f, x, mode):\n    out, kept = take(f(x), 'a', 'b')\n    return {'out': out}\n"
    )
    inputs = {"x": [[1.0, 2.5], [3.0, 4.0]], "mode": "train"}
    task = {"exercise": "f", "probe": probe, "probe_name": "probe", "uses": [], "where": {},
            "watch": False, "inputs": inputs}  # fmt: skip
    namespace = {"f": lambda x: ((x - x.mean(axis=0)) / (x.var(axis=0) + 1.0) ** 0.5, x.sum())}
    for _ in range(50):
        numbers: list[Any] = []
        result, _ = child.run_task(json.loads(json.dumps(task)), namespace, values, numbers)
        json.dumps([result, values.packed(numbers)])


def warm_torch(torch: types.ModuleType) -> None:
    """A small training step in one thread: no pool of threads may exist when we fork."""
    torch.set_num_threads(1)
    layer = torch.nn.BatchNorm2d(2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loss = layer(torch.ones(2, 2, 2, 1)).sum()
    if not torch.backends.mps.is_available():  # where torch sees a GPU, a fork could not do another
        loss.backward()
    optimizer.step()
    importlib.import_module("torch.utils._python_dispatch")
    importlib.import_module("torch.utils._pytree")


def end(pid: int, patience: float) -> tuple[int, Any]:
    """Wait so long for the child, then end it and all that it left in its session; reap it."""
    stop = time.monotonic() + patience
    with contextlib.suppress(OSError, AttributeError):  # Linux
        gone = os.pidfd_open(pid)
        try:
            select.select([gone], [], [], patience)
        finally:
            os.close(gone)
    found, status, usage = os.wait4(pid, os.WNOHANG)
    while not found and time.monotonic() < stop:
        time.sleep(0.002)
        found, status, usage = os.wait4(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage


def answer(control: socket.socket, **message: Any) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def receive(control: socket.socket, descriptors: int) -> tuple[dict[str, Any], list[int]] | None:
    """The next message with its descriptors, None where the grader is gone."""
    text, found, _, _ = socket.recv_fds(control, 1 << 16, descriptors)
    while text and not text.endswith(b"\n"):
        more = control.recv(1 << 16)
        text = text + more if more else b""
    return (json.loads(text), list(found)) if text else None
