"""A module of attn_torch is a PyTorch module: what PyTorch offers for modules works on it and on its parts."""

import copy
import pickle

import pytest

from tests.cases import CASES, M, T, draw, weights_of

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

import attn  # noqa: E402
import attn_torch  # noqa: E402

CFG = CASES["grouped_query"].replace(bias=False)
X = torch.from_numpy(draw(2, T, M))
ROPE = attn.Rope(width=4)


def built(dtype=torch.float64, **options):
    cfg = CFG.replace(**options)
    module = attn_torch.build(cfg)
    module.load_state_dict(attn_torch.from_neutral(cfg, weights_of(cfg)))
    return module.to(dtype)


HOOKS = {
    "forward": lambda part, seen: part.register_forward_hook(lambda *_: seen.append(part)),
    "before": lambda part, seen: part.register_forward_pre_hook(lambda *_: seen.append(part)),
    "backward": lambda part, seen: part.register_full_backward_hook(lambda *_: seen.append(part)),
    "before backward": lambda part, seen: part.register_full_backward_pre_hook(lambda *_: seen.append(part)),
    "everywhere": lambda part, seen: torch.nn.modules.module.register_module_forward_hook(
        lambda called, *_: seen.append(called) if called is part else None
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", ["q", "k", "v", "out"])
def test_a_hook_sees_every_call_of_a_part(name, kind):
    module, seen = built(), []
    handle = HOOKS[kind](getattr(module, name), seen)
    try:
        for _ in range(2):
            module(X.clone().requires_grad_()).sum().backward()
    finally:
        handle.remove()
    assert len(seen) == 2
    module(X).sum().backward()
    assert len(seen) == 2


def test_what_a_hook_returns_takes_the_place_of_the_output():
    module = built()
    module.out.register_forward_hook(lambda part, given, y: -y)
    torch.testing.assert_close(module(X), -built()(X), rtol=0, atol=0)


def test_a_part_may_be_compiled_on_its_own():
    module, called = built(), []
    expected = module(X)

    def backend(graph, inputs):
        called.append(graph)
        return graph.forward

    module.q.compile(backend=backend)
    torch.testing.assert_close(module(X), expected, rtol=0, atol=0)
    assert called


def test_a_part_may_be_replaced():
    module = built()
    plain = torch.nn.Linear(CFG.dim_v, M, bias=False, dtype=torch.float64)
    plain.weight.data.copy_(module.out.weight)
    expected = module(X)

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = plain

        def forward(self, heads):
            return self.inner(heads.flatten(2))

    module.out = Flat()
    torch.testing.assert_close(module(X), expected)


def test_weights_may_come_from_elsewhere():
    module = built()
    doubled = {name: 2 * parameter for name, parameter in module.named_parameters()}
    other = built()
    other.load_state_dict(doubled)
    y = torch.func.functional_call(module, doubled, (X,))
    torch.testing.assert_close(y, other(X), rtol=0, atol=0)


def test_a_weight_may_be_made_of_others():
    class Negative(torch.nn.Module):
        def forward(self, weight):
            return -weight

    module, expected = built(), built()(X)
    parametrize.register_parametrization(module.out, "weight", Negative())
    torch.testing.assert_close(module(X), -expected, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_module_that_was_called_may_be_copied(copied):
    module = built()
    expected = module(X)
    torch.testing.assert_close(copied(module)(X), expected, rtol=0, atol=0)


def test_a_kernel_may_be_named_after_a_call():
    module = built()
    expected = module(X)
    module.kernel = "plain"
    torch.testing.assert_close(module(X), expected)
    assert not torch.equal(module(X), expected)
    module.kernel = "nothing"
    with pytest.raises(ValueError, match="kernel must be one of"):
        module(X)


def test_per_sample_gradients():
    module = built()
    parameters = dict(module.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, X.detach())
    for number, x in enumerate(X.detach()):
        for name, gradient in torch.func.grad(loss)(parameters, x).items():
            torch.testing.assert_close(found[name][number], gradient)


KERNELS = {
    "sdpa": {},
    "blocks": {"sinks": True},
    "chunked": {"softcap": 2.0},
    "plain": {"softcap": 2.0, "sinks": True},
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_lets_torch_func_through(kernel):
    module = built(mask=attn.SlidingWindow(width=3), **KERNELS[kernel])
    module.kernel = None if kernel == "sdpa" else kernel
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    x = X.detach()

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x[None],)).square().sum()

    expected = [torch.autograd.grad(module(row[None]).square().sum(), list(module.parameters())) for row in x]
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for number in range(len(x)):
        for gradient, wanted in zip(found.values(), expected[number], strict=True):
            torch.testing.assert_close(gradient[number], wanted)
    torch.testing.assert_close(torch.func.vmap(module)(x[:, None])[:, 0], module(x).detach(), check_layout=False)


def test_the_flash_kernel_says_that_it_has_no_second_derivative():
    module = built(sinks=True)
    module.kernel = "blocks"
    (gradient,) = torch.autograd.grad(module(X).square().sum(), module.q.weight, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative; kernel='plain' has one"):
        gradient.square().sum().backward()


def model() -> torch.nn.Module:
    attention = CFG.replace(rope=ROPE, mask=attn.Causal())
    mlp = {"input_dim": attention.input_dim, "hidden_dim": 8}
    return attn_torch.build(attn.DecoderConfig(vocab_size=11, layers=2, attention=attention, mlp=mlp))


def test_per_sample_gradients_of_a_model():
    module, tokens = model(), torch.arange(15).reshape(3, 5) % 11
    parameters = dict(module.named_parameters())

    def loss(parameters, tokens):
        return torch.func.functional_call(module, parameters, (tokens[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, tokens)
    for number, row in enumerate(tokens):
        expected = torch.autograd.grad(module(row[None]).square().sum(), list(parameters.values()))
        for gradient, wanted in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(gradient[number], wanted)


def test_a_model_without_numbers_has_shapes():
    module, tokens = model().to("meta"), torch.zeros(2, 5, dtype=torch.long, device="meta")
    assert module(tokens, positions=tokens, valid=tokens == 0).shape == (2, 5, 11)
    module = model()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.zeros(2, 5, dtype=torch.long))
        assert module(fake, positions=fake).shape == (2, 5, 11)


def test_a_model_built_without_numbers_gets_its_rotations_where_it_goes():
    module, tokens = model(), torch.arange(10).reshape(2, 5)
    with torch.device("meta"):
        empty = model()
    for made in (empty, model().to("meta")):
        made = made.to_empty(device="cpu")
        made.load_state_dict(module.state_dict())
        torch.testing.assert_close(made(tokens), module(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"sinks": True}, {"softcap": 2.0}, {"position_bias": attn.Buckets()}])
def test_autocast_computes_in_its_own_dtype(options):
    options = {"rope": ROPE, "qk_norm": attn.QKNorm(), "output_gate": "headwise"} | options
    module, x = built(torch.float32, **options), X.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    exact = module(x)
    assert (y.float() - exact).norm() < 0.02 * exact.norm()
    tokens = torch.arange(10).reshape(2, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model()(tokens)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    with pytest.raises(ValueError, match="x of q has dtype bfloat16; expected float32, the dtype of its parameters"):
        module(x.bfloat16())
