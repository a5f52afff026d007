"""A training step of a model under a plan: loss, gradients and AdamW over a mesh, all sharded by the plan.

    training = make_training("1b", "ring/striped@data=2,ring=4,chunk=512", seq_len=8192, batch=2)
    state = training.init(seed=0)
    state, loss = training.step(state, training.place(tokens))

Letters: B batch, T positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stripectl.core import scopes
from stripectl.core.model import Model
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.costs.defaults import with_defaults
from stripectl.errors import BadInput
from stripectl.execute.program import compile_with, local_devices, mesh_of
from stripectl.execute.settings import own_settings
from stripectl.hardware.profile import hardware_of_device
from stripectl.models.model_files import load_model
from stripectl.training.decoder import STACKS, Decoder, initial_parameters
from stripectl.training.loss import Batch, ShardedLoss
from stripectl.training.order import positions
from stripectl.training.sharding import ParameterSharding, shardings
from stripectl.util.python_words import python_words


class State(NamedTuple):
    """The values that a step changes: parameters (an nnx.State of float32) and the optimizer's state."""

    parameters: Any
    optimizer: Any


def adamw(learning_rate: float = 3e-4, weight_decay: float = 0.1) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019) with LLaMA's betas; gradients clipped at a norm of 1, no decay of scales."""

    def decays(parameters: Any) -> Any:
        return nnx.map_state(lambda _, each: each.replace(len(each.get_metadata("dims")) > 1), parameters)

    steps = optax.adamw(learning_rate, b1=0.9, b2=0.95, weight_decay=weight_decay, mask=decays)
    return optax.chain(optax.clip_by_global_norm(1.0), steps)


@dataclass(frozen=True)
class Training:
    """A model under a plan that names its mesh and tile, for a workload; `make_training` checks that they fit."""

    model: Model
    workload: Workload
    plan: Plan
    mesh: Mesh
    optimizer: optax.GradientTransformation
    rotary_base: float | None = None

    @cached_property
    def placement(self) -> ParameterSharding:
        return ParameterSharding(self.plan, self.mesh, self.workload.dtype)

    @property
    def whole(self) -> NamedSharding:
        """The sharding of values that every device holds, such as the loss."""
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    @own_settings
    def abstract_parameters(self) -> nnx.State:
        """Shapes in place of parameters."""
        return jax.eval_shape(lambda: initial_parameters(self.model, nnx.Rngs(0)))

    @cached_property
    @own_settings
    def shardings(self) -> State:
        """The sharding of every array of a State."""
        abstract = self.abstract_parameters
        optimizer = optax.tree.map_params(
            self.optimizer,
            lambda _, sharding: sharding,
            jax.eval_shape(self.optimizer.init, abstract),
            self.updated,
            transform_non_params=lambda _: self.whole,
        )
        return State(shardings(self.placement.stored, abstract, STACKS), optimizer)

    @cached_property
    def updated(self) -> Any:
        """The sharding of parameters and gradients during the optimizer's update."""
        return shardings(self.placement.updated, self.abstract_parameters, STACKS)

    @own_settings
    def make(self, seed: int) -> State:
        """A new State; may be traced."""
        parameters = initial_parameters(self.model, nnx.Rngs(seed))
        return State(parameters, self.optimizer.init(parameters))

    def init(self, seed: int) -> State:
        """A new State, made on its devices; equal on every mesh."""
        return jax.jit(partial(self.make, seed), out_shardings=self.shardings)()

    @property
    def batch_shardings(self) -> Batch:
        return Batch(*(NamedSharding(self.mesh, spec) for spec in self.sharded_loss.batch_specs))

    @property
    def abstract_batch(self) -> Batch:
        """Shapes in place of a batch's arrays."""
        rows = jax.ShapeDtypeStruct((self.workload.batch, self.workload.seq_len), jnp.int32)
        return Batch(rows, rows, jax.ShapeDtypeStruct((self.workload.seq_len,), jnp.int32))

    def place(self, tokens: np.ndarray) -> Batch:
        """A batch from tokens in natural order, int (batch, seq_len + 1): the last is only a target."""
        length = self.workload.seq_len
        if tokens.shape != (self.workload.batch, length + 1):
            raise BadInput(f"tokens have shape {tokens.shape}; a step takes {(self.workload.batch, length + 1)}.")
        order = positions(self.plan, length)
        host = Batch(tokens[:, :-1][:, order].astype(np.int32), tokens[:, 1:][:, order].astype(np.int32), order)

        def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
            return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

        return jax.tree.map(put, host, self.batch_shardings)

    @property
    def key(self) -> Any:
        """A key that is equal for steps that can take each other's state."""
        return self.model, self.plan.mesh, self.plan.zero

    def random_inputs(self) -> list[Any]:
        """A new State."""
        return [self.init(seed=0)]

    def own_inputs(self) -> list[Any]:
        """A batch of random tokens in the plan's layout."""
        shape = self.workload.batch, self.workload.seq_len + 1
        return [self.place(np.random.default_rng(0).integers(0, self.model.vocabulary, shape))]

    @own_settings
    def loss(self, parameters: nnx.State, batch: Batch) -> jax.Array:
        """float32 (): the mean cross-entropy of the batch, in nats per token."""
        return self.sharded_loss.differentiable(parameters, batch)

    @cached_property
    def sharded_loss(self) -> ShardedLoss:
        decoder = Decoder(self.workload, self.plan, self.placement, self.rotary_base)
        return ShardedLoss(decoder, self.shardings.parameters, self.updated)

    @cached_property
    def gradients(self) -> jax.stages.Wrapped:
        """(parameters, batch) -> (loss, gradients), jitted."""
        given, both = self.shardings.parameters, own_settings(jax.value_and_grad(self.loss))
        return jax.jit(both, in_shardings=(given, self.batch_shardings), out_shardings=(self.whole, given))

    @cached_property
    def step(self) -> Any:
        """(state, batch) -> (state, loss), jitted; the input state is consumed."""

        @own_settings
        def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
            loss, gradients = jax.value_and_grad(self.loss)(state.parameters, batch)
            with jax.named_scope(scopes.OPTIMIZER):
                gradients, own = jax.lax.with_sharding_constraint((gradients, state.parameters), (self.updated,) * 2)
                updates, optimizer = self.optimizer.update(gradients, state.optimizer, own)
                return State(optax.apply_updates(own, updates), optimizer), loss

        given, results = (self.shardings, self.batch_shardings), (self.shardings, self.whole)
        return jax.jit(step, in_shardings=given, out_shardings=results, donate_argnums=0)

    @own_settings
    def compile(self, flags: Mapping[str, str] | None = None) -> Any:
        """The compiled step, which can be called like `step`; makes no arrays."""
        abstract = self.abstract_parameters
        state = State(abstract, jax.eval_shape(self.optimizer.init, abstract))
        lowered = self.step.lower(state, self.abstract_batch)
        return compile_with(lowered, self.plan, flags or {}, self.mesh.devices.flat[0].platform)


@python_words({"seqlen": "seq_len={!r}"})
def make_training(
    model: Model | str,
    plan: Plan | str,
    *,
    seq_len: int,
    batch: int = 1,
    dtype: str = "bfloat16",
    devices: Sequence[Any] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    rotary_base: float | None = None,
    mask: str | None = None,
) -> Training:
    """A model's training under a plan.

    Args:
        model: a model, its name, or the path of its YAML file.
        plan: a plan or its text; parts that it omits have the defaults of the devices, as in `stripectl bench`.
        seq_len: tokens per sequence, over all devices.
        batch: sequences per step, over all devices.
        dtype: the dtype in which layers compute; parameters, gradients and optimizer state are float32.
        devices: in the order of the mesh, the last axis fastest; None: the local devices, placed on links by JAX.
        optimizer: any optax optimizer; None: `adamw()`.
        rotary_base: the base of the rotary angles, in place of the model's.
        mask: `causal`, `full` or `sliding:4k` in every layer, in place of the masks of the model's layers.

    Raises:
        BadInput: a name is unknown, or the plan does not fit; the message has the reason.
    """
    model = load_model(model) if isinstance(model, str) else model
    plan = parse_plan(plan) if isinstance(plan, str) else plan
    masks = {} if mask is None else {"mask": mask, "layer_masks": ()}
    workload = Workload(
        seq_len=seq_len, batch=batch, dtype=dtype, passes=STEP, model=model.name, **model.step_sizes | masks
    )
    here = list(devices or jax.devices())
    hardware = hardware_of_device(here[0].device_kind, here[0].platform)
    plan = with_defaults(plan, workload, hardware, len(here))
    if reason := why_unsupported(plan, workload, hardware.kind, len(here)):
        raise BadInput(f"{plan} cannot train {model.name}: {reason}")
    mesh = mesh_of(plan, local_devices(plan) if devices is None else here)
    return Training(model, workload, plan, mesh, optimizer or adamw(), rotary_base)
