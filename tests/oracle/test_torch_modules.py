"""A module of attn_torch is a PyTorch module: what PyTorch offers for modules works on it and on its parts."""

import copy
import pickle

import pytest

from tests.cases import CASES, M, T, draw, weights_of

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrize  # noqa: E402

import attn_torch  # noqa: E402

CFG = CASES["grouped_query"].replace(bias=False)
X = torch.from_numpy(draw(2, T, M))


def built():
    module = attn_torch.build(CFG)
    module.load_state_dict(attn_torch.from_neutral(CFG, weights_of(CFG)))
    return module


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
