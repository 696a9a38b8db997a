"""Two-stage training: a multi-path causal LM, then the dual-stream grid."""
