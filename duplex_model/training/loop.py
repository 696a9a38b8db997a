"""The loop that both stages share: batches, optimiser, schedule, validation, log, resumable checkpoints."""

import json
import math
import os
import time
import zlib
from array import array
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import DistributedType
from accelerate.utils import broadcast
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from duplex_model.data import collate, make_batches

MAY_CHANGE = ("steps", "decay", "validate_every", "log_every", "checkpoint_minutes")  # when a run is taken up again


def learning_rate(step, settings):
    """Linear warm-up, constant, then a linear fall to 2% over the last `decay` share of the steps."""
    rise = min(1.0, (step + 1) / max(settings.warmup, 1))
    fall = (settings.steps - step) / max(settings.decay * settings.steps, 1)
    return settings.lr * min(rise, max(fall, 0.02), 1.0)


def add_dropout(module, share):
    """Drop this share of the embeddings and of what each attention and MLP adds to the residual stream, in training."""

    def drop(part, args, output):
        return F.dropout(output, share, part.training)

    for name, part in module.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            part.register_forward_hook(drop)


# Whole tensors on the CPU of the first process, also of a model that is sharded; what is frozen need not be kept.
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)


def trained_state(module):
    """The state of `module` without frozen parameters, on the first process; all processes have to call this."""
    return get_model_state_dict(module, options=WHOLE)


def load_trained(module, state):
    """Load what `trained_state` gave, on all processes; ValueError if it is of another model."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    missing, unexpected = sorted(trained - set(state)), sorted(set(state) - set(module.state_dict()))
    if missing or unexpected:
        raise ValueError(f"this is no checkpoint of the same model: missing {missing}, unexpected {unexpected}")
    set_model_state_dict(module, state, options=replace(WHOLE, strict=False))


def fingerprint(parameters):
    """A number that tells other weights from these."""
    return f"{sum(parameter.detach().abs().sum(dtype=torch.float64).item() for parameter in parameters):.9g}"


def digest(examples):
    """A number that tells other text from that of the `examples`, or another order of it."""
    return zlib.crc32(array("i", (i for e in examples for i in (*e.source, *e.target))))


class BatchStream:
    """Batch number n of an endless, reproducible sequence of shuffled epochs."""

    def __init__(self, examples, budget, cost, seed):
        self.examples, self.budget, self.cost, self.seed = examples, budget, cost, seed
        self.epoch, self.batches = -1, self._shuffle(0)

    def _shuffle(self, epoch):
        return make_batches(self.examples, self.budget, self.cost, np.random.default_rng((self.seed, epoch)))

    def __getitem__(self, number):
        epoch, index = divmod(number, len(self.batches))  # every epoch has the same number of batches
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, self._shuffle(epoch)
        return collate([self.examples[i] for i in self.batches[index]])


def backward(accelerator, module, weights, batch, draws):
    """Forward and backward of one batch a process; returns ([T] mean losses over all processes, [T] global counts).

    Each loss term is divided by its count over all processes, so unequal batches give the gradient of their union.
    """
    sums, counts = module(batch, *draws)
    counts = accelerator.reduce(counts.detach().double(), "sum").clamp_min(1)
    means = sums / counts.to(sums.dtype)
    # Data-parallel wrappers average the gradients over processes; the sum is wanted.
    accelerator.backward((means * weights.to(means)).sum() * accelerator.num_processes)
    return accelerator.reduce(means.detach(), "sum"), counts


class Run:
    """One stage's training run in `folder`: resumes from its checkpoint, keeps the best validated weights. Raises
    ValueError if that checkpoint was made of something else, or if the settings cannot be trained so."""

    def __init__(self, accelerator, stage, settings, folder, seed, **made_of):
        """made_of: what else the weights depend on; a checkpoint made of something else is refused."""
        self.accelerator, self.stage, self.settings = accelerator, stage, settings
        self.folder = Path(folder)
        frozen = [parameter for parameter in stage.module.parameters() if not parameter.requires_grad]
        self.made_of = {"seed": seed, "frozen weights": fingerprint(frozen), **made_of}
        self.made_of |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
        self.folder.mkdir(parents=True, exist_ok=True)
        trained = [parameter for parameter in stage.module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=settings.lr, betas=(0.9, 0.98), weight_decay=settings.weight_decay)
        self.sharded = accelerator.distributed_type == DistributedType.FSDP
        if self.sharded and settings.ema:
            raise ValueError("averaged weights (ema) need whole models; leave them out with FSDP")
        if self.sharded:
            plugin = accelerator.state.fsdp_plugin
            plugin.transformer_cls_names_to_wrap = list(stage.layers)  # else it would keep the first stage's
            plugin.mixed_precision_policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # autocast is enough
        if settings.dropout:
            add_dropout(stage.module, settings.dropout)
        self.averaged = None
        if settings.ema:
            mean = get_ema_multi_avg_fn(settings.ema)
            self.averaged = AveragedModel(stage.module, device=accelerator.device, multi_avg_fn=mean)
        self.module, self.optimizer = accelerator.prepare(stage.module, optimizer)
        self.step, self.best, self.cells, self.seconds = 0, float("inf"), 0, 0.0
        self._load()

    def _due(self, due):
        """Whether the first process's clock says so: sharded weights are gathered by all processes at once."""
        if not self.sharded:
            return due
        return bool(broadcast(torch.tensor(float(due), device=self.accelerator.device)).item())

    @property
    def raw_module(self):
        return self.accelerator.unwrap_model(self.module)

    def train(self, stream, dev_batches):
        """Train to the settings' last step; returns the best validation score and leaves its weights in the module."""
        main = self.accelerator.is_main_process
        bar = tqdm(total=self.settings.steps, initial=self.step, disable=not main, desc=self.stage.name, mininterval=5)
        weights = torch.tensor(self.stage.weights, device=self.accelerator.device)
        saved = logged = time.monotonic()
        while self.step < self.settings.steps:
            means, counts = self._advance(stream, weights)
            bar.update()
            now = time.monotonic()
            if self.step % self.settings.log_every == 0:
                self.seconds += now - logged
                logged = now
                self._log(dict(zip(self.stage.module_terms, means.tolist(), strict=True)), bar)
            if self.step % self.settings.validate_every == 0 or self.step == self.settings.steps:
                self._validate(dev_batches)
                logged += time.monotonic() - now  # validation is not training time
            if self._due(now - saved > 60 * self.settings.checkpoint_minutes) or self.step == self.settings.steps:
                self._save()
                saved = now
        if math.isinf(self.best):  # the steps were shortened to those that are done, before any validation
            self._validate(dev_batches)
        self.accelerator.wait_for_everyone()  # the main process writes what all read
        load_trained(self.raw_module, self.best_state())
        return self.best

    def best_state(self):
        """`trained_state` of the best validated weights."""
        return torch.load(self.folder / "best.pt", map_location="cpu", weights_only=True)

    def _advance(self, stream, weights):
        accelerator, settings = self.accelerator, self.settings
        self.module.train()
        batch = stream[self.step * accelerator.num_processes + accelerator.process_index].to(accelerator.device)
        # Draws depend on (seed, step, process) alone, so a resumed run repeats them.
        torch.manual_seed(hash((self.made_of["seed"], self.step, accelerator.process_index)) % (1 << 31))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, settings)
        means, counts = backward(accelerator, self.module, weights, batch, self.stage.draw(batch))
        accelerator.clip_grad_norm_(self.module.parameters(), settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update_parameters(self.raw_module)
        self.step += 1
        self.cells += int(self.stage.work(batch)) * accelerator.num_processes
        return means, counts

    def validate(self, dev_batches, module=None):
        """The stage's dev scores of `module`, or of the trained one as it is."""
        module = module or self.raw_module
        module.eval()
        with torch.no_grad(), self.accelerator.autocast():
            return self.stage.validate(module, dev_batches)

    def _validate(self, dev_batches):
        kept = self.raw_module if self.averaged is None else self.averaged.module
        scores = self.validate(dev_batches, kept)
        self._log({f"dev_{name}": value for name, value in scores.items()})
        if not math.isfinite(scores["score"]):
            raise ValueError(
                f"step {self.step}: the dev loss is {scores['score']}; begin in another output folder with a lower lr "
                "or a longer warmup"
            )
        if scores["score"] < self.best:
            self.best = scores["score"]
            self._write(trained_state(kept), "best.pt")

    def _log(self, values, bar=None):
        if not self.accelerator.is_main_process:
            return
        values = {name: round(value, 4) for name, value in values.items()}
        if bar is not None:
            bar.set_postfix(values, refresh=False)
        rate = round(self.cells / self.seconds) if self.seconds else 0
        record = {"step": self.step, **values, f"{self.stage.unit}_per_second": rate, "seconds": round(self.seconds)}
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")

    def _write(self, state, name):
        if self.accelerator.is_main_process:
            torch.save(state, self.folder / f"{name}.tmp")
            os.replace(self.folder / f"{name}.tmp", self.folder / name)

    def _save(self):
        state = {
            "module": trained_state(self.raw_module),
            "averaged": None if self.averaged is None else trained_state(self.averaged),
            "optimizer": get_optimizer_state_dict(self.module, self.optimizer.optimizer, options=WHOLE),
            "settings": {**asdict(self.settings), **self.made_of},
            **{name: getattr(self, name) for name in ("step", "best", "cells", "seconds")},
        }
        self._write(state, "checkpoint.pt")

    def _load(self):
        path = self.folder / "checkpoint.pt"
        if path.is_file():
            self._restore(path)
        if self.accelerator.is_main_process:
            self._cut_log()

    def _restore(self, path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        now, before = {**asdict(self.settings), **self.made_of}, state["settings"]
        changed = [key for key in now if key not in MAY_CHANGE and now[key] != before.get(key)]
        if changed:
            raise ValueError(f"{path} was made with another {', '.join(changed)}; use another output folder")
        if state["step"] > self.settings.steps:
            raise ValueError(
                f"{path} is at step {state['step']}, beyond steps = {self.settings.steps}; give more steps"
            )
        load_trained(self.raw_module, state["module"])
        if self.averaged is not None:
            load_trained(self.averaged, state["averaged"])
        set_optimizer_state_dict(self.module, self.optimizer.optimizer, state["optimizer"], options=WHOLE)
        self.step, self.best, self.cells, self.seconds = (state[k] for k in ("step", "best", "cells", "seconds"))

    def _cut_log(self):
        """Drop the log's records of steps after the checkpoint, which come again, and what a cut left of a line."""
        log = self.folder / "log.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.is_file() else []
        lines = [line for line in lines if line.endswith("\n")]
        log.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.step), encoding="utf-8")
