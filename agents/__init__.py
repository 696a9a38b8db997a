"""SimulEval agents. Each module holds one entry point, so that `--agent FILE` is never ambiguous."""
