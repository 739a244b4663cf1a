"""A result as plain text, as HTML for a notebook, as JSON. No JavaScript; words and ✓ ✗ carry
the meaning, colour only repeats it."""

from __future__ import annotations

import html
import textwrap
from functools import lru_cache

from autograder.judge import FAILED, NOT_ATTEMPTED, PASSED, CriterionResult, ExerciseResult

MARKS = {PASSED: "✓", NOT_ATTEMPTED: "·", "not checked": "·"}
COLUMNS = 80
LABEL = 12


def points(value: float) -> str:
    return f"{value:g}"


def text(result: ExerciseResult, captured: str = "") -> str:
    """The whole result in lines of at most 80 columns."""
    score = f"{points(result.earned)} of {points(result.points)} points"
    lines = [f"{_mark(result.verdict)} {result.name}: {result.verdict}, {score}"]
    for criterion in result.criteria:
        lines.append("  " + _summary(criterion))
    for criterion in told(result):
        lines += ["", *block(result.name, criterion)]
    for note in result.notes:
        lines += ["", *textwrap.wrap(f"note: {note}", COLUMNS - 2, initial_indent="  ",
                                     subsequent_indent="        ")]  # fmt: skip
    if captured:
        lines += ["", "  printed while checking:"]
        lines += ["    " + line[: COLUMNS - 4] for line in captured.rstrip().split("\n")[:8]]
    return "\n".join(lines)


def told(result: ExerciseResult) -> list[CriterionResult]:
    """The criteria whose message is shown in full: the first of each cause."""
    shown: list[CriterionResult] = []
    if result.verdict == NOT_ATTEMPTED and not any(c.mistakes for c in result.criteria):
        return shown  # nothing to explain yet
    for criterion in result.criteria:
        if not criterion.message.rows:
            continue
        causes = [(c.mistakes or c.pair, c.verdict) for c in shown]
        cause = criterion.mistakes or criterion.pair
        if criterion.message.headline.startswith(("returned ", "raised ")) and any(
            c.message.headline == criterion.message.headline for c in shown
        ):
            continue
        if (cause, criterion.verdict) in causes and (cause or criterion.verdict != FAILED):
            continue
        shown.append(criterion)
    return shown


def _summary(criterion: CriterionResult) -> str:
    score = f"{points(criterion.earned)}/{points(criterion.points)}"
    mark = _mark(criterion.verdict)
    return f"{mark} {criterion.name:<20} {score:>6}  {_why(criterion)}".rstrip()


def _why(criterion: CriterionResult) -> str:
    """The mistakes by name, else the verdict, of a criterion that did not pass."""
    if criterion.verdict in (PASSED, NOT_ATTEMPTED):
        return "" if criterion.verdict == PASSED else NOT_ATTEMPTED
    return " or ".join(criterion.mistakes) or criterion.verdict


def _mark(verdict: str) -> str:
    return MARKS.get(verdict, "✗")


def block(exercise: str, criterion: CriterionResult) -> list[str]:
    """One failed criterion, at most 12 lines."""
    lines = [f"{_mark(criterion.verdict)} {criterion.name}: {criterion.message.headline}"]
    for label, content in criterion.message.rows:
        wrapped = _wrapped(content)
        if len(wrapped) > 2:
            wrapped = [wrapped[0], wrapped[1][: COLUMNS - LABEL - 2] + " …"]
        lines.append(f"  {label:<{LABEL - 2}}{wrapped[0]}")
        lines += [" " * LABEL + line for line in wrapped[1:]]
    return lines[:12]


@lru_cache(maxsize=1000)  # asked for by the text, by the HTML, and by the next learner
def _wrapped(content: str) -> list[str]:
    return textwrap.wrap(content, COLUMNS - LABEL, break_on_hyphens=False) or [""]


STYLE = """<style scoped>
.ng{font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;max-width:60em;
 color:var(--jp-ui-font-color1,inherit)}
.ng .ok{color:var(--jp-info-color0,#1763a6);font-weight:600}
.ng .no{color:var(--jp-warn-color0,#b35900);font-weight:600}
.ng table{border-collapse:collapse;margin:.3em 0;font-size:inherit;color:inherit}
.ng td{padding:1px 12px 1px 0;text-align:left!important;vertical-align:top;background:none}
.ng pre{font-family:var(--jp-code-font-family,monospace);font-size:12px;line-height:1.45;
 margin:.2em 0 .2em;padding:.5em .8em;white-space:pre-wrap;border-left:3px solid
 var(--jp-warn-color0,#b35900);background:var(--jp-layout-color2,rgba(128,128,128,.12));
 color:inherit}
.ng .tag,.ng td:nth-child(-n+2){white-space:nowrap}
.ng summary{cursor:pointer}
</style>"""


def as_html(result: ExerciseResult, captured: str = "") -> str:
    """The same as HTML: the table of criteria, the first message open, the others folded."""
    score = f"{points(result.earned)} of {points(result.points)} points"
    parts = [STYLE, '<div class="ng">', "<div>", _span(result.verdict, result.verdict),
             f" <b>{html.escape(result.name)}</b>: {score}</div>", "<table>"]  # fmt: skip
    for criterion in result.criteria:
        cells = (
            _span(criterion.verdict, criterion.name),
            f"{points(criterion.earned)}/{points(criterion.points)}",
            html.escape(criterion.line),
            f'<span class="tag">{html.escape(_why(criterion))}</span>',
        )
        parts.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    parts.append("</table>")
    for number, criterion in enumerate(told(result)):
        lines = block(result.name, criterion)
        opened = " open" if number == 0 else ""
        parts.append(
            f"<details{opened}><summary>{html.escape(lines[0])}</summary>"
            f"<pre>{html.escape(chr(10).join(lines[1:]))}</pre></details>"
        )
    parts += [f"<div>note: {html.escape(note)}</div>" for note in result.notes]
    if captured:
        parts.append(
            "<details><summary>printed while checking</summary>"
            f"<pre>{html.escape(captured[:4000])}</pre></details>"
        )
    return "".join([*parts, "</div>"])


def _span(verdict: str, label: str) -> str:
    kind = "ok" if verdict == PASSED else "no"
    return f'<span class="{kind}">{_mark(verdict)} {html.escape(label)}</span>'
