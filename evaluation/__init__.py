"""The harness: runs SimulEval over a YAML list of systems, scores its logs, prints one table and draws one picture."""
