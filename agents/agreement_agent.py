"""`simuleval --agent agents/agreement_agent.py`: write what two consecutive hypotheses agree on."""

from simuleval.utils import entrypoint

from agents.base import BaselineAgent
from duplex_model.policies import LocalAgreement


@entrypoint
class AgreementAgent(BaselineAgent):
    """After each source word, translate to the end; write the words that this and the last attempt have in common."""

    policy_class = LocalAgreement
