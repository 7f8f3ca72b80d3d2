"""Whole models of `transformers`, small and random: captured as one graph, equal to eager, trained like eager."""

import pytest
import torch

import stator
from stator import events

transformers = pytest.importorskip("transformers")
SMALL = dict(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
    max_position_embeddings=64,
)  # fmt: skip
IDS = torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(0))
MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    ),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)
    ),
}


def tensors_of(output):
    found = []

    def walk(value):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            for part in value.values():
                walk(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part)

    walk(output)
    return found


def loss_of(output):
    return sum(tensor.float().pow(2).mean() for tensor in tensors_of(output) if tensor.is_floating_point())


@pytest.fixture(autouse=True)
def fresh():
    stator.reset()
    fallbacks = []
    unsubscribe = events.subscribe(lambda event: fallbacks.append(event.fields["reason"]), {"fallback"})
    yield fallbacks
    unsubscribe()
    stator.reset()


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("name", MODELS)
def test_captured_as_one_graph_and_equal(name, training, fresh):
    torch.manual_seed(0)
    model = MODELS[name]().train(training)
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    torch.manual_seed(5)
    expected = tensors_of(model(**inputs))
    stator.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.manual_seed(5)
        actual = tensors_of(model(**inputs))
        assert len(actual) == len(expected)
        assert all(torch.equal(left, right) for left, right in zip(actual, expected))
    assert not fresh


@pytest.mark.parametrize("backend", ("aot_eager", "stator"))
@pytest.mark.parametrize("name", ("gpt2", "bert"))
def test_training_steps_leave_equal_parameters(name, backend, fresh):
    def run(compiled):
        torch.manual_seed(0)
        model = MODELS[name]().train()
        if compiled:
            stator.compile(model, backend=backend, fullgraph=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(5):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(input_ids=IDS)).backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    for left, right in zip(run(False), run(True)):
        if backend == "aot_eager":
            assert torch.equal(left, right)
        else:
            torch.testing.assert_close(left, right, rtol=1e-3, atol=2e-4)
    assert not fresh


def test_a_module_stays_itself():
    model = torch.nn.Linear(3, 3)
    names = list(model.state_dict())
    assert stator.compile(model, backend="eager") is model
    assert type(model) is torch.nn.Linear and list(model.state_dict()) == names
    hook_calls = []
    handle = model.register_forward_hook(lambda *_: hook_calls.append(1))
    model(torch.ones(3))
    assert hook_calls == [1]
    handle.remove()
    model(torch.ones(3))
    assert hook_calls == [1]


def test_equal_modules_share_entries():
    from stator.runtime.region import all_regions

    for _ in range(12):
        module = torch.nn.Linear(4, 4)
        stator.compile(module, backend="eager")
        module(torch.ones(2, 4))
    assert sum(len(place.records) for region in all_regions() for place in region.places()) == 1


def test_a_step_counter_costs_one_recompile():
    from stator.runtime.region import all_regions

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return x * self.steps

    module = stator.compile(Counter(), backend="eager")
    for step in range(1, 9):
        assert torch.equal(module(torch.ones(2)), torch.full((2,), float(step)))
    assert module.steps == 8
    assert sum(len(place.records) for region in all_regions() for place in region.places()) == 2
