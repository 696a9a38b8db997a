"""What the two stages train: module, names of its layers' classes, random draws of a batch, validation."""

import math

import torch

from duplex_model.lm import MultipathLM
from duplex_model.losses import DuplexLoss

EVERYTHING = 1 << 20  # more words ahead than any sentence has: the whole source is visible


class LmStage:
    """Stage 1: the multi-path causal LM."""

    name, unit = "lm", "tokens"
    module_terms = MultipathLM.terms

    def __init__(self, lm, settings):
        self.module, self.layers = MultipathLM(lm, settings.label_smoothing), lm._no_split_modules
        self.weights = (1.0, settings.source_weight)

    @staticmethod
    def cost(X, Y):
        """What a sentence takes of a batch's budget, tokens."""
        return X + Y

    @staticmethod
    def work(batch):
        """Tokens of the batch, without padding."""
        return batch.source_len.sum() + batch.target_len.sum()

    @staticmethod
    def draw(batch):
        """k ~ U{1..|x|} words, one a sentence."""
        words = batch.row_count - 1
        k = 1 + (torch.rand(len(words), device=words.device) * words).long()
        return (torch.minimum(k, words),)

    def validate(self, module, batches):
        """Target nats a token at k = 1, 3 and with the whole source; the score is their mean."""
        scores = {}
        for name, k in (("k1", 1), ("k3", 3), ("full", EVERYTHING)):
            totals = torch.zeros(2, dtype=torch.float64)
            for batch in batches:
                sums, counts = module(batch, torch.full_like(batch.source_len, k))
                totals += torch.stack([sums[0], counts[0]]).double().cpu()
            scores[name] = (totals[0] / totals[1]).item()
        return {**scores, "score": sum(scores.values()) / len(scores)}


class DuplexStage:
    """Stage 2: the grid with L_LM + L_emit."""

    name, unit = "duplex", "cells"
    module_terms = DuplexLoss.terms

    def __init__(self, model, settings):
        self.module = DuplexLoss(model, settings.lam_lm, settings.label_smoothing, settings.distill)
        self.layers = model._no_split_modules
        self.weights = (1.0, settings.emit_weight, 0.0, 0.0)
        self.settings = settings

    @staticmethod
    def cost(X, Y):
        """What a sentence takes of a batch's budget, cells."""
        return X * Y

    @staticmethod
    def work(batch):
        """Cells of the batch, without padding."""
        return (batch.source_len * batch.target_len).sum()

    def draw(self, batch):
        """`lam_draws` prices, log-uniform over [lam_min, lam_max]."""
        low, high = math.log(self.settings.lam_min), math.log(self.settings.lam_max)
        uniform = torch.rand(self.settings.lam_draws, device=batch.source_len.device)
        return ((low + (high - low) * uniform).exp(),)

    def validate(self, module, batches):
        """The losses over the dev batches at the ends and the middle of the lam range; the score is L_LM + L_emit."""
        low, high = self.settings.lam_min, self.settings.lam_max
        totals = 0
        for batch in batches:
            lam = torch.tensor([low, math.sqrt(low * high), high], device=batch.source_len.device)
            sums, counts = module(batch, lam)
            totals = totals + torch.stack([sums, counts]).double()
        scores = dict(zip(self.module_terms, (totals[0] / totals[1]).tolist(), strict=True))
        return {**scores, "score": scores["lm"] + self.settings.emit_weight * scores["emit"]}
