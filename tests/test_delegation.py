"""Who did the work, on which device, and by which two mistakes: what a verdict adds to values."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from helpers import OURS, TOY, cases_of, driven, patched, references, result_of, verdicts

from autograder import devices, judge
from autograder.delegation import found_in_operations, found_in_source
from autograder.display import text
from autograder.learn import check_object
from autograder.pairs import Pairs

_, SCALE = TOY.find("Scale")
FORBIDDING = replace(
    SCALE, forbids=("nn.LayerNorm", "batch_norm", "autograd.grad", "aten.native_layer_norm")
)

BORROWED = {
    "a base class": "class Scale(torch.nn.LayerNorm):\n    pass",
    "a member": "from torch import nn\nclass Scale(nn.Module):\n    def __init__(self, n):\n"
    "        super().__init__()\n        self.norm = nn.LayerNorm(n)",
    "an import by another name": "from torch.nn.functional import batch_norm as plain\n"
    "class Scale:\n    def forward(self, x):\n        return plain(x, None, None, training=True)",
    "a module by another name": "import torch.nn.functional as F\nclass Scale:\n"
    "    def forward(self, x):\n        return F.batch_norm(x, None, None, training=True)",
    "a helper elsewhere": "def helper(x):\n    return torch.nn.functional.batch_norm(x)\n\n"
    "class Scale:\n    def forward(self, x):\n        return helper(x)",
    "an alias": "work = torch.nn.functional.batch_norm\nclass Scale:\n    forward = work",
    "a magic before it": "%matplotlib inline\nclass Scale(torch.nn.LayerNorm):\n    pass",
    "letters that Python folds": "class Scale(ｔorch.nn.Ｌayerℕorm):\n    pass",
}

OWN_WORK = {
    "elementary operations": "class Scale(torch.nn.Module):\n    def forward(self, x):\n"
    "        return x - x.mean(0)",
    "a comparison in another cell": "class Scale(torch.nn.Module):\n    pass\n\n"
    "theirs = torch.nn.LayerNorm(3)\nprint(theirs)",
    "a helper of one's own that has the name": "def batch_norm(x):\n    return x - x.mean(0)\n\n"
    "class Scale:\n    def forward(self, x):\n        return batch_norm(x)",
    "a comment and a string": 'class Scale:\n    """Like torch.nn.LayerNorm."""  # batch_norm',
    "a cell that does not parse": "class Scale(:\n    nn.LayerNorm",
}


@pytest.mark.parametrize("source", BORROWED.values(), ids=BORROWED)
def test_borrowed_work_is_found_in_the_source(source):
    assert found_in_source(["import torch", *source.split("\n\n")], FORBIDDING)


@pytest.mark.parametrize("source", OWN_WORK.values(), ids=OWN_WORK)
def test_own_work_is_not(source):
    assert found_in_source(["import torch", *source.split("\n\n")], FORBIDDING) == ""


AUTOGRAD = {
    "autograd.grad": "import torch\ndef batchnorm_backward(dout, cache):\n"
    "    return torch.autograd.grad(cache[0], cache[1], dout)",
    "an import inside": "def batchnorm_backward(dout, cache):\n    import torch as t\n"
    "    return t.autograd.grad(cache[0], cache[1], dout)",
    "an import of a name": "from torch.nn.functional import batch_norm\n"
    "def batchnorm_backward(dout, cache):\n    return batch_norm(dout, None, None)",
}


@pytest.mark.parametrize("source", AUTOGRAD.values(), ids=AUTOGRAD)
def test_torch_does_not_do_a_numpy_exercises_work(source):
    exercise = OURS.find("batchnorm_backward")[1]
    assert found_in_source([source], exercise) == "torch"
    own = "import torch\nimport numpy as np\ndef batchnorm_backward(dout, cache):\n    return dout"
    assert found_in_source([own, "torch.ones(3)"], exercise) == ""


def test_torch_that_no_name_betrays_shows_in_the_operations():
    exercise = OURS.find("convert_momentum")[1]

    def hidden(momentum):
        return float(__import__("to" + "rch").tensor(1.0) - momentum)

    result, _ = check_object(exercise, OURS.bank("02_batchnorm_forward"), hidden)
    assert result.verdict == judge.DELEGATED
    assert result.earned == 0


def test_a_class_that_inherits_the_work_is_found_whatever_runs_it():
    exercise = OURS.find("BatchNorm2d")[1]
    base = getattr(torch.nn, "Batch" + "Norm2d")
    inherits = type("BatchNorm2d", (base,), {})
    result, _ = check_object(exercise, OURS.bank("04_batchnorm_module"), inherits)
    assert result.verdict == judge.DELEGATED


def test_many_magics_take_no_time_to_read():
    """IPython's own transformer takes seconds for a hundred of these."""
    source = "def f():\n" + "".join(f"    a{n} = %time {n}\n" for n in range(5000)) + "    return 1"
    begun = time.monotonic()
    assert found_in_source([source], FORBIDDING) == ""
    assert time.monotonic() - begun < 5


class Hidden(torch.nn.Module):
    """Scale, with a layer norm that no name in the source betrays."""

    def __init__(self, num_features):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(num_features))

    def forward(self, x):
        getattr(torch, "layer" + "_norm")(x, x.shape[-1:])
        return self.gamma * x


def test_hidden_work_is_found_in_the_operations_and_earns_nothing():
    own = cases_of(TOY.bank("02_scale"), SCALE)
    outcomes = driven(FORBIDDING, own, Hidden)
    assert found_in_operations(outcomes, FORBIDDING) == "aten.native_layer_norm"
    assert judge.judge(SCALE, own, outcomes).earned == SCALE.points
    result, _ = check_object(FORBIDDING, own, Hidden)
    assert (result.verdict, result.earned) == ("delegated", 0)
    assert "aten.native_layer_norm did the work" in text(result)


def test_a_gradient_by_torchs_own_operations_is_no_delegation():
    result, _ = check_object(
        FORBIDDING, TOY.bank("02_scale"), references(TOY, "02_scale").load("Scale")
    )
    assert result.verdict == "passed"


# ---- devices -------------------------------------------------------------------------------


def test_a_dry_run_on_the_meta_device_advises_and_takes_no_points():
    unregistered = patched(
        "Scale", ("torch.nn.Parameter(torch.ones(num_features))", "torch.ones(num_features)"),
        course=TOY,
    )  # fmt: skip
    result, _ = check_object(SCALE, TOY.bank("02_scale"), unregistered)
    assert any("meets tensors on two devices" in note for note in result.notes)
    right, _ = check_object(SCALE, TOY.bank("02_scale"), references(TOY, "02_scale").load("Scale"))
    assert right.earned == SCALE.points
    if not torch.cuda.is_available():
        assert right.notes == (devices.NO_GPU,)


def test_without_a_gpu_auto_says_so_and_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    exercises, bank = TOY.exercises_of("02_scale"), TOY.bank("02_scale")
    on_gpu, dry, unchecked = devices.passes(bank, exercises, "auto")
    assert (on_gpu, unchecked) == ([], ["Scale"])
    assert {case.device for case in dry} == {"meta"}
    with pytest.raises(devices.UserError, match="There is no GPU"):
        devices.passes(bank, exercises, "cuda")
    with pytest.raises(devices.UserError, match="auto, cpu or cuda"):
        devices.passes(bank, exercises, "tpu")


def test_with_a_gpu_every_torch_case_runs_there_too(monkeypatch):
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    bank = TOY.bank("02_scale")
    on_gpu, dry, unchecked = devices.passes(bank, TOY.exercises_of("02_scale"), "auto")
    assert len(on_gpu) == sum(case.exercise == "Scale" for case in bank)
    assert {case.id.rsplit("/", 1)[1] for case in on_gpu} == {"cuda"}
    assert dry == unchecked == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_pass_judges_values():
    result = result_of(SCALE, TOY.bank("02_scale"), references(TOY, "02_scale").load("Scale"))
    assert result.verdict == "passed"


# ---- two mistakes at once --------------------------------------------------------------------

TRAIN = "        x_hat = (x - mean) / np.sqrt(var + eps)\n"


@pytest.fixture(scope="module")
def pairs():
    lesson, exercise = OURS.find("batchnorm_forward")
    return Pairs(references(OURS, lesson), exercise, OURS.bank(lesson))


def test_two_faults_that_no_single_one_explains_are_named_together_in_softer_words(pairs):
    both = patched(
        "batchnorm_forward",
        ("var = x.var(axis=0)", "var = x.var(axis=0, ddof=1)"),
        (TRAIN, TRAIN.replace("np.sqrt(var + eps)", "(np.sqrt(var) + eps)")),
    )
    outcomes = driven(pairs.exercise, pairs.cases, both)
    plain = judge.judge(pairs.exercise, pairs.cases, outcomes)
    assert plain.criteria[0].mistakes == ()
    found = pairs.explained(plain, outcomes)
    assert set(found.criteria[0].pair) == {"UNBIASED", "EPS-OUTSIDE"}
    said = " ".join(text(found).split())
    assert "perhaps looks like UNBIASED together with EPS-OUTSIDE" in said
    assert found.earned == plain.earned
    assert verdicts(found) == verdicts(plain)


def test_a_fault_that_nothing_explains_stays_without_a_name(pairs):
    odd = patched("batchnorm_forward", (TRAIN, TRAIN.replace("(x - mean)", "np.tanh(x - mean)")))
    outcomes = driven(pairs.exercise, pairs.cases, odd)
    found = pairs.explained(judge.judge(pairs.exercise, pairs.cases, outcomes), outcomes)
    assert found.criteria[0].verdict == "failed"
    assert found.criteria[0].pair == found.criteria[0].mistakes == ()


# ---- what lesson 04 asks for -------------------------------------------------------------------

MODULE = "04_batchnorm_module"


def test_pytorchs_own_layer_agrees_with_every_value_and_is_delegated():
    _, exercise = OURS.find("BatchNorm2d")
    result, _ = check_object(exercise, OURS.bank(MODULE), torch.nn.BatchNorm2d)
    assert set(verdicts(result).values()) == {"delegated"}
    assert result.earned == 0
    permitted, _ = check_object(
        replace(exercise, forbids=()), OURS.bank(MODULE), torch.nn.BatchNorm2d
    )
    assert permitted.earned == exercise.points


@pytest.mark.parametrize("variant", OURS.find("BatchNorm2d")[1].variants)
def test_right_modules_are_neither_delegated_nor_advised_against(variant):
    _, exercise = OURS.find("BatchNorm2d")
    learners = references(OURS, MODULE).variant(exercise, variant)
    result, _ = check_object(exercise, OURS.bank(MODULE), learners)
    assert result.verdict == "passed"
    assert [note for note in result.notes if note != devices.NO_GPU] == []


def test_unregistered_buffers_are_advised_against_where_there_is_no_gpu():
    if torch.cuda.is_available():
        pytest.skip("with a GPU the values decide")
    _, exercise = OURS.find("BatchNorm2d")
    wrong = next(m for m in exercise.mistakes if m.name == "NOT-BUFFERS")
    learners = references(OURS, MODULE).mistaken(exercise, wrong)
    result, _ = check_object(exercise, OURS.bank(MODULE), learners)
    assert any("meets tensors on two devices" in note for note in result.notes)
