import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F

import attn
import attn_jax
import attn_torch
from attn.batches import examples
from attn.training import TrainConfig
from attn_jax.optimizer import adamw, restored
from tests.cases import CASES, TWINS, draw, in_both, refused, weights_of
from tests.trainees import CFG, FIRST, TOKENS, TRAIN, Trainee, in_each_twin, x64

__all__ = ["x64"]

V = 29
BACKENDS = {"jax": attn_jax, "torch": attn_torch}


def cross_entropy(twin, logits, targets):
    return np.asarray(BACKENDS[twin.name].cross_entropy(twin.array(logits), twin.array(targets)))


@in_both
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_loss_is_the_mean_over_real_targets(twin, x64, dtype):
    logits = 30 * draw(5, 11, V, dtype=dtype)
    targets = np.random.default_rng(1).integers(-3, V, (5, 11))
    assert (targets < 0).any()
    ignoring = torch.from_numpy(np.where(targets < 0, -100, targets)).flatten()
    expected = F.cross_entropy(torch.from_numpy(logits).flatten(0, 1).double(), ignoring)
    loss = cross_entropy(twin, logits, targets)
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss, expected.numpy(), rtol=8 * np.finfo(dtype).eps)


@in_both
def test_half_logits_give_a_float32_loss(twin):
    logits = np.asarray(jnp.asarray(draw(2, 3, V), jnp.bfloat16))
    expected = cross_entropy(twin, logits.astype(np.float32), np.ones((2, 3), np.int32))
    assert cross_entropy(twin, logits, np.ones((2, 3), np.int32)) == expected
    assert expected.dtype == np.float32


@in_both
def test_without_real_targets_the_loss_is_0_and_so_is_its_gradient(twin):
    logits, targets = draw(2, 3, V, dtype="float32"), np.full((2, 3), -1)
    assert cross_entropy(twin, logits, targets) == 0
    if twin.name == "jax":
        gradient = jax.grad(attn_jax.cross_entropy)(jnp.array(logits), jnp.array(targets))
    else:
        tensor = torch.from_numpy(logits).requires_grad_()
        attn_torch.cross_entropy(tensor, torch.from_numpy(targets)).backward()
        gradient = tensor.grad
    np.testing.assert_array_equal(np.asarray(gradient), 0)


@in_both
def test_a_target_beyond_the_vocabulary_is_refused(twin):
    with refused("targets must lie between 0 and 28; got 29."):
        cross_entropy(twin, draw(2, 3, V, dtype="float32"), np.array([[0, 1, 2], [3, 29, 4]]))
    with refused("targets has shape (2, 4); expected [B T] with B=2, T=3."):
        cross_entropy(twin, draw(2, 3, V, dtype="float32"), np.zeros((2, 4), np.int32))


@in_both
def test_in_compiled_code_it_gives_nan(twin):
    logits, targets = twin.array(draw(2, 3, V, dtype="float32")), twin.array(np.array([[0, 1, 2], [3, 29, 4]]))
    loss = BACKENDS[twin.name].cross_entropy
    compiled = jax.jit(loss) if twin.name == "jax" else torch.compile(loss, fullgraph=True, backend="eager")
    assert np.isnan(np.asarray(compiled(logits, targets)))


def gradients(trainee):
    """The gradients of the loss on the first batch, by PyTorch and its own loss."""
    module = attn_torch.build(CFG)
    module.load_state_dict(attn_torch.from_neutral(CFG, trainee.weights))
    inputs, targets = torch.from_numpy(FIRST[:, :-1]), torch.from_numpy(FIRST[:, 1:])
    F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten()).backward()
    return attn_torch.to_neutral(CFG, {name: parameter.grad for name, parameter in module.named_parameters()})


PLAIN = TRAIN.replace(max_norm=0.3, weight_decay=0.25, eps=1e-3)

each_way_to_clip = pytest.mark.parametrize(
    ("twin", "max_norm"),
    [("jax", 0.3), *(("torch", max_norm) for max_norm in (0.3, 1e6, None))]
    + [pytest.param("jax", max_norm, marks=pytest.mark.full) for max_norm in (1e6, None)],
)


@each_way_to_clip
def test_the_first_step_is_the_closed_form(twin, max_norm, x64):
    trainee = Trainee.start(twin, PLAIN.replace(max_norm=max_norm))
    before, found = trainee.weights, gradients(trainee)
    trainee.step()
    norm = np.sqrt(sum((array**2).sum() for array in found.values()))
    assert norm > 0.3
    factor = 1 if max_norm is None else min(1, max_norm / (norm + 1e-6))
    mu, nu = BACKENDS[twin].optimizer.moments(trainee.module, trainee.state.optimizer)
    for name, after in trainee.weights.items():
        g, w = found[name] * factor, before[name]
        # A bias of the keys has no gradient but rounding.
        np.testing.assert_allclose(mu[name], 0.1 * g, rtol=1e-9, atol=1e-16 * norm)
        np.testing.assert_allclose(nu[name], 0.01 * g**2, rtol=1e-9, atol=1e-18)
        decay = 0.25 if name.endswith(("kernel", "embedding")) else 0
        # The rate rises over 13 steps to 3e-3, reached by the 14th; corrected, the moments are g and g^2.
        expected = w - 3e-3 / 14 * (g / (np.abs(g) + 1e-3) + decay * w)
        np.testing.assert_allclose(after, expected, rtol=0, atol=1e-15)


SMALL = attn.SelfAttentionConfig(input_dim=2, dim_k=3, dim_v=5)


def constant(value, cfg=SMALL, dtype="float32"):
    return {name: np.full(shape, value, dtype) for name, shape in cfg.shapes().items()}


def relative_error(tree, value):
    return max(np.abs(np.asarray(leaf, np.float64) / value - 1).max() for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("step", [0, 9, 99, 999])
def test_bias_correction_is_exact_in_float32(step):
    # Under a constant gradient both corrected moments are constant, and each update is rate * sign(g).
    train = TrainConfig(steps=1000, schedule="constant", weight_decay=0.0, max_norm=None, beta2=0.999)
    module, rate = attn_jax.build(SMALL), train.learning_rate
    variables, gradient = (attn_jax.from_neutral(SMALL, constant(value)) for value in (0.0, 0.5))
    mu, nu = constant(0.5 * (1 - train.beta1**step)), constant(0.25 * (1 - train.beta2**step))
    params, gradient = variables["params"], gradient["params"]
    update, _ = adamw(train, module).update(gradient, restored(train, module, variables, mu, nu, step), params)
    # Twelve roundings, from the moments to the update.
    assert relative_error(update, -rate) < 12 * 2**-24
    if step == 0:
        theirs = optax.adamw(rate, b2=0.999, weight_decay=0.0)
        update, _ = theirs.update(gradient, theirs.init(params), params)
        assert relative_error(update, -rate) > 50 * 2**-24


@in_each_twin
def test_an_evaluation_counts_each_token_once(twin, x64):
    trainee = Trainee.start(twin, TRAIN)
    batches = [FIRST, np.where(np.arange(12) > 7, -1, FIRST), np.where(np.arange(3)[:, None] > 0, -1, FIRST)]
    logarithms = [np.log(softmax(TWINS[1](CFG, trainee.weights, examples(batch).inputs))) for batch in batches]
    total = count = 0
    for batch, rows in zip(batches, logarithms, strict=True):
        for b, t in np.argwhere(batch[:, 1:] >= 0):
            total -= rows[b, t, batch[b, t + 1]]
            count += 1
    assert count == 33 + 21 + 11
    assert abs(trainee.evaluate(batches) - total / count) < 1e-12
    assert trainee.evaluate([]) == 0


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_an_evaluation_leaves_the_mode_as_it_was():
    trainee = Trainee.start("torch", TRAIN)
    for mode in (True, False):
        trainee.module.train(mode)
        trainee.evaluate([FIRST])
        assert trainee.module.training is mode


def test_the_weights_that_jax_is_given_stay_alive(x64):
    module, variables = attn_jax.build(CFG), attn_jax.from_neutral(CFG, weights_of(CFG))
    state = attn_jax.init_state(module, variables, PLAIN)
    attn_jax.train_step(module, state, FIRST)
    assert not any(array.is_deleted() for array in jax.tree.leaves(variables))
    assert all(array.is_deleted() for array in jax.tree.leaves(state.variables))


@in_each_twin
def test_what_does_not_fit_is_refused(twin, tmp_path):
    trainee = Trainee.start(twin, TRAIN.replace(steps=14), "float32")
    with refused("tokens must lie between 0 and 28; got 29."):
        trainee.train(np.full_like(TOKENS, 29), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with refused("tokens must be integers [B T+1] with T of at least 1; got float64 of shape (3, 12)."):
        trainee.step(FIRST.astype(float))


@in_each_twin
def test_half_parameters_are_refused(twin):
    weights = constant(0.5, CFG, "float16")
    backend = BACKENDS[twin]
    module = backend.build(CFG)
    if twin == "torch":
        module.load_state_dict(backend.from_neutral(CFG, weights))
    given = (module, backend.from_neutral(CFG, weights)) if twin == "jax" else (module,)
    with refused("embed.embedding has dtype float16; expected float32 or float64."):
        backend.init_state(*given, TRAIN)


DROPPING = CFG.replace(attention=CASES["grouped_query"].replace(dropout=0.4))


@pytest.mark.parametrize("twin", [pytest.param("jax", marks=pytest.mark.full), "torch"])
def test_what_is_dropped_depends_on_seed_and_step_alone(twin, x64, tmp_path):
    def losses(until, **options):
        trainee = Trainee.start(twin, TRAIN.replace(**options), cfg=DROPPING)
        trainee.train(until=until, folder=tmp_path)
        return trainee.state.history.losses

    whole = losses(5)
    losses(2)
    torch.manual_seed(1)
    assert Trainee.load(twin, tmp_path).train(until=5).losses == whole
    # It does drop: from the same weights and batch, another loss.
    assert abs(whole[0] - Trainee.start(twin, TRAIN).train(until=1).losses[0]) > 1e-3


def test_the_next_step_drops_something_else():
    still = TRAIN.replace(learning_rate=1e-30, min_learning_rate=0.0)
    one, other = (Trainee.start("torch", still, cfg=DROPPING) for _ in range(2))
    assert one.step() == other.step() != one.step()


@in_each_twin
def test_an_evaluation_drops_nothing(twin, x64):
    dropping, whole = (Trainee.start(twin, TRAIN, cfg=cfg).evaluate([FIRST]) for cfg in (DROPPING, CFG))
    assert abs(dropping - whole) < 1e-12


def test_training_leaves_the_random_numbers_of_others_alone():
    trainee, before = Trainee.start("torch", TRAIN, cfg=DROPPING), torch.get_rng_state()
    trainee.step()
    assert torch.equal(torch.get_rng_state(), before)
