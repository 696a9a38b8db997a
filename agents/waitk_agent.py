"""`simuleval --agent agents/waitk_agent.py`: wait-k on the stage-1 causal LM, or on the dual-stream engine."""

from simuleval.utils import entrypoint

from agents.base import BaselineAgent
from duplex_model.policies import WaitK


@entrypoint
class WaitKAgent(BaselineAgent):
    """Read k words, then write one word for each word read."""

    @staticmethod
    def build_policy(args):
        return WaitK(args.k)

    @staticmethod
    def add_args(parser):
        BaselineAgent.add_args(parser)
        parser.add_argument("--k", type=int, default=3, help="words to read before the first word is written")
