# %% [markdown]
# # 05 · BatchNorm deployed
#
# **Goal.** Put a network with BatchNorm to work: make the layer disappear where it can, hold it
# still where it must, and mend its averages when they are wrong.
#
# **Time** 120 minutes: 80 for the parts below, 40 for reading. **Difficulty** 3 of 5.
#
# **You need** lesson 04's picture of the module (parameters, buffers, two modes) and PyTorch:
# `nn.Module`, `nn.Conv2d`, a training loop.
#
# | part | points | minutes |
# |---|---|---|
# | `fold_conv_bn` | 35 | 25 |
# | `absorb_bias` | 5 | 5 |
# | `freeze_bn` | 15 | 10 |
# | `precise_bn` | 25 | 20 |
# | written question | 20 | 20 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("fold_conv_bn")` gives one
# more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Whose layer?** In this lesson PyTorch's own `nn.BatchNorm2d` does the normalizing. You built it
# in lesson 04; here you handle it. Its conventions hold: `momentum` weights the new value, the
# batch is normalized by the biased variance, and the unbiased one goes into the running average.
# As before we call the running averages the *diary*.

# %% kind="setup"
import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## The question
#
# The training is over. Your network reads handwritten digits, and from tomorrow it shall do so on
# a telephone, one digit at a time, for people who have never heard of a batch.
#
# What becomes of its BatchNorm layers? In training each of them looked at the whole batch, kept a
# diary, and was trained itself. Now there is no batch, nothing to write down, nothing to learn.
#
# So: **what is left of a BatchNorm layer when the training is over, and is what it wrote down
# true?**
#
# First we need a network to work with: three convolutions with BatchNorm and ReLU, a linear
# readout, scikit-learn's 8×8 digits. 1,000 images to train on, 797 to test with; three seeds, each
# trained for 200 steps of SGD with batches of 64. (SGD has a `momentum`, too: it averages
# gradients, and has nothing to do with BatchNorm's.)
#
# Then a common mistake: someone forgets `eval()`. 400 of the test images come in batches of 1 to
# 64, once in random order and once sorted by digit, so that neighbours are alike. How bad can it
# get?

# %% kind="demo"
from sklearn.datasets import load_digits

torch.set_num_threads(1)
pixels, digit = load_digits(return_X_y=True)
order = np.random.default_rng(60).permutation(len(digit))
images = torch.from_numpy(pixels[order] / 16).float().view(-1, 1, 8, 8)
labels = torch.from_numpy(digit[order])
STUDY, EXAM = slice(0, 1000), slice(1000, None)


def convnet(seed, bias=False, width=16):
    """Three times convolution, BatchNorm, ReLU, and a linear readout; He's initialization."""
    rng, layers = np.random.default_rng([61, seed]), []
    for inputs, stride in ((1, 1), (width, 2), (width, 2)):
        conv = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=bias)
        spread = np.sqrt(2 / (9 * inputs))
        conv.weight.data = torch.from_numpy(spread * rng.normal(size=conv.weight.shape)).float()
        if bias:
            conv.bias.data = torch.from_numpy(0.3 * rng.normal(size=width)).float()
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
    readout = nn.Linear(4 * width, 10)
    nn.init.zeros_(readout.weight)
    nn.init.zeros_(readout.bias)
    return nn.Sequential(*layers, nn.Flatten(), readout)


def constant(rate):
    return lambda step: rate


def falling(rate, steps, start=0):
    """The learning rate of each step: falls linearly to 0, from step `start` on."""
    return lambda step: rate * min(1, (steps - step + 1) / (steps - start))


def training(net, optimizer, rate, steps, size, seed, pool=1000, prepare=nn.Module.train):
    """Train on images of the pool (numbers, or the first so many); yields each step's number."""
    rng = np.random.default_rng([62, seed])
    for step in range(1, steps + 1):
        prepare(net)
        optimizer.param_groups[0]["lr"] = rate(step)
        batch = torch.from_numpy(rng.choice(pool, size=size))
        optimizer.zero_grad()
        F.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimizer.step()
        yield step


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)


@torch.no_grad()
def exam(net, x=images[EXAM], y=labels[EXAM]):
    """Mean loss and share of right answers, in whatever mode the network is."""
    scores = net(x)
    return F.cross_entropy(scores, y).item(), (scores.argmax(dim=1) == y).float().mean().item()


nets = [convnet(seed) for seed in range(3)]
for seed, net in enumerate(nets):
    for _ in training(net, sgd(net), falling(0.1, 200), steps=200, size=64, seed=seed):
        pass
    net.eval()
print("share of right answers, three seeds; eval() with all 797 images")
print("eval()".ljust(42) + "  ".join(f"{exam(net)[1]:.3f}" for net in nets))

sizes = (1, 4, 16, 64)
asked = slice(1000, 1400)
by_digit = torch.argsort(labels[asked], stable=True)
fig, axis = plt.subplots(figsize=(6.4, 3))
looks = (("random order", torch.arange(400), BLUE, "o"), ("sorted by digit", by_digit, ORANGE, "^"))
for name, arrangement, colour, mark in looks:
    x, y = images[asked][arrangement], labels[asked][arrangement]
    shares = np.zeros((len(sizes), 3))
    for row, size in enumerate(sizes):
        for column, net in enumerate(nets):
            forgetful = copy.deepcopy(net).train()  # a copy: the diary of `net` stays as it is
            with torch.no_grad():
                told = torch.cat([forgetful(batch).argmax(dim=1) for batch in x.split(size)])
            shares[row, column] = (told == y).float().mean()
        told = "  ".join(f"{share:.3f}" for share in shares[row])
        print(f"train(), {name}, batches of {size}".ljust(42) + told)
    axis.plot(sizes, shares.mean(axis=1), color=colour, linewidth=1.2)
    axis.plot(sizes, shares, mark, ms=4, color=colour)
    axis.plot([], [], f"{mark}-", ms=4, color=colour, label=name)
steady = np.mean([exam(net, images[asked], labels[asked])[1] for net in nets])
axis.axhline(steady, color=GREY, linestyle="--", label="eval()")
axis.set(xscale="log", xlabel="test images in a batch", ylabel="share of right answers")
axis.set(ylim=(0, 1.02), title="eval() forgotten")
axis.set_xticks(sizes, sizes)
axis.minorticks_off()
axis.legend(loc="lower right")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: it depends on the company
#
# In single precision processors round differently, so your numbers may differ a little from ours.
#
# - **Random order.** With batches of 64 or 16 nothing much happens. With 4 two points are lost, and
#   a single image comes out at 0.87 to 0.91: its pixels alone make up the statistics.
# - **Sorted by digit.** The same weights, the same images, another *order*: 0.74 to 0.79 with
#   batches of 4 and 16. A batch of sevens is normalized by sevens, so part of what makes a seven a
#   seven is subtracted: lesson 01's broken ruler. A batch of 64 holds two or three digits, and it
#   gets better.
#
# Each of those passes also wrote into the diary. (The cell worked on copies.) A test that leaves
# `train()` on thus changes the network that it tests.
#
# (That small test batches give biased statistics, as the notes this course grew from have it, is
# only half of the matter: lesson 02 took it apart.)
#
# So call `eval()`. What does the network compute then?
#
# ### Picture: a straight line for each batch
#
# One channel of the last BatchNorm layer of the first network. Left: what goes in and what comes
# out, for eight training batches of 4 images. Right: the same in evaluation. What will differ
# from batch to batch?

# %% kind="demo"
channel, layer = 3, nets[0][7]
with torch.no_grad():
    arriving = [nets[0][:7](batch) for batch in images[STUDY].split(4)[:8]]
fig, panels = plt.subplots(1, 2, figsize=(7.6, 3), sharex=True, sharey=True)
slopes = []
for panel, training_mode in zip(panels, (True, False), strict=True):
    for k, batch in enumerate(arriving):
        used = copy.deepcopy(layer).train(training_mode)
        with torch.no_grad():
            x, out = batch[:, channel].flatten(), used(batch)[:, channel].flatten()
        ends = torch.argsort(x)[[0, -1]]
        colour = (BLUE, ORANGE, GREY)[k % 3]
        panel.plot(x[ends], out[ends], color=colour, linewidth=1)
        panel.plot(x, out, "o^sD"[k % 4], ms=3, color=colour)
        slopes.append(((out[ends[1]] - out[ends[0]]) / (x[ends[1]] - x[ends[0]])).item())
    panel.set(xlabel="into the layer", title="train()" if training_mode else "eval()")
panels[0].set_ylabel("out of the layer")
fig.tight_layout()
plt.show()
steeper = sum(slope > slopes[8] for slope in slopes[:8])
print(f"slopes in training   from {min(slopes[:8]):.2f} to {max(slopes[:8]):.2f}", end="")
print(f"; {steeper} of 8 are steeper than in evaluation")
print(f"slopes in evaluation from {min(slopes[8:]):.2f} to {max(slopes[8:]):.2f}")

# %% [markdown]
# ### See: many lines become one
#
# **Left.** In training each batch has its own line: its own standard deviation sets the slope, its
# own mean the offset. Here the slopes run from 1.00 to 1.82, and 7 of 8 are steeper than the line
# on the right: a batch of four mostly varies less than the population does (lesson 02).
#
# **Right.** In evaluation there is one line for every batch, every image, every pixel of the
# channel. And a straight line after a layer that multiplies and adds is nothing new: the layer
# before it could have multiplied and added differently in the first place.
#
# ## The mathematics, with shapes
#
# | name | shape | what |
# |---|---|---|
# | $W$, `conv.weight` | (C, C_in/groups, kH, kW) | one kernel for each *output* channel |
# | $b$, `conv.bias` | (C,), or missing | |
# | $\mu^{\mathrm{run}}$, $v^{\mathrm{run}}$, $\gamma$, $\beta$ | (C,) | BatchNorm's |
# | $s$ | (C,) | the slope of each channel's line (in lesson 03 $s$ was the root below it) |
# | $W'$, $b'$ | as $W$, (C,) | the folded convolution |
#
# In evaluation BatchNorm computes for each channel $c$, with the slope
# $s_c = \gamma_c / \sqrt{v^{\mathrm{run}}_c+\epsilon}$,
#
# $$\mathrm{out}_c = s_c\,(y_c-\mu^{\mathrm{run}}_c) + \beta_c$$
#
# and what arrives is $y_c = W_c * x + b_c$: kernel $W_c$ slides over the image, the same at every
# place. Put it in, and multiply out:
#
# $$\mathrm{out}_c = \underbrace{(s_c W_c)}_{W'_c} * \,x \;+\;
# \underbrace{s_c\,(b_c-\mu^{\mathrm{run}}_c)+\beta_c}_{b'_c}$$
#
# Two layers in, one out. Nothing was neglected, so it is exact, apart from rounding; at the border
# as well, for the padding happens inside the convolution, before BatchNorm.
#
# ## Your turn: fold_conv_bn
#
# *35 points.*
#
# - $s$ has one number for each output channel. Which axis of `conv.weight` is that? In a layer
#   with as many inputs as outputs the wrong axis raises no error. Groups change nothing here.
# - $\epsilon$ belongs under the root, as ever. Which $\epsilon$: the default, or this layer's?
# - The convolution may come without a bias; that stands for zeros. The result needs one in any
#   case. And BatchNorm may come without `weight` and `bias` (`affine=False`).
# - The new layer slides as the old one did: stride, padding, padding mode, dilation, groups. It
#   also lives in the same dtype and on the same device.
# - Fill the new layer's parameters under `torch.no_grad()`, and leave the two old layers alone.
#   (What would `conv.weight *= s` do to the network you were given?)


# %% kind="exercise" name="fold_conv_bn"
def fold_conv_bn(conv, bn):
    """One convolution that computes what conv and then bn compute in evaluation.

    conv: nn.Conv2d, with or without bias, any stride, padding, padding_mode, dilation and groups.
    bn: nn.BatchNorm2d on its output channels, with running averages, affine or not.
    Returns a new nn.Conv2d with a bias, of conv's settings, dtype and device. conv and bn stay as
    they are, and bn's mode does not matter.
    """
    ### BEGIN SOLUTION
    scale = 1 / torch.sqrt(bn.running_var + bn.eps)
    shift = torch.zeros_like(scale)
    if bn.affine:
        scale = scale * bn.weight
        shift = bn.bias
    bias = torch.zeros_like(scale) if conv.bias is None else conv.bias
    folded = nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding,
        conv.dilation, conv.groups, bias=True, padding_mode=conv.padding_mode,
    ).to(conv.weight)  # fmt: skip
    with torch.no_grad():
        folded.weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
        folded.bias.copy_((bias - bn.running_mean) * scale + shift)
    return folded
    ### END SOLUTION


# %% [markdown]
# ## A network without BatchNorm
#
# Fold every pair in the three trained networks. How far are the scores apart, for the 797 test
# images, in float32 and in float64? Then three things that go wrong in practice: the convolution
# is compared with a network that is still in training mode; somebody leaves out $\epsilon$; the
# fold goes to the wrong neighbour, since there is a ReLU in between.


# %% kind="demo"
def folded_network(net, fold=fold_conv_bn):
    """A copy of net in which each convolution has swallowed the BatchNorm after it."""
    layers = []
    for layer in copy.deepcopy(net):
        if isinstance(layer, nn.BatchNorm2d) and isinstance(layers[-1], nn.Conv2d):
            layers[-1] = fold(layers[-1], layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


@torch.no_grad()
def largest_gap(first, second, x):
    return (first(x) - second(x)).abs().max().item()


print("largest difference of a score, three seeds (the scores themselves reach", end=" ")
print(f"{max(net(images[EXAM]).abs().max().item() for net in nets):.0f})")
for dtype in (torch.float32, torch.float64):
    gaps = []
    for net in nets:
        wide = copy.deepcopy(net).to(dtype)
        gaps.append(largest_gap(wide, folded_network(wide), images[EXAM].to(dtype)))
    print(f"{dtype!s:14s} " + "  ".join(f"{gap:.0e}" for gap in gaps))
print("layers:", len(nets[0]), "before,", len(folded_network(nets[0])), "after")

unfolded, folded = copy.deepcopy(nets[0]), folded_network(nets[0])
sixteen = images[EXAM][:16]
print("\nthe trap: 16 images, largest difference from the folded network")
print(f"unfolded in eval()          {largest_gap(unfolded, folded, sixteen):.0e}")
print(f"unfolded in train()         {largest_gap(unfolded.train(), folded, sixteen):.1f}")
print(f"unfolded in eval(), again   {largest_gap(unfolded.eval(), folded, sixteen):.1f}")

print("\nepsilon left out: slope without it / slope with it")
for variance in (1.0, 1e-3, 1e-5, 1e-7):
    print(f"running_var {variance:.0e}   {np.sqrt((variance + 1e-5) / variance):6.3f}")

print("\nconvolution, ReLU, BatchNorm: fold it into the convolution all the same?")
conv, _, relu = copy.deepcopy(nets[0][:3])
late = nn.Sequential(conv, relu, nn.BatchNorm2d(16)).train()
for batch in images[STUDY].split(50):
    late(batch)  # its averages get used to what a ReLU lets through
late.eval()
wrong = nn.Sequential(fold_conv_bn(late[0], late[2]), relu)
gap = largest_gap(late, wrong, sixteen)
print(f"largest difference {gap:.1f}; outputs reach {late(sixteen).abs().max().item():.1f}")

# %% [markdown]
# ### See: rounding, and three traps
#
# **Folding.** Three layers fewer, and the scores agree to 8e-6 in float32, where the largest is 23,
# and to 1e-14 in float64. That is rounding. So whoever sees more than rounding has made a mistake.
# Often it is one of these.
#
# - **Compared in training mode.** The difference is 2.0, and folding is not to blame: one network
#   uses its diary and the other this batch. (PyTorch's own `fuse_conv_bn_eval` refuses to fold in
#   training mode.) Look at the third line, too: back in `eval()`, and still 0.2 apart. The careless
#   comparison has written into the diary, and the folded network has the old one.
# - **Epsilon left out.** At a variance of 1 nobody will notice. At 1e-5 the slope is 41 % too
#   large, at 1e-7 ten times, at 0 infinite. It has happened: an early `FrozenBatchNorm2d` in
#   torchvision had no $\epsilon$; DETR's copy adds it and says that other networks than
#   torchvision's own ResNets give NaN without it.
# - **The wrong neighbour.** Multiplying and adding cannot be pulled through a ReLU: the outputs
#   differ by 0.8. So ended one report of a broken fold: right function, wrong place (mmpose #606).
#   Such a BatchNorm belongs to the layer that *follows*; see the end of the lesson.
#
# ## Can LayerNorm be folded too?
#
# The notes say that BatchNorm is cheaper at work, because mean and variance need not be computed.
# True; but you have just seen that it can be cheaper than cheap. What about other norms? (You
# will build them in lessons 06 and 07; PyTorch's will do here.)
#
# What can be merged into a matrix or a convolution must be *affine*: multiply and add. And affine
# maps give themselves away: for every $p$ and $q$
#
# $$f(p+q) - f(p) - f(q) + f(0) = 0$$
#
# The cell asks this of five layers. Then it times a small tower of four convolutions on 32×32
# images, each followed by a norm, in evaluation, one image at a time, against the same tower
# with BatchNorm folded. The towers take turns, and each round gives one ratio: so other programs
# on your machine disturb all alike.

# %% kind="demo"
import time

affine_rng = np.random.default_rng(65)
p, q = (torch.from_numpy(affine_rng.normal(size=(4, 16, 8, 8))).float() for _ in range(2))
norms = {
    "BatchNorm": lambda channels: nn.BatchNorm2d(channels),
    "LayerNorm": lambda channels: nn.GroupNorm(1, channels),  # over C, H and W
    "GroupNorm": lambda channels: nn.GroupNorm(4, channels),
    "InstanceNorm": lambda channels: nn.InstanceNorm2d(channels, affine=True),
}
print("largest |f(p+q) - f(p) - f(q) + f(0)|")
for name, make in norms.items():
    for training_mode in (False, True) if name == "BatchNorm" else (False,):
        f = make(16).train(training_mode)
        with torch.no_grad():
            rest = f(p + q) - f(p) - f(q) + f(torch.zeros_like(p))
        size = rest.abs().max().item()
        mode = "train()" if training_mode else "eval()"
        print(f"{name:12s} {mode:8s}", "below 1e-5" if size < 1e-5 else f"{size:.1f}")


def tower(make_norm):
    layers = []
    for inputs in (3, 16, 16, 16):
        layers += [nn.Conv2d(inputs, 16, 3, padding=1, bias=False), make_norm(16), nn.ReLU()]
    return nn.Sequential(*layers).eval()


towers = {name: tower(make) for name, make in norms.items()}
towers = {"folded": folded_network(towers["BatchNorm"])} | towers
one_image = torch.from_numpy(affine_rng.normal(size=(1, 3, 32, 32))).float()
taken = {name: [] for name in towers}
with torch.no_grad():
    for _ in range(60):
        for name, net in towers.items():
            passes = []
            for _ in range(4):
                began = time.perf_counter()
                net(one_image)
                passes.append(time.perf_counter() - began)
            taken[name].append(min(passes))  # the one least disturbed

fig, axis = plt.subplots(figsize=(6.4, 2.4))
print("\ntime / time of the folded tower in the same round: median (10 % to 90 % of the rounds)")
for place, name in enumerate(towers):
    ratios = np.array(taken[name][5:]) / np.array(taken["folded"][5:])  # five rounds to warm up
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    print(f"{name:12s} {middle:.2f}  ({low:.2f} to {high:.2f})")
    colour = BLUE if name in ("folded", "BatchNorm") else ORANGE
    axis.plot([low, high], [place, place], color=colour, linewidth=2)
    axis.plot(middle, place, "o", color=colour)
axis.axvline(1, color=GREY, linestyle=":")
axis.set_yticks(range(len(towers)), list(towers))
axis.invert_yaxis()
axis.set(xlabel="time for one image / time of the folded tower", xlim=(0.8, 2))
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: foldable means affine
#
# **Affine or not.** BatchNorm in evaluation passes, to rounding. In training it does not, and the
# others never do: their mean and standard deviation come from the very input. For each image (in a
# Transformer: for each token) LayerNorm divides by another number, so no fixed table of weights can
# hold it. Its `gamma` and `beta` alone may move into the next linear layer.
#
# **Time.** Where this was written an unfolded BatchNorm added 12 % to the tower; with 64 channels
# instead of 16 we saw 5 %, since the convolutions then cost more. Folded it costs nothing. But look
# at LayerNorm and GroupNorm: no slower than the *unfolded* BatchNorm, although they do compute
# their statistics (12 % each). An image of this size stays in the processor's cache, and reading it
# again is cheap. So the notes' reason does not show here, InstanceNorm's 55 % apart; the advantage
# that is left is the fold. Your machine will give other numbers.
#
# Elsewhere the difference is large. The README of MABN reports iterations per second at inference:
# 237.88 for BN and MABN, 125.44 for LN, 105.60 for IN, 99.37 for GN. (It does not say on which
# machine, nor whether BN was folded.) And a user of mmdetection (#317) saw 7.7 images a second with
# BatchNorm and 5.4 with GroupNorm.
#
# ## The bias that nobody trains
#
# $\mathrm{BN}(Wx+b)=\mathrm{BN}(Wx)$, say the notes. Lesson 03 looked at it: in training the mean
# takes the bias away, so its gradient is zero; in test mode the *stored* mean is subtracted, and
# the equation holds only if it was collected with this very bias.
#
# In practice you meet it from the other side. A network comes to you whose convolutions have a
# bias *and* a BatchNorm after them. You would like to drop the biases. In training you may simply
# do so. In evaluation somebody has to take them over.
#
# With bias the diary holds the mean $\mu^{\mathrm{run}}$ of $Wx+b$. What is the mean of $Wx$, then?
# And its variance?
#
# ## Your turn: absorb_bias
#
# *5 points.*
#
# One line of arithmetic, and a few questions to ask yourself: does a bias change a variance? What
# does a layer without a diary (`track_running_stats=False`) need? The layer that you were given
# stays as it is: `copy.deepcopy` copies parameters, buffers and mode. And `b` may be a parameter;
# what the new layer remembers must not need a gradient because of it.


# %% kind="exercise" name="absorb_bias"
def absorb_bias(b, bn):
    """A BatchNorm that makes the bias before it needless: new(Wx) equals bn(Wx + b).

    b: (C,), the bias of the layer before. bn: a BatchNorm layer with C channels.
    Returns a new layer of bn's kind and mode; new(Wx) equals bn(Wx + b) in training AND in
    evaluation, for every W and x. bn itself stays as it is.
    """
    ### BEGIN SOLUTION
    new = copy.deepcopy(bn)
    if new.running_mean is not None:
        with torch.no_grad():
            new.running_mean -= b
    return new
    ### END SOLUTION


# %% [markdown]
# ## Dropped, and absorbed
#
# Six small networks whose convolutions have biases (drawn with standard deviation 0.3) are trained
# for 100 steps: three with SGD, three with Adam. What will be the largest gradient of a bias? How
# far will the biases have moved? Then drop them from the trained networks, without and with your
# function.

# %% kind="demo"
CONVS = (0, 3, 6)


def largest_gradient(net, kind):
    return max(getattr(net[k], kind).grad.abs().max().item() for k in CONVS)


bias_makers = {"SGD": sgd, "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=1.0)}
print("            largest gradient of a    largest    share of right answers, eval()")
print("            bias       weight        move       as it is   dropped   absorbed")
for name, rate in (("SGD", 0.1), ("Adam", 0.003)):
    for seed in range(3):
        biased = convnet(seed, bias=True)
        at_first = copy.deepcopy(biased)
        optimizer, slopes = bias_makers[name](biased), []
        for _ in training(biased, optimizer, falling(rate, 100), steps=100, size=64, seed=seed):
            slopes.append([largest_gradient(biased, kind) for kind in ("bias", "weight")])
        bias_slope, weight_slope = np.max(slopes, axis=0)
        moved = max((biased[k].bias - at_first[k].bias).abs().max().item() for k in CONVS)
        dropped, absorbed = copy.deepcopy(biased.eval()), copy.deepcopy(biased)
        for k in CONVS:
            absorbed[k + 1] = absorb_bias(biased[k].bias.detach(), biased[k + 1])
            dropped[k].bias = absorbed[k].bias = None
        shares = "      ".join(f"{exam(net)[1]:.3f}" for net in (biased, dropped, absorbed))
        sizes_told = f"{bias_slope:.0e}     {weight_slope:.1e}       {moved:.0e}"
        print(f"{name:4s} {seed}      {sizes_told}      {shares}")

# %% [markdown]
# ### See: a gradient of rounding errors
#
# The largest gradient of a bias is 5e-7, that of a weight 0.1. It is zero on paper; what you see is
# float32's rounding. With SGD the biases stay where they were, to 1e-6.
#
# With Adam they move by 0.02 to 0.03. Adam divides a gradient by its own typical size, and so makes
# real steps out of rounding errors. It does no harm: the mean takes them away, and the diary
# follows. But it is one more reason to write `bias=False`.
#
# **Dropped.** Between 2 and 12 points are lost: each channel is off by its bias, for the diary
# still subtracts it. **Absorbed.** As many right answers as before. In training mode dropping alone
# would have done.
#
# ## Hold still
#
# Next case. You take a trained network and go on training it on a task of your own, on large
# images, of which one or two fit into memory. They have many pixels, but alike ones (lesson 04), so
# a batch of one or two makes poor statistics; and the diary from the first training was a good one.
# So people *freeze* BatchNorm: it goes on working as in evaluation, while the rest of the network
# learns. Detection networks often do; detectron2 and torchvision have a layer of their own for it,
# `FrozenBatchNorm2d`.
#
# Four things can move in a BatchNorm layer: which statistics normalize, the diary, `weight`, and
# `bias`. PyTorch has two switches, `requires_grad` and the mode. Which switch stops what?
#
# ## Your turn: freeze_bn
#
# *15 points.*
#
# - Layers sit inside blocks, blocks inside blocks: `model.modules()` walks through all of them.
#   BatchNorm comes for tables, images and volumes (1d, 2d, 3d).
# - Freeze *BatchNorm*. Dropout must go on dropping, other norms must go on learning, and the
#   gradient must still reach what lies below.
# - A layer may have no `weight` (`affine=False`). `layer.parameters()` then gives nothing, and a
#   loop over nothing does no harm.


# %% kind="exercise" name="freeze_bn"
def freeze_bn(model):
    """Freeze every BatchNorm layer of a model, however deep inside and of whatever dimension.

    A frozen layer uses its running averages and leaves them alone, and its weight and bias need
    no gradient. Everything else stays as it is: other layers' modes and parameters, and the
    gradient that flows through a frozen layer to what lies below. Returns the model.
    model.train() would thaw the averages again, so training loops call freeze_bn after it.
    """
    ### BEGIN SOLUTION
    for layer in model.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            layer.eval()
            for parameter in layer.parameters():
                parameter.requires_grad_(False)
    return model
    ### END SOLUTION


# %% [markdown]
# ## Which switch stops what?
#
# A small network, one training batch, five ways of preparing it. For the BatchNorm inside, the
# cell finds out whether the batch's own statistics normalize, whether the diary moved, and
# whether gradients arrive at its weight and at the convolution below.


# %% kind="demo"
def weights_only(net):
    for parameter in net[1].parameters():
        parameter.requires_grad_(False)


def mode_only(net):
    net[1].eval()


def frozen_too_early(net):
    freeze_bn(net)
    net.train()  # the first line of every epoch


crowd = 3 + 2 * torch.from_numpy(np.random.default_rng(66).normal(size=(8, 2, 6, 6))).float()
print("                                batch's own   diary    gradient    gradient")
print("                                statistics    moves    of weight   below")
ways = {
    "as it comes": lambda net: None,
    "requires_grad_(False)": weights_only,
    "eval()": mode_only,
    "freeze_bn": freeze_bn,
    "freeze_bn, then model.train()": frozen_too_early,
}
for name, prepare in ways.items():
    little = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    little.train()
    prepare(little)
    out = little(crowd)
    out.pow(3).sum().backward()
    facts = (
        out.mean(dim=(0, 2, 3)).abs().max().item() < 1e-3,
        little[1].running_mean.abs().max().item() > 0,
        little[1].weight.grad is not None,
        bool(little[0].weight.grad.abs().max() > 0),
    )
    row = "".join(f"{'yes' if fact else 'no':12s}" for fact in facts)
    print(f"{name:32s}{row}")

# %% [markdown]
# ### See: two switches, and one that undoes
#
# - `requires_grad_(False)` stops the optimizer, no more. The batch still normalizes, and the diary
#   is still written.
# - `eval()` stops these two, and `weight` goes on learning.
# - `freeze_bn` needs both switches.
# - And then comes `model.train()`, the first line of every epoch, which sets the mode of *every*
#   module. The parameters stay frozen, the averages thaw, and nobody says a word. It was asked in
#   2016 (torch/nn #873) and reported again lately (gt-pyg #112). So the training loop calls
#   `freeze_bn` *after* `model.train()`. detectron2's `FrozenBatchNorm2d` escapes: it has buffers
#   only, and never looks at the mode.
#
# The last column is always yes. A frozen layer is a straight line with slope $s$; the gradient
# passes through it multiplied by $s$. Of lesson 03's paths through mean and variance none is left.
#
# ## Is frozen better?
#
# Three networks learn the digits 0 to 4. Then each gets a fresh readout and is taught 5 to 9, from
# 100 images: in batches of one image, and in batches of 16. Once BatchNorm trains along, once it
# is frozen before every step; both arms get the same learning rates, falling to 0.

# %% kind="demo"
low_digits = torch.nonzero(labels[STUDY] < 5).flatten()
few_high = torch.nonzero(labels[STUDY] >= 5).flatten()[:100]
is_high = labels[EXAM] >= 5
high_exam = images[EXAM][is_high], labels[EXAM][is_high]
elders = [convnet(seed) for seed in range(3)]
for seed, net in enumerate(elders):
    for _ in training(net, sgd(net), falling(0.1, 100), 100, size=32, seed=seed, pool=low_digits):
        pass
    nn.init.zeros_(net[-1].weight)  # a new task, a new readout
    nn.init.zeros_(net[-1].bias)

arms = {"trains along": nn.Module.train, "frozen": lambda net: freeze_bn(net.train())}
plans = {1: (200, (0.003, 0.01, 0.03)), 16: (80, (0.03, 0.1, 0.3))}  # batch: steps, rates
fig, panels = plt.subplots(1, 2, figsize=(7.6, 3), sharey=True)
print("digits 5 to 9, share of right answers in eval(): mean of three seeds (lowest to highest)")
for panel, (size, (steps, rates)) in zip(panels, plans.items(), strict=True):
    for (name, prepare), colour, mark in zip(arms.items(), (ORANGE, BLUE), "^o", strict=True):
        shares = np.zeros((len(rates), 3))
        for row, rate in enumerate(rates):
            for seed, elder in enumerate(elders):
                net = copy.deepcopy(elder)
                schedule = falling(rate, steps)
                for _ in training(net, sgd(net), schedule, steps, size, seed, few_high, prepare):
                    pass
                shares[row, seed] = exam(net.eval(), *high_exam)[1]
            if row == 0:
                print(f"batch {size:2d}, {name}")
            told = f"{shares[row].mean():.3f} ({shares[row].min():.3f} to {shares[row].max():.3f})"
            print(f"    rate {rate:<5g}  {told}")
        panel.plot(rates, shares.mean(axis=1), color=colour, linewidth=1.2)
        panel.plot(rates, shares, mark, ms=4, color=colour)
        panel.plot([], [], f"{mark}-", ms=4, color=colour, label=name)
    panel.set(xscale="log", xlabel="learning rate", title=f"batches of {size}", ylim=(0, 1))
    panel.set_xticks(rates, rates)
    panel.minorticks_off()
panels[0].set_ylabel("right answers, digits 5 to 9")
panels[0].legend(loc="lower left")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: better with one image, and no longer a brake
#
# **Batches of one.** One image still gives 64, 16 and 4 numbers for a mean, in the three layers. At
# the best rate of each arm (0.01) frozen leads, 0.890 to 0.870. Two points
# are no more than the seeds differ; with eight seeds we got 0.894 and 0.866, with a standard
# deviation of 0.025 in each arm. So: a small advantage, probably. With batches of *two* images it
# was gone (0.912 and 0.920).
#
# **Batches of 16.** Trained along is at least as good, 0.936 to 0.923, and it does not mind the
# rate 0.3, at which two frozen runs of three break down. A BatchNorm that trains along normalizes
# whatever the layer below grows into. A frozen one is a fixed line and hands growth on: *it no
# longer normalizes*. (In a first version of this experiment the old readout was kept. Its large
# first gradients wrecked most of the frozen runs.)
#
# So freezing is for batches too small to give statistics, with a careful learning rate. Where one
# or two large images fit into memory that is the case; this toy, with 8×8 images, hardly shows it.
#
# ## Is the diary true?
#
# Folded or frozen, the network now lives by its diary. Who says that it is right?
#
# It is a *running* average: of batches, and of weights. Most of what stands in it was written
# when the weights were others. And with a large `momentum` it rests on a few batches only. Lesson
# 04 showed both with invented streams of numbers. A real network has a way out that a stream has
# not: when the weights stand still, send the data through once more and take plain averages.
#
# The notes explain why training does not use the statistics of all the data: it would make the
# model less robust. Lesson 02 gave the plainer reason, that it would cost a pass through all the
# data at every step. *Once*, at the end, it costs next to nothing. Ioffe and Szegedy do it in
# their algorithm 2; Wu and Johnson (2021, section 3) call it PreciseBN, and compare it with the
# running average on ImageNet.
#
# For one channel, over batches $k = 1 \dots K$ of $n_k$ values each:
#
# $$\mu = \frac{1}{n}\sum_k \sum_{i=1}^{n_k} x_{ki}, \qquad
# \sigma^2 = \frac{1}{n}\sum_k \sum_{i=1}^{n_k} (x_{ki}-\mu)^2, \qquad n = \sum_k n_k$$
#
# Note what it is not: neither the average of the batches' means (batches may differ in size), nor
# the average of their variances (that misses how much the *means* differ). For batches of
# independent samples lesson 02's factor $m/(m-1)$ makes up for the latter; this variance is right
# for any.
#
# ## Your turn: precise_bn
#
# *25 points.*
#
# - What reaches a layer? `layer.register_forward_pre_hook(f)` calls `f(layer, inputs)` before each
#   forward pass; `inputs[0]` is what comes in. Keep the handle that it returns, and `remove()` it
#   in the end. (There are other ways. With `momentum = 1` the diary *is* the last batch; then
#   mind PyTorch's correction by $n/(n-1)$.)
# - One pass for all layers. BatchNorm layers train, so that each batch is normalized as it was in
#   training; all other layers evaluate. Dropout must not drop.
# - A count, a sum, a sum of squares for each channel are enough. Remember the short cut of lesson
#   02 that lost the digits: sum in float64, or merge means and variances.
# - Values come as (N, C) or (N, C, H, W): the channels are always axis 1.
# - No gradients. And leave the model as you found it: each layer's *own* mode, not one for all.


# %% kind="exercise" name="precise_bn"
def precise_bn(model, loader):
    """Replace running averages by the statistics of all values that a data set sends through.

    model: a network. loader: an iterable of batches (tensors), not all of one size.
    Once through the loader, with BatchNorm layers in training mode (each batch is normalized by
    its own statistics) and all other layers in evaluation mode, without gradients. Afterwards
    each BatchNorm layer's running_mean and running_var are the mean and the variance (divided by
    n) of ALL values of a channel that reached it, over all batches; what was stored before plays
    no part. Parameters, and every layer's mode, are as they were. Returns the model.
    (Wu and Johnson 2021, section 3.)
    """
    ### BEGIN SOLUTION
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    layers = [m for m in model.modules() if isinstance(m, kinds) and m.track_running_stats]
    modes = {layer: layer.training for layer in model.modules()}
    totals = {layer: [0, 0, 0] for layer in layers}  # count, sum, sum of squares

    def observe(layer, inputs):
        values = inputs[0].double().transpose(0, 1).flatten(1)  # (C, all others)
        totals[layer][0] += values.shape[1]
        totals[layer][1] += values.sum(dim=1)
        totals[layer][2] += (values**2).sum(dim=1)  # safe: float64 of float32 values

    hooks = [layer.register_forward_pre_hook(observe) for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    for layer, (count, total, squares) in totals.items():
        if count == 0:
            continue  # no batch reached it
        mean = total / count
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(squares / count - mean**2)
    for hook in hooks:
        hook.remove()
    for layer, mode in modes.items():
        layer.training = mode
    return model
    ### END SOLUTION


# %% [markdown]
# ## One run, many diaries
#
# The diary takes no part in training: it is written, not read. So one run can keep *several*, with
# different `momentum`, and stop now and then to be examined with each of them, and with your
# `precise_bn`.
#
# Three seeds, batches of 16, SGD. The learning rate stays at 0.1 for 200 steps, then falls to 0
# within 100. What will the diaries be worth before step 200, and what at the end?

# %% kind="demo"
MOMENTA, LATE = (1.0, 0.1, 0.01), (120, 160, 200)


def watch(size, rate, steps, seed, when):
    """Train, keeping three diaries; at the steps `when` the losses with each, (len(when), 5).

    The last two: with precise_bn, and (LATE only) in train(), in batches of the training's size.
    """
    net, log = convnet(seed), []
    layers = [layer for layer in net if isinstance(layer, nn.BatchNorm2d)]
    diaries = [[(layer.running_mean * 0, layer.running_var * 0 + 1) for layer in layers]] * 3
    for layer in layers:
        layer.momentum = 1.0  # what it stores is this batch's own
    for step in training(net, sgd(net), rate, steps, size, seed):
        fresh = [(layer.running_mean, layer.running_var) for layer in layers]
        diaries = [
            [
                (mean.lerp(new_mean, share), var.lerp(new_var, share))
                for (mean, var), (new_mean, new_var) in zip(diary, fresh, strict=True)
            ]
            for diary, share in zip(diaries, MOMENTA, strict=True)
        ]
        if step not in when:
            continue
        losses = []
        net.eval()
        for diary in diaries:
            for layer, (mean, var) in zip(layers, diary, strict=True):
                layer.running_mean, layer.running_var = mean.clone(), var.clone()
            losses.append(exam(net)[0])
        losses.append(exam(precise_bn(net, images[STUDY].split(100)))[0])
        net.train()
        batches = zip(images[EXAM].split(size)[:-1], labels[EXAM].split(size), strict=False)
        crowds = [exam(net, *batch)[0] for batch in batches if step in LATE]
        losses.append(np.mean(crowds) if crowds else np.nan)
        log.append(losses)
    return np.array(log)


when = range(20, 301, 20)
runs16 = np.array([watch(16, falling(0.1, 300, 200), 300, seed, when) for seed in range(3)])
fig, axis = plt.subplots(figsize=(7, 3))
names = [f"momentum {share:g}" for share in MOMENTA] + ["precise_bn"]
looks = ((GREY, ":", "s"), (ORANGE, "-", "^"), ("black", "--", "D"), (BLUE, "-", "o"))
for k, (name, (colour, style, mark)) in enumerate(zip(names, looks, strict=True)):
    axis.plot(when, runs16[:, :, k].mean(axis=0), style, color=colour, linewidth=1.2)
    axis.plot(when, runs16[:, :, k].T, mark, ms=3, color=colour, alpha=0.5)
    axis.plot([], [], style, marker=mark, ms=3, color=colour, label=name)
axis.axvline(200, ymax=0.66, color=GREY, linewidth=0.8)
axis.text(203, 0.9, "the rate falls", fontsize=8)
axis.set(yscale="log", xlabel="training steps", ylabel="test loss in evaluation")
axis.legend(ncols=2, loc="upper right")
fig.tight_layout()
plt.show()
print("test loss, mean of three seeds (standard deviation)")
print("              " + "".join(f"{name:>18s}" for name in names))
for name, part in (("steps 100-200", slice(4, 10)), ("step 300", slice(14, 15))):
    each = runs16[:, part, :4].mean(axis=1)
    cells = zip(each.mean(axis=0), each.std(axis=0), strict=True)
    print(f"{name:14s}" + "".join(f"{mean:10.3f} ({std:.3f})" for mean, std in cells))

# %% [markdown]
# ### See: the diary limps while the weights run
#
# **While the rate is high** (steps 100 to 200) the weights run, and the diary follows. With
# momentum 0.1, PyTorch's default, the loss is 0.190, against 0.173 with `precise_bn`. A diary that
# knows the last batch only (momentum 1) has the newest weights and the most noise: 0.198. And 0.01
# gives 0.317: after 150 steps it is still 22 % start value ($0.99^{150}$), and the rest is old.
#
# **At the end** the weights come to rest. Momentum 0.1 has caught up: 0.112, against 0.114 with
# `precise_bn`. Momentum 0.01 is still behind (0.132), and one batch is still one batch (0.129).
#
# So `precise_bn` is no magic. It is right at any moment, early or late, and there is no momentum to
# choose. Wu and Johnson report the like for ImageNet, only larger: in training with large batches
# the validation error jumps about with running averages, and is steady with PreciseBN. (We know the
# paper by its abstract, summaries and code.)
#
# ## Batch size and momentum
#
# The same for batches of 4 and 64, at a constant rate: 0.1 for batches of 64, as for 16, and 0.01
# for batches of 4, which do not bear more. The figure shows by how much the test loss exceeds that
# with `precise_bn`, at steps 120, 160 and 200. The open circles are the network in *training*
# mode, with test batches of the size it was trained with: what training itself sees.

# %% kind="demo"
by_size = {
    4: np.array([watch(4, constant(0.01), 200, seed, LATE) for seed in range(3)]),
    16: runs16[:, [5, 7, 9]],
    64: np.array([watch(64, constant(0.1), 200, seed, LATE) for seed in range(3)]),
}
MARKS = ((GREY, "s", GREY), (ORANGE, "^", ORANGE), ("black", "D", "black"), (GREY, "o", "none"))
fig, axis = plt.subplots(figsize=(6.4, 3))
print("excess of the test loss over precise_bn: mean of three seeds (lowest to highest)")
print("batch   loss with precise_bn" + "".join(f"{name:>24s}" for name in names[:3]), end="")
print(f"{'train()':>24s}")
for place, (size, runs) in enumerate(by_size.items()):
    excess = (runs - runs[:, :, 3:4]).mean(axis=1)  # (seed, diary)
    row = ""
    for shift, k in enumerate((0, 1, 2, 4)):
        colour, mark, face = MARKS[shift]
        label = None if place else [*names, "train()"][k]
        spot = [place + 0.15 * (shift - 1.5)] * 3
        axis.plot(spot, excess[:, k], mark, ms=5, color=colour, mfc=face, label=label)
        low, high = excess[:, k].min(), excess[:, k].max()
        row += f"{excess[:, k].mean():8.3f} ({low:6.3f} to {high:5.3f})"
    print(f"{size:5d}   {runs[:, :, 3].mean():20.3f}{row}")
axis.axhline(0, color=BLUE, linewidth=1.2, label="precise_bn")
axis.set_xticks(range(3), [f"batches of {size}" for size in by_size])
axis.set(ylabel="test loss - loss with precise_bn")
axis.legend()
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: small, and where it comes from
#
# - **Momentum 1**, the last batch alone: 0.030 with batches of 4, 0.009 with 16, 0.003 with 64.
#   That is noise, and larger batches have less.
# - **Momentum 0.1**: 0.009, 0.022, 0.004. No order, and the seeds differ as much. Some twenty
#   batches average the noise away; what remains is lag, and that depends on how fast the weights
#   run. With batches of 4 the rate was a tenth.
# - **Momentum 0.01**: 0.05 to 0.13. Too slow for 200 steps.
# - **Training mode** (circles): 0.048, 0.017, 0.003 worse than evaluation with `precise_bn`. No
#   diary is to blame here. With small batches training sees another network than evaluation, a
#   noisier one, and no statistics make the two the same. Here evaluation is the better one. How
#   training itself suffers from small batches is for a later lesson.
#
# In short: at the default momentum this small network loses a few hundredths in the loss, while the
# weights run. Disasters need a slower diary, or one of the accidents that come next.
#
# ## When the diary is nobody's
#
# Three accidents in which the averages are not merely stale:
#
# 1. *Lost.* The weights were saved without the buffers (lesson 04's written question).
# 2. *Averaged weights.* Training goes on at a constant rate of 0.1, batches of 16, for 100 steps;
#    the weights of ten moments are averaged. No batch has ever gone through the average network.
#    (Averaging weights so is known as SWA: Izmailov and others 2018. PyTorch's `update_bn` was
#    made for it.) The diary is the last moment's.
# 3. *Another camera.* The images come in with 40 % of the contrast, and brighter:
#    $0.4x+0.3$. The weights are as good as ever.
#
# Each time `precise_bn` gets images, and never a label. In the third case they come from the new
# camera, 100 of them.


# %% kind="demo"
def without_diary(net):
    lost = copy.deepcopy(net)
    for layer in lost:
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
    return lost.eval()


def average_of_moments(net, seed):
    """The network after 100 more steps, and the average of the last ten tens of steps."""
    moving, moments = copy.deepcopy(net), []
    for step in training(moving, sgd(moving), constant(0.1), 100, size=16, seed=seed + 10):
        if step % 10 == 0:
            moments.append(copy.deepcopy(moving.state_dict()))
    average = copy.deepcopy(moving)
    for name, parameter in average.named_parameters():
        parameter.data = torch.stack([moment[name] for moment in moments]).mean(dim=0)
    return moving.eval(), average.eval()


def other_camera(x):
    return 0.4 * x + 0.3


plain, other = images[EXAM], other_camera(images[EXAM])
batches, other_batches = images[STUDY].split(50), other_camera(images[:100]).split(50)
lasts, averages = zip(*[average_of_moments(net, k) for k, net in enumerate(nets)], strict=True)
accidents = {
    "lost": ([without_diary(net) for net in nets], plain, batches),
    "the last moment": (lasts, plain, batches),
    "averaged weights": (averages, plain, batches),
    "another camera": (nets, other, other_batches),
}
print("share of right answers, three seeds    with the diary         after precise_bn")
for name, (patients, x, loader) in accidents.items():
    before = "  ".join(f"{exam(net, x)[1]:.3f}" for net in patients)
    healed = [precise_bn(copy.deepcopy(net), loader) for net in patients]
    after = "  ".join(f"{exam(net, x)[1]:.3f}" for net in healed)
    print(f"{name:38s} {before}    {after}")

# %% [markdown]
# ### See: no label, no step, and well again
#
# - **Lost.** From 0.24 to 0.76 back to 0.97. The weights had been right all the time; what was
#   missing can be had from the images.
# - **Averaged weights.** With the last moment's diary the average network is worse than the last
#   moment itself; with its own statistics it is the better one, 0.95 to 0.96 against 0.92 to 0.93.
#   (To average the ten diaries, too, did as well when we tried it in a network like this.)
# - **Another camera.** From 0.74 to 0.83 up to 0.95, with a hundred unlabelled images. The first
#   layer's mean and variance were those of the old camera. This is known as AdaBN (Li and others
#   2016). It mends what a mean and a variance can say about the change, and no more.
#
# If a network is fine in `train()` and poor in `eval()`, try this first: one pass, a few lines, and
# you know whether the diary was at fault.
#
# ## Three recipes for one variance
#
# If you look into other people's code you find three recipes under one name:
#
# - `torch.optim.swa_utils.update_bn`: the plain average of the batches' means and *unbiased
#   variances*, all with equal weights (it sets `momentum=None`). The whole model is in training
#   mode, dropout too.
# - fvcore's `update_bn_stats`, which detectron2 uses: the same, in early versions. Later ones put
#   the batches together to one variance of all values, weighted by size, and say that this is
#   better for small batches (with reference to the appendix of Wu and Johnson).
# - Yours: all values.
#
# First by hand: one channel of three batches with 4, 4 and 2 values whose means differ. Then for
# a network: the variances of the three layers for batches of 2, and for batches sorted by digit.
# What is the *right* variance of the second layer? What arrives there in evaluation, when the
# layer below has its final averages already: so we also fill in the layers one after the other
# from below, each with all 1,000 images at once.

# %% kind="demo"
from torch.optim.swa_utils import update_bn


def average_batches(net, loader):
    update_bn(loader, net)


three = [torch.tensor(v).view(-1, 1) for v in ([1.0, 2, 3, 4], [5.0, 6, 7, 8], [20.0, 22])]
values, lone = torch.cat(three), nn.Sequential(nn.BatchNorm1d(1))
print("three batches, one channel    mean  variance")
print(f"all ten values              {values.mean():6.2f}  {values.var(correction=0):8.2f}")
recipes = {"update_bn": average_batches, "precise_bn": precise_bn}
for name, recipe in recipes.items():
    recipe(lone, three)
    print(f"{name:27s} {lone[0].running_mean.item():6.2f}  {lone[0].running_var.item():8.2f}")


@torch.no_grad()
def from_below(net, x):
    """Each layer's averages from what reaches it in evaluation, the first layer first."""
    for layer in net.eval():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.copy_(x.mean(dim=(0, 2, 3)))
            layer.running_var.copy_(x.var(dim=(0, 2, 3), correction=0))
        x = layer(x)
    return net


sorted_images = images[STUDY][torch.argsort(labels[STUDY], stable=True)]
loaders = {
    "batches of 100": images[STUDY].split(100),
    "batches of 2": images[STUDY].split(2),
    "sorted by digit, of 100": sorted_images.split(100),
}
print("\nrunning_var / variance from below, layers 1 to 3, mean of the channels; right answers")
for name, loader in loaders.items():
    for who, recipe in recipes.items():
        ratios, shares = [], []
        for net in nets:
            right, tried = from_below(copy.deepcopy(net), images[STUDY]), copy.deepcopy(net)
            recipe(tried, loader)
            pairs = [(tried[k + 1].running_var, right[k + 1].running_var) for k in CONVS]
            ratios.append([(found / truth).mean().item() for found, truth in pairs])
            shares.append(exam(tried.eval())[1])
        told = "  ".join(f"{ratio:.2f}" for ratio in np.mean(ratios, axis=0))
        print(f"{name:24s} {who:10s}  {told}   {np.mean(shares):.3f}")

# %% [markdown]
# ### See: what the recipes leave out
#
# **By hand.** `update_bn` has the mean of the means, 10, though the last batch has half as many
# values, and the mean of the variances, 1.78. Of the variance of all ten values, 47.96, nearly
# everything lies *between* the batches, and the average of variances cannot see it.
#
# **In the network.** With shuffled batches of 100 the recipes agree with each other and with the
# statistics from below. With batches of 2 they miss by up to 4 %. With sorted batches `update_bn`
# finds 0.85 of the third layer's variance, and yours 0.95. Yours is nearer, and not right either:
# the layer *below* has normalized the sevens by sevens, so what arrives is not what will arrive in
# evaluation. (Layer by layer from below is right, at the price of a pass for each layer.)
#
# And the right answers? 0.973 to 0.974 in every row. So: shuffle, take batches as large as you can,
# and do not lose sleep over the recipe.
#
# ## The other way round: BatchNorm, then convolution
#
# One case is left. So far the convolution came first and BatchNorm swallowed what came out. Some
# networks have it the other way round: BatchNorm first (to standardize the input, say), then a
# convolution. Fold it into the convolution that *follows*?
#
# The cell does so: `fold_bn_conv` scales each *input* channel of the kernels by its slope, and puts
# the offsets into the bias. It takes a photograph, a BatchNorm with one channel, and one 5×5
# kernel, with two rows of zeros as padding. Where will the result be wrong?
#
# Then it gives the folded convolution another padding: instead of 0 some number $p$, the same all
# around the picture. Is there a $p$ that mends it?

# %% kind="demo"
from sklearn.datasets import load_sample_image


def fold_bn_conv(bn, conv):
    """One convolution for bn and then conv (one group, with bias), in evaluation."""
    slope = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    offset = bn.bias - slope * bn.running_mean
    folded = copy.deepcopy(conv)
    with torch.no_grad():
        folded.weight.mul_(slope.view(1, -1, 1, 1))
        folded.bias.add_((conv.weight.sum(dim=(2, 3)) * offset).sum(dim=1))
    return folded


def padded(x, p, width):
    """x with a frame: p is one number for all channels, or one for each."""
    frame = torch.as_tensor(p, dtype=x.dtype).expand(x.shape[1]).view(-1, 1, 1)
    return F.pad(x - frame, (width,) * 4) + frame


china = load_sample_image("china.jpg")[120:200:2, 260:340:2] / 255  # (40, 40, 3), red green blue
colours = torch.from_numpy(china).permute(2, 0, 1).unsqueeze(0)  # float64
grey = colours.mean(dim=1, keepdim=True)
border_rng = np.random.default_rng(67)
bn_1 = nn.BatchNorm2d(1).double().eval()
bn_1.running_mean.copy_(grey.mean())
bn_1.running_var.copy_(grey.var())
with torch.no_grad():
    bn_1.weight.fill_(1.5)
    bn_1.bias.fill_(-0.8)
    conv_1 = nn.Conv2d(1, 1, 5, padding=2).double()
    conv_1.weight.copy_(torch.from_numpy(border_rng.normal(size=(1, 1, 5, 5)) / 5 + 0.1))
    conv_1.bias.fill_(0.2)
    truth = conv_1(bn_1(grey))
    folded_1 = fold_bn_conv(bn_1, conv_1)
    bare = copy.deepcopy(folded_1)
    bare.padding = (0, 0)  # the frame is ours now

    def error_map(p):
        return (bare(padded(grey, p, 2)) - truth)[0, 0]

    # at each place the error is a straight line in p: two trials give its zero
    at_0, at_1 = error_map(0.0), error_map(1.0)
    best = (at_0[0, 0] / (at_0[0, 0] - at_1[0, 0])).item()
    tried = np.linspace(-0.5, 1.5, 81)
    largest = [error_map(p).abs().max().item() for p in tried]
    maps = [error_map(p).abs() for p in (0.0, grey.mean().item(), best)]

shape = {"figsize": (9.2, 2.4), "width_ratios": (1, 1, 1, 1.3), "layout": "constrained"}
fig, panels = plt.subplots(1, 4, **shape)
panels[0].imshow(grey[0, 0].numpy(), cmap="gray")
panels[0].set_title("the picture", fontsize=9)
for panel, shown, title in zip(panels[1:3], maps[::2], ("padding 0", "best p"), strict=True):
    panel.imshow(shown.numpy(), cmap="cividis", vmin=0, vmax=maps[0].max())
    panel.set_title(f"{title}: |error| to {shown.max():.1g}", fontsize=9)
for panel in panels[:3]:
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(True)
panels[3].plot(tried, largest, color=BLUE)
panels[3].plot(0, maps[0].max(), "^", color=ORANGE, label="p = 0")
panels[3].plot(grey.mean(), maps[1].max(), "s", color=GREY, label="p = mean of the picture")
panels[3].set(xlabel="padding value p", ylabel="largest |error|")
panels[3].legend(fontsize=7)
plt.show()
inside = (slice(2, -2), slice(2, -2))
print(f"outputs reach {truth.abs().max():.1f}; the mean of the picture is {grey.mean():.3f}")
for name, shown in zip(("0", "the mean", f"{best:.4f}"), maps, strict=True):
    size = f"{shown.max():.2f}" if shown.max() > 1e-9 else f"{shown.max():.0e}"
    print(f"padding {name:9s} largest error inside {shown[inside].max():.0e}, anywhere {size}")

# %% [markdown]
# ### See: a frame of errors
#
# Inside, the fold is right to 15 digits. In a frame two pixels wide, where the 5×5 window hangs
# over the edge, it is wrong by up to 6.3, and the outputs themselves reach 7.7. On this picture
# that is a fifth of all places; in a deep network on small maps it can be nearly all.
#
# The right panel: the mean of the picture, a natural guess, is not the cure (1.4). But there *is* a
# cure: at $p = 0.7158$ the error vanishes everywhere at once, edges and corners alike. The cell
# found it with two trials and a ruler, without a theory. The theory is yours.
#
# ## A bench for the written question
#
# Three channels now, red, green and blue, with a $\gamma$, a $\beta$, a mean and a variance of
# their own, and a convolution to four channels. `border_error(gamma, p)` folds and returns the
# largest error inside and the largest anywhere. Add cells as you like.

# %% kind="demo"
bench_weight = torch.from_numpy(np.random.default_rng(68).normal(size=(4, 3, 3, 3)) / 5)
bench_mean, bench_var = colours.mean(dim=(0, 2, 3)), colours.var(dim=(0, 2, 3))
bench_beta = torch.tensor([0.5, -0.3, 0.8]).double()


@torch.no_grad()
def border_error(gamma, p):
    """gamma: three numbers. p: the frame, one number or three."""
    bn, conv = nn.BatchNorm2d(3).double().eval(), nn.Conv2d(3, 4, 3).double()
    bn.running_mean.copy_(bench_mean)
    bn.running_var.copy_(bench_var)
    bn.weight.copy_(torch.as_tensor(gamma))
    bn.bias.copy_(bench_beta)
    conv.weight.copy_(bench_weight)
    kept = conv(F.pad(bn(colours), (1, 1, 1, 1)))  # zeros around what BatchNorm puts out
    error = (fold_bn_conv(bn, conv)(padded(colours, p, 1)) - kept).abs()
    return error[..., 1:-1, 1:-1].max().item(), error.max().item()


print("means ", bench_mean.numpy().round(4), " variances", bench_var.numpy().round(4))
bench_gamma = (1.2, -0.7, 0.4)
for p in (0.0, 0.5, [0.4, 0.5, 0.6]):
    within, anywhere = border_error(bench_gamma, p)
    print(f"p = {p!s:16s} largest error inside {within:.0e}, anywhere {anywhere:.2f}")

# %% [markdown]
# ## Written question: zero padding
#
# *20 points, graded by hand.* (Working alone? In a checkout, `autograder solution zero_padding`
# shows a model answer.)
#
# A network has BatchNorm, then at once a convolution that pads with zeros. A colleague has folded
# the two by `fold_bn_conv`, and wonders about the frames. Explain it to them.
#
# 1. Derive $W'$ and $b'$, with shapes, and say why the result is exact wherever the window lies
#    inside the image.
# 2. Write down the error at a place where the window hangs over the edge, for any padding value
#    $p$. Which entries of the kernel are in it?
# 3. Which $p$ makes the fold exact? Why for all places and all kernels at once? Check it with
#    numbers, on the photograph or on the bench.
# 4. What breaks this repair? Give at least two cases, one of them a case in which *no* padding
#    value helps, and say what you would do then.

# %% [markdown] kind="written" name="zero_padding" points=20
# ### BEGIN SOLUTION
# **Model answer.**
#
# *1. The fold.* With $s_i = \gamma_i/\sqrt{v_i+\epsilon}$ and $t_i = \beta_i - s_i\mu_i$ (running
# averages), BatchNorm is $s_i x_i + t_i$ on *input* channel $i$. For output channel $c$, kernel
# entry $(u, v)$ and the pixel $x_{i,uv}$ that lies under it:
#
# $$\sum_{i,u,v} W_{ciuv}\,(s_i x_{i,uv} + t_i) + b_c =
# \sum_{i,u,v} \underbrace{W_{ciuv}\,s_i}_{W'}\,x_{i,uv} +
# \underbrace{b_c + \sum_{i,u,v} W_{ciuv}\,t_i}_{b'_c}$$
#
# $W'$ has $W$'s shape (C_out, C_in, kH, kW), $s$ goes along axis 1, and $b'$ is (C_out,). If every
# pixel under the window belongs to the image, both sides are the same sum, so it is exact.
#
# *2. The edge.* Let $O$ be the entries of the kernel that lie outside. The network has zeros there
# *after* BatchNorm: these entries contribute nothing. In the folded one they see $p_i$ and
# contribute $W_{ciuv}\,s_i\,p_i$, and $b'$ holds their $W_{ciuv}\,t_i$ in any case. The error is
#
# $$\sum_i\;(s_i\,p_i + t_i) \sum_{(u,v)\in O} W_{ciuv}$$
#
# With $p = 0$ that is $\sum_i t_i \sum_O W_{ciuv}$: the offsets of what was not there. It is zero
# only by luck ($t=0$, or kernel entries that cancel).
#
# *3. The value.* The bracket vanishes for $p_i = -t_i/s_i = \mu_i - \beta_i/s_i$. That is the
# number which BatchNorm turns into 0: padding with it before BatchNorm *is* padding with zeros
# after it. The bracket is zero by itself, whatever stands in the sum behind it; hence all places
# and all kernels at once. It is the mean only if $\beta = 0$.
#
# Photograph: $\mu = 0.5562$, $v = 0.0896$, $s = 1.5/\sqrt{v+\epsilon} = 5.011$, $\beta = -0.8$, so
# $p = 0.5562 + 0.1597 = 0.7158$, which the cell had found. Bench, $\gamma$ = (1.2, −0.7, 0.4): $p$
# = (0.4510, 0.4226, −0.0894), error 2e-15 everywhere. With the channels' means it is 0.60; the best
# single number for all three channels, 0.44, leaves 0.36.
#
# *4. What breaks it.*
#
# - $\gamma_i = 0$ with $\beta_i \ne 0$: $s_i = 0$, so $W'$ is 0 for this channel and it does not
#   matter what one pads with. The network has $\beta_i$ inside and 0 outside, the folded one
#   $\beta_i$ everywhere. Bench, $\gamma$ = (1.2, 0, 0.4), the other two channels right: 0.28 for
#   $p_1$ = −1, 0, 1 and 100.
# - $\gamma_i$ small: $p_i$ runs away. $\gamma_1 = 10^{-6}$ gives 90,454, fine in float32 (error
#   1e-6) and beyond float16's 65,504.
# - One number for each channel: `nn.Conv2d` pads with zeros or with copies of the image's own
#   pixels, and many engines know one value for all channels. Then a step of its own must lay the
#   frame, and costs time.
# - A ReLU between the two (as in pre-activation networks): not affine, wrong inside as well (1.7 on
#   the bench).
# - Training mode: $s$ and $t$ change with the batch.
#
# What to do: lay the frame by hand and set the convolution's padding to 0; or leave BatchNorm there
# (always right); for $\gamma_i = 0$, and an image size that is known, add the error's negative as a
# bias for each place. Or build the network otherwise from the start: DiverseBranchBlock pads the
# *output* of such a BatchNorm with $t_i$, what it makes of a zero, and then an ordinary fold with
# zero padding is exact. No repair is needed without padding, nor with reflected, replicated or
# circular padding: those pixels are image pixels, before as after (error 2e-15).
#
# **Rubric:**
#
# - 4 points: the fold: $W'$ with the slope along the input channels (1), $b'$ with the offsets
#   summed over channels and window (1), shapes (1), exact inside because both are the same sum (1).
# - 4 points: the edge: in the network the outside entries contribute nothing (1), in the folded one
#   $W'p$ and their share of $b'$ (1), the error as a formula in $p$, or for $p=0$ (2).
# - 5 points: $p = \mu-\beta/s$ for each channel (2); because BatchNorm makes 0 of it, or because
#   the bracket vanishes (2); so neither place nor kernel matters (1).
# - 2 points: a check with numbers: 0.7158, or the three values with an error of 1e-15.
# - 5 points: $\gamma = 0$: no padding value has any effect, the frame remains if $\beta\ne0$ (2); a
#   second case that is true (2); a way out (1).
#
# "Pad with the running mean" without $\beta$ gets 1 of the 2 points for the value. "Use reflect
# padding" is a way out only if the network was trained with it.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - In evaluation BatchNorm is one straight line for each channel, $s = \gamma/\sqrt{v+\epsilon}$.
#   The convolution before it can take it over: $W' = sW$, $b' = s\,(b-\mu)+\beta$. Norms that
#   compute their statistics at work cannot be folded.
# - Compare in `eval()`, on both sides. A pass in `train()` changes the answer *and* the diary.
# - A bias before BatchNorm has a gradient of zero, to rounding. To drop it, subtract it from the
#   running mean.
# - Frozen means: `eval()` and `requires_grad=False`, renewed after each `model.train()`. A frozen
#   BatchNorm does not normalize any more, so mind the learning rate.
# - The diary is a running average over old weights. One pass with the weights at rest gives the
#   statistics of all values, without a label. Needed after averaging weights, losing buffers,
#   changing cameras.
# - The variance of all values is not the average of the batches' variances.
# - BatchNorm *before* a convolution folds inside the image only; zeros after BatchNorm are not
#   zeros before it.
#
# `progress()` shows what is left. Next: lesson 06, a norm that needs no batch and keeps no diary.
#
# ## Sources
#
# - S. Ioffe, C. Szegedy, *Batch Normalization: Accelerating Deep Network Training by Reducing
#   Internal Covariate Shift*, 2015, [arXiv 1502.03167](https://arxiv.org/abs/1502.03167): algorithm
#   2 (statistics once training is over), section 3.2 (the bias before the layer).
# - Y. Wu, J. Johnson, *Rethinking "Batch" in BatchNorm*, 2021, [arXiv
#   2105.07576](https://arxiv.org/abs/2105.07576): section 3, PreciseBN. Read in its abstract, two
#   summaries and the code that goes with it.
# - [fvcore](https://github.com/facebookresearch/fvcore), `fvcore/nn/precise_bn.py`, in an early
#   version and a later one; and [issue #7](https://github.com/facebookresearch/fvcore/issues/7),
#   how precise is enough.
# - PyTorch's `fuse_conv_bn_eval`,
#   <https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fusion.fuse_conv_bn_eval.html>,
#   and the source of
#   [swa_utils](https://docs.pytorch.org/docs/stable/_modules/torch/optim/swa_utils.html)
#   (`update_bn`).
# - P. Izmailov et al., *Averaging Weights Leads to Wider Optima and Better Generalization*, 2018,
#   [arXiv 1803.05407](https://arxiv.org/abs/1803.05407); Y. Li et al., *Revisiting Batch
#   Normalization For Practical Domain Adaptation*, 2016, [arXiv
#   1603.04779](https://arxiv.org/abs/1603.04779): cited for the ideas only.
# - [MABN](https://github.com/megvii-model/MABN), README: inference speed (checked; two decimals).
#   [mmdetection #317](https://github.com/open-mmlab/mmdetection/issues/317).
# - Frozen layers: [detectron2](https://github.com/facebookresearch/detectron2),
#   `layers/batch_norm.py`; torchvision's `ops/misc.py`, an early version without $\epsilon$, and
#   the comment in DETR's `models/backbone.py`. Thawed by accident: [torch/nn
#   #873](https://github.com/torch/nn/issues/873), [gt-pyg
#   #112](https://github.com/pgniewko/gt-pyg/issues/112).
# - Folds in the wrong place: [mmpose #606](https://github.com/open-mmlab/mmpose/issues/606).
# - X. Ding et al., *Diverse Branch Block*, 2021: the layer `BNAndPadLayer` in [its
#   code](https://github.com/DingXiaoH/DiverseBranchBlock).
# - scikit-learn: `load_digits` and the photograph `china.jpg`.
