"""`simuleval --agent agents/oracle_agent.py`: the reference's best path. No system: it looks ahead.

What it reaches is an upper bound that sees source and reference in full (`duplex_model.oracle`), to read the other
agents' results against. Its milliseconds include the heatmap, its steps do not.
"""

from dataclasses import replace
from functools import cached_property

from simuleval.utils import entrypoint

from agents.base import PRICE, StreamAgent
from duplex_model.data import simuleval_lines
from duplex_model.oracle import OraclePath


@entrypoint
class OracleAgent(StreamAgent):
    """Follow the best path's word schedule; with the last source word, write the rest. Needs `--target`."""

    policy_class = OraclePath
    knobs = PRICE

    @classmethod
    def check(cls, args):
        for name in ("source", "target"):
            if not getattr(args, name, None):
                raise ValueError(f"--{name} is missing: the oracle path reads source and reference; add --{name} FILE")
        return super().check(args)

    def open_policy(self):
        """The policy of the sentence with the timing's index; without a pair for the reset after the last one."""
        source, reference = self.pairs.get(self.timing.index, ("", ""))
        return replace(self.build_policy(self.args), source=source, reference=reference)

    @cached_property
    def pairs(self):
        """{index: (source line, reference line)}, numbered as SimulEval numbers them."""
        return dict(enumerate(zip(*map(simuleval_lines, (self.args.source, self.args.target)), strict=True)))
