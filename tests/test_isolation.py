"""The hostile suite: at level "lsm" learners' code gets nothing, leaves nothing behind and forges
nothing. Each attack is a submission of its own with its expected verdict; the exercise behind it,
and the submission after it, are graded as if nothing had been."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_sandbox import EXERCISES, LIMITS, RIGHT, WRITE, WRONG, body, graded, verdict_of

from autograder import classroom, cli
from autograder.course import UserError
from autograder.grade import Round
from autograder.judge import DIED, FAILED, PASSED, RAISED, TIMED_OUT
from autograder.sandbox import isolation, parent

pytestmark = pytest.mark.skipif(bool(isolation.missing()), reason="this machine cannot isolate")

SECRET = "s3cr3t-4711"
ROOT = Path(__file__).parent.parent
IMPATIENT = replace(LIMITS, wall=3)
LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
CALL = (
    LIBC + "def call(*given):\n"
    "    if libc.syscall(*given) < 0:\n"
    "        raise OSError(ctypes.get_errno(), 'refused')\n"
)

# what is tried, in words: the code, with {file} a file and {folder} its folder, {port} a listening
# TCP port, {grader} the grader's process. Whatever it finds it prints, and then it raises: so each
# must end as "raised". What is refused raises by itself.
READS = {
    "a solution": "print(open({file!r}).read())",
    "a solution, by descriptor": "import os\nprint(os.read(os.open({file!r}, os.O_RDONLY), 99))",
    "a solution, with numpy": "print(np.fromfile({file!r}, dtype='S1'))",
    "a solution, by mmap": "import mmap, os\n"
    "print(mmap.mmap(os.open({file!r}, 0), 0, prot=1)[:99])",
    "a solution, from C": LIBC + "n = libc.open({file!r}.encode(), 0)\n"
    "assert n < 0, print(__import__('os').read(n, 99))\nraise OSError",
    "a solution, by a raw system call": CALL + "call(437, -100, {file!r}.encode(), "
    "ctypes.byref((ctypes.c_uint64 * 3)()), 24)",
    "a solution, by its handle": CALL + "call(304 if __import__('platform').machine() == 'x86_64' "
    "else 265, -100, ctypes.byref((ctypes.c_char * 200)()), 0)",
    "a folder": "import os\nprint(os.listdir({folder!r}))",
    "folders from the root": "import os\nprint(os.listdir('/'))",
    "the gradebook": "import sqlite3\nprint(list(sqlite3.connect({folder!r} + '/gradebook.db')"
    ".execute('select * from t')))",
    "the package's expected values": "print(open({package!r} + '/cases/02_batchnorm_forward.json')"
    ".read())",
    "the package itself": "import sys, importlib\nsys.modules.pop('autograder')\n"
    "sys.path.insert(0, {checkout!r})\nprint(importlib.import_module('autograder.exercises'))",
    "a module of the checkout": "import importlib.util as u\n"
    "spec = u.spec_from_file_location('x', {file!r})\n"
    "m = u.module_from_spec(spec); spec.loader.exec_module(m); print(m)",
    "its own environment in /proc": "print(open('/proc/self/environ').read())",
    "the grader's environment": "print(open('/proc/{grader}/environ').read())",
    "the grader's memory": "print(open('/proc/{grader}/mem', 'rb').read(9))",
    "the grader's descriptors": "import os\nprint(os.listdir('/proc/{grader}/fd'))",
    "the warm parent's memory": "import os\n"
    "print(open(f'/proc/{{os.getppid()}}/mem', 'rb').read(9))",
    "another's memory by a system call": CALL + "import os\n"
    "x86 = __import__('platform').machine() == 'x86_64'\n"
    "call(310 if x86 else 270, os.getppid(), 0, 0, 0, 0, 0)",
    "another as a debugger": LIBC + "import os\n"
    "assert libc.ptrace(16, os.getppid(), 0, 0) == 0\nprint('attached')",
    "another's descriptors by pidfd": CALL + "import os\ncall(434, os.getppid(), 0)",
    "the password file": "print(open('/etc/passwd').read())",
    "the block device": "import glob\nprint(open('/dev/mem', 'rb').read(9))",
    "what happens in a folder": CALL
    + "call(294 if __import__('platform').machine() == 'x86_64' else 26, 0)",
}
WRITES = {
    "a file in /tmp": "open('/tmp/autograder-left-this', 'w')",
    "a file beside it": "open('results.json', 'w')",
    "a results file": "open({folder!r} + '/results.json', 'w').write('100')",
    "over a solution": "open({file!r}, 'a').write('x')",
    "a new folder": "import os\nos.mkdir({folder!r} + '/new')",
    "a link": "import os\nos.symlink('/etc/passwd', {folder!r} + '/link')",
    "a hard link": "import os\nos.link({file!r}, {folder!r} + '/link')",
    "away": "import os\nos.unlink({file!r})",
    "another name": "import os\nos.rename({file!r}, {file!r} + '2')",
    "shorter": "import os\nos.truncate({file!r}, 0)",
    "another mode": "import os\nos.chmod({file!r}, 0)",
    "another owner": "import os\nos.chown({file!r}, 1, 1)",
    "another time": "import os\nos.utime({file!r}, (0, 0))",
    "an attribute": "import os\nos.setxattr({file!r}, 'user.x', b'1')",
    "shared memory": "from multiprocessing import shared_memory\n"
    "shared_memory.SharedMemory('left', create=True, size=99)",
    "old shared memory": LIBC
    + "if libc.shmget(4711, 99, 0o1666) < 0: raise OSError\nprint('made')",
    "a System V queue": LIBC + "if libc.msgctl(0, 0, None) < 0 and ctypes.get_errno() == 1:\n"
    "    raise PermissionError\nprint('made')",
    "a file's flags": "import fcntl, os\n"
    "fcntl.ioctl(os.open(os.__file__, os.O_RDONLY), 0x40086602, b'\\0' * 8)",
    "a lock on a package": "import fcntl, os\nfcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_EX)",
    "a lease": "import fcntl, os\nfcntl.fcntl(os.open(os.__file__, 0), 1024, 0)",
    "an anonymous file": "import os\nos.memfd_create('x')",
    "a message queue": LIBC + "if libc.mq_open(b'/left', 66, 0o666, None) < 0: raise OSError",
    "a named pipe": "import os\nos.mkfifo({folder!r} + '/pipe')",
    "the grader's terminal": "open('/dev/tty', 'w').write('100')",
}
NETWORK = {
    "TCP": "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "UDP": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "IPv6": "import socket\nsocket.socket(socket.AF_INET6)",
    "a Unix socket": "import socket\nsocket.socket(socket.AF_UNIX)",
    "a raw packet": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "HTTP": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')",
    "a name": "import socket\nsocket.getaddrinfo('example.org', 80)",
    "asyncio": "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', {port}))",
    "a server": "import socketserver\nsocketserver.TCPServer(('127.0.0.1', 0), None)",
    "a datagram to a socket's path": "import socket\n"
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "a.sendto(b'hello', {folder!r} + '/socket')",
    "io_uring": CALL + "call(425, 8, ctypes.byref((ctypes.c_char * 200)()))",
}
PROCESSES = {
    "a fork": "import os\nos.fork()",
    "a fork in C": LIBC + "if libc.fork() < 0: raise OSError",
    "vfork by a system call": CALL
    + "call(58) if __import__('platform').machine() == 'x86_64' else call(220, 0x4111, 0, 0, 0, 0)",
    "clone3": CALL + "call(435, ctypes.byref((ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)), 88)",
    "three hundred forks": "import os\nfor n in range(300): os.fork()",
    "a daemon": "import subprocess, sys\nslow = 'import time; time.sleep(60)'\n"
    "subprocess.Popen([sys.executable, '-c', slow], start_new_session=True)",
    "a shell": "import os\nif os.system('id') != 0: raise OSError",
    "posix_spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {{}})",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "multiprocessing": "import multiprocessing as m\n"
    "m.get_context('fork').Process(target=print).start()",
    "a pool": "from concurrent.futures import ProcessPoolExecutor\n"
    "list(ProcessPoolExecutor(2).map(abs, [1]))",
    "a new session": "import os\nos.setsid()",
    "a namespace": CALL
    + "call(272 if __import__('platform').machine() == 'x86_64' else 97, 0x10000000)",
    "a mount": LIBC + "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) < 0: raise OSError",
    "another root": "import os\nos.chroot('/tmp')",
    "killing the grader": "import os\nos.kill({grader}, 9)",
    "killing the warm parent": "import os\nos.kill(os.getppid(), 9)",
    "killing everybody": "import os\nos.kill(-1, 9)",
    "killing its group": "import os\nos.killpg(0, 9)",
    "a signal with a value": CALL + "call(129 if __import__('platform').machine() == 'x86_64' "
    "else 138, {grader}, 9, ctypes.byref((ctypes.c_char * 128)()))",
    "a signal by thread": CALL + "call(200 if __import__('platform').machine() == 'x86_64' "
    "else 130, {grader}, 9)",
    "a signal by descriptor's owner": "import fcntl, os\nfcntl.fcntl(3, 8, {grader})",
    "outliving the warm parent": LIBC + "if libc.prctl(1, 0, 0, 0, 0) < 0: raise OSError",
    "the grader's limits": "import resource as r\nr.prlimit({grader}, r.RLIMIT_CPU, (1, 1))",
    "higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "the clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "capabilities": "import os\nos.setuid(0); os.setgroups([0]); os.seteuid(1)\nraise OSError",
    "a kernel's program": CALL
    + "call(321 if __import__('platform').machine() == 'x86_64' else 280, 0, 0, 0)",
}
RAISING = {
    f"{kind}: {what}": code
    for kind, attacks in (("reads", READS), ("writes", WRITES), ("network", NETWORK),
                          ("processes", PROCESSES))
    for what, code in attacks.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[dict[str, object]]:
    """What there would be to find: a solution, a gradebook, a server, the grader's environment."""
    folder = tmp_path_factory.mktemp("instructor")
    (folder / "solution.py").write_text(f"SECRET = {SECRET!r}\nprint(SECRET)\n")
    with sqlite3.connect(folder / "gradebook.db") as book:
        book.execute("create table t (x)")
        book.execute("insert into t values (?)", [SECRET])
    os.environ["GRADEBOOK_PASSWORD"] = SECRET
    parent.close_all()  # new ones inherit what there is to inherit
    checkout = Path(cli.__file__).parent.parent
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"file": str(folder / "solution.py"), "folder": str(folder), "grader": os.getpid(),
               "port": server.getsockname()[1], "package": str(checkout / "autograder"),
               "checkout": str(checkout)}  # fmt: skip
    del os.environ["GRADEBOOK_PASSWORD"]


def processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def children_of_warm_parents() -> list[str]:
    """Who is left of the children; processes that they started would have had to be forked."""
    idle = [warm.process.pid for waiting in parent._idle.values() for warm in waiting]
    return [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in idle
            if Path(f"/proc/{pid}/task/{pid}/children").read_text()]  # fmt: skip


def captured(code: str) -> str:
    """All that comes out of the sandbox when a cell runs this code, and why it stopped."""
    done = parent.run(["import numpy as np", code], [], EXERCISES, LIMITS)
    return json.dumps([done.printed, *(f"{f.type} {f.message}" for f in done.cell_errors.values())])


@pytest.mark.parametrize("what", RAISING)
def test_an_attack_raises_gets_nothing_and_costs_its_own_exercise(what: str, place) -> None:
    folder = Path(place["folder"])
    before = {path.name: (path.read_bytes(), path.stat()) for path in folder.iterdir()}
    code = RAISING[what].format(**place)
    result = graded(body(*code.split("\n")))
    assert verdict_of(result, "identity_affine") == RAISED
    assert verdict_of(result, "convert_momentum") == PASSED
    assert graded(RIGHT, code).earned == 10  # in a cell of its own: it costs nothing
    found = captured(code)
    assert re.search("[Ee]rror", found)
    assert not re.search(f"{SECRET}|attached|made|GAMMA|Interpreter", found)
    after = {path.name: (path.read_bytes(), path.stat()) for path in folder.iterdir()}
    assert {n: (d, s.st_mode, s.st_mtime, s.st_uid) for n, (d, s) in after.items()} == {
        n: (d, s.st_mode, s.st_mtime, s.st_uid) for n, (d, s) in before.items()
    }
    assert not Path("/tmp/autograder-left-this").exists()


# ---- what does not raise: it ends, eats, or lies -------------------------------------------------

ENDING = {
    "a crash of the interpreter": ("import ctypes\nctypes.string_at(0)", DIED),
    "killing itself": ("import os\nos.kill(os.getpid(), 9)", DIED),
    "leaving at once": ("import os\nos._exit(0)", DIED),
    "closing every descriptor": ("import os\nos.closerange(0, 10**6)", DIED),
    "an endless loop": ("while True: pass", TIMED_OUT),
    "a loop in threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "for n in range(4): threading.Thread(target=spin).start()\nspin()", TIMED_OUT),
    "ignoring every signal": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass", TIMED_OUT),
    "a sleep": ("import time\ntime.sleep(10**6)", TIMED_OUT),
    "waiting for itself": ("import threading\nk = threading.Lock()\nk.acquire(); k.acquire()",
                           TIMED_OUT),
    "reading the tasks away": (
        "import os\nfor n in range(3, 9):\n    try:\n        while os.read(n, 9**6): pass\n"
        "    except OSError: pass\nos._exit(0)", TIMED_OUT),
    "memory in one piece": ("np.ones(10**12)", RAISED),
    "memory in many pieces": ("kept = []\nwhile True: kept.append(np.empty(10**7))", RAISED),
    "descriptors": ("import os\nkept = [os.dup(0) for n in range(10**6)]", RAISED),
    "pipes": ("import os\nkept = [os.pipe() for n in range(10**6)]", RAISED),
    "a thread for each wish": (
        "import threading, time\nfor n in range(10**6):\n"
        "    threading.Thread(target=time.sleep, args=(99,)).start()", RAISED),
    "recursion": ("def again(): again()\nagain()", RAISED),
    "an array of a million million": ("return np.broadcast_to(1.0, (10**6, 10**6)), mean", FAILED),
    "megabytes of text": ("print('x' * 3 * 10**8)", PASSED),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDING)
def test_what_ends_or_eats_costs_its_own_exercise_and_leaves_nothing(what: str) -> None:
    code, expected = ENDING[what]
    waits = ("a sleep", "waiting for itself", "ignoring every signal", "reading the tasks away")
    patient = what not in waits
    result = graded(body(*code.split("\n")), limits=LIMITS if patient else IMPATIENT)
    assert verdict_of(result, "identity_affine") == expected
    assert verdict_of(result, "convert_momentum") == PASSED
    assert children_of_warm_parents() == []


FRAMES = """
import sys, gc
def everything():
    frame = sys._getframe()
    while frame:
        yield frame.f_locals, frame.f_globals
        frame = frame.f_back
"""
LIES = {
    "equal to everything": "class Liar(np.ndarray):\n    __array_priority__ = 1e9\n"
    "    def __eq__(self, other): return True\n"
    "    shape = property(lambda self: (2,))\n    dtype = property(lambda self: np.dtype(float))\n"
    "def identity_affine(mean, var, eps): return np.zeros(2).view(Liar), np.zeros(2).view(Liar)",
    "an object with __array__": "class Liar:\n    def __array__(self, *a, **k): return np.ones(2)\n"
    "def identity_affine(mean, var, eps): return Liar(), Liar()",
    "inputs out of the frames": FRAMES + "def identity_affine(mean, var, eps):\n"
    "    for names, _ in everything():\n        if 'task' in names:\n"
    "            names['task']['inputs'].clear()\n            names['inputs'] = {}\n"
    "    return var, mean",
    "a probe out of the frames": FRAMES + "def identity_affine(mean, var, eps):\n"
    "    for names, around in everything():\n        if 'probe' in names:\n"
    "            names['probe'].__code__ = (lambda learner, mean, var, eps: "
    "{'gamma': 1.0}).__code__\n"
    "    return var, mean",
    "say out of the frames": FRAMES + "def identity_affine(mean, var, eps):\n"
    "    for names, _ in everything():\n        if 'say' in names:\n"
    "            names['say'](event='done', numbers='', results=[{'index': 0, 'outputs': {}}])\n"
    "            names['say'](event='end')\n    return var, mean",
    "expected values by the garbage collector": "import gc\n"
    "def identity_affine(mean, var, eps):\n"
    "    for o in gc.get_objects():\n        if type(o) is dict and 'expected' in o:\n"
    "            e = o['expected']; return e['gamma'], e['beta']\n    return var, mean",
    "patched modules of ours": "import sys\n"
    "for name in ('_values', '_child', '_isolation', '_zygote'):\n"
    "    m = sys.modules[name]\n    for k in list(vars(m)):\n"
    "        if callable(getattr(m, k)): setattr(m, k, lambda *a, **k: None)",
    "patched builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\n"
    "builtins.len = lambda *a: 2",
    "a patched IPython": "import IPython\nshell = get_ipython()\n"
    "type(shell).run_cell = lambda *a, **k: None\nshell.user_ns = {}",
    "a patched torch": "import torch\ntorch.allclose = torch.equal = lambda *a: True",
    "messages on every descriptor": WRITE + "shout('{\"event\": \"done\", \"numbers\": "
    "\"\", \"results\": [{\"index\": 0, \"outputs\": {\"gamma\": 1}}]}', '{\"event\": \"end\"}')",
    "results for tasks to come": WRITE
    + "shout('{\"event\": \"done\", \"numbers\": \"\", \"results\": [%s]}' % "
    "', '.join('{\"index\": %d, \"outputs\": {}}' % n for n in range(9)))",
    "a refusal": WRITE + "shout('{\"event\": \"refused\", \"why\": \"x\"}')",
    "points": WRITE + "shout('{\"points\": 100, \"earned\": 100}')",
    "descriptors exchanged": "import os\nos.dup2(4, 3)",
    "an exit handler": "import atexit\natexit.register(lambda: print('points 100'))",
    "a trace function": "import sys\nsys.settrace(lambda *a: None)\n"
    "sys.setprofile(lambda *a: None)",
    "a finder for imports": "import sys\nclass F:\n    def find_spec(self, *a): raise SystemExit\n"
    "sys.meta_path.insert(0, F())",
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_lies_earn_nothing_for_a_wrong_answer(what: str) -> None:
    lie = LIES[what]
    source = lie if "def identity_affine" in lie else f"{lie}\n{WRONG}"
    for result in (graded(source, limits=IMPATIENT), graded(WRONG, lie, limits=IMPATIENT)):
        assert result.exercises[0].criteria[0].earned == 0


def test_the_suite_is_large_enough() -> None:
    assert len(RAISING) + len(ENDING) + len(LIES) >= 60


# ---- after all that ------------------------------------------------------------------------------


def test_the_next_submission_is_graded_by_a_parent_that_no_code_has_touched() -> None:
    for code in ("import numpy; numpy.sqrt = None", "import builtins; builtins.print = None",
                 "identity_affine = 5", "import os; os.environ['X'] = '1'"):  # fmt: skip
        graded(WRONG, code)
        assert graded(RIGHT, "import os; assert 'X' not in os.environ").earned == 10


def test_what_the_child_knows_of_the_world(place) -> None:
    seen = captured(
        "import os, sys, gc\nprint(dict(os.environ), sys.argv, sys.path, os.getcwd())\n"
        "frame = sys._getframe()\nwhile frame:\n"
        "    print(frame.f_code.co_filename); frame = frame.f_back\n"
        "print([m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)])\n"
        "print(sorted(n for n in range(64) if _open(n)))".replace(
            "_open(n)", "not __import__('contextlib').suppress(OSError).__exit__(None, None, None) "
            "and _there(n)"
        ).replace("_there(n)", "os.path.exists(f'/dev/fd/{n}')")
    )  # fmt: skip
    assert SECRET not in seen
    assert str(place["checkout"]) + "/autograder" not in seen
    assert str(place["folder"]) not in seen


def test_results_do_not_depend_on_who_was_graded_before() -> None:
    alone = [json.dumps(e.as_dict()) for e in graded(WRONG).exercises]
    for code in ("np.random.seed(1); np.random.rand(5)", "import torch; torch.manual_seed(1)",
                 "np.seterr(all='raise')", "import gc; gc.disable()"):  # fmt: skip
        graded(RIGHT, code)
        assert [json.dumps(e.as_dict()) for e in graded(WRONG).exercises] == alone


# ---- where it cannot be had ----------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setattr(isolation, "missing", lambda: ["The kernel offers no Landlock: x."])
    parent.must_have.cache_clear()
    yield
    parent.must_have.cache_clear()


def test_grading_refuses_in_words_where_it_cannot_isolate(without, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["autograder", "grade", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "Cannot isolate learners' code. The kernel offers no Landlock" in said
    assert "--isolation process" in said
    monkeypatch.setattr(sys, "argv", ["autograder", "doctor"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "cannot be had" in capsys.readouterr().out


def test_doctor_says_what_there_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["autograder", "doctor"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "Landlock   version" in said
    assert "✓ level lsm" in said


@pytest.mark.parametrize(("system", "word"), [("darwin", "macOS"), ("win32", "Windows")])
def test_other_systems_get_an_answer(system: str, word: str, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    (said,) = isolation.missing()
    assert word in said
    assert "Linux" in said


@pytest.mark.parametrize(
    ("body", "said"),
    [("    import os; os._exit(3)", "ended with exit code 3"),
     ("    raise CannotIsolate('tried')", r"could not be restricted \(CannotIsolate: tried\)"),
     ("    return", "could read a file")],
)  # fmt: skip
def test_a_test_process_that_is_not_held_or_says_nothing_is_a_refusal(
    body: str, said: str, tmp_path, monkeypatch
) -> None:
    head = "def restrict(rules: int) -> None:\n"
    source = Path(isolation.__file__).read_text()
    (tmp_path / "broken.py").write_text(source.replace(head, f"{head}{body}\n"))
    monkeypatch.setattr(isolation, "__file__", str(tmp_path / "broken.py"))
    assert re.search(said, " ".join(isolation.missing()))


def test_windows_is_told_where_to_grade() -> None:
    code = (
        "import os, sys, typer, nbgrader.apps, numpy, multiprocessing.connection\n"
        "sys.modules['fcntl'] = sys.modules['resource'] = None\ndel os.fork\n"
        "from autograder import cli\nsys.platform = 'win32'\ncli.main()"
    )
    for words, said in ((["doctor"], "WSL 2"), (["grade", "x"], "which Windows cannot")):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True
        )
        assert said in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_nothing_runs_where_the_rules_fail_in_the_child(monkeypatch) -> None:
    """Fails closed: the child says so, and runs no cell."""
    broken = parent._sources() | {
        "isolation": Path(isolation.__file__).read_text().replace(
            "def restrict(rules: int) -> None:\n",
            "def restrict(rules: int) -> None:\n    raise CannotIsolate('tried')\n",
        )
    }  # fmt: skip
    parent.close_all()
    monkeypatch.setattr(parent, "_sources", lambda: broken)
    with pytest.raises(UserError, match="Cannot isolate learners' code: tried"):
        graded(RIGHT)
    parent.close_all()


def test_the_level_is_in_every_result() -> None:
    assert graded(RIGHT).isolation == "lsm"
    assert graded(RIGHT, level="process").isolation == "process"
    assert Round.__dataclass_fields__["level"].default == "lsm"


# ---- the filter itself, for both processors ------------------------------------------------------


def run_filter(program, number: int, *arguments: int, architecture: int) -> int:
    """What the kernel would answer: BPF, as far as our filter uses it."""
    data = {0: number, 4: architecture} | {16 + 8 * n: a for n, a in enumerate(arguments)}
    at = accumulator = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            accumulator = data.get(value, 0)
        elif code == 0x06:
            return value
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value,
                    0x45: bool(accumulator & value)}[code]  # fmt: skip
            at += yes if test else no


ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000


@pytest.mark.parametrize("name", isolation.MACHINES)
def test_the_filter_refuses_what_it_should_on_both_processors(name: str) -> None:
    architecture, numbers = isolation.MACHINES[name]
    program = isolation.seccomp_program(name, pid=77, landlock=7)
    assert len(program) < 4096

    def answer(call: str, *arguments: int) -> int:
        return run_filter(program, numbers[call], *arguments, architecture=architecture)

    for call in ("socket", "execve", "ptrace", "memfd_create", "io_uring_setup", "fchmodat"):
        assert answer(call) == REFUSE
    assert answer("clone", 17) == REFUSE
    assert answer("clone", 0x10000) == ALLOW  # a thread
    assert answer("clone3") == 0x00050000 | 38
    assert (answer("kill", 77), answer("kill", 78)) == (ALLOW, REFUSE)
    assert (answer("tgkill", 77, 1), answer("tgkill", 1, 1)) == (ALLOW, REFUSE)
    assert (answer("prlimit64", 0), answer("prlimit64", 5)) == (ALLOW, REFUSE)
    assert (answer("prctl", 1), answer("prctl", 15)) == (REFUSE, ALLOW)
    assert (answer("fcntl", 3, 8), answer("fcntl", 3, 1)) == (REFUSE, ALLOW)
    assert (answer("ioctl", 3, 0x8901), answer("ioctl", 3, 0x5401)) == (REFUSE, ALLOW)
    assert (answer("socketpair", 1, 2), answer("socketpair", 1, 0x80001)) == (REFUSE, ALLOW)
    assert answer("openat", 3, 0, 0x200) == ALLOW  # Landlock sees to it
    old = isolation.seccomp_program(name, pid=77, landlock=2)
    emptying = run_filter(old, numbers["openat"], 3, 0, 0x200, architecture=architecture)
    reading = run_filter(old, numbers["openat"], 3, 0, 0x80000, architecture=architecture)
    assert (emptying, reading) == (REFUSE, ALLOW)
    assert run_filter(program, 469, architecture=architecture) == 0x00050000 | 38  # newer than us
    ordinary = {"x86_64": (0, 1, 9, 12, 39, 228), "aarch64": (63, 64, 222, 214, 172, 113)}[name]
    assert {run_filter(program, n, architecture=architecture) for n in ordinary} == {ALLOW}
    assert run_filter(program, ordinary[0], architecture=1) == KILL
    if name == "x86_64":
        assert run_filter(program, 0x40000000 + 41, architecture=architecture) == KILL


@pytest.mark.parametrize(
    ("name", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
     ("aarch64", "/usr/include/asm-generic/unistd.h")],
)  # fmt: skip
def test_the_numbers_are_the_kernels(name: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip("no kernel headers here")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    numbers = isolation.MACHINES[name][1]
    assert {call: int(found[call]) for call in numbers if call in found} == {
        call: number for call, number in numbers.items() if call in found
    }
    assert len(numbers.keys() & found.keys()) > 80


def test_a_parent_that_is_killed_takes_its_child_along() -> None:
    code = (
        "import sys, os, time\nsys.path.insert(0, 'tests')\n"
        "from test_sandbox import *\nprint(os.getpid(), flush=True)\n"
        "graded(body('while True: pass'), limits=replace(LIMITS, cpu_probe=60))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        time.sleep(3)
        there = processes()
        run.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [n for n in there & processes() if _is_ours(n, run.pid)]
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError(f"processes {left} survived")


def _is_ours(number: int, dead: int) -> bool:
    """A warm parent or its child, left without a grader."""
    try:
        command = Path(f"/proc/{number}/cmdline").read_bytes()
        status = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False
    return b"control = socket.socket" in command and "PPid:\t1\n" in status


def test_the_class_secret_is_out_of_reach(tmp_path) -> None:
    secret = classroom.class_secret(tmp_path)
    path = tmp_path / ".autograder" / "secret"
    assert secret.hex() not in captured(f"print(open({str(path)!r}).read())")


def test_huge_pages_change_nothing_but_how_memory_lies() -> None:
    code = (
        "from autograder.sandbox import isolation\nimport numpy as np\nheld = np.arange(4e6)\n"
        "isolation.huge_pages()\nassert held.sum() == 7999998000000.0\nprint('unharmed')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("unharmed\n", "")
