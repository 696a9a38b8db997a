"""`simuleval --agent agents/confidence_agent.py`: write while the next token is probable enough."""

from simuleval.utils import entrypoint

from agents.base import BaselineAgent
from duplex_model.policies import Confidence


@entrypoint
class ConfidenceAgent(BaselineAgent):
    """EMIT when the most probable next token's probability > tau; a larger tau writes later."""

    @staticmethod
    def build_policy(args):
        return Confidence(args.tau)

    @staticmethod
    def add_args(parser):
        BaselineAgent.add_args(parser)
        parser.add_argument("--tau", type=float, default=0.7, help="EMIT threshold, a probability")
