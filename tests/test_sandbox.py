"""What stops, eats, warns or forges costs its own exercise and nothing else. Two small exercises of
lesson 02: `identity_affine` is in trouble, `convert_momentum` stands behind it and is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import nbformat
import pytest
from helpers import OURS, ROOT, cell_of, fresh_cases, named, release, solved, solved_notebook
from nbformat.notebooknode import NotebookNode

from autograder.grade import Round, grade_notebook, new_round
from autograder.judge import DIED, FAILED, PASSED, RAISED, TIMED_OUT
from autograder.repair import grade_id
from autograder.results import GRADED, Result
from autograder.sandbox import parent
from autograder.sandbox.parent import Limits

LESSON = "02_batchnorm_forward"
NAMES = ("identity_affine", "convert_momentum")
KEPT = ("setup", *NAMES, *(f"check-{name}" for name in NAMES))
LIMITS = Limits(cpu_cell=1, cpu_probe=1, wall=30, memory_bytes=1_500_000_000, starts=4)
IMPATIENT = replace(LIMITS, wall=3)  # only where nothing but the wall clock ends it

RIGHT = "def identity_affine(mean, var, eps):\n    return np.sqrt(var + eps), mean.copy()\n"
WRONG = "def identity_affine(mean, var, eps):\n    return var + eps, mean.copy()\n"


def light(notebook: NotebookNode) -> NotebookNode:
    """Without the pictures and the large exercise, which take seconds."""
    notebook.cells = [cell for cell in notebook.cells if grade_id(cell) in KEPT]
    cell_of(notebook, "setup").source = "import numpy as np\nfrom autograder import check"
    return notebook


EXERCISES = {name: OURS.exercises_of(LESSON)[name] for name in NAMES}
BANK = [case for case in OURS.bank(LESSON) if case.exercise in NAMES]
ROUND = Round(LESSON, light(release()), EXERCISES, BANK, {}, 0)


def notebook_with(source: str, trial: str = "") -> NotebookNode:
    """identity_affine as given, and a cell of the learner's own behind it."""
    notebook = light(solved_notebook({"identity_affine": source}))
    if trial:
        notebook.cells.insert(2, nbformat.v4.new_code_cell(trial))
    return notebook


def graded(
    source: str, trial: str = "", limits: Limits = LIMITS, level: str = parent.LSM
) -> Result:
    return grade_notebook(notebook_with(source, trial), replace(ROUND, level=level), limits)


def verdict_of(result: Result, name: str) -> str:
    return next(exercise.verdict for exercise in result.exercises if exercise.name == name)


def body(*lines: str) -> str:
    """identity_affine with these lines before its right answer."""
    head, answer = RIGHT.rstrip().split("\n")
    return "\n".join([head, *(f"    {line}" for line in lines), answer])


# ---- trouble -------------------------------------------------------------------------------

SWALLOW = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
TROUBLE: Mapping[str, str] = {
    "an endless loop": "while True: pass",
    "a sleep": "import time; time.sleep(10**6)",
    "a loop that swallows every exception": SWALLOW,
    "a loop that ignores signals": "import signal\n"
    "for number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGTERM, signal.SIGINT):\n"
    "    signal.signal(number, signal.SIG_IGN)\nwhile True: pass",
    "input": "input('your name? ')",
    "sys.exit": "import sys; sys.exit(0)",
    "raising SystemExit": "raise SystemExit",
    "raising KeyboardInterrupt": "raise KeyboardInterrupt",
    "os._exit": "import os; os._exit(0)",
    "a signal to itself": "import os; os.kill(os.getpid(), 9)",
    "a segfault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "a huge allocation": "np.ones(10**12)",
    "memory bit by bit": "kept = []\nwhile True: kept.append(np.empty(10**8))",
    "endless recursion": "def again(): again()\nagain()",
    "too many open files": "kept = [open('/dev/null') for _ in range(10**6)]",
    "a large file": "open('large', 'wb').write(b'x' * 10**8)",
}
VERDICTS = {
    "an endless loop": TIMED_OUT,
    "a sleep": TIMED_OUT,
    "a loop that swallows every exception": TIMED_OUT,
    "a loop that ignores signals": TIMED_OUT,
    "os._exit": DIED,
    "a signal to itself": DIED,
    "a segfault": DIED,
    "abort": DIED,
}


def limits_for(what: str) -> Limits:
    return IMPATIENT if what in ("a sleep", "a loop that ignores signals") else LIMITS


HARMLESS: Mapping[str, str] = {
    "exit": "exit()",
    "quit": "quit()",
    "ten thousand lines": "for n in range(10**4): print(n)",
    "one line of 100 MB": "print('x' * 10**8)",
    "stderr": "import sys; print('noise', file=sys.stderr); sys.stderr.flush()",
    "a file descriptor": "import os; os.write(2, b'noise'); os.write(1, b'noise')",
    "warnings": "import warnings; warnings.warn('odd')\nnp.log(0.0)",
    "warnings as errors": "import warnings; warnings.simplefilter('error')",
    "numpy's errors raised": "np.seterr(all='raise')",
    "logging": "import logging; logging.basicConfig(level=0); logging.error('odd')",
    "a thread that stays": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(10**6,)).start()",
    "another process that stays": "import subprocess, sys\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(10**6)'])",
    "an exception": "raise RuntimeError('in a trial cell')",
    "a syntax error": "def (",
    "an undefined name": "identity_afine(1, 2, 3)",
    "a changed folder": "import os; os.chdir('/')",
    "a random seed": "np.random.seed(0)",
    "printing changed": "np.set_printoptions(precision=2)",
    "stdout replaced": "import sys, io; sys.stdout = sys.stderr = io.StringIO()",
    "stdout closed": "import sys; sys.stdout.close()",
    "a shell command": "!pip install numpy",
    "a shell command's output": "files = !ls",
    "%pip": "%pip install numpy",
    "%matplotlib inline": "%matplotlib inline",
    "%timeit": "%timeit -n 2 -r 1 identity_affine(np.ones(2), np.ones(2), 0.1)",
    "%%time": "%%time\nidentity_affine(np.ones(2), np.ones(2), 0.1)",
    "%%bash": "%%bash\necho hello",
    "an unknown magic": "%nosuchmagic",
    "help": "identity_affine?",
    "await": "import asyncio\nawait asyncio.sleep(0)",
    "%reset of what it imported": "del check",
}


@pytest.mark.parametrize("what", TROUBLE)
def test_trouble_in_an_exercise_costs_that_exercise_only(what: str) -> None:
    result = graded(body(*TROUBLE[what].split("\n")), limits=limits_for(what))
    assert verdict_of(result, "identity_affine") == VERDICTS.get(what, RAISED)
    assert verdict_of(result, "convert_momentum") == PASSED
    assert (result.earned, result.points, result.status) == (5, 10, GRADED)


@pytest.mark.parametrize("what", [*TROUBLE, *HARMLESS])
def test_trouble_in_a_trial_cell_costs_nothing(what: str) -> None:
    result = graded(RIGHT, {**TROUBLE, **HARMLESS}[what], limits_for(what))
    assert (result.earned, result.status) == (10, GRADED)


@pytest.mark.parametrize(
    "trial", ["import os, shutil; shutil.rmtree(os.getcwd())", "open('tasks.json', 'w').close()"]
)
def test_a_working_folder_in_disorder_costs_nothing(trial: str) -> None:
    assert graded(RIGHT, trial).earned == 10


@pytest.mark.parametrize(
    "what",
    ["ten thousand lines", "one line of 100 MB", "stderr", "warnings", "a file descriptor"],
)
def test_noise_inside_an_exercise_costs_nothing(what: str) -> None:
    assert graded(body(*HARMLESS[what].split("\n"))).earned == 10


@pytest.mark.parametrize(
    "before",
    ["%matplotlib inline", "!pip install numpy", "%pip install numpy", "%%time", "%%capture",
     "import asyncio\nawait asyncio.sleep(0)", "%load_ext autoreload\n%autoreload 2", "print(1)"],
)  # fmt: skip
def test_definitions_count_beside_shell_things(before: str) -> None:
    assert graded(f"{before}\n{RIGHT}").earned == 10


@pytest.mark.parametrize(
    ("after", "verdict"),
    [("raise RuntimeError", PASSED), ("identity_affine = None", RAISED), ("del np", RAISED),
     ("identity_affine(1)", PASSED), ("del identity_affine", "not attempted")],
)  # fmt: skip
def test_what_a_cell_leaves_behind_is_what_counts(after: str, verdict: str) -> None:
    result = graded(RIGHT + after)
    assert verdict_of(result, "identity_affine") == verdict
    assert verdict_of(result, "convert_momentum") == PASSED


@pytest.mark.parametrize(
    ("source", "error"),
    [("def identity_affine(mean, var, eps:\n    return 1", "SyntaxError"),
     ("  def identity_affine(mean, var, eps):\n return 1", "IndentationError"),
     (f"import nosuchmodule\n{RIGHT}", "ModuleNotFoundError"),
     (f"raise ValueError\n{RIGHT}", "ValueError")],
)  # fmt: skip
def test_a_cell_that_fails_before_it_defines_names_the_exception(source: str, error: str) -> None:
    result = graded(source)
    assert verdict_of(result, "identity_affine") == RAISED
    assert error in result.exercises[0].criteria[0].message.headline
    assert result.earned == 5


def test_an_exercise_behind_an_endless_cell_is_still_graded_with_earlier_names() -> None:
    """The cells run again in a new process, without the one that hung."""
    result = graded(f"helper = np.sqrt\n{RIGHT.replace('np.sqrt', 'helper')}", "while True: pass")
    assert result.earned == 10
    assert any("2 processes" in note for note in result.notes)


def test_a_crash_in_one_case_does_not_hide_the_others_exercise() -> None:
    result = graded(body("if eps == 0.1: import os; os._exit(1)"))
    assert verdict_of(result, "identity_affine") == DIED
    assert result.earned == 5


def test_annotations_are_evaluated_as_in_a_notebook() -> None:
    trial = "def f(x: int): ...\nassert f.__annotations__ == {'x': int}"
    assert graded(RIGHT, trial).notes == []


def test_what_one_cell_imports_from_the_future_holds_in_the_next() -> None:
    notebook = notebook_with(RIGHT.replace("eps)", "eps: unknown_here)", 1))
    future = nbformat.v4.new_code_cell("from __future__ import annotations")
    notebook.cells.insert(1, future)
    assert grade_notebook(notebook, ROUND, LIMITS).earned == 10


def test_large_wrong_answers_fail_and_are_not_taken_for_nonsense() -> None:
    """Many a case: they come in several messages."""
    wrong = body("return np.zeros((99_000, 1)), mean")
    assert verdict_of(graded(wrong), "identity_affine") == FAILED


def test_what_ends_in_a_dry_run_costs_no_points() -> None:
    """It is advice: the cases that count run in a new process."""
    name = "RMSNorm"
    lesson = OURS.find(name)[0]
    this = new_round(OURS, lesson, 5)
    assert name in {case.exercise for case in this.dry_runs}
    head, line, rest = solved(OURS, lesson).source(name).partition("    def forward(self, x):\n")
    end = "        if x.device.type == 'meta': __import__('os')._exit(1)\n"
    result = grade_notebook(solved_notebook({name: head + line + end + rest}, OURS, lesson), this)
    assert result.earned == result.points
    assert any("2 processes" in note for note in result.notes)


def test_nonsense_from_an_exercise_s_last_case_is_not_blamed_on_the_next_exercise() -> None:
    nonsense = WRITE + "shout('nonsense')"
    result = graded(body("if len(mean) == 4:", *(f"    {line}" for line in nonsense.split("\n"))))
    assert verdict_of(result, "identity_affine") == DIED
    assert verdict_of(result, "convert_momentum") == PASSED
    assert any("2 processes" in note for note in result.notes)


@pytest.mark.parametrize("level", parent.LEVELS)
def test_a_grader_that_is_killed_leaves_no_folder(level: str, tmp_path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\nfrom test_sandbox import *\n"
        "print('begun', flush=True)\n"
        f"graded(body('while True: pass'), limits=replace(LIMITS, cpu_probe=60), level={level!r})\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as run:  # fmt: skip
        assert run.stdout is not None
        run.stdout.readline()
        while not list(tmp_path.glob("*")):
            time.sleep(0.01)
        time.sleep(0.3)
        run.kill()  # while the warm parent still imports
    deadline = time.monotonic() + 30
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.1)


def test_the_machine_is_left_as_it_was(tmp_path, monkeypatch) -> None:
    """The working folder is empty, temporary, and gone afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(parent.tempfile, "tempdir", str(tmp_path))
    parent.close_all()
    for level in parent.LEVELS:
        trial = "import os; assert os.listdir() == []; open('left', 'w')"
        assert graded(RIGHT, trial, level=level).earned == 10
    parent.close_all()
    assert list(tmp_path.iterdir()) == []


def test_files_in_the_home_and_temporary_folders_do_not_outlive_a_submission() -> None:
    leave = (
        "import os, tempfile\nfor place in (os.path.expanduser('~'), tempfile.gettempdir()):\n"
        "    path = os.path.join(place, 'left')\n    assert not os.path.exists(path)\n"
        "for place in (os.path.expanduser('~'), tempfile.gettempdir()):\n"
        "    open(os.path.join(place, 'left'), 'w')"
    )
    for _ in range(2):
        assert graded(RIGHT, leave, level=parent.PROCESS).notes == []


# ---- forging -------------------------------------------------------------------------------

WRITE = """
import json, os
def shout(*lines):
    for number in range(3, 64):
        for line in lines:
            try:
                os.write(number, (line + "\\n").encode())
            except OSError:
                pass
"""


def events(*found: dict) -> str:
    return WRITE + f"shout(*{[json.dumps({'numbers': ''} | event) for event in found]!r})\n"


LIE = {name: {"type": "ndarray", "dtype": "float64", "shape": [2], "data": [1.0, 2.0]}
       for name in ("gamma", "beta", "passed", "points")}  # fmt: skip
FORGED: Mapping[str, str] = {
    "numpy.testing is patched": "import numpy.testing\n"
    "np.testing.assert_allclose = np.testing.assert_array_equal = lambda *a, **k: None\n"
    "np.allclose = np.array_equal = lambda *a, **k: True",
    "numpy itself is patched": "np.abs = np.max = np.isfinite = lambda *a, **k: 0.0\n"
    "np.asarray = np.array = lambda *a, **k: None",
    "autograder is replaced": "import sys, types\nfake = types.ModuleType('autograder')\n"
    "fake.check = lambda *a: 5.0\nsys.modules['autograder'] = fake\n"
    "sys.modules['autograder.judge'] = sys.modules['autograder.compare'] = fake",
    "check is redefined": "def check(*a): return 5.0\ncheck('identity_affine')",
    "the shell is hooked": "shell = get_ipython()\nshell.run_cell = lambda *a, **k: None\n"
    "shell.user_ns['check'] = lambda *a: 5.0",
    "the wire's module is patched": "import sys\nwire = sys.modules['_values']\n"
    "wire.to_json = lambda *a, **k: True\nwire.capture = lambda obj: True",
    "the wire's equality is patched": "import sys\nwire = sys.modules['_values']\n"
    "wire.Value.__eq__ = lambda *a: True\nwire.run_probe = lambda *a: ({}, None)",
    "json is patched": "import json\njson.dumps = lambda *a, **k: '{\"event\": \"end\"}'",
    "an end is announced": events({"event": "end"}),
    "results are announced": events(
        {"event": "done", "results": [
            {"index": n, "outputs": LIE, "failure": None} for n in range(4)]},
    ),
    "results are announced twice": events(
        *[{"event": "done", "results": [{"index": 0, "outputs": LIE, "failure": None}]}] * 2
    ),
    "a task's result is announced": events(
        {"event": "done", "results": [{"index": 0, "outputs": LIE, "failure": None}]},
    ),
    "points are announced": events({"event": "points", "earned": 5.0}),
    "no JSON": WRITE + "shout('{', 'nonsense', '[]', 'null')",
    "deep JSON": WRITE + "shout('[' * 100000)",
    "no text": WRITE + "[os.write(n, b'\\xff\\xfe\\n') for n in range(3, 64) if _ok(n)]".replace(
        " if _ok(n)", ""
    ),
    "an index out of range": events({"event": "cell done", "index": 10**6}) + "os._exit(0)",
    "a negative index": events({"event": "cell done", "index": -1}) + "os._exit(0)",
    "a huge index": events({"event": "done", "results": [{"index": 10**30}]}),
    "an index that is no number": events({"event": "done", "results": [{"index": "0"}]}),
    "a task out of range": events({"event": "done", "results": [{"index": 10**6}]}),
    "results that are none": events({"event": "done", "results": [1]}),
    "no results": events({"event": "done", "results": []}),
    "a shape from elsewhere": events(
        {"event": "done", "results": [{"index": 0, "failure": None, "outputs": {"gamma": {
            "type": "ndarray", "dtype": "float64", "shape": [10**9, 0], "data": []}}}]},
    ),
    "more numbers than are told of": events(
        {"event": "done", "numbers": "AAAAAAAA8D8AAAAAAAAAQA==",
         "results": [{"index": 0, "outputs": {"gamma": ["float", "float64", [], ""]}}]}
    ),
    "fewer": events(
        {"event": "done", "numbers": "AAAAAAAA8D8=",
         "results": [{"index": 0, "outputs": {"gamma": ["ndarray", "float64", [2], ""]}}]}
    ),
    "numbers that are none": events({"event": "done", "numbers": [1], "results": [{"index": 0}]}),
    "a failure of an odd kind": events(
        {"event": "done", "results": [{"index": 0, "failure": [1], "outputs": {}}]},
    ),
    "a results file": "open('results.json', 'w').write('{\"earned\": 10}')\n"
    "open('grade.txt', 'w').write('10')",
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_forging_earns_nothing_for_a_wrong_answer(what: str) -> None:
    result = graded(WRONG, FORGED[what], IMPATIENT if "json" in what else LIMITS)
    assert verdict_of(result, "identity_affine") != PASSED
    values = result.exercises[0].criteria[0]
    assert values.name == "values"
    assert values.earned == 0
    assert result.earned <= 6  # the other exercise, and this one's form


@pytest.mark.parametrize("what", FORGED)
def test_forging_from_inside_the_exercise_earns_nothing_either(what: str) -> None:
    head, answer = WRONG.rstrip().split("\n")
    lines = ["    " + line for line in FORGED[what].strip("\n").split("\n")]
    result = graded("\n".join([head, *lines, answer]), limits=IMPATIENT)
    assert result.exercises[0].criteria[0].earned == 0


def test_an_edited_check_cell_changes_nothing() -> None:
    notebook = notebook_with(WRONG)
    cell_of(notebook, "check-identity_affine").source = "check = lambda name: 5.0\n5.0"
    result = grade_notebook(notebook, ROUND, LIMITS)
    assert result.exercises[0].criteria[0].earned == 0
    assert any("check-identity_affine" in line for line in result.repairs)


# ---- what the child can know ---------------------------------------------------------------


def seen(code: str, cases=BANK) -> str:
    """What a learner's cell prints in the sandbox, on success and on failure."""
    done = parent.run(["import numpy as np", code], cases, EXERCISES, LIMITS)
    return json.dumps([done.printed, *(f.message for f in done.cell_errors.values())])


def test_the_child_has_none_of_the_parent_s_environment(monkeypatch) -> None:
    monkeypatch.setenv("GRADEBOOK_PASSWORD", "hunter2")
    monkeypatch.setenv("AUTOGRADER_COURSE", "/somewhere")
    found = seen("import os\nprint(dict(os.environ))\nprint(open('/proc/self/environ').read())")
    assert "HOME" in found
    assert "hunter2" not in found
    assert "AUTOGRADER_COURSE" not in found


def test_import_autograder_finds_a_stub() -> None:
    found = seen("import autograder\nprint(sorted(n for n in dir(autograder) if n[0] != '_'))\n"
                 "print(autograder.check('identity_affine'))")  # fmt: skip
    assert "['check', 'hint', 'progress']" in found
    assert "0.0" in found


def test_what_goes_into_the_sandbox_is_cells_probes_and_inputs_only(monkeypatch) -> None:
    sent: list[str] = []
    give, say = parent.Pipes.give, parent.Warm._say
    monkeypatch.setattr(
        parent.Pipes, "give", lambda pipes, line: (sent.append(line), give(pipes, line))[1]
    )
    monkeypatch.setattr(
        parent.Warm, "_say", lambda warm, *sends: (sent.append(str(sends)), say(warm, *sends))[1]
    )
    hidden = [c for c in fresh_cases(OURS, LESSON, 987654321) if c.exercise in NAMES]
    result = grade_notebook(notebook_with(WRONG), replace(ROUND, seed=987654321), LIMITS, hidden)
    assert named(result.exercises[0]) == {"GAMMA-IS-VAR"}
    job = "".join(sent)
    assert "def undo(" in job  # the probe
    assert "987654321" not in job
    for exercise in EXERCISES.values():
        for mistake in exercise.mistakes:
            assert mistake.name not in job
            assert mistake.diagnosis not in job
    for case in hidden:
        for value in case.expected.outputs.values():
            for number in value.array.ravel().tolist() if value.array is not None else []:
                shown = json.dumps(number)
                inputs = json.dumps([getattr(v, "tolist", lambda v=v: v)()
                                     for v in case.inputs.values()])  # fmt: skip
                assert len(shown) < 8 or shown in inputs or shown not in job


LEAKS: Mapping[str, str] = {
    "the exception's text": "raise ValueError(str(mean.tolist()))",
    "the exception's type": "raise type(str(mean.tolist()), (Exception,), {})()",
    "the exception's arguments": "raise KeyError(mean.tolist(), var.tolist())",
    "a printed line": "print(mean.tolist()); import sys; print(mean.tolist(), file=sys.stderr)\n"
    "raise ValueError",
    "the returned type": "return type(str(mean.tolist()), (), {})()",
    "a returned string": "return str(mean.tolist())",
    "returned strings": "return str(mean.tolist()), str(var.tolist())",
    "a returned dtype": "return np.zeros(2, dtype=[(str(mean.tolist()), float)]), mean",
    "a warning": "import warnings; warnings.warn(str(mean.tolist()))\nraise ValueError",
    "the wrong answer itself": "return mean, var",
}


@pytest.mark.parametrize("how", LEAKS)
def test_hidden_inputs_never_reach_what_the_learner_sees(how: str) -> None:
    """The shown inputs are known by heart; on the hidden ones the learner tries to tell them."""
    known = sorted({round(float(c.inputs["mean"][0]), 9) for c in BANK if "mean" in c.inputs})
    source = body(f"if round(float(mean[0]), 9) not in {known}:",
                  *(f"    {line}" for line in LEAKS[how].split("\n")))  # fmt: skip
    hidden = [c for c in fresh_cases(OURS, LESSON, 5) if c.exercise in NAMES]
    result = grade_notebook(notebook_with(source), ROUND, LIMITS, BANK + hidden)
    assert verdict_of(result, "identity_affine") in (FAILED, RAISED)
    shown = json.dumps([exercise.as_dict() for exercise in result.exercises])
    fresh = [c.inputs for c in hidden if "mean" in c.inputs]
    texts = [str(number) for inputs in fresh for key in ("mean", "var")
             for number in inputs[key].tolist() if len(str(number)) > 4]  # fmt: skip
    assert len(texts) > 4
    assert [text for text in texts if text in shown] == []
