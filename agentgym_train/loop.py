"""The training loop: ScalingInter-RL (arXiv 2509.08755).

`Trainer.train_step` is the algorithm. What it calls stands in files of its own: rollout.py, estimators.py,
packing.py, update.py, critic.py; what it holds is put together in `Trainer.__init__`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor
from transformers import PreTrainedModel

from agentgym_train.adaptive_horizon import AdaptiveHorizon, Signals
from agentgym_train.chat import Chat
from agentgym_train.checks import check_config, make_schedule, pick_device
from agentgym_train.config import Config, ConfigError
from agentgym_train.critic import Critic, estimates, update_critic
from agentgym_train.demonstrations import oracle_trajectories
from agentgym_train.engines import EngineError
from agentgym_train.engines.hf import HFEngine
from agentgym_train.estimators import KL_IN_REWARD, choose, token_advantages
from agentgym_train.memory import give_back
from agentgym_train.metrics import batch_metrics, evaluation_metrics
from agentgym_train.models import ModelError, load_model, load_tokenizer, stop_tokens
from agentgym_train.packing import Row, pack
from agentgym_train.rollout import RolloutRunner
from agentgym_train.run_folder import RunFolder, load_state
from agentgym_train.self_check import check_packing
from agentgym_train.statistics import paired_bootstrap
from agentgym_train.stop import StopRequested, StopSignals
from agentgym_train.task_pools import draw, episode_seed, task_pools
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Episode, Trajectory, open_trajectory
from agentgym_train.update import (
    NumericsError,
    learning_rate,
    make_optimiser,
    reference_logprobs,
    update_policy,
    update_supervised,
)
from agentgym_wrappers import ActionParser, HorizonCurriculum, Schedule, SubprocVectorEnv


class Trainer:
    """One run: its models, environments and folder."""

    def __init__(self, config: Config, folder: RunFolder, stop: StopSignals, terminal: Terminal) -> None:
        """Load everything; the folder's newest checkpoint if it has one.

        Raises:
            ConfigError, ModelError, ChatTemplateError: If something that the run needs is missing or wrong.
        """
        check_config(config)
        self.config, self.folder, self.stop, self.terminal = config, folder, stop, terminal
        self.pools = task_pools(config)
        self.schedule = make_schedule(config)
        if isinstance(self.schedule, AdaptiveHorizon) and folder.progress.horizon:
            self.schedule.restore(folder.progress.horizon)
        device = pick_device(config)
        try:
            self._make_env().close()
        except ValueError as error:
            raise ConfigError(f"env.formats={list(config.env.formats)}: {error}") from error
        checkpoint = folder.checkpoint
        source = str(checkpoint or config.model.path)
        # A checkpoint's tokenizer has the template already.
        self.tokenizer = load_tokenizer(source, "" if checkpoint else config.model.chat_template)
        self.model = load_model(source, device)
        check_packing(self.model, config.model.path)
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if positions is not None and config.rollout.max_context > positions:
            raise ConfigError(
                f"rollout.max_context={config.rollout.max_context} is more than the model's {positions} positions."
            )
        self.chat = Chat(self.tokenizer, stop_tokens(self.model))
        self.optimiser = make_optimiser(self.model, config.optimiser)
        if checkpoint is not None:
            load_state(self.optimiser, checkpoint, "optimiser", self.model.device)
        try:
            self.engine = HFEngine(_copy(self.model, config.rollout.precision), self.chat.stop_tokens)
        except ValueError as error:
            raise ModelError(f"model.path={config.model.path!r}: {error}") from error
        self.reference: PreTrainedModel | None = None
        self.critic: Critic | None = None
        if checkpoint is not None and folder.progress.phase == "train":
            self._make_critic(checkpoint)
        self._told = ""  # what the adaptive horizon said last
        self._seconds: dict[str, float] = {}  # by phase, of the last time that the phase ran
        self._check_prompt()
        self.vec = self._make_vec()
        self.runner = RolloutRunner(
            self.vec,
            self.engine,
            self.chat,
            max_reply_tokens=config.rollout.max_reply_tokens,
            max_context=config.rollout.max_context,
            reply_instruction=config.env.reply_instruction,
            deterministic=config.rollout.deterministic,
            check=stop.check,
        )

    def run(self) -> dict[str, Any]:
        """Train from where the folder's checkpoint stands to the end; returns the summary."""
        config, progress = self.config, self.folder.progress
        if progress.phase == "warm_start":
            self._warm_start()
        self._load_reference()
        if config.evaluate.at_start:
            self._evaluate("before")
        for step in range(progress.step, config.steps):
            if config.evaluate.every and step and step % config.evaluate.every == 0:
                self._evaluate("between", f"between-{step}")
            self.stop.check()
            self.train_step(step)
            progress.step = step + 1
            if config.checkpoint_every and progress.step % config.checkpoint_every == 0:
                self.save()
        self._evaluate("after", f"after-{config.steps}")
        self.save()
        return self.summary("finished")

    def train_step(self, step: int) -> None:
        """Choose tasks, roll out groups at the current horizon, score, update, log."""
        config = self.config
        horizon = self.schedule.horizon_at(step)
        with self._timed("rollout"):
            trajectories = self._sample(step, horizon)

        chosen = choose(trajectories, config.algorithm)
        batch = [trajectory for trajectory, kept in zip(trajectories, chosen.trained, strict=True) if kept]
        own = [value for value, kept in zip(chosen.values, chosen.trained, strict=True) if kept]
        rows = pack(batch, config.optimiser.token_budget)

        lr = learning_rate(step, config.optimiser.lr, config.optimiser.warmup_steps)
        with self._saved_on_failure(step, batch):
            with self._timed("reference"):
                reference = self._reference_logprobs(rows)
            with self._timed("update"):
                update = self._update(batch, own, rows, reference, lr)
        self.engine.update_weights(self.model)
        give_back()

        row = {
            "step": step,
            "phase": "train",
            "time": time.time(),
            "horizon": horizon,
            "lr": lr,
            **batch_metrics(trajectories, chosen, rows),
            **update,
            **{f"seconds/{phase}": self._seconds[phase] for phase in ("rollout", "reference", "update")},
        }
        self.folder.log(row)
        self.folder.log_trajectories(t.to_row(step=step, phase="train", name="train") for t in trajectories)
        self.terminal.step(row, config.steps)
        if isinstance(self.schedule, AdaptiveHorizon):
            self._adapt(self.schedule, row)

    def _adapt(self, horizon: AdaptiveHorizon, row: dict[str, Any]) -> None:
        """Let the horizon follow what the step has shown; a step without an update has no entropy to tell of."""
        if "entropy" not in row:
            return
        told = horizon.observe(
            Signals(row["success/mean"], row["entropy"], row["tokens/reply_mean"], row["valid_action_share"])
        )
        if told == "raised":
            self.terminal.say(f"step {row['step'] + 1}: success has settled, the horizon is raised to {horizon.turns}")
        elif told and not self._told:
            self.terminal.say(f"step {row['step'] + 1}: the horizon is held at {horizon.turns}, {told}")
        self._told = told

    def _sample(self, step: int, horizon: int) -> list[Trajectory]:
        """Roll out the step's groups, and further ones while too few have differing rewards, if that is asked for.

        Leaving out groups without variance and sampling others is DAPO's dynamic sampling (arXiv 2503.14476,
        section 3.2).
        """
        count, algorithm = self.config.rollout.tasks_per_step, self.config.algorithm
        trajectories: list[Trajectory] = []
        for attempt in range(algorithm.resample_rounds + 1):
            seed = f"{self.config.seed}" if attempt == 0 else f"{self.config.seed}/again/{attempt}"
            tasks = draw(self.pools.train, step, count, seed)
            title = f"step {step + 1}" + (f", round {attempt + 1}" if attempt else "")
            trajectories += self._roll_out(title, self._groups(step, tasks, horizon, first=attempt * count))
            chosen = choose(trajectories, algorithm)
            if algorithm.name in KL_IN_REWARD or chosen.groups - chosen.zero_variance >= count:
                break
        return trajectories

    def _groups(self, step: int, tasks: Sequence[str], horizon: int, first: int) -> list[Episode]:
        """Expand each task into a group of episodes that start from the same text."""
        seed = self.config.seed
        return [
            Episode(task, episode_seed(seed, step, place), sample, horizon, f"{seed}/train/{step}")
            for place, task in enumerate(tasks, start=first)
            for sample in range(self.config.rollout.samples_per_task)
        ]

    def _reference_logprobs(self, rows: Sequence[Row]) -> list[Tensor] | None:
        """Log-probabilities under the reference policy, or None without a KL term."""
        if self.reference is None:
            return None
        temperature, precision = self.config.rollout.temperature, self.config.optimiser.precision
        return reference_logprobs(self.reference, rows, temperature, precision, self.stop.check)

    def _update(
        self,
        batch: Sequence[Trajectory],
        own: Sequence[float],
        rows: Sequence[Row],
        reference: Sequence[Tensor] | None,
        lr: float,
    ) -> dict[str, float]:
        """Update the policy, and the critic if there is one; without trajectories there is nothing to learn from."""
        config, algorithm = self.config, self.config.algorithm
        if not rows:
            return {}
        values = None
        if self.critic is not None:
            values = estimates(self.critic, self.model, rows, config.optimiser.precision)
        advantages, targets = token_advantages(batch, own, rows, reference, values, algorithm)
        metrics = update_policy(
            self.model,
            self.optimiser,
            rows,
            advantages,
            [trajectory.sampled for trajectory in batch],
            reference,
            config.rollout.temperature,
            lr,
            replace(algorithm, kl_coef=0.0) if algorithm.name in KL_IN_REWARD else algorithm,
            config.optimiser,
            self.stop.check,
        )
        if self.critic is not None:
            metrics |= update_critic(
                self.critic,
                self.model,
                self.critic_optimiser,
                rows,
                targets,
                algorithm.critic_lr,
                config.optimiser,
                lambda: None,  # the policy has moved: the step is carried to its end
            )
        return metrics

    def save(self) -> None:
        """Write a checkpoint."""
        if isinstance(self.schedule, AdaptiveHorizon):
            self.folder.progress.horizon = self.schedule.state()
        states = {"optimiser": self.optimiser.state_dict()}
        if self.critic is not None:
            states |= {"critic": self.critic.state_dict(), "critic_optimiser": self.critic_optimiser.state_dict()}
        self.folder.save_checkpoint(self.model, self.tokenizer, states)

    def summary(self, status: str) -> dict[str, Any]:
        """Put the run's result together and write it to the folder."""
        config = self.config
        results = self.folder.progress.evaluations
        summary: dict[str, Any] = {
            "status": status,
            "env": config.env.id,
            "subsets": list(config.env.subsets),
            "model": config.model.path,
            "seed": config.seed,
            "steps": self.folder.progress.step if self.folder.progress.phase == "train" else 0,
            "steps_without_update": self.folder.progress.steps_without_update,
            "horizon_eval": config.evaluate.horizon,
            "seconds": self.folder.progress.seconds,
        }
        if "before" in results and "after" in results:
            before, after = results["before"], results["after"]
            summary |= {"before": before["success/mean"], "after": after["success/mean"]}
            first, last = before["success/by_task"], after["success/by_task"]
            # A task whose every episode ended in an error is in one of them only.
            if common := first.keys() & last.keys():
                gain, low, high = paired_bootstrap(
                    {task: first[task] for task in common}, {task: last[task] for task in common}
                )
                summary |= {"gain": gain, "gain_low": low, "gain_high": high}
        summary["checkpoint"] = str(self.folder.checkpoint)
        self.folder.write_summary(summary)
        return summary

    def close(self) -> None:
        """Close the environments."""
        self.vec.close()

    def _warm_start(self) -> None:
        """Supervised training on oracle episodes, then a fresh optimiser for what follows."""
        config, warm, progress = self.config, self.config.warm_start, self.folder.progress
        if warm.kind == "oracle":
            env = self._make_env()
            try:
                seeds = [episode_seed("warm_start", task) for task in self.pools.warm_start]
                episodes = oracle_trajectories(
                    env, self.chat, self.pools.warm_start, seeds, config.env.reply_instruction
                )
            finally:
                env.close()
            batches = [
                [episodes[index] for index in batch]
                for batch in _batches(len(episodes), warm.batch_size, warm.epochs, config.seed)
            ]
            warmup = max(1, len(batches) // 10)
            with self._timed("warm_start"), self.terminal.bar("warm start", len(batches)) as advance:
                for step, batch in enumerate(batches):
                    if step >= progress.step:
                        rows = pack(batch, config.optimiser.token_budget)
                        lr = learning_rate(step, warm.lr, warmup)
                        with self._saved_on_failure(step, batch):
                            metrics = update_supervised(
                                self.model, self.optimiser, rows, lr, config.optimiser, self.stop.check
                            )
                        self.folder.log({"step": step, "phase": "warm_start", "time": time.time(), **metrics})
                        progress.step = step + 1
                    advance()
            self.terminal.say(f"warm start: {len(episodes)} oracle episodes, loss {metrics['loss']:.3f} nats a token")
            self.engine.update_weights(self.model)
        self.optimiser = make_optimiser(self.model, config.optimiser)
        self._make_critic()
        give_back()
        progress.phase, progress.step = "train", 0
        if config.algorithm.kl_coef:
            self.folder.save_reference(self.model, self.tokenizer)
        self.save()

    def _make_critic(self, checkpoint: Path | None = None) -> None:
        """The critic of PPO, from the policy as it is now or from a checkpoint."""
        if self.config.algorithm.name != "ppo":
            return
        self.critic = Critic(self.model)
        self.critic_optimiser = make_optimiser(self.critic, self.config.optimiser)
        if checkpoint is not None:
            load_state(self.critic, checkpoint, "critic", self.model.device)
            load_state(self.critic_optimiser, checkpoint, "critic_optimiser", self.model.device)

    def _load_reference(self) -> None:
        """The policy as it was after the warm start, for the KL term."""
        if self.config.algorithm.kl_coef:
            self.reference = load_model(str(self.folder.reference), self.model.device).eval().requires_grad_(False)

    def _evaluate(self, name: str, key: str = "") -> None:
        """Roll out held-out tasks at the evaluation horizon, once per name."""
        config, progress = self.config, self.folder.progress
        key = key or name
        if key in progress.evaluated:
            return
        spec = config.evaluate
        episodes = [
            # The same episodes at every evaluation and in every run: only the policy's sampling differs.
            Episode(task, episode_seed("evaluate", task), sample, spec.horizon, f"{config.seed}/evaluate/{key}")
            for task in self.pools.test
            for sample in range(spec.samples)
        ]
        with self._timed("evaluate"):
            trajectories = self._roll_out(f"evaluation {name}", episodes, spec.temperature)
        step = progress.step
        row = {
            "step": step,
            "phase": "eval",
            "name": name,
            "time": time.time(),
            "horizon": spec.horizon,
            "temperature": spec.temperature,
            **evaluation_metrics(trajectories),
        }
        self.folder.log(row)
        self.folder.log_trajectories(t.to_row(step=step, phase="eval", name=name) for t in trajectories)
        progress.evaluated.append(key)
        self.terminal.say(
            f"evaluation {name} (step {step}): success {row['success/mean']:.3f} on {row['tasks']} held-out tasks "
            f"x {row['samples']} samples, {spec.horizon} turns, temperature {spec.temperature}"
        )

    def _roll_out(self, title: str, episodes: Sequence[Episode], temperature: float | None = None) -> list[Trajectory]:
        """Roll out episodes under a progress bar; too many errors, or a damaged model, end the run."""
        if temperature is None:
            temperature = self.config.rollout.temperature
        with self.terminal.bar(title, len(episodes)) as advance:
            try:
                trajectories = self.runner.run(episodes, temperature, lambda _: advance())
            except EngineError as error:
                content = {"step": self.folder.progress.step, "episodes": [asdict(episode) for episode in episodes]}
                where = self.folder.save_failed_batch(content)
                raise EngineError(f"{title}: {error} The episodes are in {where}.") from error
        give_back()
        _check_errors(trajectories, self.config.max_error_share)
        return trajectories

    @contextmanager
    def _saved_on_failure(self, step: int, batch: Sequence[Trajectory]) -> Iterator[None]:
        """Save the batch if a number of its update is not finite."""
        try:
            yield
        except NumericsError as error:
            where = self.folder.save_failed_batch({"step": step, "batch": [vars_of(t) for t in batch]})
            raise NumericsError(
                f"step {step}: {error}. The batch is in {where}; the last checkpoint is from before it. Try a lower "
                "learning rate."
            ) from error

    def _check_prompt(self) -> None:
        """Find out at start, not after the warm start, that prompts do not fit."""
        env = self._make_env()
        try:
            observation, info = env.reset(seed=0, options={"task": self.pools.train[0]})
        finally:
            env.close()
        probe = Trajectory(Episode(self.pools.train[0], 0, 0, 1, ""))
        open_trajectory(probe, self.chat, observation, info, self.config.env.reply_instruction)
        rollout = self.config.rollout
        if probe.prompt_length + rollout.max_reply_tokens > rollout.max_context:
            raise ConfigError(
                f"rollout.max_context={rollout.max_context} has no room for a prompt of {probe.prompt_length} tokens "
                f"(task {self.pools.train[0]}) and a reply of rollout.max_reply_tokens={rollout.max_reply_tokens}; "
                "raise it."
            )

    def _make_env(self) -> gymnasium.Env[str, str]:
        """One environment in this process, for what needs no more."""
        env: Any = gymnasium.make(self.config.env.id, **self.config.env.options)
        for wrapper in self._wrappers():
            env = wrapper(env)
        return cast("gymnasium.Env[str, str]", env)

    def _make_vec(self) -> SubprocVectorEnv:
        """The environments of the rollouts; the trainer says when an episode begins."""
        rollout, evaluate = self.config.rollout, self.config.evaluate
        most = max(rollout.tasks_per_step * rollout.samples_per_task, len(self.pools.test) * evaluate.samples)
        num_envs = min(rollout.max_parallel, most)
        return SubprocVectorEnv.make(
            self.config.env.id,
            num_envs,
            env_wrappers=self._wrappers(),
            workers=min(rollout.env_workers, num_envs),
            autoreset_mode=AutoresetMode.DISABLED,
            fault_limit=round(100 * self.config.max_error_share),
            **self.config.env.options,
        )

    def _wrappers(self) -> list[Callable[[Any], gymnasium.Env[Any, Any]]]:
        """What is around each environment, innermost first."""
        return [
            partial(ActionParser, formats=self.config.env.formats),
            # Each reset says its horizon.
            partial(HorizonCurriculum, schedule=self.schedule if isinstance(self.schedule, Schedule) else 1),
        ]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Measure wall time, for the step's row and the summary."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = time.perf_counter() - begin
            spent = self.folder.progress.seconds
            spent[phase] = spent.get(phase, 0.0) + self._seconds[phase]


def train(config: Config, resume: bool = False, terminal: Terminal | None = None) -> dict[str, Any]:
    """Run or resume a training run.

    Args:
        config: The configuration; `run_dir` names the folder.
        resume: Continue the run in that folder.
        terminal: Where to show progress.

    Returns:
        The summary: success before and after on held-out tasks, and the gain with its interval.

    Raises:
        ConfigError, ModelError, ChatTemplateError: Before anything is trained, if the run cannot work.
        NumericsError: If a loss or gradient is not finite; the batch is saved in the run folder.
        StopRequested: After Ctrl-C or SIGTERM, once a checkpoint is written.
    """
    terminal = terminal or Terminal()
    check_config(config)
    folder = RunFolder(Path(config.run_dir), config, resume)
    try:
        with StopSignals() as stop:
            try:
                trainer = Trainer(config, folder, stop, terminal)
            except Exception:
                if not resume:
                    folder.abandon()
                raise
            try:
                return trainer.run()
            except StopRequested:
                trainer.save()
                trainer.summary("interrupted")
                terminal.say(f"stopped; continue with: agentgym train --resume {config.run_dir}")
                raise
            finally:
                trainer.close()
    finally:
        folder.close()


def vars_of(trajectory: Trajectory) -> dict[str, Any]:
    """Everything about a trajectory that is needed to compute its loss again."""
    return {
        **trajectory.to_row(),
        "tokens": trajectory.tokens,
        "mask": trajectory.mask,
        "logprobs": trajectory.logprobs,
        "prompt_length": trajectory.prompt_length,
    }


def _check_errors(trajectories: Sequence[Trajectory], limit: float) -> None:
    errors = [trajectory.error for trajectory in trajectories if trajectory.end == "error"]
    if len(errors) > limit * len(trajectories):
        raise EngineError(
            f"{len(errors)} of {len(trajectories)} episodes ended in an error, more than max_error_share={limit}. "
            f"The first one:\n{errors[0]}"
        )


def _batches(count: int, size: int, epochs: int, seed: int) -> list[list[int]]:
    """Indices of the batches of all epochs, in an order that the seed gives."""
    names = tuple(map(str, range(count)))
    order = [int(name) for epoch in range(epochs) for name in draw(names, epoch, count, seed)]
    return [order[start : start + size] for start in range(0, len(order), size)]


def _copy(model: PreTrainedModel, precision: str) -> PreTrainedModel:
    own = copy.deepcopy(model).requires_grad_(False)
    if precision == "bfloat16":
        for parameter in own.parameters():  # not the buffers: rounded rotary frequencies drift with distance
            parameter.data = parameter.data.to(torch.bfloat16)
    return own
