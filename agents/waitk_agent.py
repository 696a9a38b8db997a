"""`simuleval --agent agents/waitk_agent.py`: wait-k on the stage-1 causal LM, or on the dual-stream engine."""

from simuleval.utils import entrypoint

from agents.base import BaselineAgent
from duplex_model.policies import WaitK


@entrypoint
class WaitKAgent(BaselineAgent):
    """Read k words, then write one word for each word read."""

    policy_class = WaitK
    knobs = {"k": (3, "words to read before the first word is written")}
