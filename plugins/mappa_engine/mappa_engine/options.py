"""Options of the built-in engines and losses; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field

from mappa_core import ConfigError

PADDED_TOKENS = 1024
"""Tokens of a pass over padded rows: siblings' prompts of usual length are together in it, and more saves no time."""
AUTO = "auto"
"""Value of an option that placement decides."""


@dataclass
class TeacherServer:
    """A server that scores given tokens: vLLM, SGLang, or another with `echo` in OpenAI's completions API."""

    base_url: str
    """Where its API begins: http://HOST:8000/v1."""
    model: str | None = None
    """What the server calls the model; None: as policies.NAME.model, of which only the tokenizer is read here."""
    api_key_env: str | None = None
    """Environment variable that holds the key; None: it needs none."""
    concurrency: int = 8
    """Actions that are scored at once."""
    timeout_s: float = 300.0
    """Seconds that one answer may take."""


@dataclass
class LocalOptions:
    """The engine `local`: every policy in this process, on the CPU or one GPU."""

    device: str = "auto"
    """auto | cpu | cuda; auto takes the GPU where there is one."""
    dtype: str = AUTO
    """float32 | bfloat16 | auto, of sampling and learning alike. Learners of bfloat16 keep float32 master weights, and
    adapters are float32. auto: float32; on a CPU that computes in bfloat16, a model of ten million weights and more is
    tried in both as the engine opens, and bfloat16 is taken if it is faster and log-probabilities agree. A checkpoint
    keeps what was chosen, and a resumed run takes it again."""
    deterministic: bool = False
    """Equal requests in equal waves give bit-equal completions and weights (on the CPU): each wave is decoded apart."""
    threads: int | str = AUTO
    """Threads that torch computes one operation with. auto: 1 where every model is smaller than ten million weights,
    else as many as this process may use cores (affinity, the container's quota). A checkpoint keeps what was chosen,
    and a resumed run takes it again."""
    max_batch: int = 256
    """Requests of one policy that are decoded together; further ones wait."""
    kv_cache_mb: int = 4096
    """Memory of one policy for keys and values. A request waits until its prompt and `max_tokens` fit beside others; if
    they do not fit alone, it is refused."""
    max_model_len: int | None = None
    """Longest prompt and action, in tokens; None: the model's own."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third more time."""
    prefill_tokens: int = 16384
    """Prompt tokens, padding included, of one forward pass of a sampler."""
    teachers: dict[str, TeacherServer] = field(default_factory=dict)
    """Teachers of `distill` that stay on servers, by the names of their policies, which are of kind frozen: each with
    `base_url` (http://HOST:8000/v1), and `model`, `api_key_env`, `concurrency` and `timeout_s` where they differ."""

    @property
    def loaded_dtype(self) -> str:
        """What models are loaded in: `dtype`, and float32 where a trial decides it, which takes more memory."""
        return "float32" if self.dtype == AUTO else self.dtype


@dataclass
class ClusterOptions:
    """The engine `cluster`: learners by DeepSpeed and samplers by vLLM, as actors of Ray on one machine or many."""

    address: str | None = None
    """A running Ray cluster: auto | HOST:PORT. None: one is started on this machine and ended with the run."""
    placement: str = "colocated"
    """colocated (learners and samplers take turns on the same GPUs) | separate (each has its own)"""
    learner_ranks: int | None = None
    """Ranks of a group of learners; None: every GPU that learners get, 1 where there is none."""
    zero: int | str = AUTO
    """0 | 1 | 2 | 3: what DeepSpeed shards over the ranks: nothing, the optimiser, gradients too, weights too. auto: 2,
    or 3 where weights do not fit otherwise."""
    dtype: str = "auto"
    """float32 | bfloat16 | auto (bfloat16 on GPUs). Learners keep float32 master weights in any case."""
    gradient_checkpointing: bool | str = AUTO
    """Compute activations again in the backward pass: less memory, about a third more time. auto: where they do not fit
    otherwise."""
    offload_optimizer: bool = False
    """Keep optimiser states in the memory of the host."""
    packed_tokens: int | str | None = AUTO
    """Tokens of one packed sequence, beside the budget `train.micro_tokens`: attention without a packed kernel takes
    memory and time in its square. None: sequences are padded rows, at most 1024 tokens of them in a pass, and one rank
    computes what siblings' prompts share once. auto: 4096 on GPUs; None on CPUs, which have no such kernel."""
    samplers: int | str = AUTO
    """Engines of vLLM per base model or fully trained policy. auto: one of each on every GPU, or one on a GPU where
    these do not fit; one on CPUs."""
    tensor_parallel: int = 1
    """GPUs of one engine of vLLM."""
    kv_cache_mb: int | str = AUTO
    """Memory of one engine for keys and values. auto: what the GPU has left; on CPUs 512, or one request of full
    length."""
    max_model_len: int | None = None
    """Longest prompt and action of a sampler, in tokens; None: the model's own."""
    max_batch: int = 256
    """Requests that one engine decodes together."""
    prefix_caching: bool = True
    deterministic: bool = False
    """Equal requests in equal waves give bit-equal completions and weights (on CPUs): each wave is decoded apart."""
    transport: str = "auto"
    """How weights reach samplers: store (Ray's object store) | nccl | ipc | auto (store on CPUs, ipc where colocated,
    nccl where separate)."""
    probe_limit: float | None = None
    """Nats by which log-probabilities of samplers and learners may differ after a publish, in the mean over some tokens
    (None: 1e-4 in float32, 0.25 in bfloat16). Beyond it the run ends in an error."""
    max_staleness: int = 0
    """Updates by which the weights that sampled an action may be older than those that learn from it; 0 is the
    synchronous loop."""
    straggler_share: float = 0.0
    """Share of an iteration's trajectories that it does not wait for; they are finished later and used within
    `max_staleness`."""
    teachers: dict[str, TeacherServer] = field(default_factory=dict)
    """Teachers of `distill` that stay on servers, by the names of their policies, which are of kind frozen: each with
    `base_url` (http://HOST:8000/v1), and `model`, `api_key_env`, `concurrency` and `timeout_s` where they differ."""
    logs: str | None = None
    """Folder to which what actors wrote is copied when a Ray that the run started ends; None: it goes with it."""
    start_s: float = 600.0
    """Seconds that starting an actor may take."""
    call_s: float = 3600.0
    """Seconds that an update, or an action, may take."""
    sync_s: float = 300.0
    """Seconds that handing new weights to the samplers may take, without the start of one that was lost meanwhile."""


@dataclass
class PlacedOptions(ClusterOptions):
    """Options of the engine `cluster` as placement decided them: what learners and samplers read is never `auto`."""

    zero: int = 2
    gradient_checkpointing: bool = False
    packed_tokens: int | None = 4096
    kv_cache_mb: int = 512

    @property
    def pass_tokens(self) -> int:
        """Tokens of one pass of a learner, beside the budget `train.micro_tokens`."""
        return PADDED_TOKENS if self.packed_tokens is None else self.packed_tokens


@dataclass
class DivergenceOptions:
    """What the options of every loss with a divergence from the reference begin with."""

    kl: str = "none"
    """none | k1 | k2 | k3 | k3_corrected: estimate of the divergence from the reference that is added to the loss. In a
    loss k2 has the gradient of that divergence, k3 that of the reverse one, k1 none; k3_corrected has that of k2 at
    every step of an iteration."""
    kl_coef: float = 0.0
    """Weight of that estimate; above 0 where `kl` is not none."""

    def check(self) -> None:
        if self.kl == "none" and self.kl_coef:
            raise ConfigError(
                f"kl_coef: must be 0 where kl is none, not {self.kl_coef:g}; set kl to what it is to weigh"
            )
        if self.kl != "none" and not self.kl_coef:
            raise ConfigError(f"kl: must be none where kl_coef is 0, not {self.kl}; set kl_coef above 0 to weigh it")


@dataclass
class PPOOptions(DivergenceOptions):
    """The loss `ppo`."""

    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = None
    """Ratio beyond which a token of negative advantage weighs no more; above 1 + clip_high. None: no such bound."""


@dataclass
class GSPOOptions(DivergenceOptions):
    """The loss `gspo`."""

    clip_low: float = 3e-4
    """The ratio of an action, a geometric mean over its tokens, is clipped below at 1 - clip_low."""
    clip_high: float = 4e-4
    """It is clipped above at 1 + clip_high."""


@dataclass
class CISPOOptions(DivergenceOptions):
    """The loss `cispo`."""

    ratio_low: float = 0.0
    """The least weight of a token: a bound of the ratio itself, not a distance from 1."""
    ratio_high: float = 5.0
    """The largest weight of a token."""


@dataclass
class SAPOOptions(DivergenceOptions):
    """The loss `sapo`."""

    tau_positive: float = 1.0
    """Temperature of the gate where the advantage is above 0: the higher, the sooner a ratio far from 1 weighs less."""
    tau_negative: float = 1.05
    """The same for other tokens."""


@dataclass
class VESPOOptions(DivergenceOptions):
    """The loss `vespo`."""

    k_positive: float = 2.0
    """Exponent of an action's ratio where its advantage is at least 0."""
    lambda_positive: float = 3.0
    """Decay of the weight with the ratio there."""
    k_negative: float = 3.0
    """Exponent where the advantage is below 0."""
    lambda_negative: float = 2.0
    """Decay there."""
