"""`simuleval --agent agents/offline_agent.py`: read the whole sentence, then translate."""

from simuleval.utils import entrypoint

from agents.base import BaselineAgent
from duplex_model.policies import Offline


@entrypoint
class OfflineAgent(BaselineAgent):
    """The quality that the same weights reach without any latency constraint."""

    policy_class = Offline
