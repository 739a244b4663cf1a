# %% [markdown]
# # 02 · BatchNorm, forward
#
# **Goal.** Write BatchNorm's forward pass, in training and in test mode, and know what each of
# its numbers is an estimate of.
#
# **Time** 120 minutes: 90 for the parts below, 30 for reading. **Difficulty** 2 of 5.
#
# **You need** lesson 01: means and variances over axes, broadcasting, standardizing.
#
# | part | points | minutes |
# |---|---|---|
# | `batchnorm_forward` | 70 | 45 |
# | `population_estimates` | 5 | 10 |
# | `identity_affine` | 5 | 10 |
# | `convert_momentum` | 5 | 5 |
# | written question | 15 | 20 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("batchnorm_forward")` gives
# one more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Convention.** This notebook follows Stanford's CS231n: `momentum` weights the *old* running
# average, and the running variance is the biased one. PyTorch does both the other way round. Near
# the end you convert one into the other and compare with PyTorch itself.
#
# *The notes* are the two study notes this course grew from (lesson 01).

# %% kind="setup"
import math

import matplotlib.pyplot as plt
import numpy as np

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})


# %% [markdown]
# ## The question
#
# You train a network on batches of 64 patients, each a row of measurements. Somewhere inside,
# BatchNorm takes each feature, subtracts its mean over the batch and divides by its standard
# deviation.
#
# Then the network is put to work, and a doctor asks about *one* patient.
#
# What is the mean of a batch of one? The patient's own value. Subtract it, and nothing is left:
# the layer gives the same answer for every patient in the world.
#
# And with two patients? Then what the network says about you depends on who came along.
#
# So here is the question of this lesson: **why does a network with BatchNorm need two ways of
# computing the same layer, and how does the second one know what to subtract?**
#
# ### Picture: which entries share a statistic
#
# Before you run the cell, decide: in a table of 6 samples (rows) and 3 features (columns), how
# many means does BatchNorm compute?

# %% kind="demo"
picture_rng = np.random.default_rng(20)
people = np.array([1.7, 40.0]) + np.array([0.1, 8.0]) * picture_rng.normal(size=(200, 2))
small_table = np.column_stack([people[:6], picture_rng.normal(size=6)])
# each column with its own mean and standard deviation
people_01 = (people - people.mean(axis=0)) / people.std(axis=0)

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(8.6, 3.2))
tints = [(0.75, 0.87, 0.95), (0.98, 0.85, 0.75), (0.88, 0.88, 0.88)]
left.imshow([tints] * 6, aspect="auto")
for (row, column), value in np.ndenumerate(small_table):
    left.text(column, row, f"{value:.2f}", ha="center", va="center")
for column in (0, 1):
    left.axvline(column + 0.5, color="white", linewidth=4)
left.set_xticks(range(3), [f"feature {j}\n1 mean\n1 var" for j in range(3)])
left.set(ylabel="sample (N = 6)", title="one colour, one statistic")
left.tick_params(length=0)

middle.scatter(*people.T, s=6, color=BLUE)
middle.set(xlim=(-23.3, 26.7), ylim=(15, 65), aspect="equal", title="before")
right.scatter(*people_01.T, s=6, color=ORANGE, marker="^")
right.set(xlim=(-4, 4), ylim=(-4, 4), aspect="equal", title="after, column by column")
for panel in (middle, right):
    panel.set(xlabel="feature 0", ylabel="feature 1")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: three columns, three means
#
# **Left.** Statistics run *down* a column, `axis=0`. Three features make three means and three
# variances, however many samples there are. No number is ever mixed with one from another column.
#
# **Middle.** Features 0 and 1 of 200 samples, with the same unit along both axes. Feature 1
# spreads 80 times as far, so feature 0 can hardly be seen.
#
# **Right.** Each column minus its own mean, over its own standard deviation. Neither dominates.
#
# Standardizing the data (lesson 01) does this once, with the statistics of the training set.
# BatchNorm does it *inside* the network, at every step, with the statistics of the current batch.
#
# ## The mathematics, with shapes
#
# | name | shape | what |
# |---|---|---|
# | `x` | (N, D) | a batch of N samples with D features; the literature also writes $m$ for N |
# | `mean`, `var` | (D,) | one number per feature |
# | `x_hat` | (N, D) | the normalized batch |
# | `gamma`, `beta` | (D,) | learned scale and shift, one per feature |
# | `out` | (N, D) | what the next layer gets |
#
# **Training** (Ioffe and Szegedy 2015, algorithm 1). For feature $j$, over the samples $i$:
#
# $$\mu_j = \frac{1}{N}\sum_{i=1}^{N} x_{ij}, \qquad
# \sigma_j^2 = \frac{1}{N}\sum_{i=1}^{N} (x_{ij}-\mu_j)^2$$
#
# $$\hat{x}_{ij} = \frac{x_{ij}-\mu_j}{\sqrt{\sigma_j^2+\epsilon}}, \qquad
# \mathrm{out}_{ij} = \gamma_j\,\hat{x}_{ij} + \beta_j$$
#
# Look at the indices: $i$ is summed away, $j$ stays. The notes speak of "the mean of sample $i$'s
# dimension $j$" and write $\sigma^2$ without an index; a statistic belongs to a feature, never to
# a sample. (In another place they put $\epsilon$ into the definition of $\sigma$. That is a
# matter of convention. We keep `var` free of it, because the next step needs `var` alone.)
#
# **Running averages**, also in training. With $\rho$ for `momentum`, after each batch:
#
# $$\mu^{\mathrm{run}} \leftarrow \rho\,\mu^{\mathrm{run}} + (1-\rho)\,\mu, \qquad
# v^{\mathrm{run}} \leftarrow \rho\,v^{\mathrm{run}} + (1-\rho)\,\sigma^2$$
#
# They do not touch this batch's output. They are a diary, written now and read in test mode.
#
# **Test.** The diary takes the place of the batch, so a sample's answer no longer depends on its
# company:
#
# $$\hat{x}_{ij} = \frac{x_{ij}-\mu^{\mathrm{run}}_j}{\sqrt{v^{\mathrm{run}}_j+\epsilon}}, \qquad
# \mathrm{out}_{ij} = \gamma_j\,\hat{x}_{ij} + \beta_j$$
#
# ### Two formulas for one variance
#
# On paper $\frac{1}{N}\sum(x-\mu)^2 = \frac{1}{N}\sum x^2 - \mu^2$. In lesson 01 we made you take
# the first. What is wrong with the second? A feature of variance about 1 that sits further and
# further from zero:

# %% kind="demo"
noise = np.random.default_rng(21).normal(size=1000)
print("offset    mean of squared deviations    mean of squares - square of mean")
for offset in (0.0, 1e4, 1e6, 1e7, 1e8):
    shifted = noise + offset
    centred = ((shifted - shifted.mean()) ** 2).mean()
    uncentred = (shifted**2).mean() - shifted.mean() ** 2
    print(f"{offset:6.0e}    {centred:26.6f}    {uncentred:32.6f}")

# %% [markdown]
# ### See: the short cut loses the digits
#
# The noise is the same in every row, so the variance is too. At an offset of 1e8 the squares are
# near 1e16, where neighbouring float64 numbers lie 2 apart: the short cut subtracts two such
# numbers, and not one digit of the variance survives. Subtract the mean first. `np.var` does.
#
# ## Your turn: batchnorm_forward
#
# *70 points: training outputs 30, running averages 20, test mode 15, large means 3, shapes and
# untouched inputs 2.*
#
# Write it in this order and run the check after each step.
#
# 1. **The batch.** `out` in training mode. Which axis of `x` makes a `mean` of shape (D,)? If N
#    and D happen to be equal, the wrong axis raises no error: think, don't try.
# 2. **The diary.** Put both new running averages into `bn_param`. The old value weighs
#    `momentum`. What goes in is the batch's variance alone: no $\epsilon$, no square root.
# 3. **Test mode.** The stored averages instead of the batch's. `gamma` and `beta` still apply,
#    $\epsilon$ is still under the root, and nothing is updated.
#
# What to watch:
#
# - $\epsilon$ is added to the *variance*, inside the root. $\sqrt{\sigma^2+\epsilon}$ and
#   $\sqrt{\sigma^2}+\epsilon$ look alike until a variance is small.
# - The variance here is the biased one, divided by N. That is numpy's default; PyTorch's
#   `torch.var` divides by N − 1 unless told otherwise.
# - Make new arrays. `x -= mean` would change the caller's data.


# %% kind="exercise" name="batchnorm_forward"
def batchnorm_forward(x, gamma, beta, bn_param):
    """Normalize each column of x, then scale and shift it.

    x: (N, D). gamma, beta: (D,).
    bn_param: a dict that holds
      mode          "train" or "test"
      eps           added to the variance, inside the root (1e-5 if absent)
      momentum      the weight of the OLD running average (0.9 if absent)
      running_mean  (D,), zeros if absent; training stores the new one here
      running_var   (D,), zeros if absent; training stores the new one here

    "train" uses the batch's mean and biased variance and updates both running averages with
    them. "test" uses the running averages and leaves them as they are.

    Returns out (N, D) and a cache: whatever you will want in the backward pass (lesson 03).
    """
    mode = bn_param["mode"]
    eps = bn_param.get("eps", 1e-5)
    momentum = bn_param.get("momentum", 0.9)
    running_mean = bn_param.get("running_mean", np.zeros(x.shape[1]))
    running_var = bn_param.get("running_var", np.zeros(x.shape[1]))

    if mode == "train":
        ### BEGIN SOLUTION
        mean = x.mean(axis=0)
        var = x.var(axis=0)
        x_hat = (x - mean) / np.sqrt(var + eps)
        out = gamma * x_hat + beta
        bn_param["running_mean"] = momentum * running_mean + (1 - momentum) * mean
        bn_param["running_var"] = momentum * running_var + (1 - momentum) * var
        cache = (x, x_hat, mean, var, gamma, eps)
        ### END SOLUTION
    elif mode == "test":
        ### BEGIN SOLUTION
        x_hat = (x - running_mean) / np.sqrt(running_var + eps)
        out = gamma * x_hat + beta
        cache = None
        ### END SOLUTION
    else:
        raise ValueError(f'mode is "train" or "test", not {mode!r}')
    return out, cache


# %% [markdown]
# ## The question, answered by your own function
#
# One feature, distributed as $N(5, 3^2)$ over all samples. One sample is ours: its value is 8, one
# standard deviation above the mean. We put it into 200 random batches of each size and ask your
# function about it in training mode. Then we ask once in test mode, with the distribution's own
# mean and variance as running averages.
#
# Guess first: which values can training mode give in a batch of two?

# %% kind="demo"
company_rng = np.random.default_rng(22)
one, zero = np.ones(1), np.zeros(1)
ours = 8.0

fig, axis = plt.subplots(figsize=(7, 3))
batch_sizes = (1, 2, 4, 8, 16, 32, 64)
for place, size in enumerate(batch_sizes):
    answers = []
    for _ in range(200):
        company = company_rng.normal(5, 3, size=(size, 1))
        company[0] = ours
        answers.append(batchnorm_forward(company, one, zero, {"mode": "train"})[0][0, 0])
    jitter = company_rng.uniform(-0.25, 0.25, size=200)
    axis.scatter(place + jitter, answers, s=5, color=ORANGE, label="train" if place == 0 else None)
    print(f"batch of {size:2d}: train mode says {np.mean(answers):5.2f} +- {np.std(answers):.2f}")
diary = {"mode": "test", "running_mean": np.array([5.0]), "running_var": np.array([9.0])}
steady = batchnorm_forward(np.array([[ours]]), one, zero, diary)[0][0, 0]
print(f"any batch:   test mode says  {steady:5.2f}")
axis.axhline(steady, color=BLUE, linestyle="--", label="test")
axis.set_xticks(range(len(batch_sizes)), batch_sizes)
axis.set(xlabel="samples in the batch", ylabel="output for the same sample")
axis.legend(loc="lower right")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: one sample, many answers
#
# - A batch of one: always 0, that is, `beta`. The sample has been subtracted from itself.
# - A batch of two: only +1 or −1. All that is left of 8 is whether it was the larger one. (In a
#   batch of N no output exceeds $\sqrt{N-1}$: one sample against N − 1 equal ones.)
# - Larger batches: the answers gather round the dashed line, and at 64 they still scatter by
#   0.15.
# - Test mode: one answer, in any company, for one sample or a thousand.
#
# So the two ways serve two needs. In training the statistics must follow weights that change at
# every step; at work the answer must depend on the sample alone.
#
# **Why not the whole training set's statistics, at every step?** The notes say that this would
# make the model less robust. Ioffe and Szegedy (section 3) give a plainer reason: it is
# impractical. Each step changes the weights, and with them the activations of *all* samples, so
# 50,000 samples in batches of 64 would cost 782 batches of forward computation for one step.
# Once the weights stand still it is affordable and sound: that is algorithm 2 of the paper, and
# what Wu and Johnson (2021) call PreciseBN. You will write it in lesson 05. Whether the batch's
# noise does any good is another question, left for lesson 12.
#
# ## The diary needs time
#
# The running averages start at zero, and $\rho = 0.9$. Suppose every batch had the same mean
# $\mu$. After $t$ steps
#
# $$\mu^{\mathrm{run}} = (1-\rho)\,\mu\,(1+\rho+\dots+\rho^{t-1}) = (1-\rho^t)\,\mu$$
#
# and the same for the variance. What does a variance that is still too *small* do to the outputs
# in test mode? Decide, then run. Batches of 16, 400 features, each $N(5, 2^2)$.

# %% kind="demo"
warm_rng = np.random.default_rng(23)
width, held_out = 400, warm_rng.normal(5, 2, size=(500, 400))
ones_w, zeros_w = np.ones(width), np.zeros(width)
warm_param, warm_log = {}, []
for _ in range(60):
    warm_batch = warm_rng.normal(5, 2, size=(16, width))
    warm_param["mode"] = "train"
    batchnorm_forward(warm_batch, ones_w, zeros_w, warm_param)
    told = batchnorm_forward(held_out, ones_w, zeros_w, warm_param | {"mode": "test"})[0]
    averages = warm_param["running_mean"].mean() / 5, warm_param["running_var"].mean() / 4
    warm_log.append((*averages, told.mean(), told.std(axis=0).mean()))
warm_log = np.array(warm_log)

steps = np.arange(1, 61)
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
left.plot(steps, 1 - 0.9**steps, color=GREY, linewidth=1, label="$1-0.9^t$")
left.plot(steps, warm_log[:, 0], "o", ms=3, color=BLUE, label="running_mean / true mean")
left.plot(steps, warm_log[:, 1], "^", ms=3, color=ORANGE, label="running_var / true variance")
left.axhline(15 / 16, color=ORANGE, linestyle=":", label="15/16")
left.set(xlabel="training steps", ylabel="share of the true value", ylim=(0, 1.05))
left.legend(loc="lower right")
right.plot(steps, warm_log[:, 2], "o", ms=3, color=BLUE, label="mean (should be 0)")
right.plot(steps, warm_log[:, 3], "^", ms=3, color=ORANGE, label="std (should be 1)")
right.axhline(0, color=BLUE, linestyle=":")
right.axhline(1, color=ORANGE, linestyle=":")
right.set(xlabel="training steps", ylabel="outputs in test mode")
right.legend()
fig.tight_layout()
plt.show()

print("steps  1-0.9^t  mean's share  var's share  test mean  test std")
for t in (1, 5, 10, 20, 50):
    shares = warm_log[t - 1]
    print(
        f"{t:5d}  {1 - 0.9**t:7.4f}  {shares[0]:12.4f}  {shares[1]:11.4f}"
        f"  {shares[2]:9.3f}  {shares[3]:8.3f}"
    )

# %% [markdown]
# ### See: too small a variance, too large an output
#
# **Left.** The averages climb along $1-0.9^t$. After one step they hold a tenth of the truth,
# after 50 steps they lack $0.9^{50}$, half a percent. The variance then stays a little lower,
# near 15/16: that part does not fade, and the next section explains it.
#
# **Right.** Test mode divides by the root of the running variance, so what is too small in the
# diary makes outputs too large. After one step they are more than three times too wide, and
# shifted by nearly eight. After ten steps they are still more than a quarter too wide.
#
# So a network tested after a handful of steps looks broken although nothing is wrong with its
# weights. (Adam divides its own running averages by exactly this factor, $1-\rho^t$: Kingma and
# Ba 2014. CS231n's BatchNorm does not.)
#
# ## What is the diary an estimate of?
#
# At work the samples come from the whole population, so we want *its* mean and variance. What we
# have are batches. For independent samples, with $\sigma_B^2$ the biased variance of a batch of
# $m$:
#
# $$\mathbb{E}[\mu_B] = \mu, \qquad \mathbb{E}[\sigma_B^2] = \frac{m-1}{m}\,\sigma^2$$
#
# The deviations are taken from the batch's own mean, which sits in the middle of its own samples,
# closer to them than $\mu$ is: so they come out too small. By how much? For every batch
# $\frac{1}{m}\sum(x_i-\mu_B)^2 = \frac{1}{m}\sum(x_i-\mu)^2 - (\mu_B-\mu)^2$. On average the first
# term is $\sigma^2$ and the second the variance of a mean of $m$ samples, $\sigma^2/m$. Hence
# algorithm 2 of the paper, over many batches, with the weights at rest:
#
# $$\mathbb{E}[x] \leftarrow \mathbb{E}_B[\mu_B], \qquad
# \mathrm{Var}[x] \leftarrow \frac{m}{m-1}\,\mathbb{E}_B[\sigma_B^2]$$
#
# ## Your turn: population_estimates
#
# *5 points.* A batch a row: which axis is averaged here? Only one of the two needs a correction.


# %% kind="exercise" name="population_estimates"
def population_estimates(batch_means, batch_vars, m):
    """Estimate the population's mean and variance from many batches of m samples.

    batch_means, batch_vars: (B, D), a batch a row; the variances are biased (divided by m).
    Returns mean (D,) and var (D,), both unbiased (Ioffe and Szegedy 2015, algorithm 2).
    """
    ### BEGIN SOLUTION
    mean = batch_means.mean(axis=0)
    var = m / (m - 1) * batch_vars.mean(axis=0)
    return mean, var
    ### END SOLUTION


# %% [markdown]
# ## Does m/(m−1) do what it promises?
#
# A Monte Carlo experiment: 20,000 batches of each size $m$ from $N(3, 2^2)$. On the left the
# average variance, on the right the average *standard deviation*, before and after the
# correction. Will the correction that mends the variance mend the standard deviation too?

# %% kind="demo"
mc_rng = np.random.default_rng(24)
mc_sizes = np.array([2, 3, 4, 8, 16, 32])
mc_rows = []
for size in mc_sizes:
    draws = mc_rng.normal(3, 2, size=(20_000, size))
    means, biased = draws.mean(axis=1), draws.var(axis=1)
    unbiased = biased * size / (size - 1)  # batch by batch
    est_mean, est_var = population_estimates(means[:, None], biased[:, None], size)
    std_ratios = np.sqrt(biased).mean() / 2, np.sqrt(unbiased).mean() / 2
    scatter = means.std() / 2, unbiased.std() / 4
    mc_rows.append((est_mean[0], biased.mean() / 4, est_var[0] / 4, *std_ratios, *scatter))
mc = np.array(mc_rows)

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
fine = np.linspace(2, 32, 200)
left.plot(fine, (fine - 1) / fine, color=GREY, linewidth=1, label="(m−1)/m")
left.plot(mc_sizes, mc[:, 1], "o", color=ORANGE, label="biased")
left.plot(mc_sizes, mc[:, 2], "^", color=BLUE, label="your population_estimates")
left.set(xlabel="batch size m", ylabel="average / true value", title="variance")
log_ratio = [math.lgamma(k / 2) - math.lgamma((k - 1) / 2) for k in fine]
c4 = np.sqrt(2 / (fine - 1)) * np.exp(log_ratio)
right.plot(fine, c4, color=GREY, linewidth=1, label="$c_4(m)$, exact for normal data")
right.plot(mc_sizes, mc[:, 3], "o", color=ORANGE, label="root of each biased variance")
right.plot(mc_sizes, mc[:, 4], "s", color=GREY, label="root of each corrected variance")
right.plot(mc_sizes, np.sqrt(mc[:, 2]), "^", color=BLUE, label="root of your estimate")
right.set(xlabel="batch size m", title="standard deviation")
for panel in (left, right):
    panel.set_xscale("log", base=2)
    panel.set_xticks(mc_sizes, mc_sizes)
    panel.minorticks_off()
    panel.legend(loc="lower right")
fig.tight_layout()
plt.show()

print(" m   mean (3)  biased var/true  yours/true  std: biased  corrected   one batch scatters by")
row_format = "{:2d}   {:8.3f}  {:15.3f}  {:10.3f}  {:11.3f}  {:9.3f}   mean {:.2f} sigma, "
row_format += "var {:.2f} sigma^2"
for size, row in zip(mc_sizes, mc, strict=True):
    print(row_format.format(size, *row))
pairs = np.repeat(mc_rng.normal(size=(20_000, 4)), 2, axis=1)
print(f"8 samples that are 4 pairs of twins: biased var/true {pairs.var(axis=1).mean():.3f}")
four = mc_rng.normal(size=(4, 1))
for divisor in (4, 3):
    told = (four - four.mean()) / four.std(ddof=4 - divisor)
    print(f"4 samples, variance divided by {divisor}: the outputs have variance {told.var():.3f}")

# %% [markdown]
# ### See: the variance is mended, the standard deviation is not
#
# **Left.** The biased variance follows $(m-1)/m$: half the truth at $m=2$, 97 % at $m=32$. Yours
# lies on 1, to within the noise of the experiment.
#
# **Right.** The grey squares stay *below* 1. Correct every batch's variance, take its root, then
# average, and four samples still give only 0.92 of the true standard deviation. A root bends
# downwards, so the average of roots is less than the root of the average (Jensen's inequality);
# for normal data the factor is known as $c_4(m)$. Your estimate escapes, because it averages first
# and takes the root last.
#
# Now read the table beside four statements of the notes (in our words).
#
# - *With few samples at test time the mean and the variance are biased.* Half right: the means
#   stand within 0.01 of 3 for every $m$. Only the variance is biased. Look at the last columns,
#   too: at $m=4$ the bias is 25 %, but a single batch's mean scatters by half a standard deviation
#   and its corrected variance by some 80 %. That noise is the larger trouble, and with it comes an
#   answer that depends on the company.
# - *In training we divide by n, because the batch is then all the samples there are.* A reason
#   found afterwards: the batch is a sample in training as well. The last two lines show what the
#   choice does. Divide by N, and the outputs' own variance is 1; divide by N − 1, and it is
#   $(N-1)/N$, a constant factor that `gamma` could absorb. The paper's algorithm 1 takes N.
# - *The test variance is* $\frac{m}{m-1}\mathbb{E}[\sigma_B^2]$. Right, **for independent
#   samples**. The line about twins shows 0.75, as for $m=4$, not 7/8. Remember it in lesson 04,
#   where neighbouring pixels are counted as samples.
# - *A running average takes the place of the expectation.* Also right; but of which variance?
#   Your `batchnorm_forward` averages biased ones, as CS231n prescribes: hence the 15/16 in the
#   figure above. PyTorch corrects every batch's variance before it enters the average
#   (documentation of `BatchNorm1d`).
#
# ## Is the output's variance 1?
#
# Both notes say that normalizing gives mean 0 and variance 1. By the formula, the output of a
# feature of variance $\sigma^2$ has variance
#
# $$\mathrm{Var}[\hat{x}] = \frac{\sigma^2}{\sigma^2+\epsilon}$$
#
# When is that 1, and what happens to a feature that hardly varies? Two values of $\epsilon$:
# PyTorch's default 1e-5 and Keras's 1e-3.

# %% kind="demo"
eps_rng = np.random.default_rng(25)
spreads = np.logspace(-4, 1, 16)
spread_batch = eps_rng.normal(size=(256, 16))
spread_batch = spreads * (spread_batch - spread_batch.mean(axis=0)) / spread_batch.std(axis=0)
smooth = np.logspace(-4, 1, 200)
fig, axis = plt.subplots(figsize=(6, 3))
for size, colour, mark in ((1e-5, BLUE, "o"), (1e-3, ORANGE, "^")):
    chosen = {"mode": "train", "eps": size}
    told = batchnorm_forward(spread_batch, np.ones(16), np.zeros(16), chosen)[0]
    axis.semilogx(smooth, smooth**2 / (smooth**2 + size), color=colour, linewidth=1)
    axis.semilogx(spreads, told.var(axis=0), mark, color=colour, label=f"eps = {size:.0e}")
axis.axhline(0.5, color=GREY, linestyle=":")
axis.set(xlabel="standard deviation of the feature", ylabel="variance of the output")
axis.legend()
fig.tight_layout()
plt.show()

thin = eps_rng.normal(size=(1000, 1))
thin = 1e-3 * (thin - thin.mean()) / thin.std()
told = batchnorm_forward(thin, one, zero, {"mode": "train", "eps": 1e-5})[0]
print(f"std 1e-3, eps 1e-5: output variance {told.var():.4f}, and 1/11 is {1 / 11:.4f}")
flat = np.full((4, 1), 0.7)
told = batchnorm_forward(flat, one, np.array([0.25]), {"mode": "train", "eps": 1e-5})[0]
print("a constant feature, beta = 0.25:", told.ravel())
dead = {"mode": "test", "running_mean": zero, "running_var": zero, "eps": 1e-5}
told = batchnorm_forward(np.array([[0.0], [0.01]]), one, zero, dead)[0]
print("test mode, running_var = 0, inputs 0 and 0.01:", told.ravel().round(3))

# %% [markdown]
# ### See: epsilon sets a floor
#
# Variance 1 is the upper limit, reached when $\sigma^2 \gg \epsilon$. Where $\sigma^2=\epsilon$
# (dotted) it is one half, and a feature with $\sigma = 10^{-3}$ keeps a variance of 1/11. So
# $\epsilon$ does more than prevent a division by zero: it decides below which size a feature is
# treated as noise and kept small. (LayerNorm has the same formula, so the same holds there: lesson
# 06.)
#
# A constant feature comes out as `beta`. And a feature that never moved in training has a running
# variance of 0: a dead ReLU, say, whose inputs are negative for every sample. In test mode
# $\epsilon$ is then *all* that stands under the root, and an input of 0.01 becomes 3.16. Finite,
# but loud.
#
# ## Why gamma and beta?
#
# The sigmoid once more. The notes give two opinions about normalized inputs: in one place that they
# keep out of the flat, saturated ends, in another that they *fall into* them. They cannot both be
# right, and lesson 01's numbers spoke for the first. But it left a question: can inputs be too
# *tame*? Pre-activations from $N(3, 6^2)$, before and after your function:

# %% kind="demo"
sigmoid_rng = np.random.default_rng(26)
pre = sigmoid_rng.normal(3, 6, size=(4000, 1))
post = batchnorm_forward(pre, one, zero, {"mode": "train"})[0]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
bins = np.linspace(-16, 22, 77)
left.hist(pre, bins, density=True, color=BLUE, alpha=0.6, label="before")
left.hist(post, bins, density=True, histtype="step", color=ORANGE, linewidth=2, label="after")
left.axvspan(-2, 2, color=GREY, alpha=0.2, label="|z| < 2")
left.set(xlabel="input z of the sigmoid", ylabel="density")
left.legend()
line = np.linspace(-7, 7, 281)
right.plot(line, sigmoid(line), color=BLUE, label="sigmoid")
right.plot(line, 0.5 + line / 4, "--", color=ORANGE, label="its tangent at 0")
right.axvspan(-1, 1, color=GREY, alpha=0.2, label="|z| < 1")
right.set(xlabel="input z of the sigmoid", ylabel="output", ylim=(-0.1, 1.1))
right.legend(loc="lower right", fontsize=8, handlelength=1.5)
fig.tight_layout()
plt.show()

wide = batchnorm_forward(pre, 4 * one, zero, {"mode": "train"})[0]
for name, values in (("before", pre), ("after", post), ("gamma 4", wide)):
    slope = (sigmoid(values) * (1 - sigmoid(values))).mean()
    outside, inside = (np.abs(values) > 2).mean(), (np.abs(values) < 1).mean()
    print(f"{name:7s}: |z| > 2 {outside:4.0%}, |z| < 1 {inside:4.0%}, mean slope {slope:.3f}")
print(f"largest gap to the tangent within |z| < 1: {0.75 - sigmoid(1.0):.3f}")

# %% [markdown]
# ### See: the danger is the straight middle
#
# **Left.** Before: three quarters of the inputs lie beyond 2. After: one in twenty, and the mean
# slope is more than three times as large. So the first opinion is right and the second is a slip.
#
# **Right.** Two thirds of the normalized inputs now lie within 1 of zero, where the sigmoid
# differs from a straight line by 0.019 at most. *This* is the worry of the paper (section 3):
# normalized inputs would confine the sigmoid to its linear part, and a network of straight lines
# is a straight line.
#
# Hence `gamma` and `beta`. With `gamma` = 4 most inputs lie beyond 2 again (last row but one), if
# the loss asks for it. Could the layer even undo the normalization altogether? Then
#
# $$\gamma_j\,\hat{x}_{ij}+\beta_j = x_{ij} \quad \text{for every } i$$
#
# The notes offer $\gamma^2=\sigma^2$ and $\beta=\mu$. Look closely at the denominator of $\hat{x}$
# before you believe it.
#
# ## Your turn: identity_affine
#
# *5 points.*


# %% kind="exercise" name="identity_affine"
def identity_affine(mean, var, eps):
    """The gamma and beta with which BatchNorm gives its input back.

    mean, var: (D,), the batch's. Returns gamma (D,), which is positive, and beta (D,).
    """
    ### BEGIN SOLUTION
    gamma = np.sqrt(var + eps)
    beta = mean
    return gamma, beta
    ### END SOLUTION


# %% [markdown]
# ## Three candidates for gamma
#
# Features of three sizes, $\epsilon = 10^{-5}$. How far is the output from the input, relative to
# the feature's standard deviation?

# %% kind="demo"
identity_rng = np.random.default_rng(27)
raw = identity_rng.normal(size=(64, 3))
sizes = np.array([1.0, 0.01, 0.001])
raw = 4 + sizes * (raw - raw.mean(axis=0)) / raw.std(axis=0)  # the stds are exactly these
good_gamma, good_beta = identity_affine(raw.mean(axis=0), raw.var(axis=0), 1e-5)
print("standard deviation of the feature      1.0      0.01     0.001")
for name, scale in (
    ("your gamma                ", good_gamma),
    ("gamma = sigma             ", raw.std(axis=0)),
    ("gamma = -sigma            ", -raw.std(axis=0)),
):
    back = batchnorm_forward(raw, scale, good_beta, {"mode": "train", "eps": 1e-5})[0]
    gap = np.sqrt(((back - raw) ** 2).mean(axis=0)) / sizes
    print(name, "relative gap", "  ".join(f"{g:8.1e}" for g in gap))

fresh = 4 + sizes * identity_rng.normal(size=(64, 3))
stored = {"running_mean": raw.mean(axis=0), "running_var": raw.var(axis=0), "eps": 1e-5}
for way in ("train", "test"):
    back = batchnorm_forward(fresh, good_gamma, good_beta, stored | {"mode": way})[0]
    gap = np.sqrt(((back - fresh) ** 2).mean(axis=0)) / sizes
    print(f"your gamma, next batch, {way:5s} gap         ", "  ".join(f"{g:8.1e}" for g in gap))


def skewness(values):
    return ((values - values.mean()) ** 3).mean() / values.std() ** 3


lopsided = identity_rng.exponential(size=(4000, 1))
told = batchnorm_forward(lopsided, one, zero, {"mode": "train"})[0]
print(f"skewness of an exponential feature: {skewness(lopsided):.3f}, after: {skewness(told):.3f}")

# %% [markdown]
# ### See: an identity, with small print
#
# - Yours gives the input back to rounding. $\gamma=\sigma$ leaves about $\epsilon/2\sigma^2$: 5e-6
#   at $\sigma=1$, 5 % at 0.01; and at 0.001 it misses 70 % of the signal. $\gamma=-\sigma$ also
#   satisfies $\gamma^2=\sigma^2$, and turns the feature upside down.
# - The identity belongs to *one* mean and variance. The next batch has others, so in training
#   mode the same `gamma` and `beta` miss it by 0.1 to 0.2 standard deviations. In test mode the
#   averages stand still, and the identity holds for every batch.
# - `gamma` and `beta` give back two moments per feature. They have to, and need no more:
#   normalizing took no more. The skewness is the same before and after.
#
# ## Whose momentum?
#
# Two conventions share one word. With $\rho$ for CS231n's `momentum` and $\alpha$ for PyTorch's:
#
# $$\text{CS231n: } r \leftarrow \rho\,r + (1-\rho)\,\text{new}, \qquad
# \text{PyTorch: } r \leftarrow (1-\alpha)\,r + \alpha\,\text{new}$$
#
# | | default momentum | it weights | default eps |
# |---|---|---|---|
# | CS231n, and this notebook | 0.9 | the old value | 1e-5 |
# | PyTorch | 0.1 | the new value | 1e-5 |
# | Keras | 0.99 | the old value | 1e-3 |
# | Flax | 0.99 | the old value | 1e-5 |
#
# The notes write `momentum * running_mean + ...` as if there were no other way. It is one
# convention of two, and the first row is whose.
#
# ## Your turn: convert_momentum
#
# *5 points.*


# %% kind="exercise" name="convert_momentum"
def convert_momentum(momentum):
    """Turn a momentum that weights the old average into PyTorch's, which weights the new value.

    momentum: a number between 0 and 1. The same function converts back.
    """
    ### BEGIN SOLUTION
    return 1 - momentum
    ### END SOLUTION


# %% [markdown]
# ## Your layer beside PyTorch's
#
# Twenty batches through both. The outputs should agree; of the running averages one agrees and
# one does not. Which, and by how much? (Without PyTorch the cell says so and goes on.) The figure
# needs numpy only: it shows the momentum that was meant, and the one you get when the convention
# is mixed up.

# %% kind="demo"
twenty = 2 + 3 * np.random.default_rng(28).normal(size=(20, 8, 4))  # 20 batches of (8, 4)
try:
    import torch
except ImportError:
    print("PyTorch is not installed: skip the comparison")
else:
    theirs = torch.nn.BatchNorm1d(4, momentum=convert_momentum(0.9), dtype=torch.float64)
    mine = {"mode": "train", "momentum": 0.9}
    for batch in twenty:
        out_torch = theirs(torch.from_numpy(batch)).detach().numpy()
        out_mine = batchnorm_forward(batch, np.ones(4), np.zeros(4), mine)[0]
    print(f"outputs differ by       {np.abs(out_mine - out_torch).max():.0e}")
    gap = mine["running_mean"] - theirs.running_mean.numpy()
    print(f"running means differ by {np.abs(gap).max():.0e}")
    print("running_var, yours     ", mine["running_var"].round(3))
    print("running_var, PyTorch's ", theirs.running_var.numpy().round(3))
    bridge = 8 / 7 * mine["running_var"] + 0.9**20  # the correction, and what is left of the 1
    gap = bridge - theirs.running_var.numpy()
    print(f"8/7 of yours + 0.9^20 differs from PyTorch's by {np.abs(gap).max():.0e}")
    try:
        theirs(torch.ones(1, 4, dtype=torch.float64))
    except ValueError as error:
        print("a batch of one, in training mode:", error)

stream = 5 + 2 * np.random.default_rng(29).normal(size=(150, 8, 1))
fig, axis = plt.subplots(figsize=(7, 2.8))
for keep, colour, style in ((0.1, ORANGE, "-"), (0.9, BLUE, "-"), (0.99, GREY, "--")):
    kept, trace = {"mode": "train", "momentum": keep}, []
    for batch in stream:
        batchnorm_forward(batch, one, zero, kept)
        trace.append(kept["running_mean"][0])
    axis.plot(range(1, 151), trace, style, color=colour, linewidth=1.3, label=f"momentum {keep:g}")
axis.axhline(5, color="black", linestyle=":", linewidth=1, label="true mean")
axis.set(xlabel="training steps", ylabel="running_mean")
axis.legend(ncols=2, loc="lower right")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: the same layer, with two habits
#
# Outputs and running means agree to rounding: what you wrote is the layer that the world uses.
# The running variances differ for two reasons, and the last line accounts for both: PyTorch
# corrects by N/(N−1), and starts from 1, of which $0.9^{20}$ is left. And PyTorch refuses to train
# on a batch of one; you saw why.
#
# The figure: with 0.1 the diary forgets all but the last batch or two, so the network would be
# tested with almost the noise of one batch. With 0.99 it is the steadiest, and after 150 steps it
# has still not arrived: $0.99^{150} = 0.22$. Steady and quick cannot both be had.
#
# ## A bench for the written question
#
# Three features. Two have mean 1 and standard deviations 2 and 0.001; the third is a dead ReLU,
# always 0. Train your layer on batches of 4, keep its running averages, and compare them with the
# truth. Add cells as you like.

# %% kind="demo"
bench_rng = np.random.default_rng(30)
bench_mean, bench_std = np.array([1.0, 1.0, 0.0]), np.array([2.0, 0.001, 0.0])


def bench(count):
    """A batch of `count` samples, (count, 3)."""
    return bench_mean + bench_std * bench_rng.normal(size=(count, 3))


print(bench(4).round(4))

# %% [markdown]
# ## Written question: two departures
#
# *15 points, graded by hand.* (Working alone? In a checkout, `autograder solution
# seed_running_code` shows a model answer.)
#
# For test mode the notes promise
#
# $$\mu_{\mathrm{test}} = \mathbb{E}[\mu_B], \qquad
# \sigma^2_{\mathrm{test}} = \frac{m}{m-1}\,\mathbb{E}[\sigma_B^2], \qquad
# \mathrm{BN}(x) = \gamma\,
# \frac{x-\mu_{\mathrm{test}}}{\sqrt{\sigma^2_{\mathrm{test}}+\epsilon}} + \beta$$
#
# (in the last formula they print $\sigma^2$; $\sigma^2_{\mathrm{test}}$ is meant). In practice,
# they go on, a moving average is used, updated with the current batch's mean and variance,
# `sample_mean` and `sample_var`, which by their formulas are sums divided by $m$. Their code:
#
# ```python
# running_mean = momentum * running_mean + (1 - momentum) * sample_mean
# running_var = momentum * running_var + (1 - momentum) * sample_var
#
# x_stand = (x - running_mean) / np.sqrt(running_var)
# out = x_stand * gamma + beta
# ```
#
# In **two places** this code departs from those formulas. (That a moving average stands in for
# $\mathbb{E}$ is not one of them: they say so.) For each of the two:
#
# 1. Which line is it, and what should it be?
# 2. What does it do to a network in test mode? When does it hurt, and when is it harmless?
# 3. How would you show it with numbers? Give the experiment and what came out, or must come out.

# %% [markdown] kind="written" name="seed_running_code" points=15
# ### BEGIN SOLUTION
# **Model answer.**
#
# *First departure: the line of `running_var`.* `sample_var` is the biased batch variance, so the
# average settles near $\mathbb{E}[\sigma_B^2] = \frac{m-1}{m}\sigma^2$, while the formula asks for
# $\frac{m}{m-1}\mathbb{E}[\sigma_B^2] = \sigma^2$. It should read
# `running_var = momentum * running_var + (1 - momentum) * m / (m - 1) * sample_var`.
#
# In test mode the outputs of a feature with $\sigma^2 \gg \epsilon$ come out $\sqrt{m/(m-1)}$ times
# too wide (about the mean): 41 % at $m=2$, 15 % at $m=4$, 1.6 % at $m=32$. More steps do not
# cure it, a larger batch does. It is harmless for large batches. (CS231n averages the uncorrected
# variance too, and says so; the fault here is that the code does not do what the formula above it
# promises.)
#
# *Second departure: the line of `x_stand`.* The root lacks $\epsilon$; it should be
# `np.sqrt(running_var + eps)`. A feature that was constant in training (a dead ReLU) has
# `running_var` = 0: an input equal to the running mean gives 0/0 = NaN, any other gives ±inf, and
# the next matrix product spreads that to the sample's whole output. A feature whose
# variance is small beside $\epsilon$ stays finite, but is $\sqrt{(v+\epsilon)/v}$ times as wide as
# with $\epsilon$. It is harmless where $v \gg \epsilon$: the relative difference is
# $\epsilon/2v$. numpy only warns.
#
# *Numbers.* The bench, $m=4$, 20,000 steps of training with momentum 0.999, then 20,000 samples
# through the notes' test lines, through the same with `+ 1e-5` under the root, and through the
# formula with both repairs:
#
# | feature | running_var / true variance | std, notes | std, eps added | std, both |
# |---|---|---|---|---|
# | σ = 2 | near 0.75 | near 1.15 | near 1.15 | near 1.00 |
# | σ = 0.001 | near 0.75 | near 1.15 | near 0.30 | near 0.30 |
# | σ = 0 | 0 of 0 | NaN | 0 | 0 |
#
# In training mode, batches of 4, the second feature's output has a root mean square of about 0.26.
# Without eps the rest of the network meets it more than four times as large as in training.
#
# **Rubric:**
#
# - 3 points: names the line of `running_var`, and the missing $m/(m-1)$ (to be applied there, or
#   once in test mode).
# - 3 points: its effect: `running_var` too small, test outputs $\sqrt{m/(m-1)}$ too wide (2);
#   depends on the batch size, not on the number of steps (1).
# - 2 points: an experiment that shows it, with the number that comes out or must come out.
# - 3 points: names the missing $\epsilon$ under the root.
# - 2 points: its effect: NaN or inf at zero variance (1); too large an output at small variance,
#   or harmless at large variance (1).
# - 2 points: an experiment that shows it, with its outcome.
#
# No points for the moving average itself, for the zero start, or for the missing index of
# $\sigma^2$: the question rules them out or they are no departure from the formulas. "It is only
# CS231n's convention" is true of the first and earns its points if the effect is named.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - BatchNorm's statistics run down the batch, one mean and one variance per feature.
# - Training uses the batch's own, biased variance; test mode uses running averages, so that a
#   sample's answer depends on the sample alone.
# - $\epsilon$ stands inside the root, in both modes; the output's variance is
#   $\sigma^2/(\sigma^2+\epsilon)$, not 1.
# - A zero start leaves $1-\rho^t$ of the truth: in test mode, too small a variance means too large
#   an output.
# - Batch means are unbiased, biased variances lack a factor $m/(m-1)$, and standard deviations
#   stay biased even with it: average variances, take the root last.
# - Before you type a `momentum`, ask which value it weights.
#
# `progress()` shows what is left. Next: lesson 03, the way back.
#
# ## Sources
#
# - S. Ioffe, C. Szegedy, *Batch Normalization: Accelerating Deep Network Training by Reducing
#   Internal Covariate Shift*, 2015, [arXiv 1502.03167](https://arxiv.org/abs/1502.03167):
#   section 3, algorithms 1 and 2.
# - PyTorch,
#   [BatchNorm1d](https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html):
#   momentum, biased and corrected variance. Users ask about it time and again: issues
#   [#60528](https://github.com/pytorch/pytorch/issues/60528),
#   [#77427](https://github.com/pytorch/pytorch/issues/77427).
# - Stanford CS231n, assignment 2, the docstring of `batchnorm_forward`: uncorrected variance,
#   running averages. The signature used here is theirs.
# - Defaults of [Keras](https://keras.io/api/layers/normalization_layers/batch_normalization/) and
#   [Flax](https://flax.readthedocs.io/): their documentation of `BatchNormalization` and
#   `BatchNorm`.
# - Y. Wu, J. Johnson, *Rethinking "Batch" in BatchNorm*, 2021,
#   [arXiv 2105.07576](https://arxiv.org/abs/2105.07576): cited for the name PreciseBN.
# - D. P. Kingma, J. Ba, *Adam: A Method for Stochastic Optimization*, 2014,
#   [arXiv 1412.6980](https://arxiv.org/abs/1412.6980): the correction by $1-\rho^t$.
