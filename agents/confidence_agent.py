"""`simuleval --agent agents/confidence_agent.py`: write while the next token is probable enough."""

from simuleval.utils import entrypoint

from agents.base import BaselineAgent
from duplex_model.policies import Confidence


@entrypoint
class ConfidenceAgent(BaselineAgent):
    """EMIT when the most probable next token's probability > tau; a larger tau writes later."""

    policy_class = Confidence
    knobs = {"tau": (0.7, "EMIT threshold, a probability")}
