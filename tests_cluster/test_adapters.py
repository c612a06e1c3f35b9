"""Adapters on one base that vLLM serves: several at once, exact to the merged model, whatever is published or lost."""

import asyncio

import numpy as np
import pytest
import pytest_asyncio
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from mappa_core.errors import EngineError
from mappa_core.records import Sampling
from mappa_engine.cluster.samplers.sampler import ClusterSampler
from mappa_engine.model_info import read_model_info

from .conftest import WINDOW
from .sampler_cases import EXACT, gap, kill, logprobs, model_of, open_pool, prompts, sampler_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENTS = ("solver", "critic", "writer")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, llama):
    """Three adapters of one base: tensors by peft's names, their config, and the merged model of each."""
    made = {}
    for seed, agent in enumerate(AGENTS):
        torch.manual_seed(seed)
        targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model_of(llama), LoraConfig(r=4, lora_alpha=8, target_modules=targets))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        folder = tmp_path_factory.mktemp(agent)
        model.save_pretrained(folder)
        config = {**model.peft_config["default"].to_dict(), "target_modules": targets, "inference_mode": True}
        config = {key: value for key, value in config.items() if isinstance(value, str | int | float | list | None)}
        made[agent] = load_file(folder / "adapter_model.safetensors"), config, model.merge_and_unload().eval()
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lora(ray_actors, llama):
    """One engine of a base and room for adapters on it; `base` is a policy of the base itself."""
    setup = sampler_config(llama, adapter_policies=AGENTS, lora_rank=4, max_adapters=4)
    one = await open_pool(ray_actors, setup, name="team", engines=1, full=False)
    yield one
    await one.pool.close()


async def test_three_adapters_and_their_base_are_served_at_once(lora, llama, adapters):
    reading = read_model_info(llama)
    samplers = {
        name: ClusterSampler(name, reading, lora.pool, window=WINDOW, template_kwargs={}) for name in (*AGENTS, "base")
    }
    with pytest.raises(EngineError, match="no weights yet"):
        await samplers["critic"].sample(prompts(1)[0], Sampling(max_tokens=3))
    for agent, (tensors, config, _) in adapters.items():
        await lora.publish(agent, 3, tensors, config)
    models = {agent: merged for agent, (_, _, merged) in adapters.items()} | {"base": model_of(llama)}
    names = [(*AGENTS, "base")[i % 4] for i in range(12)]
    found = await asyncio.gather(
        *(
            samplers[name].sample(prompt, Sampling(max_tokens=40, seed=i))
            for i, (name, prompt) in enumerate(zip(names, prompts(3, seed=2) * 4, strict=True))
        )
    )
    for name, completion in zip(names, found, strict=True):
        assert gap(models[name], completion) < EXACT
        assert [span.version for span in completion.versions] == [0 if name == "base" else 3]
    assert gap(models["solver"], found[1]) > EXACT


async def test_running_request_keeps_its_adapter(lora, llama, adapters):
    sampler = ClusterSampler("solver", read_model_info(llama), lora.pool, window=WINDOW, template_kwargs={})
    (old, config, merged), (new, _, newly) = adapters["solver"], adapters["writer"]
    await lora.publish("solver", 4, old, config)
    prompt = prompts(1, seed=4)[0]
    task = asyncio.create_task(sampler.sample(prompt, Sampling(max_tokens=150, seed=1)))
    await asyncio.sleep(0.1)
    await lora.publish("solver", 5, new, config)
    (probed,) = await lora.pool.engines[0].logprobs("solver", 5, [prompt])
    assert np.abs(probed - logprobs(newly, prompt[:1], prompt[1:])).max() < EXACT
    later = await sampler.sample(prompt, Sampling(max_tokens=60, seed=1))
    assert [span.version for span in later.versions] == [5]
    assert gap(newly, later) < EXACT
    found = await task
    assert [span.version for span in found.versions] == [4]
    assert gap(merged, found) < EXACT


async def test_restarted_engine_has_its_adapters(lora, llama, adapters):
    sampler = ClusterSampler("critic", read_model_info(llama), lora.pool, window=WINDOW, template_kwargs={})
    tensors, config, merged = adapters["critic"]
    await lora.publish("critic", 6, tensors, config)
    waiting = [
        asyncio.create_task(sampler.sample(p, Sampling(max_tokens=150, seed=i))) for i, p in enumerate(prompts(6))
    ]
    await asyncio.sleep(0.1)
    kill(lora.pool.engines[0])
    for completion in await asyncio.gather(*waiting):
        assert [span.version for span in completion.versions] == [6]
        assert gap(merged, completion) < EXACT
    assert lora.pool.restarts == 1
