"""Steps of small models equal those of transformers in torch, from the same config.json and weights: loss and gradients
in float32. `make check-frameworks` makes the environment."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from stripectl.models.model_files import load_model
from stripectl.training.step import make_training
from tests.support.training import BATCH, LENGTH, errors, tokens

PYTHON = Path(__file__).parents[2] / ".venv" / "frameworks" / "bin" / "python"
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment of frameworks is here: make check-frameworks"),
]
SIZES = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 56, "rms_norm_eps": 2e-3, "rope_theta": 500.0},
    "pad_token_id": None,  # whose embedding has no gradient in torch
}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 32,
}
YARN = {
    **{"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.1},
    "original_max_position_embeddings": 32,
}
WINDOWED, FULL = "sliding_attention", "full_attention"
OLMO3 = {  # a rope_theta beside them would be the base of full layers alone
    "rope_theta": None,
    "rope_parameters": {
        FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        WINDOWED: {"rope_type": "default", "rope_theta": 500.0},
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama3": {"model_type": "llama", "rope_scaling": LLAMA3},
    "yarn": {"model_type": "llama", "rope_scaling": YARN | {"truncate": False}},
    "yarn of whole pairs": {"model_type": "llama", "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}},
    "linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False},
    "qwen2 with windows": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 9},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", "query_pre_attn_scalar": 5, "attn_logit_softcapping": 0.5, "sliding_window": 9},
    "gemma3": {
        **{"model_type": "gemma3_text", "query_pre_attn_scalar": 5, "rope_local_base_freq": 50.0, "sliding_window": 9},
        **{"sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    },
    "olmo": {"model_type": "olmo", "rms_norm_eps": 1e-5},
    "olmo2": {"model_type": "olmo2"},
    "starcoder2": {
        **{"model_type": "starcoder2", "use_bias": True, "tie_word_embeddings": True, "norm_epsilon": 2e-3},
        **{"sliding_window": 9, "head_dim": None},
    },
    "olmo3": {"model_type": "olmo3", "sliding_window": 9, "layer_types": [WINDOWED, FULL, WINDOWED], **OLMO3},
}
STEP = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from transformers import AutoConfig, AutoModelForCausalLM
content, weights, batch, out = json.loads(sys.argv[1]), np.load(sys.argv[2]), np.load(sys.argv[3]), sys.argv[4]
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**content), attn_implementation="eager")
model.eval()
own = dict(model.named_parameters())
assert own.keys() == set(weights), sorted(own.keys() ^ set(weights))
for name, value in own.items():
    value.data = torch.tensor(weights[name]).reshape(value.shape)
logits = model(input_ids=torch.tensor(batch[:, :-1]), use_cache=False).logits
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(batch[:, 1:]).flatten())
loss.backward()
np.savez(out, loss=loss.detach().numpy(), **{name: value.grad.numpy() for name, value in own.items()})
"""
LAYER = {  # a parameter of a layer -> its name in transformers
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "output_bias": "self_attn.o_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "attention_norm": "input_layernorm.weight",
    "attention_end_norm": "post_attention_layernorm.weight",
    "feed_forward_norm": "post_attention_layernorm.weight",
    "feed_forward_end_norm": "post_feedforward_layernorm.weight",
    **{name: f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{f"{name}_bias": f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")},
    "attention_norm_bias": "input_layernorm.bias",
    "feed_forward_norm_bias": "post_attention_layernorm.bias",
}
TOP = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "norm_bias": "model.norm.bias",
    "head": "lm_head.weight",
}
OWN = {  # by family, or the norms of a layer
    "both": {"feed_forward_norm": "pre_feedforward_layernorm.weight"},
    "starcoder2": {
        f"{name}{part}": f"mlp.{theirs}.{kind}"
        for name, theirs in (("up", "c_fc"), ("down", "c_proj"))
        for part, kind in (("", "weight"), ("_bias", "bias"))
    },
}


def named(parameters: Any, own: dict[str, str]) -> dict[str, np.ndarray]:
    """Parameters or gradients by their names in transformers, of which a family has its own: matrices as (outputs,
    inputs)."""
    top = {TOP[name]: x.T if name == "head" else x for name, x in parameters.items() if name in TOP}
    names, found = LAYER | own, dict[str, np.ndarray](top)
    for name, every in parameters["layers"]["every"].items():
        for at, x in enumerate(every):
            if name in ("query", "key", "value"):
                x = x.reshape(len(x), -1)
            if name == "output":
                x = x.reshape(-1, x.shape[-1])
            found[f"model.layers.{at}.{names[name]}"] = x.T if x.ndim == 2 else x
    return found


@pytest.mark.parametrize("plan", ["ring/striped@fsdp=2,ring=2,tensor=2,chunk=8", "ring@ring=1,chunk=0"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_is_that_of_transformers(name: str, plan: str, tmp_path: Path) -> None:
    content = SIZES | CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = load_model(str(tmp_path))
    assert not model.replaced
    run = make_training(model, plan, seq_len=LENGTH, batch=BATCH, dtype="float32")
    random = np.random.default_rng(1)
    given = jax.tree.map(
        lambda x: np.asarray(x) + np.float32(0.1) * random.standard_normal(x.shape).astype("float32"),
        run.init(seed=0).parameters,
    )
    loss, found = run.gradients(jax.device_put(given, run.shardings.parameters), run.place(tokens()[0]))

    own = OWN.get(content["model_type"], OWN.get(model.architecture.norms, {}))
    weights: dict[str, Any] = named(nnx.to_pure_dict(given), own)
    if name.startswith("gemma"):  # which stores the scales of norms less one
        weights = {key: value - ("norm" in key) for key, value in weights.items()}
    np.savez(tmp_path / "weights.npz", **weights)
    np.save(tmp_path / "batch.npy", tokens()[0])
    files = [str(tmp_path / each) for each in ("weights.npz", "batch.npy", "found.npz")]
    done = subprocess.run([str(PYTHON), "-c", STEP, json.dumps(content), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = dict(np.load(files[-1]))
    assert np.isclose(float(loss), theirs.pop("loss"), rtol=1e-5, atol=0)
    ours = named(jax.tree.map(np.asarray, nnx.to_pure_dict(found)), own)
    assert ours.keys() == theirs.keys()
    assert max(errors([*ours.values()], [theirs[key].reshape(ours[key].shape) for key in ours])) < 1e-5
