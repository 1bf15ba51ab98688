"""Ten checks of a GPU, from its kernels to the first batch of a paper's run: `fedagentgym doctor --gpu`.

Each check computes something on the card and compares it with the same on the processor, with a plan, or with itself. Its limit
is stated beside it. All checks run on `cpu` too, as a rehearsal that compares the processor with itself.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedagentgym.agents import make_agent
from fedagentgym.agents.model.loading import choose_device, hush_transformers
from fedagentgym.agents.model.shapes import KNOWN_SHAPES, ModelShape
from fedagentgym.agents.model.store import find_model
from fedagentgym.agents.text.tokens import make_word_tokenizer
from fedagentgym.base.errors import describe_error
from fedagentgym.base.imports import require
from fedagentgym.base.rounding import format_bytes, format_fixed, format_share
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.estimate.plan import RunPlan, plan_run
from fedagentgym.experiment.first_batch import play_first_batch
from fedagentgym.experiment.run import train
from fedagentgym.learning.forward import find_choices
from fedagentgym.learning.learner import LocalTraining, PolicyUpdate
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.state import get_trainable_policy
from fedagentgym.learning.trajectory import build_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.learning.trajectory import Group, Row

SMALL_MODEL, PAPER_MODEL = "smollm2", "Qwen/Qwen2.5-1.5B-Instruct"
SHOP = "{data: null, goal_order: webshop, size: tiny, reward: success10, max_turns: %d}"
"""The generated shop in place of the original's data."""
MEMORY_TOLERANCE = 1.25
"""The share of the planned memory that a round may take: the allocator keeps blocks, and CUDA a context."""
MAX_FLOAT32, MAX_BFLOAT16 = 1e-5, 1e-2
"""Relative errors of products: those of float32 are not rounded to TF32, which gives 1e-3."""
MAX_PLAIN = 1e-3
"""Largest difference of a log-prob in float32."""
MAX_ROUNDED, MAX_ROUNDED_TAIL = 0.03, 0.3
"""Limits of the differences of log-probs in bfloat16: for their mean, and for their 99.9th percentile."""
MAX_NORM, MIN_COSINE = 0.05, 0.95
"""A policy step on the card beside one on the processor: relative difference of the gradients' lengths, and the cosine between
the changes of the weights."""


@dataclass(frozen=True)
class Check:
    """A check that ran, or was left out (`passed` is None). `found` says in words what was found, `numbers` in figures."""

    name: str
    about: str
    passed: bool | None
    found: str
    seconds: float
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


class Found(NamedTuple):
    """The answer of a check: whether it passed, a sentence and figures."""

    passed: bool | None
    words: str
    numbers: Mapping[str, float] = {}


class Bench:
    """Shared by the checks: the device, a small model, and episodes that were played on the processor.

    `small` is the shape of the small model, which has random weights unless `smollm2` is in the cache; `paper` is the shape of
    the model whose memory is measured, always with random weights.
    """

    def __init__(self, device: str, folder: Path, small: ModelShape, paper: ModelShape) -> None:
        self.device, self.folder, self._small, self._paper = choose_device(device), folder, small, paper

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    @cached_property
    def model(self) -> Path:
        """The folder of the small model."""
        added = find_model(SMALL_MODEL)
        if added is not None:
            return added.folder
        made = self.folder / "small"
        make_random_model(made, self._small, self.env)
        return made

    @cached_property
    def paper_model(self) -> Path:
        made = self.folder / "paper"
        make_random_model(made, self._paper, open_env("fedagentgym/WebShop-v0", size="tiny"), narrow=self.on_gpu)
        return made

    @cached_property
    def env(self) -> TextEnv:
        config = load_config("small-skills")
        return open_env(config.env.id, **config.env.options)

    def load_config(self, device: str, *, adapter: bool = True, dtype: str = "float32", **agent: Any) -> RunConfig:
        """`small-skills` with this model, an adapter or all weights, on a device."""
        given = {"name": "transformers", "model": str(self.model), "device": device, "dtype": dtype, **agent}
        changes = [f"agent.{name}={json.dumps(value)}" for name, value in given.items()]
        adapted = [] if adapter else ["agent.adapter=null"]
        return load_config("small-skills", [*changes, *adapted, "warm_start=null", "learning.micro_tokens=auto"])

    def make_agent(self, device: str, **options: Any) -> TokenAgent:
        agent: Any = make_agent(self.load_config(device, **options).agent, self.env)
        return agent  # type: ignore[no-any-return]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Four groups of eight episodes, played on the processor in float32."""
        return collect(self.make_agent("cpu"), self.env, self.env.pool.ids[:4], group_size=8, seed=1).groups

    @cached_property
    def advantages(self) -> list[list[float]]:
        """Advantages given by hand: an untrained agent has no successes to compare."""
        return [[1.0, -1.0] * (len(group) // 2) for group in self.groups]

    @cached_property
    def rows(self) -> list[Row]:
        spread = [tuple(np.ones(len(one.turns)) for one in group) for group in self.groups]
        return build_rows(self.groups, spread)

    @cached_property
    def plain(self) -> NDArray[np.float64]:
        """The log-probs of the episodes' tokens on the processor in float32."""
        return score_plainly(get_trainable_policy(self.make_agent("cpu")), self.rows)

    def step(self, device: str, **options: Any) -> tuple[Mapping[str, float], Mapping[str, NDArray[Any]]]:
        """The metrics of two policy steps on the episodes, and the change of the weights."""
        agent = self.make_agent(device, **options)
        settings = self.load_config(device, **options).learning
        local = LocalTraining(agent, self.env, settings)
        before = local.get_state().weights
        metrics = local.update(self.groups, advantages=self.advantages).metrics
        local.update(self.groups, advantages=self.advantages)
        return metrics, {name: value - before[name] for name, value in local.get_state().weights.items()}

    @cached_property
    def played(self) -> TokenAgent:
        """The small model with an adapter, played by vLLM on the device."""
        options: dict[str, Any] = {"memory": 0.3, "eager": True, "sleep": self.on_gpu}
        return self.make_agent(str(self.device), rollouts="vllm", options=options)

    def free(self) -> None:
        """Give back the memory of the device that nothing holds any longer."""
        gc.collect()
        if self.on_gpu:
            require("torch", "train").cuda.empty_cache()

    def close(self) -> None:
        if "played" in vars(self):
            get_trainable_policy(self.played).close()
            del vars(self)["played"]


# ---- the checks ----------------------------------------------------------------------------------------------------------


def check_card(bench: Bench) -> Found:
    torch = require("torch", "train")
    if not bench.on_gpu:
        return Found(True, "a processor: a rehearsal")
    about = torch.cuda.get_device_properties(bench.device)
    numbers = {"capability": about.major + about.minor / 10, "memory": float(about.total_memory)}
    words = f"{about.name}, {format_bytes(about.total_memory)}, capability {about.major}.{about.minor}, CUDA {torch.version.cuda}"
    return Found(bool(torch.cuda.is_bf16_supported(including_emulation=False)), words, numbers)


def check_kernels(bench: Bench) -> Found:
    """Products of matrices in both types, and attention over rows of unlike lengths."""
    torch = require("torch", "train")
    draw = torch.Generator().manual_seed(0)
    size = 2048 if bench.on_gpu else 256
    left, right = (torch.randn(size, size, generator=draw) for _ in range(2))
    exact = left.double() @ right.double()
    numbers = {}
    for dtype in (torch.float32, torch.bfloat16):
        computed = (left.to(bench.device, dtype) @ right.to(bench.device, dtype)).double().cpu()
        numbers[str(dtype).removeprefix("torch.")] = float((computed - exact).norm() / exact.norm())
    queries, keys, values = (torch.randn(4, 8, 128, 64, generator=draw) for _ in range(3))
    seen = torch.arange(128) < torch.tensor([128, 96, 17, 1])[:, None]
    mask = (seen[:, None, None, :] & torch.ones(128, 128, dtype=torch.bool).tril()).expand(4, 8, 128, 128)
    attend = torch.nn.functional.scaled_dot_product_attention
    whole = attend(queries.double(), keys.double(), values.double(), attn_mask=mask)
    narrow = [one.to(bench.device, torch.bfloat16) for one in (queries, keys, values)]
    found = attend(*narrow, attn_mask=mask.to(bench.device)).double().cpu()
    numbers["attention"] = float((found - whole).norm() / whole.norm())
    passed = numbers["float32"] <= MAX_FLOAT32 and max(numbers["bfloat16"], numbers["attention"]) <= MAX_BFLOAT16
    words = ", ".join(f"{name} {value:.1e}" for name, value in numbers.items())
    return Found(
        passed,
        f"relative errors: {words} (at most {MAX_FLOAT32:g}, {MAX_BFLOAT16:g}, {MAX_BFLOAT16:g})",
        numbers,
    )


def check_float32(bench: Bench) -> Found:
    """The small model's log-probs in float32, on the card and on the processor."""
    found = score_plainly(get_trainable_policy(bench.make_agent(str(bench.device))), bench.rows)
    most = float(np.abs(found - bench.plain).max())
    return Found(
        most <= MAX_PLAIN,
        f"largest difference {most:.1e} (at most {MAX_PLAIN:g})",
        {"most": most},
    )


def check_bfloat16(bench: Bench) -> Found:
    """Log-probs as training computes them beside those in float32, and those recorded in play beside those of training."""
    agent = bench.make_agent(str(bench.device), dtype="bfloat16" if bench.on_gpu else "float32")
    trained = compare(score_as_trained(agent, bench.load_config("cpu"), bench.rows), bench.plain)
    played = compare_played(agent, bench)
    words = f"training beside float32 {describe(trained)}, play beside training {describe(played)}"
    return Found(
        is_near(trained) and is_near(played),
        f"{words} (at most {MAX_ROUNDED:g} and {MAX_ROUNDED_TAIL:g})",
        {f"training_{name}": value for name, value in trained.items()}
        | {f"play_{name}": value for name, value in played.items()},
    )


def check_step(bench: Bench) -> Found:
    """Steps of small-skills on the same episodes, on the card and on the processor."""
    (expected, change), (metrics, found) = bench.step("cpu"), bench.step(str(bench.device))
    norm = abs(metrics["gradient_norm"] / expected["gradient_norm"] - 1)
    one, other = (np.concatenate([part[name].ravel() for name in change]) for part in (change, found))
    cosine = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    numbers = {"gradient_norm": norm, "cosine": cosine}
    lengths = f"gradients differ in length by {format_share(norm, 1)} (at most {format_share(MAX_NORM)})"
    words = f"{lengths}, cosine of the changes {format_fixed(cosine, 4)}"
    return Found(norm <= MAX_NORM and cosine >= MIN_COSINE, f"{words} (at least {MIN_COSINE:g})", numbers)


def check_repeated(bench: Bench) -> Found:
    """The same steps twice on the card, with an adapter and with all weights: a resumed run ends at the same bits."""
    differing = []
    for name, adapter in (("an adapter", True), ("all weights", False)):
        (_, first), (_, second) = (bench.step(str(bench.device), adapter=adapter) for _ in range(2))
        if any(not np.array_equal(first[key], second[key]) for key in first):
            differing.append(name)
    return Found(not differing, f"other bits with {' and '.join(differing)}" if differing else "equal bits", {})


def check_memory(bench: Bench) -> Found:
    """Two rounds of `paper-webshop:lora` at the paper's size with random weights, beside the plan."""
    changes = [] if bench.on_gpu else ["agent.device=cpu", "agent.dtype=float32", "agent.context_length=1024"]
    changes += ["learning.tasks_per_step=1", "learning.group_size=2"]
    measured = run_beside_plan(
        bench.paper_model, bench.folder / "run", [*changes, "agent.decoding.max_new_tokens=8"], turns=2
    )
    assert measured.rounds == 2
    numbers = {"peak": float(measured.peak), "planned": float(measured.plan.peak), "seconds": measured.seconds}
    words = f"{format_bytes(measured.peak)} where {format_bytes(measured.plan.peak)} are planned"
    if not bench.on_gpu:
        return Found(
            None, f"ran; {format_bytes(measured.plan.peak)} are planned, and memory is measured on a GPU only", numbers
        )
    return Found(
        measured.peak <= MEMORY_TOLERANCE * measured.plan.peak, f"{words} (at most {MEMORY_TOLERANCE:g} times)", numbers
    )


def check_vllm(bench: Bench) -> Found:
    """vLLM's log-probs beside those of training, before and after an adapter is handed over."""
    if find_spec("vllm") is None:
        return Found(None, "vLLM is not installed: pip install -c constraints-vllm.txt '.[train,vllm]'")
    agent = bench.played
    before = compare_played(agent, bench)
    policy: Any = get_trainable_policy(agent)
    draw = np.random.default_rng(0)
    policy.set_weights(
        {name: value + draw.normal(0, 0.02, value.shape) for name, value in policy.get_weights().items()}
    )
    begun = perf_counter()
    with policy.open_session():
        handed = perf_counter() - begun
    after = compare_played(agent, bench)
    handing = f"handed over in {format_fixed(handed, 2)} s"
    words = f"play beside training {describe(before)}, with an adapter {describe(after)}, {handing}"
    return Found(
        is_near(before) and is_near(after),
        f"{words} (at most {MAX_ROUNDED:g} and {MAX_ROUNDED_TAIL:g})",
        {f"before_{name}": value for name, value in before.items()}
        | {f"after_{name}": value for name, value in after.items()}
        | {"handed_over_seconds": handed},
    )


def check_sleep(bench: Bench) -> Found:
    """Check that vLLM frees memory while the model learns, and gives the same replies after it wakes."""
    if find_spec("vllm") is None or not bench.on_gpu:
        return Found(None, "needs vLLM on a GPU")
    torch = require("torch", "train")
    policy: Any = get_trainable_policy(bench.played)
    policy.engine.wake()
    awake, first = torch.cuda.mem_get_info(bench.device)[0], play_greedily(bench)
    policy.engine.sleep()
    bench.free()
    freed = torch.cuda.mem_get_info(bench.device)[0] - awake
    begun = perf_counter()
    policy.engine.wake()
    waking = perf_counter() - begun
    same = play_greedily(bench) == first
    replies = "the same replies" if same else "other replies"
    words = f"{format_bytes(freed)} given back, awake again in {format_fixed(waking, 1)} s, {replies}"
    return Found(same and freed > 0, words, {"freed": float(freed), "waking_seconds": waking})


def check_first_batch(bench: Bench) -> Found:
    """`first-batch paper-webshop:lora` in the generated shop with the paper's model, if it is here."""
    if find_model(PAPER_MODEL) is None:
        return Found(None, f"{PAPER_MODEL} is not here: fedagentgym model add {PAPER_MODEL}")
    changes = [f"agent.device={bench.device}", f"env={{id: fedagentgym/WebShop-v0, options: {SHOP % 6}}}"]
    batch = play_first_batch(load_config("paper-webshop:lora", changes), tasks=4)
    words = batch.fault or f"{format_share(batch.parsed)} of the replies could be read"
    return Found(batch.fault is None, words, {"parsed": batch.parsed, "reward_variance": batch.spread})


CHECKS: Mapping[str, tuple[str, Callable[[Bench], Found]]] = {
    "card": ("its name, memory and types", check_card),
    "kernels": ("products and attention", check_kernels),
    "float32": ("log-probs beside a processor's", check_float32),
    "bfloat16": ("log-probs in play, in training, in float32", check_bfloat16),
    "step": ("two steps of small-skills beside a processor's", check_step),
    "repeated": ("the same steps twice", check_repeated),
    "memory": ("two rounds at 1.5B beside the plan", check_memory),
    "vllm": ("its log-probs, and the handing over of an adapter", check_vllm),
    "sleep": ("the memory that vLLM gives back", check_sleep),
    "first-batch": ("a first batch of paper-webshop", check_first_batch),
}


def check_gpu(
    device: str = "cuda",
    *,
    small: ModelShape = KNOWN_SHAPES[SMALL_MODEL],
    paper: ModelShape = KNOWN_SHAPES[PAPER_MODEL],
) -> Iterator[Check]:
    """Run the checks in their order. One that raises has failed, with its error in a sentence, and the next ones run.

    Raises:
        OptionError: If there is no such device.
    """
    with tempfile.TemporaryDirectory(prefix="fedagentgym-gpu-") as folder:
        bench = Bench(device, Path(folder), small, paper)
        try:
            for name, (about, check) in CHECKS.items():
                begun = perf_counter()
                try:
                    found = check(bench)
                except Exception as error:
                    found = Found(False, describe_error(error))
                bench.free()
                yield Check(name, about, found.passed, found.words, perf_counter() - begun, found.numbers)
        finally:
            bench.close()


# ---- parts ----------------------------------------------------------------------------------------------------------------


def make_random_model(folder: Path, shape: ModelShape, env: TextEnv, *, narrow: bool = False) -> None:
    """A model with random weights and a tokenizer of the environment's words, in a folder."""
    transformers, torch = require("transformers", "train"), require("torch", "train")
    tokenizer = make_word_tokenizer(env.vocabulary(), 32_768).hf
    config = transformers.AutoConfig.for_model(
        shape.architecture,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.inner,
        vocab_size=max(shape.vocabulary, len(tokenizer)),
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32_768,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    dtype = torch.bfloat16 if narrow else torch.float32
    with hush_transformers():
        transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def score_plainly(policy: Any, rows: Sequence[Row]) -> NDArray[np.float64]:
    """The log-probs of the rows' own tokens by the model's plain forward pass, a row at a time, in the type of its weights."""
    torch = require("torch", "train")
    found = []
    with torch.no_grad():
        for row in rows:
            ids = torch.from_numpy(row.ids).to(policy.device)
            logits = policy.model(input_ids=ids[None], use_cache=False).logits[0].double().log_softmax(-1)
            places = torch.from_numpy(find_choices(row)).to(policy.device)
            found.append(logits[places - 1, ids[places]].cpu().numpy())
    return np.concatenate(found)


def score_as_trained(agent: TokenAgent, config: RunConfig, rows: Sequence[Row]) -> NDArray[np.float64]:
    """The log-probs of the rows' own tokens as a policy step computes them."""
    updater = PolicyUpdate(get_trainable_policy(agent), agent.decoding, config.learning)
    return np.concatenate([one.double().cpu().numpy() for one in updater.score_rows(rows)])


def compare_played(agent: TokenAgent, bench: Bench) -> dict[str, float]:
    """Play, and compare the recorded log-probs with those that a step computes."""
    groups = collect(agent, bench.env, bench.env.pool.ids[4:12], group_size=8, seed=2).groups
    rows = build_rows(groups, [tuple(np.ones(len(one.turns)) for one in group) for group in groups])
    recorded = np.concatenate([row.behaviour for row in rows]).astype(np.float64)
    return compare(score_as_trained(agent, bench.load_config("cpu"), rows), recorded)


def play_greedily(bench: Bench) -> list[list[str]]:
    """The replies of vLLM at temperature 0."""
    policy: Any = get_trainable_policy(bench.played)
    decoding = bench.played.decoding.model_copy(update={"temperature": 0.0})
    prompts = [row.ids[: row.own[0]].tolist() for row in bench.rows[:8]]
    answers = policy.engine.complete(prompts, [0] * len(prompts), decoding)
    return [list(answer.token_ids) for answer in answers]


def compare(some: NDArray[np.float64], others: NDArray[np.float64]) -> dict[str, float]:
    """The mean and the 99.9th percentile of the absolute differences of log-probs."""
    difference = np.abs(some - others)
    return {"mean": float(difference.mean()), "tail": float(np.quantile(difference, 0.999))}


def is_near(found: Mapping[str, float]) -> bool:
    return found["mean"] <= MAX_ROUNDED and found["tail"] <= MAX_ROUNDED_TAIL


def describe(found: Mapping[str, float]) -> str:
    return f"{format_fixed(found['mean'], 4)} on average and 99.9 % below {format_fixed(found['tail'], 3)}"


class Measured(NamedTuple):
    """A run beside its plan: the largest memory of the card, and how long it took."""

    plan: RunPlan
    seconds: float
    peak: int
    rounds: int


def run_beside_plan(model: Path, folder: Path, changes: Sequence[str], turns: int) -> Measured:
    """Two rounds of `paper-webshop:lora` with a model folder in the generated shop, and what its plan says of them."""
    torch = require("torch", "train")
    every = [
        f"agent.model={model}",
        "agent.chat=false",
        f"env={{id: fedagentgym/WebShop-v0, options: {SHOP % turns}}}",
        "partition={sampler: uniform, clients: 4, tasks_per_client: 4}",
        "federation={rounds: 2, workers: 0}",
        "algorithm.local_steps=1",
        "evaluation=null",
        f"output.folder={folder}",
        *changes,
    ]
    plan = plan_run(load_config("paper-webshop:lora", every))
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begun = perf_counter()
    result = train("paper-webshop:lora", every, force=True)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return Measured(plan, perf_counter() - begun, peak, int(result.record["rounds"]))
