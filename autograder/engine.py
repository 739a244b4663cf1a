"""A class is graded: a map of one pure function over submissions, and one writer.

A few workers read, repair, run and judge, each with a warm parent of its own, from which the
learners' code is forked (sandbox/); this process alone writes whatever is ready: the gradebook
first, in one transaction, then each result's file, which says that a submission is done. Run again
after any interruption, it does what is missing. Beyond one machine Dask maps the same function.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from autograder import course as courses
from autograder import devices, judge, results, workers
from autograder.course import Course, UserError
from autograder.grade import Round, grade_notebook, new_round, prewarm
from autograder.results import GRADED, NEEDS_PERSON, REPAIRED, Result
from autograder.sandbox import parent
from autograder.submissions import Work, digest, parsed, read_bytes


@dataclass(frozen=True)
class Terms:
    """How one lesson is graded in one round: plain data, so that another machine can do it."""

    lesson: str
    seed: int
    device: str = "cpu"
    level: str = parent.LSM


@lru_cache(maxsize=32)
def round_of(course: Course, terms: Terms) -> Round:
    """The round's cases, computed once in each process; raises UserError."""
    return new_round(course, terms.lesson, terms.seed, terms.device, terms.level)


def grade_one(
    course: Course, terms: Terms, work: Work, limits: parent.Limits | None = None
) -> Result:
    """Grade one file. Depends on nothing but its arguments and the file; never raises."""
    result = Result("", work.lesson, "", NEEDS_PERSON, work.reason)
    stands = bool(work.reason)  # else what goes wrong here may go right in the next run
    if not work.reason:
        try:
            data = read_bytes(work.path)
            work = replace(work, digest=digest(data, work.path))
            try:
                notebook = parsed(data, work.path.name)
            except UserError as error:  # as it will be the next time
                result.reason, stands = str(error), True
            else:
                result = grade_notebook(notebook, round_of(course, terms), limits)
                stands = True
        except UserError as error:
            result.reason = str(error)
        except Exception as error:
            result.reason = f"the grader failed: {type(error).__name__}: {error}"
    result.learner, result.file = work.learner, str(work.path)
    result.repairs = result.repairs + work.others
    if result.repairs and result.status == GRADED:
        result.status = REPAIRED
    result.key = key_of(course, terms, work) if stands else ""
    return result


# ---- what is done already --------------------------------------------------------------------


def key_of(course: Course, terms: Terms, work: Work) -> str:
    """What a result depends on: the submission, the grader, the round."""
    parts = [work.digest, work.reason, *work.others, _grader(course), repr(terms)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache
def _grader(course: Course) -> str:
    """A fingerprint of all that judges: the package, the solved lessons, numpy, torch."""
    found = hashlib.sha256()
    roots = [courses.PACKAGE, course.exercises, course.cases]
    files = {path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".json")}
    if course.solutions is not None:
        files |= set(course.solutions.glob("*.py"))
    for path in sorted(files):
        found.update(f"{path.name}\0".encode() + path.read_bytes())
    for name in ("numpy", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found.update(version(name).encode())
    return found.hexdigest()


def _graded_before(target: Path, work: Work, key: str) -> results.Data | None:
    """The result that an earlier run left for the same submission, grader and round."""
    try:
        data = json.loads(results.path_of(target, work.learner, work.lesson, work.path).read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("key") == key else None


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """One run at a time in one folder; the lock goes with its process. Raises UserError."""
    import fcntl  # not on Windows, where nothing gets this far

    place = target / ".autograder"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "a+", encoding="ascii") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # this process's alone: no fork has it
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise UserError(
                    f"{place / 'lock'} cannot be locked ({error.strerror}): grade into a folder on "
                    "this machine (--out)."
                ) from None
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise UserError(
                f"Another run is grading into {target} (process {who}): wait for its end, then "
                "run again."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def stored_seed(target: Path, begin_next: bool = False) -> int:
    """A folder's seed for this round: random, kept beside the results, its owner's alone."""
    path = target / ".autograder" / "seed"
    if path.exists() and not begin_next:
        try:
            return int(path.read_text())
        except ValueError:
            raise UserError(f"{path} is damaged: delete it, or say --new-round.") from None
    seed = secrets.randbits(63)
    results.write_beside(path, str(seed), mode=0o600)
    return seed


# ---- the run ---------------------------------------------------------------------------------


class Book(Protocol):
    """A gradebook, as far as a run needs it (gradebook.py)."""

    @property
    def entry_of(self) -> Callable[[Result], Any]:
        """Makes what a result puts into it; called in the workers, so it can be pickled (Dask)."""

    def holds(self, learner: str, name: str, earned: float) -> bool: ...

    def record(self, entries: Sequence[Any]) -> dict[str, str]: ...


@dataclass
class Graded:
    """What a worker hands back: plain data, all of it ready to be written."""

    data: results.Data
    entry: Any = None  # for the gradebook


def graded(
    course: Course,
    terms: Terms,
    work: Work,
    limits: parent.Limits | None = None,
    entry_of: Callable[[Result], Any] | None = None,
) -> Graded:
    """Grade one file, and make its entry for the gradebook; never raises."""
    result = grade_one(course, terms, work, limits)
    entry = None
    if entry_of is not None and result.status != NEEDS_PERSON:
        try:
            entry = entry_of(result)
        except Exception as error:
            result.status, result.key = NEEDS_PERSON, ""
            result.reason = f"the grader failed: {type(error).__name__}: {error}"
    return Graded(result.as_dict(), entry)


def lost(terms: Terms, work: Work, why: str) -> Graded:
    """The result of a submission whose process ended twice while grading it."""
    result = Result(work.learner, work.lesson, str(work.path), NEEDS_PERSON, why, work.others)
    return Graded(result.as_dict())


@dataclass
class Summary:
    """What a run did, as far as its last lines say; holds no notebooks."""

    briefs: list[tuple[str, str, str, str, float]] = field(default_factory=list)
    timed_out: int = 0
    again: int = 0  # found done by an earlier run
    failed: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)

    def add(self, data: results.Data) -> None:
        score = data["earned"] / data["points"] if data["points"] else 0.0
        self.briefs.append(
            (data["learner"], data["file"], data["status"], data["reason"], 100 * score)
        )
        verdicts = [c["verdict"] for e in data["exercises"] for c in e["criteria"]]
        self.timed_out += judge.TIMED_OUT in verdicts
        for exercise in data["exercises"]:
            for criterion in exercise["criteria"]:
                name = f"{exercise['name']}, {criterion['name']}"
                if criterion["verdict"] in (judge.NOT_CHECKED, judge.GRADER_FAULT):
                    continue
                self.judged[name] += 1
                self.failed[name] += criterion["verdict"] != judge.PASSED
            named = {m for c in exercise["criteria"] for m in c["mistakes"]}
            self.mistakes.update(f"{exercise['name']}, {m}" for m in named)

    def for_a_person(self) -> list[str]:
        """Who needs a person, and why."""
        return [
            f"{name} ({file}) needs a person: {reason}"
            for name, file, status, reason, _ in self.briefs
            if status == NEEDS_PERSON
        ]

    def lines(self) -> list[str]:
        """How many of each status; the median, the hardest criterion, the commonest mistake."""
        by = Counter(status for _, _, status, _, _ in self.briefs)
        people = by[NEEDS_PERSON]
        counts = [f"{len(self.briefs) - people} graded"]
        if by[REPAIRED]:
            counts.append(f"{by[REPAIRED]} of them repaired")
        if self.timed_out:
            counts.append(f"{self.timed_out} with something that timed out")
        if people:
            counts.append(f"{people} {'needs' if people == 1 else 'need'} a person")
        if self.again:
            counts.append(f"{self.again} were done already")
        said = [", ".join(counts)]
        scores = [score for *_, status, _, score in self.briefs if status != NEEDS_PERSON]
        if scores:
            said.append(f"median {median(scores):.0f}% of the points that need no person")
        hardest = max(self.failed, key=lambda n: self.failed[n] / self.judged[n], default="")
        if hardest and self.failed[hardest]:
            share = f"{self.failed[hardest]} of {self.judged[hardest]} missed it"
            said.append(f"hardest: {hardest} ({share})")
        if self.mistakes:
            name, many = self.mistakes.most_common(1)[0]
            said.append(f"most common mistake: {name} ({many} times)")
        return said


def grade_all(
    works: Sequence[Work],
    course: Course,
    terms: Mapping[str, Terms],
    target: Path,
    jobs: int | None = None,
    book: Book | None = None,
    tell: Callable[[results.Data], None] = lambda data: None,
    limits: parent.Limits | None = None,
    scheduler: str = "",
    again: bool = False,
) -> Summary:
    """Grade what is not graded yet (or all, `again`), a few at a time; write each result at once.

    Raises UserError for what stops the run: no isolation, a full disk, a locked database.
    """
    summary, waiting = Summary(), []
    for work in works:
        known = terms.get(work.lesson, Terms(work.lesson, 0))
        before = _graded_before(target, work, key_of(course, known, work))
        if (
            before is not None
            and not again
            and (
                book is None
                or before["status"] == NEEDS_PERSON
                or book.holds(work.learner, work.lesson, before["earned"])
            )
        ):
            summary.again += 1
            summary.add(before)
            tell(before)
        else:
            waiting.append((known, work))
    jobs = min(jobs or len(workers.cores()), len(waiting))
    wanted = sorted({known for known, work in waiting if not work.reason}, key=repr)
    if jobs == 1 and not scheduler and wanted:
        prewarm(course, wanted[0].lesson, wanted[0].level)
    if jobs > 1:
        devices.hide()
    for known in wanted:
        round_of(course, known)  # once, before the workers ask for it; says what is wrong
    entry_of = book.entry_of if book is not None else None
    task = partial(graded, course, limits=limits, entry_of=entry_of)
    if scheduler:
        batches = _on_dask(task, waiting, scheduler)
    else:
        batches = workers.mapped(task, waiting, jobs, lost)
    with contextlib.closing(batches):
        for batch in batches:
            entries = [one.entry for one in batch if one.entry is not None]
            troubles = book.record(entries) if book is not None and entries else {}
            for one in batch:
                if one.data["file"] in troubles:  # one submission's trouble is not the class's
                    why = f"not in the gradebook: {troubles[one.data['file']]}"
                    one.data |= {"status": NEEDS_PERSON, "key": "", "reason": why}
                results.write_data(one.data, target)
                summary.add(one.data)
                tell(one.data)
    return summary


def _on_dask(
    task: Callable[..., Graded], waiting: Sequence[tuple[Terms, Work]], scheduler: str
) -> Generator[list[Graded], None, None]:
    """The same map on a Dask cluster, whose workers see the same files at the same paths."""
    try:
        from distributed import CancelledError, Client, KilledWorker, as_completed
    except ImportError:
        raise UserError(
            "A scheduler needs Dask, which is not installed: pip install 'normalization-course"
            "[cluster]'."
        ) from None
    try:
        client = Client(scheduler, timeout="5s")
    except (OSError, ValueError, TimeoutError) as error:
        raise UserError(f"There is no Dask scheduler at {scheduler}: {error}") from None
    with client:
        asked = {
            client.submit(task, terms, work, pure=False, retries=2): (terms, work)
            for terms, work in waiting
        }
        for future in as_completed(asked):
            try:
                one = future.result()
            except KilledWorker:
                one = lost(*asked[future], "the cluster's workers ended while they graded it")
            except (CancelledError, OSError) as error:
                raise UserError(
                    f"The Dask cluster at {scheduler} was lost ({type(error).__name__}): run again "
                    "when it is back; what was graded is saved."
                ) from None
            yield [one]
            future.release()
