"""`simuleval --agent agents/duplex_agent.py`: the dual-stream model with its EMIT head."""

import logging

from simuleval.utils import entrypoint

from agents.base import PRICE, StreamAgent
from duplex_model.policies import EmitHeadPolicy

logger = logging.getLogger("agents")


@entrypoint
class DuplexAgent(StreamAgent):
    """EMIT when sigmoid(EMIT logit) > theta; a larger lam (price of latency) writes earlier."""

    policy_class = EmitHeadPolicy
    knobs = {**PRICE, "theta": (0.5, "EMIT threshold, a probability")}

    def __init__(self, args, engine=None):
        super().__init__(args, engine)
        config = self.engine.model.config
        if not config.lam_min <= args.lam <= config.lam_max:
            logger.warning(
                f"lam = {args.lam} is outside the range {config.lam_min}..{config.lam_max} of the model's training"
            )
