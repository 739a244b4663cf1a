"""Runs one learner's cells and probes, in a process that the warm parent forked for them.

Reads a line of JSON from a pipe: cells, and the probes' source. When the cells have run, it waits
there for a line of tasks (which probe, which inputs), and again when they are done: hidden inputs
come last. To another pipe it writes a line for each cell, and one with the results of each probe,
or several where these take long or are large.
Nothing of the package but values.py and isolation.py is loaded here: no reference, mistake,
expected array or seed exists in this process, and what `import autograder` finds is a stub.
"""

from __future__ import annotations
import __future__

import contextlib
import fcntl
import json
import linecache
import os
import resource
import sys
import tempfile
import time
import types
import warnings
from functools import lru_cache
from typing import Any

OPEN_FILES = 128
LARGE = 10_000  # entries of results that wait to be sent
ANNOTATIONS = __future__.annotations.compiler_flag


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


def limits(job: dict[str, Any], isolation: types.ModuleType) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    if job["memory_bytes"] is not None:
        with contextlib.suppress(ValueError, OSError):  # no /proc: not Linux
            isolation.limit_memory(job["memory_bytes"])


def begin(
    messages: int,
    tasks: int,
    folder: int,
    rules: int,
    job: dict[str, Any],
    shell: Any,
    modules: dict[str, types.ModuleType],
) -> None:
    """Leave everything behind but two pipes, take the limits on, and run the job."""
    isolation = modules["isolation"]
    os.setsid()
    os.fchdir(folder)
    messages, tasks, rules = only(messages, tasks, rules)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    limits(job, isolation)
    ours = os.getpid()
    out = os.fdopen(messages, "w", encoding="utf-8", buffering=1)

    def say(**event: Any) -> None:
        if os.getpid() != ours:  # a fork that came back: it must not run everything twice
            os._exit(0)
        out.write(json.dumps(event) + "\n")
        out.flush()

    if rules >= 0:
        try:
            isolation.restrict(rules)
        except isolation.CannotIsolate as error:
            say(event="refused", why=str(error))
            os._exit(1)
    else:  # it can write: nothing that the next submission would find
        os.environ |= {"HOME": os.getcwd(), "TMPDIR": os.getcwd()}
        tempfile.tempdir = None  # looked up already
    sys.modules["autograder"] = stub()
    work(say, os.fdopen(tasks, "rb"), job, shell, modules["values"])
    out.close()
    os._exit(0)


def only(*kept: int) -> list[int]:
    """Close every descriptor but these, which become 3, 4, …; 0 to 2 lead nowhere. -1 stays -1."""
    high = [fcntl.fcntl(d, fcntl.F_DUPFD, 16) for d in kept if d >= 0]
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for number, descriptor in enumerate(high, start=3):
        os.dup2(descriptor, number)
    os.closerange(3 + len(high), 1 << 20)
    numbers = iter(range(3, 3 + len(high)))
    return [next(numbers) if d >= 0 else -1 for d in kept]


def work(say: Any, go_on: Any, job: dict[str, Any], shell: Any, values: types.ModuleType) -> None:
    """Run the cells, then tasks as they come, until an empty line."""
    namespace, hard = shell.user_ns, job["cpu_total"]
    say(event="ready")
    given = json.loads(go_on.readline())
    for index, cell in enumerate(given["cells"]):
        if index in job["skip_cells"]:
            continue
        cpu_limit(job["cpu_cell"], hard)
        captured, error = run_cell(shell, cell, values)
        say(event="cell done", index=index, error=error, captured=captured)

    say(event="waits")
    while line := go_on.readline().strip():
        results: list[dict[str, Any]] = []
        numbers: list[Any] = []
        about, since, size = None, 0.0, 0
        for task in json.loads(line):
            # a message for each probe, so that what was right before an end is not lost
            criterion = task["exercise"], task["probe_name"]
            if results and (criterion != about or time.monotonic() - since > 1 or size > LARGE):
                say(event="done", results=results, numbers=values.packed(numbers))
                results, numbers = [], []
            if not results:
                about, since, size = criterion, time.monotonic(), 0
            cpu_limit(job["cpu_probe"], hard)
            there = task["exercise"] in namespace
            found, many = {"missing": True}, 0
            if there:
                task["probe"] = given["probes"][task["probe"]]
                found, many = run_task(task, namespace, values, numbers)
            results.append({"index": task["index"], **found})
            size += many
        say(event="done", results=results, numbers=values.packed(numbers))
        say(event="waits")
    say(event="end")


def plain(source: str, shell: Any) -> types.CodeType | None:
    """A cell as Python's code, None where it is more, or less, than Python. Its lines can be
    looked up, as inspect.getsource wants; what it imports from __future__ holds for later cells,
    as in a notebook."""
    name = f"<cell {len(linecache.cache)}>"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flags = shell.compile.flags & ANNOTATIONS
            code = compile(source, name, "exec", flags, dont_inherit=True)  # this file has its own
            shell.compile.flags |= code.co_flags & ANNOTATIONS
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return code


def run_cell(shell: Any, source: str, values: types.ModuleType) -> tuple[str, Any]:
    """What a cell prints, and what it raises. Plain Python needs no shell, and IPython's takes
    longer than most cells; what Python cannot compile (magics, await, mistakes) it gets."""
    captured = values.Bounded()
    with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured):
        try:
            code = plain(source, shell)
            error: BaseException | None = None
            if code is not None:
                exec(code, shell.user_ns)
            else:
                result = shell.run_cell(source, store_history=False)
                error = result.error_before_exec or result.error_in_exec
        except KeyboardInterrupt as interrupt:
            error = interrupt
        except BaseException as raised:
            error = raised
    described = values.described_exception(error) if error is not None else None
    return captured.getvalue(), described


@lru_cache(maxsize=100)
def compiled(probe: str) -> types.CodeType:
    """A probe's source as code, which is the same for all its cases and cannot be changed."""
    return compile(probe, "<string>", "exec", dont_inherit=True)


def run_task(
    task: dict[str, Any], namespace: dict[str, Any], values: types.ModuleType, numbers: list[Any]
) -> tuple[dict[str, Any], int]:
    """What a probe gave, as JSON and `numbers`, and how many entries are in it."""
    import numpy

    learners = namespace[task["exercise"]]
    missing = [name for name in task["uses"] if name not in namespace]
    if missing:
        failure = values.described_exception(NameError(f"name {missing[0]!r} is not defined"))
        return {"failure": failure}, 0
    also = task["where"] | {name: namespace[name] for name in task["uses"]}
    scope: dict[str, Any] = {
        "np": numpy,
        "take": values.take,
        "numeric_gradient": values.numeric_gradient,
    }
    exec(compiled(task["probe"]), scope)
    probe = scope[task["probe_name"]]
    inputs = {name: values.input_from_json(data) for name, data in task["inputs"].items()}
    dropped = values.Bounded()
    with (
        contextlib.redirect_stdout(dropped),
        contextlib.redirect_stderr(dropped),
        warnings.catch_warnings(),
        numpy.errstate(all="ignore"),
    ):
        try:
            outputs, failure, ran = values.run_probe(probe, learners, inputs, also, task["watch"])
        except KeyboardInterrupt as interrupt:
            outputs, failure, ran = {}, values.described_exception(interrupt), []
    result = {
        "outputs": {name: values.to_wire(value, numbers) for name, value in outputs.items()},
        "failure": failure,
        "operations": ran,
    }
    return result, sum(v.array.size for v in outputs.values() if v.array is not None)
