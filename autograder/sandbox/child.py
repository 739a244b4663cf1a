"""Runs one learner's cells and probes in a process of its own. Not imported: executed by path.

Reads one JSON job from standard input: cells and limits. When the cells have run, it waits for a
line that names a file of tasks (probes as source, inputs), and again when they are done: hidden
inputs come last, in a file of their own. Writes one JSON line for each thing that begins or ends,
to the descriptor named on the command line.
Nothing of the package but values.py is loaded here: no reference, mistake, expected array or
seed exists in this process, and what `import autograder` finds is a stub.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import signal
import sys
import types
import warnings
from pathlib import Path
from typing import Any


def load_values() -> types.ModuleType:
    path = Path(__file__).resolve().parent.parent / "values.py"
    spec = importlib.util.spec_from_file_location("_values", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_values"] = module
    spec.loader.exec_module(module)
    return module


def stub() -> types.ModuleType:
    """What `import autograder` finds in here: checks and hints that do nothing."""
    module = types.ModuleType("autograder")

    def check(exercise: Any = None) -> float:
        return 0.0

    def nothing(*ignored: Any) -> None:
        return None

    module.check, module.hint, module.progress = check, nothing, nothing  # type: ignore[attr-defined]
    return module


def quiet_shell() -> Any:
    """IPython's shell, so that magics and top-level await work, without history or commands."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell: Any = InteractiveShell.instance(config=config)
    shell.enable_gui = lambda *ignored, **also: None  # a bare shell raises: %matplotlib inline
    shell.system = shell.system_raw = shell.system_piped = lambda command: print(
        "shell commands are not run while grading"
    )
    shell.getoutput = lambda command, *ignored, **also: []
    for name in ("pip", "conda", "mamba", "micromamba", "uv"):
        shell.register_magic_function(lambda line: None, "line", name)
    shell.showtraceback = lambda *ignored, **also: None
    shell._showtraceback = lambda *ignored, **also: None
    return shell


def cpu_limit(seconds: int, hard: int) -> None:
    """The process may use this many more CPU seconds before the kernel stops it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (min(soft, hard), hard))


def limits(job: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))


def main() -> None:
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # Linux: when the grader ends, so do we
    out = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", buffering=1)
    job = json.loads(sys.stdin.readline())
    go_on = os.fdopen(os.dup(0), "rb")
    ours = os.getpid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)

    def say(**event: Any) -> None:
        if os.getpid() != ours:  # a fork that came back: it must not run everything twice
            os._exit(0)
        out.write(json.dumps(event) + "\n")
        out.flush()

    values = load_values()
    sys.modules["autograder"] = stub()
    shell = quiet_shell()
    namespace = shell.user_ns
    hard = job["cpu_total"]
    limits(job)
    say(event="ready")

    for index, cell in enumerate(job["cells"]):
        if index in job["skip_cells"]:
            continue
        cpu_limit(job["cpu_cell"], hard)
        say(event="cell", index=index)
        captured, error = run_cell(shell, cell, values)
        say(event="cell done", index=index, error=error, captured=captured)

    say(event="waits")
    while path := go_on.readline().decode().strip():
        for task in json.loads(Path(path).read_text(encoding="utf-8")):
            index = task["index"]
            cpu_limit(job["cpu_probe"], hard)
            say(event="task", index=index)
            if task["exercise"] not in namespace:
                say(event="task done", index=index, missing=True)
                continue
            say(event="task done", index=index, **run_task(task, namespace, values))
        say(event="waits")
    say(event="end")
    out.close()
    os._exit(0)


def run_cell(shell: Any, source: str, values: types.ModuleType) -> tuple[str, Any]:
    captured = values.Bounded()
    with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured):
        try:
            result = shell.run_cell(source, store_history=False)
            error = result.error_before_exec or result.error_in_exec
        except KeyboardInterrupt as interrupt:
            error = interrupt
        except BaseException as raised:
            error = raised
    described = values.described_exception(error) if error is not None else None
    return captured.getvalue(), described


def run_task(
    task: dict[str, Any], namespace: dict[str, Any], values: types.ModuleType
) -> dict[str, Any]:
    import numpy

    learners = namespace[task["exercise"]]
    missing = [name for name in task["uses"] if name not in namespace]
    if missing:
        failure = values.described_exception(NameError(f"name {missing[0]!r} is not defined"))
        return {"failure": failure}
    also = task["where"] | {name: namespace[name] for name in task["uses"]}
    scope: dict[str, Any] = {
        "np": numpy,
        "take": values.take,
        "numeric_gradient": values.numeric_gradient,
    }
    exec(task["probe"], scope)
    probe = scope[task["probe_name"]]
    inputs = {name: values.input_from_json(data) for name, data in task["inputs"].items()}
    captured = values.Bounded()
    with (
        contextlib.redirect_stdout(captured),
        contextlib.redirect_stderr(captured),
        warnings.catch_warnings(),
        numpy.errstate(all="ignore"),
    ):
        try:
            outputs, failure, ran = values.run_probe(probe, learners, inputs, also, task["watch"])
        except KeyboardInterrupt as interrupt:
            outputs, failure, ran = {}, values.described_exception(interrupt), []
    return {
        "outputs": {name: values.to_json(value) for name, value in outputs.items()},
        "failure": failure,
        "operations": ran,
        "captured": captured.getvalue(),
    }


if __name__ == "__main__":
    main()
