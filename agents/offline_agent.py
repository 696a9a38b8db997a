"""`simuleval --agent agents/offline_agent.py`: read the whole sentence, then translate."""

from simuleval.utils import entrypoint

from agents.base import StreamAgent
from duplex_model.policies import Offline


@entrypoint
class OfflineAgent(StreamAgent):
    """The quality that the same weights reach without any latency constraint."""

    default_backbone = "lm"

    @staticmethod
    def build_policy(args):
        return Offline()

    @staticmethod
    def add_args(parser):
        StreamAgent.add_args(parser)
        parser.add_argument("--backbone", choices=("duplex", "lm"), default="lm", help="which packaged model")
