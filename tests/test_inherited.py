"""Whose fault is a wrong gradient? The backward pass's, or that of the forward pass it belongs to:
four messages, and a cascade reported as its cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import OURS, at_criterion, patched, references, solved_notebook, verdicts

from autograder.display import text
from autograder.grade import check_notebook
from autograder.learn import check_object

LESSON = "03_batchnorm_backward"
_, BACKWARD = OURS.find("batchnorm_backward")


def forward(
    x: Any, gamma: Any, beta: Any, bn_param: Any, outside: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    """A forward pass of a learner's own, with its own cache; `outside` says where eps stands."""
    eps = bn_param.get("eps", 1e-5)
    centred = x - x.mean(axis=0)
    var = (centred**2).mean(axis=0)
    std = np.sqrt(var) + eps if outside else np.sqrt(var + eps)
    return gamma * centred / std + beta, (centred, var, std, gamma)


def outside(*arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    return forward(*arguments, outside=True)


def matching(dout: Any, cache: Any) -> tuple[Any, Any, Any]:
    """The gradient of `outside`: right for that forward pass, and for no other."""
    centred, var, std, gamma = cache
    g, x_hat = dout * gamma, centred / std
    pull = x_hat * (g * x_hat).mean(axis=0) * std / np.sqrt(var)
    return (g - g.mean(axis=0) - pull) / std, (dout * x_hat).sum(axis=0), dout.sum(axis=0)


def textbook(dout: Any, cache: Any) -> tuple[Any, Any, Any]:
    """The gradient of `forward`."""
    centred, _, std, gamma = cache
    g, x_hat = dout * gamma, centred / std
    dx = (g - g.mean(axis=0) - x_hat * (g * x_hat).mean(axis=0)) / std
    return dx, (dout * x_hat).sum(axis=0), dout.sum(axis=0)


def careless(dout: Any, cache: Any) -> tuple[Any, Any, Any]:
    """Wrong for every forward pass, in a way that no mistake of the bank describes."""
    dx, dgamma, dbeta = textbook(dout, cache)
    return dx + 0.1 * dout**2, dgamma, dbeta


def judged(backward: Any, forward_pass: Any) -> Any:
    result, _ = check_object(
        BACKWARD, OURS.bank(LESSON), backward, {"batchnorm_forward": forward_pass}
    )
    return result


def test_right_for_the_textbooks_forward_pass_passes():
    assert judged(textbook, forward).earned == BACKWARD.points


def test_right_for_a_faulty_forward_pass_is_inherited_and_names_what_to_mend():
    result = judged(matching, outside)
    assert at_criterion(result, "dx").verdict == "inherited"
    assert result.earned < BACKWARD.points
    said = text(result)
    assert "dx is right for your forward pass, which is another than ours" in said
    assert 'Mend batchnorm_forward first: check("batchnorm_forward")' in said


def test_wrong_even_for_its_own_right_forward_pass_says_that_the_forward_pass_is_not_to_blame():
    result = judged(careless, forward)
    assert at_criterion(result, "dx").verdict == "failed"
    assert "forward   yours is right; this gradient is wrong even for it" in text(result)


def test_wrong_for_a_faulty_forward_pass_says_to_mend_that_first():
    said = text(judged(careless, outside))
    assert "yours is not the reference's either: mend batchnorm_forward first" in said


def test_the_textbooks_formula_on_a_mistake_of_the_bank_names_that_mistake():
    faulty = patched("batchnorm_forward", ("np.sqrt(var + eps)", "(np.sqrt(var) + eps)"))
    right = references(OURS, LESSON).load("batchnorm_backward")
    result = judged(right, faulty)
    found = at_criterion(result, "dgamma")  # from x_hat; dx comes from var, which is right
    assert found.verdict == "inherited"
    assert found.mistakes == ("batchnorm_forward:EPS-OUTSIDE",)
    assert "this part is right; batchnorm_forward is not" in " ".join(text(result).split())


def test_a_gradient_of_ours_that_is_not_that_of_ones_own_forward_passes_with_a_note():
    def with_a_good_cache(x, gamma, beta, bn_param):
        return 2 * forward(x, gamma, beta, bn_param)[0], forward(x, gamma, beta, bn_param)[1]

    result = judged(textbook, with_a_good_cache)
    assert result.earned == BACKWARD.points
    assert "agrees with ours, but not with your own forward pass" in text(result)


def test_a_missing_earlier_exercise_is_said():
    result, _ = check_object(BACKWARD, OURS.bank(LESSON), textbook, {})
    assert result.earned == 0
    assert "'batchnorm_forward' is not defined: run its cell first" in " ".join(
        text(result).split()
    )


@pytest.mark.slow
def test_a_faulty_backward_pass_is_reported_once_where_another_exercise_uses_it():
    wrong = references(OURS, LESSON).mistaken_source(BACKWARD, BACKWARD.mistakes[0])
    notebook = solved_notebook({"batchnorm_backward": wrong}, OURS, LESSON)
    result = check_notebook(notebook, OURS, LESSON)
    by_name = {exercise.name: exercise for exercise in result.exercises}
    assert by_name["batchnorm_backward"].verdict == "failed"
    failing = set(verdicts(by_name["affine_bn_relu_backward"]).values()) - {"passed"}
    assert failing <= {"inherited", "not checked"}
    assert by_name["batchnorm_backward_alt"].verdict == "passed"


def test_a_sound_earlier_exercise_is_never_blamed_for_the_same_fault_in_ones_own_arithmetic():
    lesson = "04_batchnorm_module"
    _, spatial = OURS.find("spatial_batchnorm_forward")
    given = references(OURS, lesson)

    def own_arithmetic(x, gamma, beta, bn_param):
        """The right function, but for a running_var that is unbiased."""
        out, cache = given.load("spatial_batchnorm_forward")(x, gamma, beta, bn_param)
        if bn_param["mode"] == "train":
            n = x.size // x.shape[1]
            momentum = bn_param.get("momentum", 0.9)
            extra = (1 - momentum) * x.var(axis=(0, 2, 3)) / (n - 1)
            bn_param["running_var"] = bn_param["running_var"] + extra
        return out, cache

    namespace = {"batchnorm_forward": given.load("batchnorm_forward")}
    result, _ = check_object(spatial, OURS.bank(lesson), own_arithmetic, namespace)
    found = at_criterion(result, "running averages")
    assert found.verdict == "failed"
    assert found.mistakes == ("RUNNING-VAR-UNBIASED",)
    assert "Mend batchnorm_forward" not in text(result)
